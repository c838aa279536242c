"""Whole-graph algorithms, one per file. Each states in its file what it handles, and what it leaves alone and why."""

from ortfuse.passes.added_parts import AddedParts
from ortfuse.passes.as_functions import AsFunctions
from ortfuse.passes.constants import Constants
from ortfuse.passes.context import Context, Pass
from ortfuse.passes.cse import CommonSubexpressions
from ortfuse.passes.dce import DeadCode
from ortfuse.passes.dims_from_convolution import DimsFromConvolution
from ortfuse.passes.drop_length_clamps import DropLengthClamps
from ortfuse.passes.finalize import Finalize
from ortfuse.passes.fold import Fold
from ortfuse.passes.fold_channel_affine import FoldChannelAffine
from ortfuse.passes.growth import Grown, constant_bytes
from ortfuse.passes.hoist import Hoist
from ortfuse.passes.inline_branches import InlineBranches
from ortfuse.passes.inline_functions import InlineFunctions
from ortfuse.passes.join_heads import JoinHeads
from ortfuse.passes.layout import Layout
from ortfuse.passes.merge_products import MergeProducts
from ortfuse.passes.moves import Moves
from ortfuse.passes.parts_first import PartsFirst
from ortfuse.passes.parts_together import PartsTogether
from ortfuse.passes.profitability import LEAVE, Choice, Choices, Meter, check_pins, names_one
from ortfuse.passes.recurrence import Loops, Recurrent, Stacks
from ortfuse.passes.rules import RulePass
from ortfuse.passes.sequences import Sequences
from ortfuse.passes.splits import Splits
from ortfuse.passes.suppressions import Suppressions
from ortfuse.passes.unroll import Unroll
from ortfuse.passes.widen_attention import WidenAttention

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
