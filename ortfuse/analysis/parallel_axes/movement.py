"""Parallel axes of data movement: those that a node moves as a whole."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import parameter
from ortfuse.analysis.parallel_axes.parallel_axis import ParallelAxis, aligned, of_first, parallel, size_along
from ortfuse.ir.dims import DimLike, product


@parallel("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _reshape(node: ir.Node, result: int, axis: int, facts: Facts) -> ParallelAxis | None:
    """An axis that the shapes have in common, with as many elements before it."""
    before, after = facts.shape(node.inputs[0]), facts.shape(node.outputs[0])
    found = None if before is None or after is None else same_axis(before, after, axis)
    if found is None:
        return None
    others = (None for _ in node.inputs[1:])
    return ParallelAxis((found, *others), (axis,), is_written=node.op_type == "Reshape")


def same_axis(before: Sequence[DimLike], after: Sequence[DimLike], axis: int) -> int | None:
    """Return the axis of a shape that is an axis of another one with the same elements; `None` if there is none."""
    above = product(after[:axis])
    places = [place for place, size in enumerate(before) if size == after[axis] and product(before[:place]) == above]
    return places[0] if places and product(before[places[0] + 1 :]) == product(after[axis + 1 :]) else None


@parallel("Transpose")
def _transpose(node: ir.Node, result: int, axis: int, facts: Facts) -> ParallelAxis | None:
    perm = parameter(node, "perm", facts)
    return ParallelAxis((perm[axis],), (axis,)) if isinstance(perm, tuple | list) else None


@parallel("Expand")
def _expand(node: ir.Node, result: int, axis: int, facts: Facts) -> ParallelAxis | None:
    """An axis of the operand, or one along which its elements are repeated."""
    shape = facts.shape(node.outputs[0])
    found = None if shape is None else aligned(node.inputs[0], len(shape), axis, shape[axis], facts)
    if found is None or shape is None or facts.shape(node.inputs[1]) != (len(shape),):
        return None
    return ParallelAxis((found[0], None), (axis,), (found[1], 0), is_written=True)


@parallel("Tile")
def _tile(node: ir.Node, result: int, axis: int, facts: Facts) -> ParallelAxis | None:
    repeats = parameter(node, "repeats", facts)
    is_whole = isinstance(repeats, tuple | list) and repeats[axis] == 1
    return of_first(node, axis) if is_whole else None


@parallel("Gather")
def _gather(node: ir.Node, result: int, axis: int, facts: Facts) -> ParallelAxis | None:
    """An axis of the data that is not indexed, or one of the indices."""
    along, count = parameter(node, "axis", facts), facts.rank(node.inputs[1])
    if not isinstance(along, int) or count is None:
        return None
    if along <= axis < along + count:
        return ParallelAxis((None, axis - along), (axis,))
    return ParallelAxis((axis if axis < along else axis - count + 1, None), (axis,))


@parallel("Slice")
def _slice(node: ir.Node, result: int, axis: int, facts: Facts) -> ParallelAxis | None:
    """An axis that is not in the list of axes."""
    axes = parameter(node, "axes", facts)
    if not isinstance(axes, tuple | list) or not all(isinstance(one, int) for one in axes):
        return None
    return None if axis in axes else of_first(node, axis)


@parallel("Pad")
def _pad(node: ir.Node, result: int, axis: int, facts: Facts) -> ParallelAxis | None:
    """An axis that nothing is added to."""
    pads, rank = parameter(node, "pads", facts), facts.rank(node.inputs[0])
    if len(node.inputs) > 3 or not isinstance(pads, tuple | list) or rank is None or len(pads) != 2 * rank:
        return None
    return of_first(node, axis) if pads[axis] == pads[axis + rank] == 0 else None


@parallel("Concat")
def _concat(node: ir.Node, result: int, axis: int, facts: Facts) -> ParallelAxis | None:
    """Every axis but the one along which operands are joined."""
    along, size = parameter(node, "axis", facts), size_along(node.outputs[0], axis, facts)
    if not isinstance(along, int) or along == axis:
        return None
    if any(size_along(value, axis, facts) != size for value in node.inputs):
        return None
    return ParallelAxis((axis,) * len(node.inputs), (axis,))
