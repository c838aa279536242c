"""Whole-graph algorithms, one per file. Each states in its file what it handles, and what it leaves alone and why."""

from ortfuse.transforms.canonicalize.dims_from_convolution import DimsFromConvolution
from ortfuse.transforms.canonicalize.drop_length_clamps import DropLengthClamps
from ortfuse.transforms.canonicalize.eliminate_sequences import EliminateSequences
from ortfuse.transforms.canonicalize.inline_functions import InlineFunctions
from ortfuse.transforms.canonicalize.simplify_data_movement import SimplifyDataMovement
from ortfuse.transforms.canonicalize.slices_to_split import SlicesToSplit
from ortfuse.transforms.canonicalize.wrap_in_functions import WrapInFunctions
from ortfuse.transforms.cleanup.constant_folding import ConstantFolding
from ortfuse.transforms.cleanup.cse import CommonSubexpressionElimination
from ortfuse.transforms.cleanup.dce import DeadCodeElimination
from ortfuse.transforms.cleanup.finalize import Finalize
from ortfuse.transforms.cleanup.lift_constants import LiftConstants
from ortfuse.transforms.constant_growth import Grown, constant_bytes
from ortfuse.transforms.context import Context, Pass
from ortfuse.transforms.control_flow.inline_branches import InlineBranches
from ortfuse.transforms.control_flow.licm import LoopInvariantCodeMotion
from ortfuse.transforms.control_flow.unroll_loops import UnrollLoops
from ortfuse.transforms.fold_linear.fold_channel_affine import FoldChannelAffine
from ortfuse.transforms.fold_linear.horizontal_matmul_fusion import HorizontalMatMulFusion
from ortfuse.transforms.fusion.batch_nms import BatchNonMaxSuppression
from ortfuse.transforms.fusion.half_attention_in_float32 import UpcastAttention
from ortfuse.transforms.fusion.merge_attention_heads import MergeAttentionHeads
from ortfuse.transforms.fusion.unrolled_sum_to_reduce import UnrolledSumToReduce
from ortfuse.transforms.index_maps.simplify_index_maps import SimplifyIndexMaps
from ortfuse.transforms.layout import Layout
from ortfuse.transforms.layout.merge_sibling_transposes import MergeSiblingTransposes
from ortfuse.transforms.layout.sink_transpose_below_split import SinkTransposeBelowSplit
from ortfuse.transforms.profitability import LEAVE, Choice, Choices, Meter, check_forced, names_one
from ortfuse.transforms.recurrence import EliminateUnbindStack, FuseRecurrent, VectorizeLoops
from ortfuse.transforms.rule_pass import RulePass

__all__ = [
    "LEAVE",
    "BatchNonMaxSuppression",
    "Choice",
    "Choices",
    "CommonSubexpressionElimination",
    "ConstantFolding",
    "Context",
    "DeadCodeElimination",
    "DimsFromConvolution",
    "DropLengthClamps",
    "EliminateSequences",
    "EliminateUnbindStack",
    "Finalize",
    "FoldChannelAffine",
    "FuseRecurrent",
    "Grown",
    "HorizontalMatMulFusion",
    "InlineBranches",
    "InlineFunctions",
    "Layout",
    "LiftConstants",
    "LoopInvariantCodeMotion",
    "MergeAttentionHeads",
    "MergeSiblingTransposes",
    "Meter",
    "Pass",
    "RulePass",
    "SimplifyDataMovement",
    "SimplifyIndexMaps",
    "SinkTransposeBelowSplit",
    "SlicesToSplit",
    "UnrollLoops",
    "UnrolledSumToReduce",
    "UpcastAttention",
    "VectorizeLoops",
    "WrapInFunctions",
    "check_forced",
    "constant_bytes",
    "names_one",
]
