"""A BatchNormalization that divides by 1: one node that scales and shifts the channels of an image."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ortfuse.rewrite.pattern import Match, Pattern, computed, op

from .._shared_guards import array_like

UNIT_EPSILON = 2.0**-17
"""The epsilon. It is not 0, which PyTorch refuses in training, and so converters to it.

A variance of 1 - 2^-17 and this add up to exactly 1 in float32 and float64, and to 1 within rounding in smaller types.
"""


def unit_batch_normalization(
    x: Pattern, scale: Pattern, shift: Pattern, mean: Pattern, channels: Callable[[Match], int]
) -> Pattern:
    """Return (x - mean) scale + shift, where the vectors have a number for each of the `channels`."""
    variance = computed("variance", lambda match: array_like(match, np.full(channels(match), 1 - UNIT_EPSILON)))
    return op.BatchNormalization(x, scale, shift, mean, variance, epsilon=UNIT_EPSILON)
