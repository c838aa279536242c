"""Windows of convolutions: the positions that they read, and the smallest window that contains those of several.

A Conv along one axis has stride s, dilation d, k taps and p zeros padded in front. Its output o reads the input at s o + t, for
the taps t = -p, d - p, ..., (k - 1) d - p.

The size of the input bounds the number of outputs. Two Convs have equally many if their strides are equal, and so is their
padding in excess of their reach.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Axis:
    """The window of a convolution along one axis."""

    kernel: int
    stride: int = 1
    dilation: int = 1
    front: int = 0
    back: int = 0

    @property
    def last(self) -> int:
        """The last tap."""
        return (self.kernel - 1) * self.dilation - self.front

    @property
    def excess(self) -> int:
        """By how much the padded input is longer than the input and the reach of the kernel together."""
        return self.front + self.back - (self.kernel - 1) * self.dilation


def pointwise(like: Window) -> Window:
    """The window of a single tap that reads each element where it is, with as many axes and groups as another."""
    return Window(tuple(Axis(1) for _ in like.axes), like.groups)


@dataclass(frozen=True)
class Window:
    """The window of a convolution, and its number of groups."""

    axes: tuple[Axis, ...]
    groups: int

    @property
    def taps(self) -> int:
        """The number of taps."""
        return prod(axis.kernel for axis in self.axes)

    @property
    def is_single_tap(self) -> bool:
        """Whether each element is read where it is, and nothing else."""
        return all(axis == Axis(1, dilation=axis.dilation) for axis in self.axes)

    def attributes(self) -> dict[str, Any]:
        """The attributes of a Conv that reads so."""
        return {
            "kernel_shape": tuple(axis.kernel for axis in self.axes),
            "strides": tuple(axis.stride for axis in self.axes),
            "dilations": tuple(axis.dilation for axis in self.axes),
            "pads": (*(axis.front for axis in self.axes), *(axis.back for axis in self.axes)),
            "group": self.groups,
        }


def window(attributes: Mapping[str, Any], kernel: Sequence[int]) -> Window | None:
    """The window of a Conv with these attributes; `None` if that depends on the size of its input, or they disagree."""
    rank, automatic = len(kernel), attributes.get("auto_pad", "NOTSET")
    if automatic not in ("NOTSET", "VALID"):
        return None
    strides = attributes.get("strides") or (1,) * rank
    dilations = attributes.get("dilations") or (1,) * rank
    pads = (attributes.get("pads") if automatic == "NOTSET" else None) or (0,) * (2 * rank)
    if not len(strides) == len(dilations) == len(pads) / 2 == rank or tuple(
        attributes.get("kernel_shape") or kernel
    ) != (*kernel,):
        return None
    axes = zip(kernel, strides, dilations, pads[:rank], pads[rank:], strict=True)
    return Window(tuple(Axis(*axis) for axis in axes), attributes.get("group", 1))


def united(one: Window, other: Window) -> Window | None:
    """The smallest window with the taps of both; `None` if they do not have equally many outputs, or other groups."""
    axes = [_united(a, b) for a, b in zip(one.axes, other.axes, strict=True)]
    if one.groups != other.groups or None in axes:
        return None
    return Window(tuple(axis for axis in axes if axis is not None), one.groups)


def _united(one: Axis, other: Axis) -> Axis | None:
    dilation = other.dilation if one.kernel == 1 else one.dilation
    agree = other.kernel == 1 or other.dilation == dilation
    if not agree or one.stride != other.stride or one.excess != other.excess or (one.front - other.front) % dilation:
        return None
    front = max(one.front, other.front)
    kernel = (max(one.last, other.last) + front) // dilation + 1
    back = one.excess - front + (kernel - 1) * dilation
    return Axis(kernel, one.stride, dilation, front, back) if back >= 0 else None


def placed(weights: Array, old: Window, new: Window) -> Array:
    """Weights [out, in, *kernel] of one window as those of another that has all of its taps, in float64."""
    result = np.zeros((*weights.shape[:2], *(axis.kernel for axis in new.axes)))
    starts = [(b.front - a.front) // b.dilation for a, b in zip(old.axes, new.axes, strict=True)]
    # A single tap stands where it stands whatever its dilation.
    inside = tuple(slice(start, start + axis.kernel) for start, axis in zip(starts, old.axes, strict=True))
    result[(slice(None), slice(None), *inside)] = weights
    return result
