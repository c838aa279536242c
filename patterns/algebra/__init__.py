"""Algebraic simplification of arithmetic, comparisons and logic."""

ORDER = (
    "simplifying_identities",
    "canonical_identities",
    "merge_reductions",
)
"""The files in the order in which they are tried; those that are not named come last, by name."""
