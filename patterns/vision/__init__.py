"""Fuse Resize, GridSample, affine grids, and boxes of NonMaxSuppression."""

ORDER = (
    "affine_grid_sum_to_matmul",
    "nms_corners_to_center_boxes",
    "fuse_bilinear_resize",
    "fuse_nearest_resize",
    "fuse_grid_sample",
)
"""The files in the order in which they are tried; those that are not named come last, by name."""
