"""Passes over whole graphs, one per file. Each states which cases it transforms, and which it does not handle and why.

The names here are imported on first use (`ortfuse.transforms.lazily_loaded_pass`). So a pass is loaded only if the pipeline
runs it and the model has operators that it transforms.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortfuse.transforms.canonicalize.drop_leading_axes import DropLeadingAxes
    from ortfuse.transforms.canonicalize.drop_length_clamps import DropLengthClamps
    from ortfuse.transforms.canonicalize.eliminate_sequences import EliminateSequences
    from ortfuse.transforms.canonicalize.hoist_above_selection import HoistAboveSelection
    from ortfuse.transforms.canonicalize.inline_functions import InlineFunctions
    from ortfuse.transforms.canonicalize.recomputed_lengths_to_conv_dims import RecomputedLengthsToConvDims
    from ortfuse.transforms.canonicalize.slices_to_split import SlicesToSplit
    from ortfuse.transforms.canonicalize.wrap_in_functions import WrapInFunctions
    from ortfuse.transforms.choose_legal_form import LEAVE, Choice, Choices, Meter, check_forced, names_one
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
    from ortfuse.transforms.fold_linear.compose_linear_maps import ComposeLinearMaps
    from ortfuse.transforms.fold_linear.horizontal_matmul_fusion import HorizontalMatMulFusion
    from ortfuse.transforms.fusion.half_attention_in_float32 import UpcastAttention
    from ortfuse.transforms.fusion.merge_attention_heads import MergeAttentionHeads
    from ortfuse.transforms.fusion.merge_per_class_nms import BatchNonMaxSuppression
    from ortfuse.transforms.fusion.unrolled_sum_to_reduce import UnrolledSumToReduce
    from ortfuse.transforms.index_maps.simplify_data_movement import SimplifyDataMovement
    from ortfuse.transforms.layout.choose_layouts import Layout
    from ortfuse.transforms.layout.merge_sibling_transposes import MergeSiblingTransposes
    from ortfuse.transforms.layout.sink_transpose_below_split import SinkTransposeBelowSplit
    from ortfuse.transforms.recurrence.eliminate_unbind_stack import EliminateUnbindStack
    from ortfuse.transforms.recurrence.fuse_recurrent import FuseRecurrent
    from ortfuse.transforms.recurrence.loops_to_recurrent_and_batched_ops import VectorizeLoops
    from ortfuse.transforms.rule_pass import RulePass
    from ortfuse.transforms.selection.hoist_selection import HoistSelection

_HOMES = {
    "canonicalize.recomputed_lengths_to_conv_dims": "RecomputedLengthsToConvDims",
    "canonicalize.drop_leading_axes": "DropLeadingAxes",
    "canonicalize.drop_length_clamps": "DropLengthClamps",
    "canonicalize.eliminate_sequences": "EliminateSequences",
    "canonicalize.hoist_above_selection": "HoistAboveSelection",
    "canonicalize.inline_functions": "InlineFunctions",
    "canonicalize.slices_to_split": "SlicesToSplit",
    "canonicalize.wrap_in_functions": "WrapInFunctions",
    "cleanup.constant_folding": "ConstantFolding",
    "cleanup.cse": "CommonSubexpressionElimination",
    "cleanup.dce": "DeadCodeElimination",
    "cleanup.finalize": "Finalize",
    "cleanup.lift_constants": "LiftConstants",
    "constant_growth": "Grown constant_bytes",
    "context": "Context Pass",
    "control_flow.inline_branches": "InlineBranches",
    "control_flow.licm": "LoopInvariantCodeMotion",
    "control_flow.unroll_loops": "UnrollLoops",
    "fold_linear.compose_linear_maps": "ComposeLinearMaps",
    "fold_linear.horizontal_matmul_fusion": "HorizontalMatMulFusion",
    "fusion.merge_per_class_nms": "BatchNonMaxSuppression",
    "fusion.half_attention_in_float32": "UpcastAttention",
    "fusion.merge_attention_heads": "MergeAttentionHeads",
    "fusion.unrolled_sum_to_reduce": "UnrolledSumToReduce",
    "index_maps.simplify_data_movement": "SimplifyDataMovement",
    "layout.choose_layouts": "Layout",
    "layout.merge_sibling_transposes": "MergeSiblingTransposes",
    "layout.sink_transpose_below_split": "SinkTransposeBelowSplit",
    "choose_legal_form": "LEAVE Choice Choices Meter check_forced names_one",
    "recurrence.eliminate_unbind_stack": "EliminateUnbindStack",
    "recurrence.fuse_recurrent": "FuseRecurrent",
    "recurrence.loops_to_recurrent_and_batched_ops": "VectorizeLoops",
    "rule_pass": "RulePass",
    "selection.hoist_selection": "HoistSelection",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "LEAVE",
    "BatchNonMaxSuppression",
    "Choice",
    "Choices",
    "CommonSubexpressionElimination",
    "ComposeLinearMaps",
    "ConstantFolding",
    "Context",
    "DeadCodeElimination",
    "DropLeadingAxes",
    "DropLengthClamps",
    "EliminateSequences",
    "EliminateUnbindStack",
    "Finalize",
    "FuseRecurrent",
    "Grown",
    "HoistAboveSelection",
    "HoistSelection",
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
    "RecomputedLengthsToConvDims",
    "RulePass",
    "SimplifyDataMovement",
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


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'ortfuse.transforms' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"ortfuse.transforms.{_HOME_OF[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
