"""Evaluate pools in float64, one window position after the other: ONNX's reference returns some wrong shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from ortfuse.runtime.float64.sliding_windows import or_ones, padding, positions, strided, within

Array = np.ndarray[Any, Any]


class AveragePool(OpRun):
    """AveragePool as the operator specification defines it: what lies beyond the padding counts nowhere."""

    op_domain = ""

    def _run(
        self,
        x: Array,
        auto_pad: str | None = None,
        ceil_mode: int | None = None,
        count_include_pad: int | None = None,
        dilations: Sequence[int] | None = None,
        kernel_shape: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[Array]:
        axes, kernel = x.ndim - 2, list(kernel_shape or ())
        steps, spread = or_ones(strides, axes), or_ones(dilations, axes)
        extents = [(size - 1) * step + 1 for size, step in zip(kernel, spread, strict=True)]
        # For the padding of SAME, the runtime takes no notice of dilations.
        begins, ends = padding(auto_pad or "NOTSET", pads, x.shape[2:], kernel, steps)
        sizes, beyond = [], []
        for size, low, high, extent, step in zip(x.shape[2:], begins, ends, extents, steps, strict=True):
            room = low + size + high
            # The runtime divides towards zero: an image smaller than the window has one.
            count = math.trunc((room - extent) / step) + 1
            if ceil_mode and (room - extent) % step and count * step < low + size:
                count += 1  # a last window begins in the image or the padding before it
            sizes.append(count)
            beyond.append(max((count - 1) * step + extent - room, 0))
        around = [(0, 0), (0, 0), *zip(begins, ends, strict=True)]
        outside = [(0, 0), (0, 0), *((0, more) for more in beyond)]
        ones = np.pad(np.ones((1, 1, *x.shape[2:])), around, constant_values=1 if count_include_pad else 0)
        values, counted = np.pad(np.pad(x, around), outside), np.pad(ones, outside)
        total, number = np.zeros((*x.shape[:2], *sizes), x.dtype), np.zeros((1, 1, *sizes))
        for at in positions(kernel):
            first = [place * step for place, step in zip(at, spread, strict=True)]
            window = within(strided(first, sizes, steps))
            total += values[window]
            number += counted[window]
        return ((total / np.maximum(number, 1)).astype(x.dtype),)


class GlobalAveragePool(OpRun):
    """The mean of each channel of an image."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (np.asarray(x.mean(axis=tuple(range(2, x.ndim)), keepdims=True)),)


class GlobalMaxPool(OpRun):
    """The maximum of each channel of an image."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (np.asarray(x.max(axis=tuple(range(2, x.ndim)), keepdims=True)),)
