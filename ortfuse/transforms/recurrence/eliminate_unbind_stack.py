"""Replace the stack of all elements of an axis, in their order, by the tensor with that axis moved.

    stack(x[0], x[1], x[2]) = x        stack(join(x[0], y[0]), join(x[1], y[1])) = join(x, y)
    stack(f(x[0]), f(x[1])) = f(x)     stack(x[2], x[1], x[0]) = reverse(x)

Unrolled loops over time leave such stacks, of what they take from a sequence and of what an operator made of them yields as one,
often behind layers that are computed for each step: these are computed for all steps at once
(see `apply_body_ops_to_all_iterations`).
Stacks are Concats of Unsqueezes, or of values with one element each along the axis; elements are taken by Gather of one index,
or by Squeeze of a Split or Slice of size 1. Elements that are taken from the last to the first, as a loop over time that comes
back leaves its results, are reversed as a whole.

Does not handle: elements in other orders, axes of which the size is not known, and what is computed of a step and used
otherwise too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.loop_summary.linear_form import Forms, Source
from ortfuse.analysis.node_parameters import parameter
from ortfuse.ir.refusal import refuse
from ortfuse.ir.walk import Scope
from ortfuse.transforms.context import Context
from ortfuse.transforms.node_builder import Builder
from ortfuse.transforms.recurrence.apply_body_ops_to_all_iterations import Lifted
from ortfuse.transforms.recurrence.sequence_operands import Track, from_front

_FEWEST, _FEWEST_FALLING, _DEEPEST = 2, 3, 16
"""The fewest steps, of elements in rising or in falling order, and the most operators that are computed of each."""


@dataclass(frozen=True)
class _Joined:
    """Steps that join what other steps are, along an axis that all of them have."""

    parts: tuple[Steps, ...]
    axis: int


@dataclass(frozen=True)
class _Unit:
    """Steps that are elements with an axis of size 1 more, at a place."""

    track: Track
    place: int


@dataclass(frozen=True)
class _Mapped:
    """Steps that the same operator computes of other steps: the node of the first one, and what its operands are."""

    node: ir.Node
    operands: Mapping[ir.Value, Steps]


Steps: TypeAlias = "Track | _Joined | _Unit | _Mapped"
"""The value of each step, stacked over all steps."""


@dataclass(frozen=True)
class EliminateUnbindStack:
    """Replace the stack of all elements of a tensor, gathered one by one, by the tensor."""

    name: ClassVar[str] = "eliminate_unbind_stack"

    def run(self, context: Context) -> int:
        """Replace stacks of elements in order; returns how many."""
        found = [(node, scope) for scope in context.scopes() for node in scope.graph if _is_concat(node)]
        return sum(_replace(node, scope, context) for node, scope in found)


def _replace(node: ir.Node, scope: Scope, context: Context) -> bool:
    facts = context.facts
    axis, values = parameter(node, "axis", facts), [value for value in node.inputs if value is not None]
    if not isinstance(axis, int) or len(values) < _FEWEST:
        return False
    unstacked = [_unstacked(value, axis, facts) for value in values]
    stacked = [value for value in unstacked if value is not None]
    keeps_axis = len(stacked) < len(values)
    if keeps_axis and any((facts.shape(value) or ())[axis : axis + 1] != (1,) for value in values):
        return False
    steps = _steps(values if keeps_axis else stacked, Forms(facts), _DEEPEST)
    if steps is None or (keeps_axis and not isinstance(steps, _Mapped)):
        return False
    with context.editor.change(EliminateUnbindStack.name) as change:
        build = Builder(scope, context.editor, node)
        whole = _whole(steps, build, facts)
        if whole is None:
            change.cancel(refuse("left_out", node, found="what is not known to be computed for all steps at once"))
            return False
        if keeps_axis:
            whole = build.squeeze(whole, axis + 1)
        rank = facts.rank(node.outputs[0]) or 0
        context.editor.replace(node.outputs[0], from_front(whole, axis, rank, build))
        context.editor.remove(node)
    return bool(change)


def _is_concat(node: ir.Node | None) -> bool:
    return node is not None and node.op_type == "Concat" and not node.domain


def _unstacked(value: ir.Value, axis: int, facts: Facts) -> ir.Value | None:
    """The value of which an Unsqueeze puts in the axis."""
    node = value.producer()
    if node is None or node.op_type != "Unsqueeze" or node.domain or facts.rank(node.inputs[0]) is None:
        return None
    axes = parameter(node, "axes", facts)
    return node.inputs[0] if isinstance(axes, tuple | list) and tuple(axes) == (axis,) else None


def _steps(values: Sequence[ir.Value], forms: Forms, depth: int) -> Steps | None:
    """Recognise the values of consecutive steps: elements in order, or Concats and functions of such elements."""
    track = Track.of([forms.source(Source(value)) for value in values])
    if track.direction == 1 or (track.direction and len(values) >= _FEWEST_FALLING):
        return track
    nodes = [node for node in (value.producer() for value in values) if node is not None]
    if len(nodes) < len(values) or not depth:
        return None
    parts = [part for part in map(forms.unit_part, values) if part is not None]
    units = Track.of([source for source, _ in parts]) if len(parts) == len(values) else None
    if units is not None and units.direction == 1 and len({place for _, place in parts}) == 1:
        return _Unit(units, parts[0][1])
    if len({(node.op_type, node.domain, len(node.inputs)) for node in nodes}) > 1:
        return None
    return _joined(nodes, forms, depth) if _is_concat(nodes[0]) else _mapped(nodes, forms, depth)


def _joined(nodes: Sequence[ir.Node], forms: Forms, depth: int) -> Steps | None:
    axes = {parameter(node, "axis", forms.facts) for node in nodes}
    operands = zip(*(node.inputs for node in nodes), strict=True)
    parts = [_steps([value for value in step if value is not None], forms, depth - 1) for step in operands]
    axis, known = next(iter(axes)), [part for part in parts if part is not None]
    is_known = len(axes) == 1 and len(known) == len(parts) and isinstance(axis, int)
    return _Joined(tuple(known), axis + 1) if is_known else None


def _mapped(nodes: Sequence[ir.Node], forms: Forms, depth: int) -> Steps | None:
    """Return the common computation of nodes that differ in their operands only, and whose results nothing else uses."""
    first, found = nodes[0], dict[ir.Value, Steps]()
    if first.domain or any(not _is_private(node) or _attributes(node) != _attributes(first) for node in nodes):
        return None
    for step in zip(*(node.inputs for node in nodes), strict=True):
        values = [value for value in step if value is not None]
        if len(set(step)) == 1:
            continue
        steps = _steps(values, forms, depth - 1) if len(values) == len(step) else None
        if steps is None or found.setdefault(values[0], steps) != steps:
            return None
    return _Mapped(first, found) if found else None


def _is_private(node: ir.Node) -> bool:
    return len(node.outputs) == 1 and len(node.outputs[0].uses()) == 1 and not node.outputs[0].is_graph_output()


def _attributes(node: ir.Node) -> dict[str, Any]:
    return {name: (attribute.type, attribute.value) for name, attribute in node.attributes.items()}


def _whole(steps: Steps, build: Builder, facts: Facts) -> ir.Value | None:
    """All steps as one tensor, with the steps as its first axis; `None` if it is not known how to compute it."""
    if isinstance(steps, Track):
        found = steps.sequence(build, facts, steps.direction)
        return found if steps.direction == 1 else build.gather(found, 0, range(len(steps.sources))[::-1])
    if isinstance(steps, _Unit):
        return build.unsqueeze(steps.track.sequence(build, facts, 1), steps.place + 1)
    if isinstance(steps, _Mapped):
        wholes = {value: _whole(one, build, facts) for value, one in steps.operands.items()}
        known = {value: whole for value, whole in wholes.items() if whole is not None}
        lifted = Lifted(_Runs(known), build, facts).outputs(steps.node) if len(known) == len(wholes) else None
        return None if lifted is None else lifted[0]
    parts = [_whole(part, build, facts) for part in steps.parts]
    return build.concat([part for part in parts if part is not None], steps.axis) if None not in parts else None


@dataclass(frozen=True)
class _Runs:
    """The operands of the first step over all steps; all others are the same in all of them."""

    wholes: Mapping[ir.Value, ir.Value]

    def of(self, value: ir.Value) -> ir.Value:
        """The values of all steps along a new first axis."""
        return self.wholes[value]

    def constant(self, value: ir.Value) -> ir.Value:
        """A value that is the same in all steps."""
        return value

    def is_same(self, value: ir.Value) -> bool:
        """Whether a value is the same in all steps."""
        return value not in self.wholes
