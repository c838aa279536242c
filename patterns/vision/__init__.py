"""Boxes, enlarged images, places under affine maps."""
