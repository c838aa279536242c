"""Merge or replace Reshape, Transpose, Gather, Slice and Concat by fewer or cheaper nodes."""

ORDER = (
    "unit_dims_of_transpose_and_expand",
    "hoist_reshape_after_fusions",
    "gather_of_range_to_slice",
    "merge_concats",
)
"""The files in the order in which they are tried; those that are not named come last, by name."""
