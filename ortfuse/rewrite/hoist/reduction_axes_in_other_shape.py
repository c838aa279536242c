"""The axes and keepdims with which a reduction reduces a value in another shape to the same result."""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.rewrite.hoist.axis_groups import AxisGroup, Shape, axis_groups, gaps
from ortfuse.rewrite.hoist.reshaped import reduced_axes


def reduction_of(node: ir.Node, source: Shape, facts: Facts) -> tuple[list[int], int] | None:
    """Return the axes and keepdims with which a reduction gives its result if its operand has the shape `source`.

    `None` if there are none, or if nothing but axes of size 1 would be reduced.
    """
    given, result = facts.shape(node.inputs[0]), facts.shape(node.outputs[0])
    reduced = reduced_axes(node, facts)
    if given is None or result is None or reduced is None:
        return None
    groups = axis_groups(source, given) or []
    parts = [{axis in reduced for axis in group.after} for group in groups]
    kept = [group for group, part in zip(groups, parts, strict=True) if part == {False}]
    same = all([source[axis] for axis in one.before] == [given[axis] for axis in one.after] for one in kept)
    if len(kept) == len(groups) or {False, True} in parts or not same:
        return None
    for keepdims in (0, 1):
        axes = _axes(source, result, groups, kept, keepdims)
        if axes is not None:
            return axes, keepdims
    return None


def _axes(
    source: Shape, result: Shape, groups: list[AxisGroup], kept: list[AxisGroup], keepdims: int
) -> list[int] | None:
    """The reduced axes of the source, of which those of size 1 may be reduced or kept."""
    reduced = [axis for group in groups if group not in kept for axis in group.before]
    left = axis_groups([1 if axis in reduced else dim for axis, dim in enumerate(source)], result)
    if left is None:
        return None
    needed = [len(axes) for axes in gaps(left, len(result), after=True)]
    ones = gaps(left, len(source), after=False)
    found: list[int] = []
    for count, axes in zip(needed, ones, strict=True):
        here = [axis for axis in axes if axis in reduced]
        units = [axis for axis in axes if axis not in reduced]
        if (keepdims and count != len(axes)) or (not keepdims and count > len(units)):
            return None
        found += here if keepdims else [*here, *units[count:]]
    return sorted(found)
