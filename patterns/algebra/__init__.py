"""Algebraic simplification of arithmetic, comparisons and logic."""

ORDER = (
    "algebraic_simplify",
    "simplify_logic",
    "merge_scale_shift",
    "merge_reductions",
    "simplify_powers",
    "sink_scale_shift_below_concat",
)
"""The files in the order in which they are tried; those that are not named come last, by name."""
