"""Boxes, enlarged images, places under affine maps, images sampled at given places."""

ORDER = (
    "affine",
    "boxes",
    "interpolated",
    "regions",
    "resizing",
    "sampling",
)
"""The files in the order in which they are tried; those that are not named come last, by name."""
