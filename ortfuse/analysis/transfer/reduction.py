"""Reductions over axes, including global pooling."""

from __future__ import annotations

from collections.abc import Callable

from ortfuse.analysis.transfer import symbolic_elements as el
from ortfuse.analysis.transfer.fact import UNKNOWN, Element, Elements, Fact, Shape
from ortfuse.analysis.transfer.op import Op, UnknownError, normalize_axes, transfer
from ortfuse.ir.traits import REDUCES

_AXES_INPUT_SINCE = {"ReduceSum": 13}
_AXES_INPUT_SINCE_OTHERS = 18


@transfer(*REDUCES)
def reduction(op: Op) -> Fact:
    """Reduces the elements along the axes to one; for vectors of integers, also computes its value."""
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


def _axes(op: Op) -> tuple[int, ...] | None:
    """The axes to reduce, None for all of them (or for none, with noop_with_empty_axes)."""
    since = _AXES_INPUT_SINCE.get(op.node.op_type, _AXES_INPUT_SINCE_OTHERS)
    if op.version < since:
        return op.attr_ints("axes") or None
    return (op.constants(1) or None) if op.has(1) else None


_REDUCERS: dict[str, tuple[Callable[..., Element], int | None]] = {
    "ReduceSum": (el.total, 0),
    "ReduceProd": (el.product, 1),
    "ReduceMax": (el.largest, None),
    "ReduceMin": (el.smallest, None),
}


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


@transfer("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def loss(op: Op) -> tuple[Fact, ...]:
    """A number for each label, or one for all of them; and the logarithms of the probabilities."""
    labels = op.shape(1) if op.attr_str("reduction", "mean") == "none" else ()
    return Fact(op.dtype(), labels), Fact(op.dtype(), op.shape())
