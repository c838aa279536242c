"""Reshape, Transpose, Gather, Slice and Concat in fewer or cheaper nodes."""

ORDER = (
    "fold_unit_dims",
    "gather_of_range_to_slice",
    "merge_concats",
)
"""The files in the order in which they are tried; those that are not named come last, by name."""
