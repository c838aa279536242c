"""Normalisations, affine maps of channels, softmax."""

ORDER = (
    "channel",
    "embedding",
    "group",
    "moments",
    "normalization",
    "pooled",
    "softmax",
    "spelled",
)
"""The files in the order in which they are tried; those that are not named come last, by name."""
