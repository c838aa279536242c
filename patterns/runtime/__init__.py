"""Rewrites that keep the runtime's own optimisations from making a model slower, from changing it, or from crashing on it."""

ORDER = (
    "factors",
    "integer_products",
    "pools",
    "signed_pairs",
    "sums",
    "transpositions",
    "zero_points",
)
"""The files in the order in which they are tried; those that are not named come last, by name."""
