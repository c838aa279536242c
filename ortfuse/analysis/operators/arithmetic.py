"""Arithmetic on broadcast operands: Add, Sub, Mul, Div, Pow, Mod, Min, Max and bit operations."""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import suppress
from functools import reduce

import numpy as np

from ortfuse.analysis.costs import NodeSizes, Work, cost
from ortfuse.analysis.ranges.bounds_by_sizes import Ends, bounds, bounds_of, demand_wide
from ortfuse.analysis.ranges.interval_arithmetic import combine, extreme, multiply, unless_anything
from ortfuse.analysis.ranges.queries import Asking, ranges
from ortfuse.analysis.ranges.range import Range, anything, between, one_of, stored
from ortfuse.analysis.ranges.vector_norms import broadcast_norm, magnitude_of, norm_question, norms
from ortfuse.analysis.transfer import symbolic_element_arithmetic as el
from ortfuse.analysis.transfer.broadcasting import broadcast_shapes
from ortfuse.analysis.transfer.elementwise_shape_functions import binary_shape, unknown_element, variadic_shape
from ortfuse.analysis.transfer.evaluate_small_tensors import arithmetic, evaluates
from ortfuse.analysis.transfer.transfer_function_registry import Op, UnknownError, normalize_axes, transfer
from ortfuse.analysis.transfer.value_fact import INTEGERS, Fact
from ortfuse.ir.operator_registry import describe

transfer("Add")(binary_shape(el.add))
evaluates("Add")(arithmetic(np.add))


@ranges("Add", "Sum", by_element=True)
def add_range(op: Asking) -> Range | None:
    """Sums; with more than two operands the order of summation, and so the rounding, is unknown."""
    if op.node.op_type == "Sum" and len(op.inputs) != 2:
        return None if len(op.inputs) != 1 else op.range(0)
    return combine(np.add, operator.add, op.range(0), op.range(1), op.result_dtype)


@bounds("Add")
def add_bounds(op: Asking) -> Ends:
    """Sums."""
    demand_wide(op)
    first, second = bounds_of(op, 0), bounds_of(op, 1)
    return Ends(first.low + second.low, first.high + second.high)


@norms("Add", "Sub")
def add_norm(op: Asking) -> float | None:
    """At most the sum."""
    return broadcast_norm(op, 0) + broadcast_norm(op, 1)


transfer("Sub")(binary_shape(el.subtract))
evaluates("Sub")(arithmetic(np.subtract))


@ranges("Sub", by_element=True)
def subtract_range(op: Asking) -> Range | None:
    """Differences."""
    return combine(np.subtract, operator.sub, op.range(0), op.range(1), op.result_dtype)


@bounds("Sub")
def subtract_bounds(op: Asking) -> Ends:
    """Differences."""
    demand_wide(op)
    first, second = bounds_of(op, 0), bounds_of(op, 1)
    return Ends(first.low - second.high, first.high - second.low)


transfer("Mul")(binary_shape(el.multiply))
evaluates("Mul")(arithmetic(np.multiply))


@ranges("Mul", by_element=True)
def multiply_range(op: Asking) -> Range | None:
    """Products; squares of floats are not negative."""
    if op.operand(0) is op.operand(1) and op.result_dtype.is_floating_point():
        return _square_range(op)
    return multiply(op.range(0), op.range(1), op.result_dtype)


def _square_range(op: Asking) -> Range | None:
    found = op.range_or_anything(0)
    pieces = [
        (0.0 if low < 0 < high else min(low * low, high * high), max(low * low, high * high))
        for low, high in found.pieces
    ]
    return stored(pieces, op.result_dtype, found.nan)


@norms("Mul")
def multiply_norm(op: Asking) -> float | None:
    """One operand times the largest element of the other."""
    found = []
    for one, other in ((0, 1), (1, 0)):
        with suppress(UnknownError):
            found.append(broadcast_norm(op, one) * magnitude_of(op, other))
    return min(found, default=None)


@transfer("BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor")
def bitwise(op: Op) -> Fact:
    """Bit operations; their elements are not tracked."""
    return Fact(op.dtype(0) or op.dtype(1), broadcast_shapes(op.shape(0), op.shape(1)))


_divide_integers = binary_shape(el.divide_integer)

_divide_floats = binary_shape(el.divide_float)


@transfer("Div")
def divide(op: Op) -> Fact | tuple[Fact, ...]:
    """Division; of integers it rounds towards zero."""
    return _divide_integers(op) if op.dtype(0) in INTEGERS else _divide_floats(op)


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    if a.dtype.kind == "f":
        return np.asarray(np.divide(a, b))
    if (b == 0).any():
        return None
    if a.dtype.kind == "i" and ((a == np.iinfo(a.dtype).min) & (b == -1)).any():
        return None  # the processor stops there
    down = a // b
    return np.asarray(down + ((down < 0) & (down * b != a)), dtype=a.dtype)  # towards zero


evaluates("Div")(arithmetic(_divide))


@ranges("Div", by_element=True)
def divide_range(op: Asking) -> Range | None:
    """Quotients by a divisor that is never zero; those of integers are rounded towards zero."""
    divisor = op.range(1)
    if divisor.holds(0):
        return None
    return combine(np.divide, _quotient, op.range(0), divisor, op.result_dtype)


def _quotient(a: int, b: int) -> int:
    """The quotient, rounded towards zero."""
    return abs(a) // abs(b) * (1 if (a >= 0) == (b >= 0) else -1)


@norms("Div")
def divide_norm(op: Asking) -> float | None:
    """By numbers away from zero, or by something that is no less than the norm itself."""
    if _is_own_norm(op):
        return 1.0
    found: Range | None = op.ask(op.operand(1), norm_question(op).range_of)
    if found is None or found.nan or found.low <= 0 <= found.high:
        return None
    return broadcast_norm(op, 0) / min(abs(found.low), abs(found.high))


def _is_own_norm(op: Asking) -> bool:
    """Whether the divisor is at least the norm of the dividend along this axis: max(|x|, epsilon), |x| + epsilon."""
    divisor, asked = op.node.inputs[1], norm_question(op)
    node = None if divisor is None else divisor.producer()
    if node is not None and node.op_type in ("Clip", "Max", "Add"):
        if node.op_type == "Clip" and len(node.inputs) > 2 and node.inputs[2] is not None:
            return False
        others = [value for value in node.inputs[1:] if value is not None]
        low = [op.ask(value, asked.range_of) for value in others] if node.op_type == "Add" else []
        if any(found is None or found.nan or found.low < 0 for found in low):
            return False
        node = None if node.inputs[0] is None else node.inputs[0].producer()
    if node is None or node.op_type not in ("ReduceL2", "Expand") or node.domain:
        return False
    inner = Asking(node, node.outputs[0], asked, op.values)
    axes = inner.int_list("axes", 1)
    rank = len(op.known_shape(0))
    return (
        node.op_type == "ReduceL2"
        and node.inputs[0] is op.node.inputs[0]
        and axes is not None
        and normalize_axes(axes, rank) == (asked.axis + rank,)
        and inner.attr_int("keepdims", 1) == 1
    )


_untracked = binary_shape(unknown_element)

_remainder = binary_shape(el.remainder)

_modulo = binary_shape(el.modulo)


@transfer("Mod")
def modulo(op: Op) -> Fact | tuple[Fact, ...]:
    """Remainder, with the sign of the divisor or (fmod) of the dividend; not tracked for floats."""
    if op.dtype(0) not in INTEGERS:
        return _untracked(op)
    return _remainder(op) if op.attr_int("fmod", 0) else _modulo(op)


@ranges("Mod", by_element=True)
def modulo_range(op: Asking) -> Range | None:
    """Remainders of integers by a positive number."""
    divisor = op.range(1)
    if op.result_dtype.is_floating_point() or op.attr_int("fmod", 0) or divisor.low <= 0:
        return None
    dividend = op.range(0)
    if dividend.low >= 0 and dividend.high < divisor.low:
        return dividend
    return between(0, divisor.high - 1)


transfer("PRelu")(_untracked)

_power = binary_shape(el.power)


@transfer("Pow")
def power(op: Op) -> Fact | tuple[Fact, ...]:
    """Power, in the type of the base."""
    if op.dtype(0) in INTEGERS:
        return _power(op)
    return Fact(op.dtype(0), broadcast_shapes(op.shape(0), op.shape(1)))


@ranges("Pow", by_element=True)
def power_range(op: Asking) -> Range | None:
    """Squares."""
    exponent = op.range(1)
    return _square_range(op) if exponent == one_of(2) and op.result_dtype.is_floating_point() else None


def _variadic(function: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda *arrays: reduce(function, arrays)


transfer("Max")(variadic_shape(el.largest))
evaluates("Max")(arithmetic(_variadic(np.maximum)))


@ranges("Max", "Min", by_element=True)
def extreme_range(op: Asking) -> Range | None:
    """The largest or smallest of several numbers, bounded on one side by each operand that is known.

    For integers this follows ONNX; ONNX Runtime 1.31 is wrong for some int64 numbers from 2**31 on (docs/upstream.md),
    which no size reaches.
    """
    choose = max if op.node.op_type == "Max" else min
    op.values.answers(op.question, [value for value in op.node.inputs if value is not None])
    found = [op.range_or_anything(index) for index in range(len(op.inputs))]
    return unless_anything(reduce(lambda a, b: extreme(choose, a, b) or anything(op.result_dtype), found), op)


transfer("Min")(variadic_shape(el.smallest))
evaluates("Min")(arithmetic(_variadic(np.minimum)))

transfer("Sum")(variadic_shape(el.total))
evaluates("Sum")(arithmetic(_variadic(np.add)))


@cost("Sum", "Mean")
def variadic_work(at: NodeSizes) -> Work:
    """Return the work of one operation for each operand and element."""
    return Work(0, len(at.node.inputs) * at.results())


transfer("Mean")(variadic_shape(unknown_element))

describe("Mul", linear=((0,), (1,)))
describe("Div", linear=((0,),))
