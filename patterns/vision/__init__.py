"""Boxes, enlarged images, places under affine maps, images sampled at given places."""
