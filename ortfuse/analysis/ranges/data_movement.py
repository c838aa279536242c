"""Ranges of operators whose output consists of existing elements, or of a few given numbers."""

from __future__ import annotations

import math

from ortfuse.analysis.ranges.queries import Asking, ranges
from ortfuse.analysis.ranges.range import Range, between, limits, of_array, one_of, union
from ortfuse.analysis.transfer.op import normalize_axes
from ortfuse.ir.dims import is_positive, upper_bound
from ortfuse.ir.traits import FILLS, JOINS, MOVES


@ranges(*(MOVES - JOINS - FILLS))
def moved(op: Asking) -> Range | None:
    """Elements of the first operand."""
    return op.range(0)


@ranges("Concat", by_element=True)
def concat(op: Asking) -> Range | None:
    """Elements of all operands. The first column comes from one of them, whatever the axis."""
    return union(op.ranges())


@ranges("ScatterND", "ScatterElements", "Scatter")
def scattered(op: Asking) -> Range | None:
    """Elements of the data, some of them replaced by updates."""
    return union([op.range(0), op.range(2)]) if op.attr_str("reduction", "none") == "none" else None


@ranges("Where", by_element=True)
def where(op: Asking) -> Range | None:
    """Elements of either side; one of the sides may never be selected."""
    truths = op.range(0).truths
    return union([op.range(index) for index, truth in ((1, 1), (2, 0)) if truth in truths])


@ranges("If")
def if_(op: Asking) -> Range | None:
    """The results of both branches, if the branches compute them themselves."""
    index = list(op.node.outputs).index(op.output)
    bodies = [op.attribute(name) for name in ("then_branch", "else_branch")]
    results = [body.outputs[index] for body in bodies]
    if any(value.graph is not body for value, body in zip(results, bodies, strict=True)):
        return None
    found = op.values.answers(op.question, results)
    return None if None in found else union(found)


@ranges("Pad")
def pad(op: Asking) -> Range | None:
    """Elements of the data and, in constant mode, the padding number."""
    if op.attr_str("mode", "constant") != "constant":
        return op.range(0)
    return union([op.range(0), padding(op)])


def padding(op: Asking) -> Range:
    """The number that a Pad in constant mode puts in (an attribute before opset 11)."""
    if op.version >= 11:
        return op.range(2) if op.has(2) else one_of(0)
    number = op.attribute("value")
    return one_of(0.0 if number is None else float(number))


@ranges("Trilu")
def triangle(op: Asking) -> Range | None:
    """Elements of the operand, and zeros in the other triangle."""
    return union([op.range(0), one_of(0)])


@ranges("EyeLike")
def identity_matrix(op: Asking) -> Range | None:
    """Ones and zeros."""
    return one_of(0, 1)


@ranges("OneHot")
def one_hot(op: Asking) -> Range | None:
    """One of two given numbers."""
    return op.range(2)


@ranges("ConstantOfShape")
def constant_of_shape(op: Asking) -> Range | None:
    """One number everywhere."""
    tensor = op.attribute("value")
    return one_of(0.0) if tensor is None else of_array(tensor.numpy())


@ranges("Range")
def counted(op: Asking) -> Range | None:
    """The numbers from start to limit. With floats, rounding errors add up, so the limit may be exceeded slightly."""
    start, limit, step = op.range(0), op.range(1), op.range(2)
    floating = op.result_dtype.is_floating_point()
    if start.nan or step.nan:
        return None
    if step.low > 0:
        return between(start.low, math.inf if floating else max(start.high, limit.high - 1))
    if step.high < 0:
        return between(-math.inf if floating else min(start.low, limit.low + 1), start.high)
    return None


@ranges("ReduceMax", "ReduceMin")
def reduced(op: Asking) -> Range | None:
    """One of the elements; for a reduction over no elements the neutral element, the lowest or the highest number."""
    shape, found = op.known_shape(0), op.range(0)
    axes = op.int_list("axes", 1)
    reduced_axes = normalize_axes(axes, len(shape)) if axes else range(len(shape))
    if all(is_positive(shape[axis]) for axis in reduced_axes):
        return found
    return union([found, one_of(limits(op.result_dtype)[0 if op.node.op_type == "ReduceMax" else 1])])


@ranges("ArgMax", "ArgMin")
def position(op: Asking) -> Range | None:
    """An index of an axis."""
    shape = op.known_shape(0)
    size = upper_bound(shape[op.axis("axis", 0, len(shape))])
    return None if size is None else between(0, max(size - 1, 0))


@ranges("TopK")
def largest(op: Asking) -> Range | None:
    """Some of the elements, and their indices."""
    return op.range(0) if op.node.outputs[0] is op.output else None
