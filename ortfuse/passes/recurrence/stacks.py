"""Elements of a tensor that are stacked again in their order are the tensor, with that axis moved.

    stack(x[0], x[1], x[2]) = x        stack(join(x[0], y[0]), join(x[1], y[1])) = join(x, y)

Unrolled loops over time leave such stacks, of what they take from a sequence and of what an operator made of them yields as one.
Stacks are Concats of Unsqueezes; elements are taken by Gather of one index, or by Squeeze of a Split or Slice of size 1.

Left alone: elements in another order, and axes of which the size is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortfuse.facts.facts import Facts
from ortfuse.graph.walk import Scope
from ortfuse.passes.building import Builder
from ortfuse.passes.context import Context
from ortfuse.passes.recurrence.form import Forms, Source
from ortfuse.passes.recurrence.operands import Track, from_front
from ortfuse.pattern.operators import parameter


@dataclass(frozen=True)
class _Joined:
    """Steps that join what other steps are, along an axis that all of them have."""

    parts: tuple[Steps, ...]
    axis: int


Steps = Track | _Joined
"""What each step is, over all steps."""


@dataclass(frozen=True)
class Stacks:
    """Takes tensors whole instead of stacking their elements."""

    name: ClassVar[str] = "stacks"

    def run(self, context: Context) -> int:
        """Replace stacks of elements in order; returns how many."""
        found = [(node, scope) for scope in context.scopes() for node in scope.graph if _is_concat(node)]
        return sum(_replace(node, scope, context) for node, scope in found)


def _replace(node: ir.Node, scope: Scope, context: Context) -> bool:
    facts = context.facts
    axis, values = parameter(node, "axis", facts), [_unstacked(value, facts) for value in node.inputs]
    stacked = [value for value, place in (one for one in values if one is not None) if place == axis]
    steps = _steps(stacked, Forms(facts)) if len(stacked) == len(node.inputs) > 1 else None
    if steps is None:
        return False
    with context.editor.change(Stacks.name) as change:
        build = Builder(scope, context.editor, node)
        rank = (facts.rank(stacked[0]) or 0) + 1
        context.editor.replace(node.outputs[0], from_front(_whole(steps, build, facts), axis, rank, build))
        context.editor.remove(node)
    return bool(change)


def _is_concat(node: ir.Node | None) -> bool:
    return node is not None and node.op_type == "Concat" and not node.domain


def _unstacked(value: ir.Value | None, facts: Facts) -> tuple[ir.Value, int] | None:
    """The value and the axis of an Unsqueeze of one axis."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != "Unsqueeze" or node.domain or node.inputs[0] is None:
        return None
    axes = parameter(node, "axes", facts)
    is_one = isinstance(axes, tuple | list) and len(axes) == 1 and isinstance(axes[0], int)
    return (node.inputs[0], axes[0]) if is_one and facts.rank(node.inputs[0]) is not None else None


def _steps(values: Sequence[ir.Value], forms: Forms) -> Steps | None:
    """What values are step by step, if they are elements in order, or elements in order that are joined."""
    track = Track.of([forms.source(Source(value)) for value in values])
    if track.direction == 1:
        return track
    nodes = [value.producer() for value in values]
    if not all(_is_concat(node) for node in nodes):
        return None
    joins = [node for node in nodes if node is not None]
    axes = {parameter(node, "axis", forms.facts) for node in joins}
    if len(axes) != 1 or len({len(node.inputs) for node in joins}) != 1:
        return None
    operands = zip(*(node.inputs for node in joins), strict=True)
    parts = [_steps([value for value in step if value is not None], forms) for step in operands]
    (axis,) = axes
    known = [part for part in parts if part is not None]
    return _Joined(tuple(known), axis + 1) if len(known) == len(parts) and isinstance(axis, int) else None


def _whole(steps: Steps, build: Builder, facts: Facts) -> ir.Value:
    """All steps as one tensor, with the steps as its first axis."""
    if isinstance(steps, Track):
        return steps.sequence(build, facts, 1)
    return build.concat([_whole(part, build, facts) for part in steps.parts], steps.axis)
