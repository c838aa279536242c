"""Whole-graph algorithms, one per file. Each states in its file what it handles, and what it leaves alone and why."""

from ortfuse.transforms.canonicalize.dims_from_convolution import DimsFromConvolution
from ortfuse.transforms.canonicalize.drop_length_clamps import DropLengthClamps
from ortfuse.transforms.canonicalize.forward_sequences import Sequences
from ortfuse.transforms.canonicalize.inline_functions import InlineFunctions
from ortfuse.transforms.canonicalize.simplify_data_movement import Moves
from ortfuse.transforms.canonicalize.slices_to_split import Splits
from ortfuse.transforms.canonicalize.wrap_as_functions import AsFunctions
from ortfuse.transforms.cleanup.constant_folding import Fold
from ortfuse.transforms.cleanup.constants_to_initializers import Constants
from ortfuse.transforms.cleanup.cse import CommonSubexpressions
from ortfuse.transforms.cleanup.dce import DeadCode
from ortfuse.transforms.cleanup.finalize import Finalize
from ortfuse.transforms.constant_growth import Grown, constant_bytes
from ortfuse.transforms.context import Context, Pass
from ortfuse.transforms.control_flow.inline_branches import InlineBranches
from ortfuse.transforms.control_flow.licm import Hoist
from ortfuse.transforms.control_flow.unroll import Unroll
from ortfuse.transforms.fold_linear.fold_channel_affine import FoldChannelAffine
from ortfuse.transforms.fold_linear.horizontal_matmul_fusion import MergeProducts
from ortfuse.transforms.fusion.batch_nms import Suppressions
from ortfuse.transforms.fusion.join_heads import JoinHeads
from ortfuse.transforms.fusion.unrolled_sum_to_reduce import AddedParts
from ortfuse.transforms.fusion.widen_attention import WidenAttention
from ortfuse.transforms.layout import Layout
from ortfuse.transforms.layout.merge_sibling_transposes import PartsTogether
from ortfuse.transforms.layout.sink_transpose_below_split import PartsFirst
from ortfuse.transforms.profitability import LEAVE, Choice, Choices, Meter, check_pins, names_one
from ortfuse.transforms.recurrence import Loops, Recurrent, Stacks
from ortfuse.transforms.rule_pass import RulePass

__all__ = [
    "LEAVE",
    "AddedParts",
    "AsFunctions",
    "Choice",
    "Choices",
    "CommonSubexpressions",
    "Constants",
    "Context",
    "DeadCode",
    "DimsFromConvolution",
    "DropLengthClamps",
    "Finalize",
    "Fold",
    "FoldChannelAffine",
    "Grown",
    "Hoist",
    "InlineBranches",
    "InlineFunctions",
    "JoinHeads",
    "Layout",
    "Loops",
    "MergeProducts",
    "Meter",
    "Moves",
    "PartsFirst",
    "PartsTogether",
    "Pass",
    "Recurrent",
    "RulePass",
    "Sequences",
    "Splits",
    "Stacks",
    "Suppressions",
    "Unroll",
    "WidenAttention",
    "check_pins",
    "constant_bytes",
    "names_one",
]
