"""Expressions for integers of 8 and 16 bits in float32, for which WebGPU has no kernels.

round(x) = (x + C) - C          C = 1.5 2^23, |x| <= 2^22, halves to even

Rationale: numbers next to C are integers, so that the addition rounds to one, and the subtraction is exact. A kernel of WebGPU
stores its result in float32, so that no compiler merges the two. IEEE 754 has halves rounded to even.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite.pattern import Guard, Match, Pattern, computed, op

ROUNDS = 1.5 * 2**23
"""The number next to which float32 has integers alone."""

NUMBERS = (ir.DataType.UINT8, ir.DataType.INT8, ir.DataType.UINT16, ir.DataType.INT16)
"""Integers whose differences float32 holds exactly."""


def number(name: str, value: float) -> Pattern:
    """A float32 constant."""
    made: Pattern = computed(name, lambda _: np.float32(value))
    return made


def rounded(value: Pattern) -> Pattern:
    """The nearest integers of numbers up to 2^22."""
    made: Pattern = op.Sub(op.Add(value, number("rounds", ROUNDS)), number("rounds", ROUNDS))
    return made


def scale_is_positive(name: str) -> Guard:
    """The scale is a constant of positive normal float32 numbers."""

    def is_positive(match: Match) -> Refusal | None:
        if (refused := match.unless_dtype(name, ir.DataType.FLOAT)) is not None:
            return refused
        found = match.facts.const(match[name])
        tiny = np.finfo(np.float32).tiny
        fits = found is not None and bool((np.isfinite(found) & (found >= tiny)).all())
        return match.unless_value(name, fits, "a constant of positive normal numbers")

    return is_positive


def zero_is_known(scale: str, zero: str) -> Guard:
    """The zero point is absent, or a constant of the shape of the scale."""

    def is_known(match: Match) -> Refusal | None:
        if match.get(zero) is None:
            return None
        if match.facts.const(match[zero]) is None:
            return match.refuse("not_constant", zero, "a constant")
        return match.unless_value(zero, match.shape(zero) == match.shape(scale), "of the shape of the scale")

    return is_known


def is_along_known_axis(scale: str, axis: str, of: str) -> Guard:
    """The scale is one number, or has one for each element of an axis of a value of known rank."""

    def is_along_axis(match: Match) -> Refusal | None:
        shape, rank = match.shape(scale), match.rank(of)
        if shape is not None and len(shape) < 2 and (not shape or shape == (1,)):
            return None
        if shape is None or len(shape) != 1:
            return match.refuse("shape", scale, "one number, or one for each element of an axis")
        at = 1 if match[axis] is None else match[axis]
        return (
            match.refuse("rank", of, "a known one with that axis") if rank is None or not -rank <= at < rank else None
        )

    return is_along_axis


def along_axis(numbers: np.ndarray[Any, Any], axis: int | None, rank: int | None) -> np.ndarray[Any, Any]:
    """Numbers so that they broadcast along an axis; a single one, or equal ones, as a scalar."""
    flat = numbers.reshape(-1)
    if flat.size and (flat == flat[0]).all():
        return np.asarray(flat[0])
    assert rank
    at = (1 if axis is None else axis) % rank
    return flat.reshape(-1, *[1] * (rank - 1 - at))
