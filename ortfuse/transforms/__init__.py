"""Whole-graph algorithms, one per file. Each states in its file what it handles, and what it leaves alone and why."""

from ortfuse.transforms.canonicalize.dims_from_convolution import DimsFromConvolution
from ortfuse.transforms.canonicalize.drop_length_clamps import DropLengthClamps
from ortfuse.transforms.canonicalize.forward_sequences import ForwardSequences
from ortfuse.transforms.canonicalize.inline_functions import InlineFunctions
from ortfuse.transforms.canonicalize.simplify_data_movement import SimplifyDataMovement
from ortfuse.transforms.canonicalize.slices_to_split import SlicesToSplit
from ortfuse.transforms.canonicalize.wrap_as_functions import WrapAsFunctions
from ortfuse.transforms.cleanup.constant_folding import ConstantFolding
from ortfuse.transforms.cleanup.constants_to_initializers import ConstantsToInitializers
from ortfuse.transforms.cleanup.cse import CommonSubexpressionElimination
from ortfuse.transforms.cleanup.dce import DeadCodeElimination
from ortfuse.transforms.cleanup.finalize import Finalize
from ortfuse.transforms.constant_growth import Grown, constant_bytes
from ortfuse.transforms.context import Context, Pass
from ortfuse.transforms.control_flow.inline_branches import InlineBranches
from ortfuse.transforms.control_flow.licm import LoopInvariantCodeMotion
from ortfuse.transforms.control_flow.unroll import Unroll
from ortfuse.transforms.fold_linear.fold_channel_affine import FoldChannelAffine
from ortfuse.transforms.fold_linear.horizontal_matmul_fusion import HorizontalMatMulFusion
from ortfuse.transforms.fusion.batch_nms import BatchNonMaxSuppression
from ortfuse.transforms.fusion.join_heads import JoinHeads
from ortfuse.transforms.fusion.unrolled_sum_to_reduce import UnrolledSumToReduce
from ortfuse.transforms.fusion.widen_attention import WidenAttention
from ortfuse.transforms.layout import Layout
from ortfuse.transforms.layout.merge_sibling_transposes import MergeSiblingTransposes
from ortfuse.transforms.layout.sink_transpose_below_split import SinkTransposeBelowSplit
from ortfuse.transforms.profitability import LEAVE, Choice, Choices, Meter, check_forced, names_one
from ortfuse.transforms.recurrence import FuseLoops, FuseUnrolledRecurrence, StackOfElements
from ortfuse.transforms.rule_pass import RulePass

__all__ = [
    "LEAVE",
    "BatchNonMaxSuppression",
    "Choice",
    "Choices",
    "CommonSubexpressionElimination",
    "ConstantFolding",
    "ConstantsToInitializers",
    "Context",
    "DeadCodeElimination",
    "DimsFromConvolution",
    "DropLengthClamps",
    "Finalize",
    "FoldChannelAffine",
    "ForwardSequences",
    "FuseLoops",
    "FuseUnrolledRecurrence",
    "Grown",
    "HorizontalMatMulFusion",
    "InlineBranches",
    "InlineFunctions",
    "JoinHeads",
    "Layout",
    "LoopInvariantCodeMotion",
    "MergeSiblingTransposes",
    "Meter",
    "Pass",
    "RulePass",
    "SimplifyDataMovement",
    "SinkTransposeBelowSplit",
    "SlicesToSplit",
    "StackOfElements",
    "Unroll",
    "UnrolledSumToReduce",
    "WidenAttention",
    "WrapAsFunctions",
    "check_forced",
    "constant_bytes",
    "names_one",
]
