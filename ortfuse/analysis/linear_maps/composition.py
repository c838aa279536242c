"""Compositions of layers with diagonal maps, with movement of channels and with each other, in float64.

Weights are [group, output, input, *taps], biases and diagonal maps have a number for each channel of all groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"


def scaled_outputs(kernel: Array, factor: Array) -> Array:
    """Return the weights of `factor * layer(x)`."""
    return kernel * factor.reshape(*kernel.shape[:2], *[1] * (kernel.ndim - 2))


def scaled_inputs(kernel: Array, factor: Array) -> Array:
    """Return the weights of `layer(factor * x)`."""
    return kernel * factor.reshape(kernel.shape[0], 1, kernel.shape[2], *[1] * (kernel.ndim - 3))


def image_of(kernel: Array, offset: Array) -> Array:
    """Return the result of the layer, without its bias, for an input that is one number in each channel, inside of padding."""
    summed = kernel.sum(axis=tuple(range(3, kernel.ndim)))
    found: Array = np.einsum("goi,gi->go", summed, offset.reshape(kernel.shape[0], -1)).reshape(-1)
    return found


def of_selected_inputs(kernel: Array, places: Sequence[int], channels: int) -> Array:
    """Return the weights, of one group, of `layer(x[places])`, for an x of so many channels."""
    made = np.zeros((1, kernel.shape[1], channels, *kernel.shape[3:]))
    for number, place in enumerate(places):
        made[:, :, place] += kernel[:, :, number]
    return made


def of_selected_outputs(kernel: Array, places: Sequence[int]) -> Array:
    """Return the weights, of one group, of `layer(x)[places]`."""
    return kernel[:, np.asarray(places)]


def chained(first: Array, second: Array) -> Array:
    """Return the weights, of one group, of `second(first(x))`, where along each axis one of them has a single tap."""
    taps = tuple(max(sizes) for sizes in zip(first.shape[3:], second.shape[3:], strict=True))
    wide = [np.broadcast_to(one[0], (*one.shape[1:3], *taps)).reshape(*one.shape[1:3], -1) for one in (first, second)]
    made: Array = np.einsum("mit,omt->oit", *wide, optimize=True)
    return made.reshape(1, *made.shape[:2], *taps)
