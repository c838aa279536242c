"""Shapes and attributes of convolutions that several rule tests share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PADDED = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "strides": (1, 1), "dilations": (1, 1), "group": 1}

BARE = {"kernel_shape": (3, 3), "strides": (1, 1), "dilations": (1, 1), "group": 1}

STATISTICS = ("scale", "shift", "mean", "variance")

POSITIVE = {"variance": "positive"}

NORMALISATION: Mapping[str, list[Any]] = {"epsilon": [1e-5, 1e-3], "momentum": [0.9], "training": [0]}

OPERANDS = ("factor", "divisor", "added", "subtracted", "minuend")


def images(x: str, weight: str, **operands: str) -> dict[str, str]:
    """The shapes of a convolution with a bias of 4 numbers; those of an affine map are named by what they have in common."""
    shapes = {"x": x, "weight": weight, "bias": "4"}
    for name in operands:
        names = {"statistics": STATISTICS, "operands": OPERANDS}.get(name, (name,))
        shapes |= dict.fromkeys(names, operands[name])
    return shapes


def attributes(*convolutions: Mapping[str, Any], **others: list[Any]) -> list[dict[str, list[Any]]]:
    """The attributes of one convolution for each set of shapes, and others that all sets have in common."""
    return [{"conv": [one], **others} for one in convolutions]


def typical(**operands: str) -> dict[str, str]:
    """The shapes of a convolution in the middle of a network, whose kernel is the one of `PADDED` and `BARE`."""
    return {**images("1 64 56 56", "64 64 3 3", **operands), "bias": "64"}
