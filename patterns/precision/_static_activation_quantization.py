"""Quantise activations to 8-bit integers with a constant scale and zero point."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ortfuse.ir.refusal import Refusal
from ortfuse.quantization.quantization_parameters import SMALLEST_SCALE, unsigned_grid
from ortfuse.rewrite.pattern import Match, computed
from ortfuse.rewrite.pattern.language import Computed


def was_observed(method: str, *names: str) -> Callable[[Match], Refusal | None]:
    """The values were observed when the model was run, so that their ranges are known."""

    def guard(match: Match) -> Refusal | None:
        for name in names:
            if match.observed(name, method) is None:
                return match.refuse("values_unknown", name.partition("/")[0], "observed: give inputs to calibrate with")
        return None

    return guard


Condition = Callable[[Match], bool]


def grid(
    match: Match, name: str, method: str, *, signed: bool = False, from_zero: Condition = lambda match: False
) -> tuple[float, int]:
    """The scale by which the observed range, with 0, becomes the 8-bit numbers, and the number that stands for 0.

    Under the condition `from_zero`, negative numbers become 0.
    """
    found = match.observed(name, method)
    assert found is not None
    low, high = 0.0 if from_zero(match) else found[0], found[1]
    if signed:
        return max(-low, high, 127 * SMALLEST_SCALE) / 127, 0
    return unsigned_grid(low, high)


def grid_of(
    name: str, method: str, *, signed: bool = False, from_zero: Condition = lambda match: False
) -> tuple[Computed, Computed]:
    """The scale and the zero point of a value as constants; signed ones are symmetric."""
    kind = np.int8 if signed else np.uint8

    def found(match: Match) -> tuple[float, int]:
        return grid(match, name, method, signed=signed, from_zero=from_zero)

    return (
        computed(f"{name}_scale", lambda match: np.float32(found(match)[0])),
        computed(f"{name}_zero", lambda match: kind(found(match)[1])),
    )
