"""What a Loop or Scan does in terms of its body: states that are handed on, elements that are taken, results that are stacked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.dims import DimLike, is_positive
from ortfuse.facts.facts import Facts
from ortfuse.passes.recurrence.form import Source
from ortfuse.pattern.operators import parameter

_COUNTED = 1 << 22
"""The most runs that are counted besides, and the largest number that is added: their sums are exact in `_COUNTING`."""

_COUNTING = (ir.DataType.INT32, ir.DataType.INT64, ir.DataType.FLOAT, ir.DataType.DOUBLE)


@dataclass(frozen=True)
class State:
    """A value that is handed on: before the loop, before and after a run of the body, and after the loop."""

    initial: ir.Value
    before: ir.Value
    after: ir.Value
    final: ir.Value


@dataclass(frozen=True)
class Stacked:
    """A value of the body of which the values of all runs are stacked along an axis."""

    value: ir.Value
    result: ir.Value
    axis: int


@dataclass(frozen=True)
class Iteration:
    """A loop whose number of runs is known before it starts.

    Attributes:
        node: The Loop or Scan.
        body: Its body.
        states: What is handed on.
        stacked: What is stacked.
        elements: The values of the body that are elements of values outside, one after the other in all runs.
        is_reverse: Whether elements are taken, and stacked, from the last to the first.
        runs: The number of runs.
    """

    node: ir.Node
    body: ir.Graph
    states: tuple[State, ...]
    stacked: tuple[Stacked, ...]
    elements: Mapping[ir.Value, Source]
    is_reverse: bool
    runs: DimLike

    @property
    def may_be_empty(self) -> bool:
        """Whether the body may not be run at all."""
        return not is_positive(self.runs)


def iteration_of(node: ir.Node, facts: Facts) -> Iteration | None:
    """The iteration of a Loop or Scan; `None` for other nodes, and for loops that may end early or of unknown length."""
    attribute = node.attributes.get("body")
    if node.domain or attribute is None or attribute.is_ref():
        return None
    if node.op_type == "Loop":
        return _of_loop(node, attribute.as_graph(), facts)
    return _of_scan(node, attribute.as_graph(), facts) if node.op_type == "Scan" and facts.version(node) >= 9 else None


def inserted(state: State) -> ir.Value | None:
    """What each run appends to a sequence that is empty before the loop."""
    first, last = state.initial.producer(), state.after.producer()
    if first is None or last is None or first.op_type != "SequenceEmpty" or last.op_type != "SequenceInsert":
        return None
    is_appended = len(last.inputs) == 2 and last.inputs[0] is state.before
    return last.inputs[1] if is_appended and not state.final.is_graph_output() else None


def fails_if_empty(iteration: Iteration) -> bool:
    """Whether the model fails if the body does not run at all, as joining the elements of an empty sequence does."""
    kept = [state.final for state in iteration.states if inserted(state) is not None]
    users = [use.node for value in kept for use in value.uses()]
    return any(user.op_type == "ConcatFromSequence" and user.graph is iteration.node.graph for user in users)


def _of_loop(node: ir.Node, body: ir.Graph, facts: Facts) -> Iteration | None:
    limit, condition = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    number = facts.ints(limit)
    if number is None or len(number.elements) != 1 or number.elements[0] is None:
        return None
    runs, count = number.elements[0], len(node.inputs) - 2
    states = _states(list(node.inputs[2:]), body.inputs[2:], body.outputs[1 : count + 1], node.outputs[:count])
    counters = _Counters(body.inputs[0], runs, states or (), facts)
    if not _goes_on(body, condition, counters, facts):
        return None
    results = map(origin, body.outputs[count + 1 :])
    stacked = tuple(map(Stacked, results, node.outputs[count:], [0] * len(node.outputs)))
    elements = {}
    for inner in body:
        if inner.op_type == "Gather" and not inner.domain and counters.offset(inner.inputs[1]) == 0:
            axis, shape = parameter(inner, "axis", facts), facts.shape(inner.inputs[0])
            source, is_number = inner.inputs[0], facts.rank(inner.inputs[1]) == 0  # some bodies take it as a vector
            if is_number and source is not None and source.graph is not body and shape and shape[axis] == runs:
                elements[inner.outputs[0]] = Source(source, axis, body.inputs[0])
    return None if states is None else Iteration(node, body, states, stacked, elements, False, runs)


def _goes_on(body: ir.Graph, condition: ir.Value | None, counters: _Counters, facts: Facts) -> bool:
    """Whether the condition of a loop is true from the beginning and stays so up to the last run but one."""
    begins = condition is None or facts.scalar(condition)
    stays = origin(body.outputs[0])
    return bool(begins and (facts.scalar(stays) or stays is body.inputs[1] or counters.is_true(stays)))


@dataclass(frozen=True)
class _Counters:
    """Values of a body that are the number of the run plus a constant, as loops of TensorFlow count besides."""

    number: ir.Value
    runs: DimLike
    states: tuple[State, ...]
    facts: Facts

    def offset(self, value: ir.Value | None) -> int | None:
        """The constant; `None` if the value is something else, or may not be counted exactly."""
        if value is None or value is self.number:
            return None if value is None else 0
        if not isinstance(self.runs, int) or self.runs > _COUNTED or self.facts.dtype(value) not in _COUNTING:
            return None
        node = value.producer()
        if node is None:
            return self._begun(value)
        if node.domain or node.op_type not in ("Cast", "Identity", "Add"):
            return None
        return self._sum(*node.inputs) if node.op_type == "Add" else self.offset(node.inputs[0])

    def is_true(self, value: ir.Value | None) -> bool:
        """Whether a condition is true after every run but the last."""
        node = None if value is None else value.producer()
        if node is None or node.domain or not isinstance(self.runs, int):
            return False
        if node.op_type in ("And", "Identity"):
            return all(self.is_true(one) for one in node.inputs)
        if node.op_type != "Less" or self.facts.dtype(node.inputs[0]) not in _COUNTING:
            return False
        offset, limit = self.offset(node.inputs[0]), self.facts.scalar(node.inputs[1])
        return offset is not None and limit is not None and bool(self.runs - 2 + offset < limit)

    def _begun(self, value: ir.Value) -> int | None:
        """The constant of a state that rises by 1 in each run: what it is before the loop."""
        state = next((state for state in self.states if state.before is value), None)
        node = None if state is None else state.after.producer()
        if state is None or node is None or node.domain or node.op_type != "Add" or value not in node.inputs:
            return None
        step = node.inputs[1] if node.inputs[0] is value else node.inputs[0]
        return self._whole(state.initial) if self._whole(step) == 1 else None

    def _sum(self, one: ir.Value | None, other: ir.Value | None) -> int | None:
        for counted, added in ((one, other), (other, one)):
            more = self._whole(added)
            offset = self.offset(counted) if more is not None else None
            if more is not None and offset is not None:
                return offset + more if abs(offset + more) <= _COUNTED else None
        return None

    def _whole(self, value: ir.Value | None) -> int | None:
        """A constant that is a small integer."""
        number = self.facts.scalar(value)
        is_small = number is not None and abs(number) <= _COUNTED
        return int(number) if is_small and number == int(number) else None  # type: ignore[arg-type]


def _of_scan(node: ir.Node, body: ir.Graph, facts: Facts) -> Iteration | None:
    scanned = parameter(node, "num_scan_inputs", facts)
    if not isinstance(scanned, int):
        return None
    count = len(node.inputs) - scanned
    results = len(node.outputs) - count
    taken, given = (_axes(node, name, length) for name, length in (("input", scanned), ("output", results)))
    if taken is None or given is None or len({*taken[1], *given[1]}) != 1:
        return None
    states = _states(list(node.inputs[:count]), body.inputs[:count], body.outputs[:count], node.outputs[:count])
    elements, sizes = {}, set()
    for value, inner, axis in zip(node.inputs[count:], body.inputs[count:], taken[0], strict=True):
        shape = facts.shape(value)
        if value is None or shape is None:
            return None
        elements[inner] = Source(value, axis % len(shape), body.inputs[-1])
        sizes.add(shape[axis])
    stacked = []
    for value, result, axis in zip(body.outputs[count:], node.outputs[count:], given[0], strict=True):
        rank = facts.rank(value)
        if rank is None:
            return None
        stacked.append(Stacked(origin(value), result, axis % (rank + 1)))
    if states is None or len(sizes) != 1:
        return None
    return Iteration(node, body, states, tuple(stacked), elements, taken[1] == {1}, sizes.pop())


def _axes(node: ir.Node, kind: str, count: int) -> tuple[list[int], set[int]] | None:
    """The axes along which a Scan takes its inputs or stacks its outputs, and the directions (1: reverse)."""
    found = []
    for name in (f"scan_{kind}_axes", f"scan_{kind}_directions"):
        attribute = node.attributes.get(name)
        if attribute is not None and attribute.is_ref():
            return None
        found.append([0] * count if attribute is None else list(attribute.as_ints()))
    return (found[0], set(found[1])) if all(len(one) == count for one in found) else None


def _states(
    initial: Sequence[ir.Value | None],
    before: Sequence[ir.Value],
    after: Sequence[ir.Value],
    final: Sequence[ir.Value],
) -> tuple[State, ...] | None:
    known = [value for value in initial if value is not None]
    return tuple(map(State, known, before, map(origin, after), final)) if len(known) == len(initial) else None


def origin(value: ir.Value) -> ir.Value:
    """The value that a result of a body is, behind the Identity that gives it a name of its own."""
    node = value.producer()
    while node is not None and node.op_type == "Identity" and not node.domain and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    return value
