"""Plan how a value is made in another shape: which operators above it are made in that shape, and where a Reshape is left.

A plan wins if it leaves fewer nodes of data movement than there are: they cancel each other, become the axes and keepdims of a
reduction, or are done to constants.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import reshape_target
from ortfuse.rewrite.hoist.axis_groups import Shape, view_cost
from ortfuse.rewrite.hoist.reshaped import Reshaped, reshaped, reshaping_of

VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten"})
"""The operators that give a value another shape and leave its elements in order."""

MOST_NODES = 16
"""The most nodes that a plan passes."""

FEW = 1 << 12
"""The most elements of a constant that is copied."""


@dataclass(frozen=True)
class Kept:
    """A value as it is."""

    value: ir.Value


@dataclass(frozen=True)
class Constant:
    """A constant, broadcast to a shape first if one is given, in another shape."""

    value: ir.Value
    broadcast: Shape | None
    shape: Shape


@dataclass(frozen=True)
class Viewed:
    """A value behind a Reshape, Squeeze or Unsqueeze.

    Attributes:
        value: The value.
        shape: The shape that it gets.
        sizes: The elements of the Reshape target in order, if no constant target does.
    """

    value: ir.Value
    shape: Shape
    sizes: tuple[Size, ...] | None = None


@dataclass(frozen=True)
class Made:
    """The result of a node like another one, with other operands and attributes."""

    node: ir.Node
    operands: tuple[Plan | None, ...]
    attributes: Mapping[str, Any] = field(hash=False, compare=False)


Size = int | tuple[ir.Value, int]
"""A number, or a value and the axis whose size it is; of a vector of integers, the element at the place."""

Plan = Kept | Constant | Viewed | Made

NONE = math.inf
"""The cost of what cannot be made: infinite, so that no Reshape that is left out makes it less."""


class Planner:
    """Makes plans for one value.

    Args:
        facts: What is known about the model.
        target: A Reshape target, whose elements may be elements of others; without it, all targets are constant.
    """

    def __init__(self, facts: Facts, target: ir.Value | None = None) -> None:
        self._facts = facts
        self._target = target
        self._passed = 0

    def plan(self, value: ir.Value, shape: Shape, user: ir.Node) -> tuple[Plan, float]:
        """Return the plan of a value in a shape for its user, with the number of Reshapes that it adds to the model."""
        facts = self._facts
        before = facts.shape(value)
        if before == shape:
            return Kept(value), 0
        if before is None:
            return Kept(value), NONE
        if facts.is_const(value) and (constant := self._constant(value, None, shape)) is not None:
            return constant, 0
        best = self._view(value, before, shape)
        node = value.producer()
        self._passed += 1
        if node is None or (node.domain == "" and node.op_type in ("Constant",)) or self._passed > MOST_NODES:
            return best
        alone = is_alone(value, user)
        if is_view(node) and node.inputs[0] is not None:
            above, cost = self.plan(node.inputs[0], shape, node)
            left = view_cost(facts.shape(node.inputs[0]), before) if alone else 0
            return min(best, (above, cost - left), key=lambda one: one[1])
        if alone and (made := reshaped(node, shape, facts)) is not None:
            through = self.through(node, made)
            return min(best, through, key=lambda one: one[1])
        return best

    def _view(self, value: ir.Value, before: Shape, shape: Shape) -> tuple[Plan, float]:
        """A Reshape of a value."""
        if can_view(before, shape):
            return Viewed(value, shape), view_cost(before, shape)
        sizes = self._sizes(value, before, shape)
        return Viewed(value, shape, sizes), NONE if sizes is None else view_cost(before, shape)

    def _sizes(self, value: ir.Value, before: Shape, shape: Shape) -> tuple[Size, ...] | None:
        """The elements of a Reshape target, from the given target and the shape of the value."""
        given = self._facts.ints(self._target)
        if self._target is None or given is None or len(given.elements) != len(shape):
            return None
        found: list[Size] = []
        for axis, dim in enumerate(shape):
            if given.elements[axis] in (dim, -1) and dim != 0:
                found.append((self._target, axis))
            elif isinstance(dim, int) and dim != 0:
                found.append(dim)
            elif dim in before:
                found.append((value, before.index(dim)))
            else:
                return None
        return tuple(found)

    def through(self, node: ir.Node, made: Reshaped) -> tuple[Plan, float]:
        """Return the plan of a node that becomes another one, with the number of Reshapes that it adds to the model."""
        operands: list[Plan | None] = []
        total: float = 0
        for number, value in enumerate(node.inputs[: len(made.operands)]):
            shape = made.operands[number]
            if value is None or shape is None:
                operands.append(None if value is None else Kept(value))
                continue
            found = self._broadcast(value, made.broadcast[number], shape) if number in made.broadcast else None
            operand, cost = found or self.plan(value, shape, node)
            operands.append(operand)
            total += cost
        return Made(node, tuple(operands), made.attributes), total

    def _broadcast(self, value: ir.Value, broadcast: Shape, shape: Shape) -> tuple[Plan, float]:
        """A constant that is broadcast first; values that are computed are not."""
        constant = self._constant(value, broadcast, shape)
        return (Kept(value), NONE) if constant is None else (constant, 0)

    def _constant(self, value: ir.Value, broadcast: Shape | None, shape: Shape) -> Constant | None:
        """The constant in another shape; `None` if it is none, or too large to be copied."""
        sizes = [dim for dim in shape if isinstance(dim, int)]
        array = self._facts.const(value) if len(sizes) == len(shape) else None
        small = array is not None and (array.size <= FEW or (broadcast is None and len(value.uses()) == 1))
        count = 1
        for size in sizes:
            count *= size
        if not small or (broadcast is not None and count > FEW):
            return None
        return Constant(value, broadcast, shape)


def is_view(node: ir.Node | None) -> bool:
    """Whether a node gives a value another shape."""
    return node is not None and not node.domain and node.op_type in VIEWS


def is_alone(value: ir.Value, user: ir.Node) -> bool:
    """Whether a value has no user but one node of the same graph."""
    node = value.producer()
    if node is None or value.is_graph_output() or node.graph is not user.graph:
        return False
    return all(use.node is user for use in value.uses())


def may_pass(value: ir.Value, facts: Facts) -> bool:
    """Whether a Reshape behind a value may be hoisted: the value has one use, and its producer tells how: an early reject."""
    node = value.producer()
    return (
        node is not None and len(value.uses()) == 1 and not value.is_graph_output() and reshaping_of(node) is not None
    )


def can_view(before: Shape, after: Shape) -> bool:
    """Whether one node makes the one shape of the other: Squeeze, Unsqueeze, or Reshape with a constant target."""
    return (
        added_axes(before, after) is not None
        or added_axes(after, before) is not None
        or (reshape_target(before, after) is not None)
    )


def added_axes(before: Shape, after: Shape) -> list[int] | None:
    """Return the axes of size 1 that are added, counted behind; `None` if something else changes."""
    left, added = list(before), []
    for axis, dim in enumerate(after):
        if left and left[0] == dim:
            left.pop(0)
        elif dim == 1:
            added.append(axis)
        else:
            return None
    return None if left else added


def parts(plan: Plan) -> list[Plan]:
    """Return a plan and the plans that it is made of, each once."""
    found: dict[Plan, None] = {}
    waiting: list[Plan] = [plan]
    while waiting:
        one = waiting.pop()
        if one in found:
            continue
        found[one] = None
        if isinstance(one, Made):
            waiting += [operand for operand in one.operands if operand is not None]
    return list(found)


def saved(plan: Plan, root: ir.Node, facts: Facts) -> int:
    """Return how many Reshapes a plan leaves out, less those that it adds.

    Args:
        plan: The plan for the result of `root`.
        root: The node that gives it its shape now.
        facts: What is known about the model.
    """
    every = parts(plan)
    made = {one.node for one in every if isinstance(one, Made)}
    read = {one.value for one in every if isinstance(one, Kept | Viewed)}
    if any(value in read for node in made for value in node.outputs):
        return 0  # the node would be there twice
    gone = {root, *made}
    for node in (root, *made):
        for operand in node.inputs:
            value = operand
            while value is not None and value not in read and is_view(producer := value.producer()):
                assert producer is not None
                if value.is_graph_output() or not all(use.node in gone for use in value.uses()):
                    break
                gone.add(producer)
                value = producer.inputs[0]
    before = sum(_cost(node.inputs[0], node.outputs[0], facts) for node in gone if is_view(node))
    return before - sum(view_cost(facts.shape(one.value), one.shape) for one in every if isinstance(one, Viewed))


def _cost(value: ir.Value | None, viewed: ir.Value, facts: Facts) -> int:
    return view_cost(facts.shape(value), facts.shape(viewed))
