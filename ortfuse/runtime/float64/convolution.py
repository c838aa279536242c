"""Convolutions in float64, one position of the kernel after the other.

The runtime has no kernel for them, and ONNX's reference implementation lays out every window (im2col), and dilated kernels with
their zeros, which takes many times the memory of the tensors. Here each position of the kernel is a product of a slice of the
input with a matrix, added to the result:

    y[n, m, o] = b[m] + sum over k, c of w[m, c, k] x[n, c, o stride + k dilation - pad]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from ortfuse.runtime.float64.sliding_windows import or_ones, padding, positions, strided, within

Array = np.ndarray[Any, Any]


class Conv(OpRun):
    """Conv as the operator specification defines it."""

    op_domain = ""

    def _run(
        self,
        x: Array,
        w: Array,
        b: Array | None = None,
        auto_pad: str | None = None,
        dilations: Sequence[int] | None = None,
        group: int | None = None,
        kernel_shape: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[Array]:
        axes = x.ndim - 2
        kernel, steps, spread = w.shape[2:], or_ones(strides, axes), or_ones(dilations, axes)
        extents = [(size - 1) * step + 1 for size, step in zip(kernel, spread, strict=True)]
        begins, ends = padding(auto_pad or "NOTSET", pads, x.shape[2:], extents, steps)
        padded = np.pad(x, [(0, 0), (0, 0), *zip(begins, ends, strict=True)])
        sizes = [
            (size - extent) // step + 1 for size, extent, step in zip(padded.shape[2:], extents, steps, strict=True)
        ]
        made = np.zeros((x.shape[0], w.shape[0], *sizes), x.dtype)
        for at in positions(kernel):
            first = [place * step for place, step in zip(at, spread, strict=True)]
            made += _mixed(padded[within(strided(first, sizes, steps))], w[within(at)], group or 1)
        return (made if b is None else made + b.reshape(-1, *[1] * axes),)


class ConvTranspose(OpRun):
    """ConvTranspose as the operator specification defines it."""

    op_domain = ""

    def _run(
        self,
        x: Array,
        w: Array,
        b: Array | None = None,
        auto_pad: str | None = None,
        dilations: Sequence[int] | None = None,
        group: int | None = None,
        kernel_shape: Sequence[int] | None = None,
        output_padding: Sequence[int] | None = None,
        output_shape: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[Array]:
        axes, groups = x.ndim - 2, group or 1
        kernel, steps, spread = w.shape[2:], or_ones(strides, axes), or_ones(dilations, axes)
        extra = list(output_padding or [0] * axes)
        extents = [(size - 1) * step + 1 for size, step in zip(kernel, spread, strict=True)]
        whole = [(size - 1) * step + extent for size, step, extent in zip(x.shape[2:], steps, extents, strict=True)]
        full = [size + more for size, more in zip(whole, extra, strict=True)]
        begins, wanted = _cropping(auto_pad or "NOTSET", pads, output_shape, full, x.shape[2:], steps)
        channels = w.shape[1] * groups
        room = [max(size, begin + want) for size, begin, want in zip(full, begins, wanted, strict=True)]
        made = np.zeros((x.shape[0], channels, *room), x.dtype)
        turned = w.reshape(groups, w.shape[0] // groups, w.shape[1], *kernel).swapaxes(1, 2)
        turned = turned.reshape(channels, w.shape[0] // groups, *kernel)
        for at in positions(kernel):
            first = [place * step for place, step in zip(at, spread, strict=True)]
            made[within(strided(first, x.shape[2:], steps))] += _mixed(x, turned[within(at)], groups)
        kept = made[within([slice(low, low + size) for low, size in zip(begins, wanted, strict=True)])]
        return (kept if b is None else kept + b.reshape(-1, *[1] * axes),)


def _mixed(x: Array, w: Array, groups: int) -> Array:
    """The channels of `x` [n, c, ...] mixed by `w` [m, c / groups]: [n, m, ...]."""
    batch, channels, *sizes = x.shape
    count = math.prod(sizes)
    parts = x.reshape(batch, groups, channels // groups, count)
    weights = w.reshape(groups, -1, w.shape[1])
    if w.shape[1] == 1:
        mixed = weights[None] * parts
    else:
        mixed = np.matmul(weights[None], parts)
    return np.asarray(mixed.reshape(batch, w.shape[0], *sizes))


def _cropping(
    auto_pad: str,
    pads: Sequence[int] | None,
    output_shape: Sequence[int] | None,
    full: Sequence[int],
    sizes: Sequence[int],
    steps: Sequence[int],
) -> tuple[list[int], list[int]]:
    """How many elements are left out before each axis of the whole result, and how many there are in the result."""
    axes = len(full)
    if output_shape is None and auto_pad == "NOTSET":
        given = list(pads or [0] * (2 * axes))
        return given[:axes], [
            size - low - high for size, low, high in zip(full, given[:axes], given[axes:], strict=True)
        ]
    if output_shape is not None:
        wanted = list(output_shape)[-axes:]
    elif auto_pad == "VALID":
        return [0] * axes, list(full)
    else:
        wanted = [min(size * step, whole) for size, step, whole in zip(sizes, steps, full, strict=True)]
    totals = [max(size - want, 0) for size, want in zip(full, wanted, strict=True)]
    upper = auto_pad == "SAME_UPPER"
    return [total // 2 if upper else total - total // 2 for total in totals], wanted
