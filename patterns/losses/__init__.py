"""Losses of classifiers."""

ORDER = (
    "focal",
    "recognised",
    "spelled",
)
"""The files in the order in which they are tried; those that are not named come last, by name."""
