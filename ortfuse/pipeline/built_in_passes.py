"""Table of the built-in passes: the module of each, and the operators without which it does nothing."""

from __future__ import annotations

from collections.abc import Mapping

from ortfuse.ir.operator_registry import RECURRENT_ACTIVATIONS
from ortfuse.rewrite import Exactness
from ortfuse.transforms.lazily_loaded_pass import PassEntry

_ACTIVATIONS = frozenset(name for _, name in RECURRENT_ACTIVATIONS)
_ATTENTION = frozenset({"Attention", "MultiHeadAttention"})
_BRANCHES = frozenset({"If"})
_CONCAT = frozenset({"Concat"})
_LOOPS = frozenset({"Loop", "Scan"})
_PRODUCTS = frozenset({"MatMul", "Gemm"})
_RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
_SEQUENCES = frozenset({"SequenceAt", "ConcatFromSequence"})
_SUMS_AND_PRODUCTS = frozenset({"Add", "Sub", "Mul", "Div"})
_TRANSPOSES = frozenset({"Transpose", "Reshape"})
"""A Reshape that moves axes of size 1 alone is a Transpose, too."""


def _entry(
    home: str, kind: str, name: str, *needs: frozenset[str], exactness: Exactness = Exactness.EXACT
) -> PassEntry:
    return PassEntry(name, f"ortfuse.transforms.{home}", kind, needs, exactness)


def _rounding(home: str, kind: str, name: str, *needs: frozenset[str]) -> PassEntry:
    return _entry(home, kind, name, *needs, exactness=Exactness.ROUNDING)


BUILT_IN: Mapping[str, PassEntry] = {
    entry.name: entry
    for entry in (
        _entry("cleanup.lift_constants", "LiftConstants", "lift_constants"),
        _entry("cleanup.constant_folding", "ConstantFolding", "fold"),
        _entry("canonicalize.inline_functions", "InlineFunctions", "inline_functions"),
        _entry("control_flow.inline_branches", "InlineBranches", "inline_branches", _BRANCHES),
        _rounding("control_flow.licm", "LoopInvariantCodeMotion", "licm", _BRANCHES | _LOOPS),
        _entry("canonicalize.eliminate_sequences", "EliminateSequences", "eliminate_sequences", _SEQUENCES),
        _entry("recurrence.eliminate_unbind_stack", "EliminateUnbindStack", "eliminate_unbind_stack", _CONCAT),
        _entry(
            "canonicalize.recomputed_lengths_to_conv_dims", "RecomputedLengthsToConvDims", "recomputed_lengths_to_conv_dims",
            frozenset({"Conv"}), _SUMS_AND_PRODUCTS,
        ),
        _entry(
            "canonicalize.hoist_above_selection", "HoistAboveSelection", "hoist_above_selection",
            frozenset({"Gather", "Where", "OneHot", "Expand"}),
        ),
        _rounding(
            "selection.hoist_selection", "HoistSelection", "hoist_selection", frozenset({"Gather", "Slice", "GatherND"})
        ),
        _entry("canonicalize.drop_leading_axes", "DropLeadingAxes", "drop_leading_axes", frozenset({"Unsqueeze"})),
        _entry("canonicalize.drop_length_clamps", "DropLengthClamps", "drop_length_clamps", frozenset({"Min"})),
        _rounding(
            "layout.sink_transpose_below_split", "SinkTransposeBelowSplit", "sink_transpose_below_split", _TRANSPOSES
        ),
        _entry(
            "layout.merge_sibling_transposes", "MergeSiblingTransposes", "merge_sibling_transposes",
            frozenset({"Gather"}), frozenset({"Transpose"}),
        ),
        _entry("cleanup.cse", "CommonSubexpressionElimination", "cse"),
        _entry("cleanup.dce", "DeadCodeElimination", "dce"),
        _rounding(
            "recurrence.fuse_recurrent", "FuseRecurrent", "fuse_recurrent",
            _ACTIVATIONS | _RECURRENT, _PRODUCTS | _RECURRENT,
        ),
        _rounding("layout.choose_layouts", "Layout", "layout", _TRANSPOSES),
        _rounding("recurrence.loops_to_recurrent_and_batched_ops", "VectorizeLoops", "vectorize_loops", _LOOPS),
        _entry("control_flow.unroll_loops", "UnrollLoops", "unroll_loops", _LOOPS),
        _rounding("cleanup.finalize", "Finalize", "finalize"),
        _entry("canonicalize.wrap_in_functions", "WrapInFunctions", "wrap_in_functions"),
        _rounding(
            "fold_linear.horizontal_matmul_fusion", "HorizontalMatMulFusion", "horizontal_matmul_fusion", _PRODUCTS
        ),
        _rounding("index_maps.simplify_data_movement", "SimplifyDataMovement", "simplify_data_movement"),
        _rounding(
            "canonicalize.slices_to_split", "SlicesToSplit", "slices_to_split",
            frozenset({"Slice", "Split", "Gather", "Concat"}),
        ),
        _entry("fusion.merge_per_class_nms", "BatchNonMaxSuppression", "batch_nms", frozenset({"NonMaxSuppression"})),
        _rounding(
            "fusion.unrolled_sum_to_reduce", "UnrolledSumToReduce", "unrolled_sum_to_reduce", frozenset({"Add"})
        ),
        _rounding(
            "fusion.half_attention_in_float32", "UpcastAttention", "upcast_attention", frozenset({"Softmax"})
        ),
        _rounding(
            "fold_linear.compose_linear_maps", "ComposeLinearMaps", "compose_linear_maps",
            _SUMS_AND_PRODUCTS | _PRODUCTS | {"BatchNormalization", "Conv", "ConvTranspose", "AveragePool", "MaxPool"},
        ),
        _rounding("padding_free.padding_free", "PaddingFree", "padding_free"),
        _rounding(
            "fusion.merge_attention_heads", "MergeAttentionHeads", "merge_attention_heads", _CONCAT, _ATTENTION
        ),
    )
}  # fmt: skip
"""The passes by their names in pipelines. Each group of operators after the name is one that the pass needs one of.

Passes of `_rounding` may round otherwise than what they replace; the results of others have the same bits.
"""
