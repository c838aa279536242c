"""Arithmetic on ranges, following IEEE 754 and machine integers.

A sum, difference, product or quotient of two pieces has its minimum and maximum at their ends, and rounding preserves
order, so the rounded ends are valid bounds. If both ends round to the same number, that is the only possible result: this is
how a filler such as -3e38 absorbs what is added to it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.ranges.queries import Answer, Asking
from ortfuse.analysis.ranges.range import Number, Piece, Range, anything, between, of_pieces, stored

_Arrays = Callable[[Any, Any], Any]


SLACK = 2.0**-7
"""How far approximations of transcendental functions may exceed the bounds of the exact function."""


def combine(
    floats: _Arrays, integers: Callable[[int, int], int], a: Range, b: Range, dtype: ir.DataType
) -> Range | None:
    """The range of an operation on two numbers that is monotone in each of them."""
    pairs = list(product(a.pieces, b.pieces))
    nan = a.nan or b.nan
    if not dtype.is_floating_point():
        corners = [[integers(int(x), int(y)) for x in p for y in q] for p, q in pairs]
        return stored([(min(row), max(row)) for row in corners], dtype, nan)
    first = np.array([[p[0], p[0], p[1], p[1]] for p, _ in pairs], dtype=np.float64)
    second = np.array([[q[0], q[1], q[0], q[1]] for _, q in pairs], dtype=np.float64)
    with np.errstate(all="ignore"):
        results = floats(first, second)
        lost = np.isnan(results)
        if lost.any():
            nan = True
            if floats is np.multiply:
                # Infinity times a zero at the end of a piece: the numbers next to that zero give anything from zero upwards.
                results = np.where(lost, 0.0, results)
            results = results[~np.isnan(results).all(axis=1)]
        if not len(results):
            return None
        ends = np.stack([np.fmin.reduce(results, axis=1), np.fmax.reduce(results, axis=1)], axis=1)
    return stored([(low, high) for low, high in ends.tolist()], dtype, nan)


def multiply(a: Range, b: Range, dtype: ir.DataType) -> Range | None:
    """Products. A zero inside a piece also makes NaN possible if the other operand can be infinite."""
    found = combine(np.multiply, operator.mul, a, b, dtype)
    lost = any(x.holds(0) and (y.low == -math.inf or y.high == math.inf) for x, y in ((a, b), (b, a)))
    return Range(found.points, found.interval, True) if found is not None and lost else found


def extreme(choose: Callable[[Number, Number], Number], a: Range, b: Range) -> Range | None:
    """The larger or smaller of two numbers. If one of them is NaN, the result is NaN or the other number."""
    pieces: list[Piece] = [(choose(p[0], q[0]), choose(p[1], q[1])) for p in a.pieces for q in b.pieces]
    pieces += (b.pieces if a.nan else []) + (a.pieces if b.nan else [])
    return of_pieces(pieces, a.nan or b.nan)


def unless_anything(found: Range | None, op: Asking) -> Range | None:
    """The range; None if it is everything that the element type can hold."""
    return None if found == anything(op.result_dtype) else found


def monotone(function: Callable[[Number], Number]) -> Answer:
    """Return the range function of a monotone function of one number."""

    def answer(op: Asking) -> Range | None:
        found = op.range(0)
        return stored(
            [ordered(function(low), function(high)) for low, high in found.pieces], op.result_dtype, found.nan
        )

    return answer


def ordered(a: Number, b: Number) -> Piece:
    """Return two numbers as a piece, the lower one first."""
    return (a, b) if a <= b else (b, a)


def finitely(function: Callable[[Any], Number]) -> Callable[[Number], Number]:
    """Extend a function so that it maps infinities to themselves."""
    return lambda number: number if isinstance(number, int) or math.isinf(number) else float(function(number))


def bounded(low: float, high: float, *, infinity_is_lost: bool) -> Answer:
    """The range of a function that is bounded for every argument."""

    def answer(op: Asking) -> Range | None:
        found = op.range_or_anything(0)
        return between(low, high, nan=found.nan or (infinity_is_lost and not found.is_finite))

    return answer


def not_negative(slack: float) -> Answer:
    """The range of what is never negative, or by no more than that."""

    def answer(op: Asking) -> Range | None:
        known = op.result_dtype.is_floating_point()
        return between(-slack, math.inf, nan=op.range_or_anything(0).nan) if known else None

    return answer
