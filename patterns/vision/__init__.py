"""Fuse Resize, RoiAlign, GridSample, affine grids, and boxes of NonMaxSuppression."""

ORDER = (
    "affine_grid",
    "nms_box_format",
    "bilinear_resize",
    "roi_align",
    "nearest_resize",
    "grid_sample",
)
"""The files in the order in which they are tried; those that are not named come last, by name."""
