"""The axes of operands and results that go with a parallel axis of a node, and those that traits of operators tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import attribute_value, parameter
from ortfuse.ir.dims import DimLike
from ortfuse.ir.operator_registry import Facet
from ortfuse.ir.purity import draws_random
from ortfuse.ir.traits import (
    ALONG_AXIS,
    BROADCASTS,
    ELEMENTWISE,
    IN_PLACE,
    PARAMETER_INPUTS,
    REDUCES,
    TRAILING,
    OperatorSet,
    has,
)

Axes: TypeAlias = "tuple[int | None, ...]"

_SINCE_AXES = 13
"""The opset from which on Softmax, LogSoftmax and Hardmax work along one axis; before, on all axes from one on."""


@dataclass(frozen=True)
class ParallelAxis:
    """An axis along which slices of results are computed from the same slices of operands.

    Attributes:
        operands: Its number in each operand; `None` for one that every slice needs as a whole.
        results: Its number in each result; `None` for one that does not depend on the operands that have it.
        lacking: By how many axes each operand has fewer than what it is broadcast to.
        is_written: Whether another operand or attribute has to change with the number of slices.
    """

    operands: Axes
    results: Axes
    lacking: tuple[int, ...] = ()
    is_written: bool = False


Query: TypeAlias = "Callable[[ir.Node, int, int, Facts], ParallelAxis | None]"
"""Takes a node, the number of a result, an axis of it from the front, and facts; `None` if the axis is not parallel."""

PARALLEL_AXES: Facet[Query] = Facet("parallel_axes", "which axes of operands and results each slice of a result needs")

parallel = PARALLEL_AXES.register
"""Register the decorated function for the given operators."""


def parallel_axis(node: ir.Node, result: int, axis: int, facts: Facts) -> ParallelAxis | None:
    """Return the parallel axis of a node that is an axis of one of its results; `None` if that axis is not known to be one.

    Args:
        node: The node.
        result: The number of the result.
        axis: The axis of the result, counted from the front.
        facts: What is known about the values.
    """
    query = PARALLEL_AXES.of(node) or next((one for trait, one in _BY_TRAIT if has(node, trait)), None)
    if query is None or draws_random(node) or any(attribute.is_ref() for attribute in node.attributes.values()):
        return None
    shape = facts.shape(node.outputs[result])
    return None if shape is None or not 0 <= axis < len(shape) else query(node, result, axis, facts)


def aligned(value: ir.Value | None, rank: int, axis: int, size: DimLike, facts: Facts) -> tuple[int | None, int] | None:
    """Return the axis of an operand that is broadcast, `None` for one that all slices share, and how many axes it lacks.

    `None` if the operand has neither size 1 nor that of the result along the axis.
    """
    if value is None:
        return None, 0
    shape = facts.shape(value)
    if shape is None or len(shape) > rank:
        return None
    lacking = rank - len(shape)
    if axis < lacking or (shape[axis - lacking] == 1 and size != 1):
        return None, lacking
    return (axis - lacking, lacking) if shape[axis - lacking] == size else None


def of_first(node: ir.Node, axis: int) -> ParallelAxis:
    """Return the parallel axis of a node that has it in its first operand and in all results."""
    return ParallelAxis((axis, *(None for _ in node.inputs[1:])), tuple([axis] * len(node.outputs)))


def size_along(value: ir.Value | None, axis: int, facts: Facts) -> DimLike | None:
    """Return the size of a value along an axis; `None` if its rank is not known."""
    shape = facts.shape(value)
    return None if shape is None or axis >= len(shape) else shape[axis]


def _elementwise(node: ir.Node, result: int, axis: int, facts: Facts) -> ParallelAxis | None:
    """Other operands are single numbers, or a bias for the last axis."""
    rank, ranks = facts.rank(node.inputs[0]), [facts.rank(value) for value in node.inputs[1:] if value is not None]
    if rank is None or None in ranks:
        return None
    most = 0 if node.op_type == "CastLike" else max((one or 0 for one in ranks), default=0)
    return None if most > 1 or (most == 1 and axis == rank - 1) else of_first(node, axis)


def _broadcast(node: ir.Node, result: int, axis: int, facts: Facts) -> ParallelAxis | None:
    shape = facts.shape(node.outputs[result])
    if shape is None or "axis" in node.attributes or "broadcast" in node.attributes:
        return None  # as before opset 7
    found = [aligned(value, len(shape), axis, shape[axis], facts) for value in node.inputs]
    return _of_operands(found, len(node.outputs), axis)


def _of_operands(found: Sequence[tuple[int | None, int] | None], results: int, axis: int) -> ParallelAxis | None:
    known = [one for one in found if one is not None]
    if len(known) < len(found):
        return None
    return ParallelAxis(tuple(one for one, _ in known), (axis,) * results, tuple(lacking for _, lacking in known))


def _reduction(node: ir.Node, result: int, axis: int, facts: Facts) -> ParallelAxis | None:
    rank, axes, keeps = (
        facts.rank(node.inputs[0]),
        parameter(node, "axes", facts),
        attribute_value(node, "keepdims", facts),
    )
    if rank is None or not isinstance(axes, tuple | list) or not all(isinstance(one, int) for one in axes):
        return None
    if keeps:
        return None if axis in axes else of_first(node, axis)
    kept = [one for one in range(rank) if one not in axes]
    return ParallelAxis((kept[axis], *(None for _ in node.inputs[1:])), (axis,))


def _along_axis(node: ir.Node, result: int, axis: int, facts: Facts) -> ParallelAxis | None:
    """All data operands and results have the axis, unless the node works along it."""
    rank, along = facts.rank(node.inputs[0]), parameter(node, "axis", facts)
    size = size_along(node.outputs[result], axis, facts)
    if rank is None or not isinstance(along, int) or not 0 <= along < rank or size is None:
        return None
    dropped = node.op_type in ("ArgMax", "ArgMin") and not attribute_value(node, "keepdims", facts)
    own = axis + 1 if dropped and axis >= along else axis
    old = node.op_type in ("Softmax", "LogSoftmax", "Hardmax") and facts.version(node) < _SINCE_AXES
    parameters = set(PARAMETER_INPUTS.get(node.op_type, {}).values())
    if own == along:
        # Each position from which GatherElements reads needs all data.
        return ParallelAxis((None, axis), (axis,)) if node.op_type == "GatherElements" else None
    if old and own > along:
        return None
    operands = tuple(None if place in parameters else own for place in range(len(node.inputs)))
    data = [value for value, one in zip(node.inputs, operands, strict=True) if one is not None]
    if any(facts.rank(value) != rank or size_along(value, own, facts) != size for value in data if value is not None):
        return None
    return ParallelAxis(operands, (axis,) * len(node.outputs))


def _trailing(node: ir.Node, result: int, axis: int, facts: Facts) -> ParallelAxis | None:
    """All axes from one on are normalised together; scale and bias have no others."""
    rank, first = facts.rank(node.inputs[0]), parameter(node, "axis", facts)
    if rank is None or not isinstance(first, int) or axis >= first:
        return None
    if any((facts.rank(value) or rank) > rank - first for value in node.inputs[1:] if value is not None):
        return None
    return of_first(node, axis)


@parallel("com.microsoft.SkipLayerNormalization", "com.microsoft.SkipSimplifiedLayerNormalization")
def _skip(node: ir.Node, result: int, axis: int, facts: Facts) -> ParallelAxis | None:
    """Normalise the sum of two tensors over the last axis; the second may be broadcast."""
    shape = facts.shape(node.inputs[0])
    if shape is None or axis >= len(shape) - 1 or any(output.uses() for output in node.outputs[1:3]):
        return None
    second = aligned(node.inputs[1], len(shape), axis, shape[axis], facts)
    if second is None:
        return None
    others = len(node.inputs) - 2
    operands, lacking = (axis, second[0], *[None] * others), (0, second[1], *[0] * others)
    return ParallelAxis(operands, (axis,) * len(node.outputs), lacking)


_BY_TRAIT: Sequence[tuple[OperatorSet, Query]] = (
    (ELEMENTWISE | IN_PLACE, _elementwise),
    (BROADCASTS, _broadcast),
    (REDUCES, _reduction),
    (ALONG_AXIS, _along_axis),
    (TRAILING, _trailing),
)
"""The queries of operators that have none of their own, by trait; the first one counts."""
