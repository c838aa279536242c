"""Normalisations, affine maps of channels, softmax."""
