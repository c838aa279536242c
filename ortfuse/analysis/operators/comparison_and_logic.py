"""Comparisons, logical operators, tests for NaN and Where. Every comparison with NaN is false."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.ranges.bounds_by_sizes import ENDS
from ortfuse.analysis.ranges.queries import Asking, ranges
from ortfuse.analysis.ranges.range import Range, one_of, union
from ortfuse.analysis.ranges.vector_norms import broadcast_norm, norms
from ortfuse.analysis.transfer import symbolic_element_arithmetic as el
from ortfuse.analysis.transfer.broadcasting import broadcast_all, map_elements
from ortfuse.analysis.transfer.elementwise_shape_functions import binary_shape, unary_shape
from ortfuse.analysis.transfer.evaluate_small_tensors import arithmetic, evaluates
from ortfuse.analysis.transfer.transfer_function_registry import Op, transfer
from ortfuse.analysis.transfer.value_fact import Fact
from ortfuse.ir.dims import at_most
from ortfuse.ir.operator_registry import describe

transfer("Not")(unary_shape(el.logical_not))
evaluates("Not")(arithmetic(np.logical_not))


@ranges("Not", by_element=True)
def not_range(op: Asking) -> Range | None:
    """The opposite."""
    return one_of(*{1 - truth for truth in op.range(0).truths})


@transfer("IsNaN", "IsInf")
def truths(op: Op) -> Fact:
    """A truth value for each element."""
    return Fact(ir.DataType.BOOL, op.shape())


evaluates("IsNaN")(arithmetic(np.isnan))


@ranges("IsNaN", by_element=True)
def is_nan_range(op: Asking) -> Range | None:
    """Whether elements are NaN, which some values can never be."""
    return None if op.range(0).nan else one_of(0)


@ranges("IsInf", by_element=True)
def is_inf_range(op: Asking) -> Range | None:
    """Whether elements are infinite."""
    found = op.range(0)
    return one_of(0) if -math.inf < found.low and found.high < math.inf else None


for _op_type, (_element, _array) in {
    "Equal": (el.equal, np.equal),
    "Less": (el.less, np.less),
    "LessOrEqual": (el.less_or_equal, np.less_equal),
    "Greater": (el.greater, np.greater),
    "GreaterOrEqual": (el.greater_or_equal, np.greater_equal),
    "And": (el.logical_and, np.logical_and),
    "Or": (el.logical_or, np.logical_or),
    "Xor": (el.logical_xor, np.logical_xor),
}.items():
    transfer(_op_type)(binary_shape(_element, dtype=ir.DataType.BOOL))
    evaluates(_op_type)(arithmetic(_array))


@transfer("Where")
def where(op: Op) -> Fact:
    """A choice between two tensors, element by element."""
    facts = [op.fact(0), op.fact(1), op.fact(2)]
    shape = broadcast_all([fact.shape for fact in facts])
    found = None
    if facts[1].elements() is not None or facts[2].elements() is not None:
        found = map_elements(el.select, facts, shape)
    return Fact(facts[1].dtype or facts[2].dtype, shape, found)


def _where(condition: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    chosen = np.where(condition, a, b)
    if chosen.dtype.kind == "f" and (np.signbit(chosen) & (chosen == 0)).any():
        return None  # the runtime adds 0 to what it chooses, which makes 0 of -0
    return chosen


evaluates("Where")(arithmetic(_where))


@ranges("Where", by_element=True)
def where_range(op: Asking) -> Range | None:
    """Elements of either side; one of the sides may never be selected."""
    truths = op.range(0).truths
    return union([op.range(index) for index, truth in ((1, 1), (2, 0)) if truth in truths])


@norms("Where")
def where_norm(op: Asking) -> float | None:
    """At most that of both together."""
    return math.hypot(broadcast_norm(op, 1), broadcast_norm(op, 2))


def _equal(a: Range, b: Range) -> set[int]:
    if all(high < least or most < low for (low, high), (least, most) in product(a.pieces, b.pieces)):
        return {0}
    return {1} if a.low == a.high == b.low == b.high else {0, 1}


def _greater(a: Range, b: Range) -> set[int]:
    """The possible results (0, 1) of ``a > b``."""
    return {1} if a.low > b.high else {0} if a.high <= b.low else {0, 1}


def _greater_or_equal(a: Range, b: Range) -> set[int]:
    return {1} if a.low >= b.high else {0} if a.high < b.low else {0, 1}


_COMPARISONS: dict[str, Callable[[Range, Range], set[int]]] = {
    "Equal": _equal,
    "Greater": _greater,
    "GreaterOrEqual": _greater_or_equal,
    "Less": lambda a, b: _greater(b, a),
    "LessOrEqual": lambda a, b: _greater_or_equal(b, a),
}

_OF_THE_SAME = {"Equal": 1, "GreaterOrEqual": 1, "LessOrEqual": 1, "Greater": 0, "Less": 0}


@ranges(*_COMPARISONS, by_element=True)
def comparison_range(op: Asking) -> Range | None:
    """The truth values of a comparison, including a comparison of a value with itself."""
    kind = op.node.op_type
    if op.operand(0) is op.operand(1):
        return one_of(*{_OF_THE_SAME[kind], *((0,) if op.range_or_anything(0).nan else ())})
    a, b = op.range_or_anything(0), op.range_or_anything(1)
    found = {*_COMPARISONS[kind](a, b), *((0,) if a.nan or b.nan else ())}
    return one_of(*(found if len(found) == 1 else _between_sizes(op)))


def _between_sizes(op: Asking) -> set[int]:
    """The result of a comparison, as far as the bounds of its operands tell it."""
    kind = op.node.op_type
    a, b = op.ask(op.operand(0), ENDS), op.ask(op.operand(1), ENDS)
    if a is None or b is None:
        return {0, 1}
    if kind in ("Greater", "GreaterOrEqual"):
        a, b, kind = b, a, kind.replace("Greater", "Less")
    apart = 0 if kind == "LessOrEqual" else 1  # a <= b, a < b
    if kind != "Equal" and at_most(a.high + apart, b.low):
        return {1}
    is_above = at_most(b.high + 1 - apart, a.low) if kind != "Equal" else at_most(b.high + 1, a.low)
    return {0} if is_above or (kind == "Equal" and at_most(a.high + 1, b.low)) else {0, 1}


_LOGIC: dict[str, Callable[[int, int], int]] = {
    "And": lambda a, b: a & b,
    "Or": lambda a, b: a | b,
    "Xor": lambda a, b: a ^ b,
}


@ranges(*_LOGIC, by_element=True)
def logic_range(op: Asking) -> Range | None:
    """And, Or and Xor."""
    a, b = (op.range(index).truths for index in (0, 1))
    return one_of(*{_LOGIC[op.node.op_type](x, y) for x in a for y in b})


describe("Where", linear=((1, 2),))
