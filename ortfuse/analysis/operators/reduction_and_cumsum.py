"""Reductions over axes, global pooling, running sums and losses."""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx_ir as ir

from ortfuse.analysis.costs import cost, per_operand
from ortfuse.analysis.ranges.bounds_by_sizes import Ends, bounds
from ortfuse.analysis.ranges.interval_arithmetic import SLACK, not_negative
from ortfuse.analysis.ranges.queries import Asking, ranges
from ortfuse.analysis.ranges.range import Number, Range, between, limits, of_indices, one_of, stored, union
from ortfuse.analysis.transfer import symbolic_element_arithmetic as el
from ortfuse.analysis.transfer.elementwise_shape_functions import same_shape
from ortfuse.analysis.transfer.transfer_function_registry import Op, UnknownError, normalize_axes, transfer
from ortfuse.analysis.transfer.value_fact import INTEGERS, UNKNOWN, Element, Elements, Fact, Shape
from ortfuse.ir.dims import DimLike, is_positive, upper_bound
from ortfuse.ir.dims import product as product_of
from ortfuse.ir.operator_registry import describe
from ortfuse.ir.traits import REDUCES

_REDUCERS: dict[str, tuple[Callable[..., Element], int | None]] = {
    "ReduceSum": (el.total, 0),
    "ReduceProd": (el.product, 1),
    "ReduceMax": (el.largest, None),
    "ReduceMin": (el.smallest, None),
}


@transfer(*REDUCES)
def reduction(op: Op) -> Fact:
    """Reduce the elements along the axes to one; for vectors of integers, also compute its value."""
    data = op.fact(0)
    keep = op.attr_int("keepdims", 1) == 1
    try:
        axes = _axes(op)
    except UnknownError:
        return Fact(data.dtype, (UNKNOWN,) * len(data.shape) if keep and data.shape is not None else None)
    if axes is None and op.attr_int("noop_with_empty_axes", 0) == 1:
        # Nothing is summed up, but absolute values, squares, roots and logarithms are taken.
        return Fact(data.dtype, data.shape, data.elements() if op.node.op_type in _REDUCERS else None)
    if data.shape is None:
        return Fact(data.dtype, () if axes is None and not keep else None)
    rank = len(data.shape)
    reduced = range(rank) if axes is None else normalize_axes(axes, rank)
    if keep:
        shape: Shape = tuple([1 if index in reduced else dim for index, dim in enumerate(data.shape)])
    else:
        shape = tuple([dim for index, dim in enumerate(data.shape) if index not in reduced])
    return Fact(data.dtype, shape, _reduced(op, data) if len(reduced) == rank == 1 else None)


_AXES_INPUT_SINCE = {"ReduceSum": 13}

_AXES_INPUT_SINCE_OTHERS = 18


def _axes(op: Op) -> tuple[int, ...] | None:
    """The axes to reduce, None for all of them (or for none, with noop_with_empty_axes)."""
    since = _AXES_INPUT_SINCE.get(op.node.op_type, _AXES_INPUT_SINCE_OTHERS)
    if op.version < since:
        return op.attr_ints("axes") or None
    return (op.constants(1) or None) if op.has(1) else None


_EXACT = 2**53
"""The runtime sums integers as floating-point numbers of 64 bits, which hold those up to this one."""


def _reduced(op: Op, data: Fact) -> Elements | None:
    """The sum, product, maximum or minimum of the elements of a vector."""
    elements = data.elements()
    if elements is None or op.node.op_type not in _REDUCERS:
        return None
    function, neutral = _REDUCERS[op.node.op_type]
    if not elements:
        return None if neutral is None else (neutral,)
    if any(isinstance(element, int) and abs(element) > _EXACT for element in elements):
        return None
    return (el.fitting(function(*elements), data.dtype),)


@transfer("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(op: Op) -> Fact:
    """One number for each channel."""
    shape = op.known_shape()
    return Fact(op.dtype(), shape[:2] + (1,) * (len(shape) - 2))


@ranges("GlobalAveragePool", "AveragePool")
def mean_range(op: Asking) -> Range | None:
    """Means of floats that all have one sign, which they keep."""
    found = op.range(0)
    if op.result_dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE) or found.low < 0 < found.high:
        return None
    return between(0.0, math.inf, nan=True) if found.low >= 0 else between(-math.inf, 0.0, nan=True)


@transfer("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def loss(op: Op) -> tuple[Fact, ...]:
    """A number for each label, or one for all of them; and the logarithms of the probabilities."""
    labels = op.shape(1) if op.attr_str("reduction", "mean") == "none" else ()
    return Fact(op.dtype(), labels), Fact(op.dtype(), op.shape())


ranges("ReduceL1", "ReduceL2", "ReduceSumSquare")(not_negative(0.0))

_FEW = 1 << 14
"""Sums of at most this many numbers in float32 are off by less than `_SLACK` of the sum of their magnitudes."""


_HUGE = 1e38


@ranges("ReduceSum", "ReduceMean")
def sum_range(op: Asking) -> Range | None:
    """Sums and means of floats that all have one sign, which they keep; they are bounded if it is known how many there are."""
    found, dtype = op.range(0), op.result_dtype
    if dtype in INTEGERS and op.node.op_type == "ReduceSum":
        return _sum_of_integers(found, _reduced_size(op), dtype)
    if dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE) or found.low < 0 < found.high:
        return None
    most = upper_bound(product_of(op.known_shape(0)))
    reach = math.inf
    if most is not None and most <= _FEW:
        factor = 1 if op.node.op_type == "ReduceMean" else max(most, 1)
        reach = float(max(-found.low, found.high)) * factor * (1 + SLACK)
        reach = reach if reach * max(most, 1) < _HUGE else math.inf
    nan = found.nan or op.node.op_type == "ReduceMean"  # the mean of no numbers at all
    return between(0.0, reach, nan=nan) if found.low >= 0 else between(-reach, 0.0, nan=nan)


@ranges("ReduceMax", "ReduceMin")
def extreme_range(op: Asking) -> Range | None:
    """One of the elements; for a reduction over no elements the neutral element, the lowest or the highest number."""
    shape, found = op.known_shape(0), op.range(0)
    axes = op.int_list("axes", 1)
    reduced_axes = normalize_axes(axes, len(shape)) if axes else range(len(shape))
    if all(is_positive(shape[axis]) for axis in reduced_axes):
        return found
    return union([found, one_of(limits(op.result_dtype)[0 if op.node.op_type == "ReduceMax" else 1])])


_EXACT_SUMS = 1 << 62
"""Sums of integers below this do not wrap around, however the runtime rounds them on the way."""


def _sum_of_integers(found: Range, count: DimLike, dtype: ir.DataType) -> Range | None:
    """Sums of at most so many integers, or of none."""
    ends = [end * (of_indices(count).high + 1) for end in (found.low, found.high)]
    low, high = min(*ends, 0), max(*ends, 0)
    if max(-low, high) > _EXACT:
        return between(-_EXACT_SUMS if low else 0, _EXACT_SUMS if high else 0) if _may_round(low, high, dtype) else None
    return stored([(low, high)], dtype)


def _reduced_size(op: Asking) -> DimLike:
    """How many numbers are summed up to one, unless there are no axes."""
    shape = op.known_shape(0)
    axes = _axes(op)
    return product_of(shape if axes is None else [shape[axis] for axis in normalize_axes(axes, len(shape))])


def _may_round(low: Number, high: Number, dtype: ir.DataType) -> bool:
    """Whether large sums only lose their last digits, and do not wrap around."""
    return dtype == ir.DataType.INT64 and max(-low, high) <= _EXACT_SUMS


@ranges("CumSum")
def running_sum_range(op: Asking) -> Range | None:
    """Sums of the first elements along an axis; of none, too, if they are exclusive."""
    found, dtype = op.range(0), op.result_dtype
    axis = (op.constants(1) or (None,))[0]
    shape = op.known_shape(0)
    count = product_of(shape) if axis is None else shape[int(axis)]
    if dtype in INTEGERS:
        return _sum_of_integers(found, count, dtype)
    if dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE) or found.low < 0 < found.high:
        return None
    return between(0.0, math.inf, nan=found.nan) if found.low >= 0 else between(-math.inf, 0.0, nan=found.nan)


@ranges("ArgMax", "ArgMin")
def arg_max_range(op: Asking) -> Range | None:
    """An index of an axis."""
    shape = op.known_shape(0)
    return of_indices(shape[op.axis("axis", 0, len(shape))])


@bounds("ArgMax", "ArgMin")
def arg_max_bounds(op: Asking) -> Ends:
    """From the first index of the axis to the last one."""
    shape = op.known_shape(0)
    return Ends(0, shape[op.axis("axis", 0, len(shape))] - 1)


transfer("CumSum", "CumProd")(same_shape)
cost("NegativeLogLikelihoodLoss")(per_operand(0))
cost("ArgMax", "ArgMin", "CumSum", "CumProd", "GlobalAveragePool", "GlobalMaxPool")(per_operand(1))
cost("ReduceL2", "ReduceSumSquare", "ReduceLogSumExp", "GlobalLpPool")(per_operand(2))
cost("SoftmaxCrossEntropyLoss")(per_operand(6))

describe("CumSum", "GlobalAveragePool", "ReduceMean", "ReduceSum", linear=((0,),))
