"""Fuse feed-forward blocks: two linear layers, and gated linear units."""

ORDER = (
    "fuse_linear_activation_linear",
    "fuse_glu",
)
"""The files in the order in which they are tried; those that are not named come last, by name."""
