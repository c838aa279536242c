"""Canonicalization: rules that bring equivalent spellings of a graph to one form."""

PASS = "canonicalize"

ORDER = (
    "scatter_to_concat",
    "sink_reshape",
    "sink_expand",
    "remove_expand",
    "float_range_to_int",
    "merge_dynamic_reshapes",
    "gather_uniform_indices",
    "noop_elimination",
    "compose_slice_and_concat",
    "gather_nd_to_slice",
    "sum_to_mean",
    "hoist_reshape",
    "merge_reshapes_and_transposes",
    "merge_slices",
    "sum_to_add",
    "simplify_masks",
)
"""The files in the order in which they are tried; those that are not named come last, by name."""
