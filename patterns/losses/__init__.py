"""Fuse and decompose losses of classifiers."""

ORDER = (
    "fuse_focal_loss",
    "decompose_losses",
)
"""The files in the order in which they are tried; those that are not named come last, by name."""
