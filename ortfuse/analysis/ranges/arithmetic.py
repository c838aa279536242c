"""Arithmetic on ranges, following IEEE 754 and machine integers.

A sum, difference, product or quotient of two pieces has its minimum and maximum at their ends, and rounding preserves
order, so the rounded ends are valid bounds. If both ends round to the same number, that is the only possible result: this is
how a filler such as -3e38 absorbs what is added to it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import reduce
from itertools import product
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.ranges.queries import Answer, Asking, ranges
from ortfuse.analysis.ranges.range import Number, Piece, Range, anything, between, of_pieces, one_of, stored, union
from ortfuse.ir.dims import product as product_of
from ortfuse.ir.dims import upper_bound
from ortfuse.ir.traits import MICROSOFT

_Arrays = Callable[[Any, Any], Any]

_SLACK = 2.0**-7
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


def _quotient(a: int, b: int) -> int:
    """The quotient, rounded towards zero."""
    return abs(a) // abs(b) * (1 if (a >= 0) == (b >= 0) else -1)


@ranges("Add", "Sum", by_element=True)
def add(op: Asking) -> Range | None:
    """Sums; with more than two operands the order of summation, and so the rounding, is unknown."""
    if op.node.op_type == "Sum" and len(op.inputs) != 2:
        return None if len(op.inputs) != 1 else op.range(0)
    return combine(np.add, operator.add, op.range(0), op.range(1), op.result_dtype)


@ranges("Sub", by_element=True)
def subtract(op: Asking) -> Range | None:
    """Differences."""
    return combine(np.subtract, operator.sub, op.range(0), op.range(1), op.result_dtype)


@ranges("Mul", by_element=True)
def product_(op: Asking) -> Range | None:
    """Products; squares of floats are not negative."""
    if op.operand(0) is op.operand(1) and op.result_dtype.is_floating_point():
        return _square(op)
    return multiply(op.range(0), op.range(1), op.result_dtype)


def _square(op: Asking) -> Range | None:
    found = op.range_or_anything(0)
    pieces = [
        (0.0 if low < 0 < high else min(low * low, high * high), max(low * low, high * high))
        for low, high in found.pieces
    ]
    return stored(pieces, op.result_dtype, found.nan)


@ranges("Pow", by_element=True)
def power(op: Asking) -> Range | None:
    """Squares."""
    exponent = op.range(1)
    return _square(op) if exponent == one_of(2) and op.result_dtype.is_floating_point() else None


@ranges("Div", by_element=True)
def divide(op: Asking) -> Range | None:
    """Quotients by a divisor that is never zero; those of integers are rounded towards zero."""
    divisor = op.range(1)
    if divisor.holds(0):
        return None
    return combine(np.divide, _quotient, op.range(0), divisor, op.result_dtype)


@ranges("Mod", by_element=True)
def modulo(op: Asking) -> Range | None:
    """Remainders of integers by a positive number."""
    divisor = op.range(1)
    if op.result_dtype.is_floating_point() or op.attr_int("fmod", 0) or divisor.low <= 0:
        return None
    dividend = op.range(0)
    if dividend.low >= 0 and dividend.high < divisor.low:
        return dividend
    return between(0, divisor.high - 1)


def _extreme(choose: Callable[[Number, Number], Number], a: Range, b: Range) -> Range | None:
    """The larger or smaller of two numbers. If one of them is NaN, the result is NaN or the other number."""
    pieces: list[Piece] = [(choose(p[0], q[0]), choose(p[1], q[1])) for p in a.pieces for q in b.pieces]
    pieces += (b.pieces if a.nan else []) + (a.pieces if b.nan else [])
    return of_pieces(pieces, a.nan or b.nan)


@ranges("Max", "Min", by_element=True)
def extreme(op: Asking) -> Range | None:
    """The largest or smallest of several numbers, bounded on one side by each operand that is known.

    For integers this follows ONNX; ONNX Runtime 1.31 is wrong for some int64 numbers from 2**31 on (docs/upstream.md),
    which no size reaches.
    """
    choose = max if op.node.op_type == "Max" else min
    op.values.answers(op.question, [value for value in op.node.inputs if value is not None])
    found = [op.range_or_anything(index) for index in range(len(op.inputs))]
    return _known(reduce(lambda a, b: _extreme(choose, a, b) or anything(op.result_dtype), found), op)


def _known(found: Range | None, op: Asking) -> Range | None:
    """The range; None if it is everything that the element type can hold."""
    return None if found == anything(op.result_dtype) else found


_LARGEST = {ir.DataType.FLOAT16: 65504.0, ir.DataType.DOUBLE: float(np.finfo(np.float64).max)}


@ranges("Clip", by_element=True)
def clip(op: Asking) -> Range | None:
    """Numbers between two bounds, which are attributes before opset 11.

    Runtimes disagree on whether a missing bound is the largest finite number or infinity: both are taken into account.
    """
    found = op.range_or_anything(0)
    # The lower bound is applied first: if it is above the upper bound, the result is the upper bound.
    for index, name, choose in ((1, "min", max), (2, "max", min)):
        bound = op.range(index) if op.has(index) else None
        if bound is None and op.version < 11:
            number = op.attribute(name)
            bound = None if number is None else one_of(float(number))
        if bound is not None:
            found = _extreme(choose, found, bound) or found
        elif op.result_dtype.is_floating_point() and math.isinf(end := found.low if choose is max else found.high):
            found = (
                union([found, one_of(math.copysign(_LARGEST.get(op.result_dtype, 3.4028234663852886e38), end))])
                or found
            )
    return _known(found, op)


@ranges("Relu", by_element=True)
def relu(op: Asking) -> Range | None:
    """Nonnegative numbers."""
    return _extreme(max, op.range_or_anything(0), one_of(0 if not op.result_dtype.is_floating_point() else 0.0))


def _monotone(function: Callable[[Number], Number]) -> Answer:
    def answer(op: Asking) -> Range | None:
        found = op.range(0)
        return stored(
            [_ordered(function(low), function(high)) for low, high in found.pieces], op.result_dtype, found.nan
        )

    return answer


def _ordered(a: Number, b: Number) -> Piece:
    return (a, b) if a <= b else (b, a)


def _finitely(function: Callable[[Any], Number]) -> Callable[[Number], Number]:
    """Extends a function so that it maps infinities to themselves."""
    return lambda number: number if isinstance(number, int) or math.isinf(number) else float(function(number))


ranges("Neg", by_element=True)(_monotone(operator.neg))
ranges("Floor", by_element=True)(_monotone(_finitely(math.floor)))
ranges("Ceil", by_element=True)(_monotone(_finitely(math.ceil)))
ranges("Round", by_element=True)(_monotone(_finitely(round)))


@ranges("Identity", by_element=True)
def identity(op: Asking) -> Range | None:
    """The operand itself."""
    return op.range(0)


@ranges("Abs", by_element=True)
def absolute(op: Asking) -> Range | None:
    """Numbers without their sign."""
    found = op.range_or_anything(0)
    pieces = [(0, max(-low, high)) if low < 0 < high else _ordered(abs(low), abs(high)) for low, high in found.pieces]
    return stored(pieces, op.result_dtype, found.nan)


@ranges("Sign", by_element=True)
def sign(op: Asking) -> Range | None:
    """-1, 0 or 1."""
    if op.result_dtype.is_floating_point():
        return Range(frozenset((-1.0, 0.0, 1.0)), None, nan=op.range_or_anything(0).nan)
    return one_of(-1, 0, 1) if op.range(0).low < 0 else one_of(0, 1)


@ranges("Sqrt", by_element=True)
def square_root(op: Asking) -> Range | None:
    """Square roots; NaN for negative numbers."""
    found = op.range_or_anything(0)
    if found.high < 0:
        return None
    pieces = [(math.sqrt(max(low, 0.0)), math.sqrt(high)) for low, high in found.pieces if high >= 0]
    return stored(pieces, op.result_dtype, found.nan or found.low < 0)


def _bounded(low: float, high: float, *, infinity_is_lost: bool) -> Answer:
    """The range of a function that is bounded for every argument."""

    def answer(op: Asking) -> Range | None:
        found = op.range_or_anything(0)
        return between(low, high, nan=found.nan or (infinity_is_lost and not found.is_finite))

    return answer


for _op_types, _low, _infinity_is_lost in (
    (("Sigmoid",), -_SLACK, False),
    (("Softmax",), 0.0, True),  # powers of e by their sum, none of which is negative
    (("HardSigmoid",), 0.0, True),  # infinity is lost where its slope is 0
    (("Tanh", "Erf"), -1.0 - _SLACK, False),
    (("Cos", "Sin"), -1.0 - _SLACK, True),
):
    ranges(*_op_types)(_bounded(_low, 1.0 + _SLACK, infinity_is_lost=_infinity_is_lost))


_ACTIVATED = {
    "Relu": (0.0, math.inf),
    "Sigmoid": (-_SLACK, 1.0 + _SLACK),
    "HardSigmoid": (-_SLACK, 1.0 + _SLACK),
    "Tanh": (-1.0 - _SLACK, 1.0 + _SLACK),
}


@ranges(f"{MICROSOFT}.FusedConv")
def activated(op: Asking) -> Range | None:
    """What comes out of the activation that a convolution ends with."""
    found = _ACTIVATED.get(op.attr_str("activation", ""))
    return None if found is None else between(*found, nan=True)


def _power_of_e(number: Number) -> float:
    try:
        return math.exp(number)
    except OverflowError:
        return math.inf


@ranges("Exp")
def exponential(op: Asking) -> Range | None:
    """Powers of e, which approximations may miss by a little; none is negative."""
    found = op.range_or_anything(0)
    low, high = _power_of_e(found.low), _power_of_e(found.high)
    piece = max(low * (1 - _SLACK) - _SLACK, 0.0), high * (1 + _SLACK) + _SLACK
    return stored([piece], op.result_dtype, found.nan)


def _not_negative(slack: float) -> Answer:
    """The range of what is never negative, or by no more than that."""

    def answer(op: Asking) -> Range | None:
        known = op.result_dtype.is_floating_point()
        return between(-slack, math.inf, nan=op.range_or_anything(0).nan) if known else None

    return answer


ranges("ReduceL1", "ReduceL2", "ReduceSumSquare")(_not_negative(0.0))
ranges("Softplus")(_not_negative(_SLACK))  # a logarithm, which an approximation may put slightly below zero


_FEW = 1 << 14
"""Sums of at most this many numbers in float32 are off by less than `_SLACK` of the sum of their magnitudes."""


@ranges("ReduceSum", "ReduceMean")
def summed(op: Asking) -> Range | None:
    """Sums and means of floats that all have one sign, which they keep; they are bounded if it is known how many there are."""
    found, dtype = op.range(0), op.result_dtype
    if dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE) or found.low < 0 < found.high:
        return None
    most = upper_bound(product_of(op.known_shape(0)))
    reach = math.inf
    if most is not None and most <= _FEW:
        factor = 1 if op.node.op_type == "ReduceMean" else max(most, 1)
        reach = float(max(-found.low, found.high)) * factor * (1 + _SLACK)
        reach = reach if reach * max(most, 1) < _HUGE else math.inf
    nan = found.nan or op.node.op_type == "ReduceMean"  # the mean of no numbers at all
    return between(0.0, reach, nan=nan) if found.low >= 0 else between(-reach, 0.0, nan=nan)


_HUGE = 1e38
_WIDE = (ir.DataType.DOUBLE, ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT32, ir.DataType.UINT64)
_ROUNDED_TWICE = {(source, ir.DataType.BFLOAT16) for source in _WIDE} | {(ir.DataType.DOUBLE, ir.DataType.FLOAT16)}
"""Conversions that runtimes make through float32, which may round differently from a direct conversion."""


@ranges("Cast", "CastLike", by_element=True)
def cast(op: Asking) -> Range | None:
    """Conversions. The result for a float beyond the range of an integer type depends on the machine."""
    source, target = op.dtype(0), op.result_dtype
    found = op.range(0)
    if source is None:
        return None
    if target == ir.DataType.BOOL:
        truths = ({0} if found.holds(0) else set()) | ({1} if found.nan or found != one_of(0) else set())
        return one_of(*truths)
    if (source, target) in _ROUNDED_TWICE:
        return None
    if not target.is_integer() or not source.is_floating_point():
        return stored(found.pieces, target, found.nan)
    if not found.is_finite:
        return None
    return stored([(math.trunc(low), math.trunc(high)) for low, high in found.pieces], target)
