"""Sink a Reshape that merges two axes below a node, the inverse of hoisting a Reshape that splits them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import DimLike, exact_div, product
from ortfuse.rewrite.hoist.axis_groups import Shape, view_cost
from ortfuse.rewrite.hoist.plan_reshape_hoist import Plan, Planner, is_alone
from ortfuse.rewrite.hoist.reshaped import reshaped


@dataclass(frozen=True)
class Sunk:
    """A node that is made before two axes of an operand are merged.

    Attributes:
        plan: The node.
        shape: The shape of its result.
        axes: The first of the two axes, in the operand and in the result.
        saved: By how many Reshapes there are fewer, also if others use the operand; minus infinity if the plan is impossible.
    """

    plan: Plan
    shape: Shape
    axes: tuple[int, int]
    saved: float


def sunk(node: ir.Node, index: int, facts: Facts) -> Sunk | None:
    """Return what a node becomes if the Reshape of an operand is done to its result instead; `None` if that cannot be."""
    merged = node.inputs[index]
    view = None if merged is None else merged.producer()
    before = None if view is None else facts.shape(view.inputs[0])
    given, result = facts.shape(merged), facts.shape(node.outputs[0])
    if merged is None or before is None or given is None or result is None:
        return None
    whole = common_refinement(before, given)
    axis = None if whole is None else merged_axis(whole, given)
    if whole is None or axis is None:
        return None
    for place, shape in _split_somewhere(result, given[axis], whole[axis : axis + 2]):
        made = reshaped(node, shape, facts)
        if made is not None and made.operands[index] == whole:
            plan, cost = Planner(facts).through(node, made)
            shared = 0 if is_alone(merged, node) else view_cost(before, given)
            return Sunk(plan, shape, (axis, place), shared - cost - 1)
    return None


def _split_somewhere(result: Shape, size: DimLike, parts: Sequence[DimLike]) -> Iterator[tuple[int, Shape]]:
    """Yield a shape with each axis of a size split into parts."""
    for axis, dim in enumerate(result):
        if dim == size:
            yield axis, (*result[:axis], *parts, *result[axis + 1 :])


def common_refinement(before: Sequence[DimLike], after: Sequence[DimLike]) -> Shape | None:
    """Return the fewest axes of which the axes of both shapes are made; `None` if they are not known."""
    left, right, found = list(before), list(after), list[DimLike]()
    while left and right:
        if (rest := exact_div(left[0], right[0])) is not None:
            found.append(right.pop(0))
            left[:1] = [] if rest == 1 else [rest]
        elif (rest := exact_div(right[0], left[0])) is not None:
            found.append(left.pop(0))
            right[0] = rest
        else:
            return None
    return None if any(dim != 1 for dim in (*left, *right)) else (*found, *left)


def merged_axis(whole: Sequence[DimLike], merged: Sequence[DimLike]) -> int | None:
    """Return the first of the two axes that are one axis of another shape, which has all others; `None` if there are none."""
    found = (
        axis
        for axis, dim in enumerate(merged)
        if (*whole[:axis], *whole[axis + 2 :]) == (*merged[:axis], *merged[axis + 1 :])
        and product(whole[axis : axis + 2]) == dim
    )
    return next(found, None) if len(whole) == len(merged) + 1 else None
