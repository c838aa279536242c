"""Shapes and attributes of convolutions that several rule tests share."""

from __future__ import annotations

PADDED = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "strides": (1, 1), "dilations": (1, 1), "group": 1}


def images(x: str, weight: str, **operands: str) -> dict[str, str]:
    """The shapes of a convolution with a bias of 4 numbers, and of other operands."""
    return {"x": x, "weight": weight, "bias": "4", **operands}


def typical(**operands: str) -> dict[str, str]:
    """The shapes of a convolution in the middle of a network, whose kernel is the one of `PADDED`."""
    return {**images("1 64 56 56", "64 64 3 3", **operands), "bias": "64"}
