"""Attention: the operator, its masks, its heads, its caches."""

ORDER = (
    "biases",
    "dot_product",
    "factor",
    "fallback",
    "grouped_rows",
    "groups",
    "heads",
    "hidden_rows",
    "kept",
    "long",
    "masked_fill",
    "masks",
    "narrow",
    "sinks",
    "turned",
    "values",
    "windows",
)
"""The files in the order in which they are tried; those that are not named come last, by name."""
