"""Describe a Loop or Scan by its body: loop-carried values, elements of scanned inputs, stacked results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import DimLike, is_positive
from ortfuse.rewrite.pattern.node_parameters import parameter
from ortfuse.transforms.recurrence.induction_variables import Inductions
from ortfuse.transforms.recurrence.linear_form import Source


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


def obstacle(node: ir.Node, facts: Facts) -> str:
    """Why the number of iterations of a Loop is not known."""
    body = node.attributes["body"].as_graph()
    counters = _inductions(body, _loop_carried(node, body) or (), facts)
    return counters.obstacle(node.inputs[0], origin(body.outputs[0]))


def inserted(state: State) -> ir.Value | None:
    """The value that each iteration appends to a sequence that is empty before the loop."""
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
    count, states = len(node.inputs) - 2, _loop_carried(node, body)
    counters = _inductions(body, states or (), facts)
    runs = counters.runs(limit, condition, origin(body.outputs[0]))
    if states is None or runs is None:
        return None
    results = map(origin, body.outputs[count + 1 :])
    stacked = tuple(map(Stacked, results, node.outputs[count:], [0] * len(node.outputs)))
    elements = {}
    for inner in body:
        if inner.op_type == "Gather" and not inner.domain and counters.is_number(inner.inputs[1], runs):
            axis, shape = parameter(inner, "axis", facts), facts.shape(inner.inputs[0])
            source, is_number = inner.inputs[0], facts.rank(inner.inputs[1]) == 0  # some bodies take it as a vector
            source = counters.outside(source)
            if is_number and source is not None and shape and shape[axis] == runs:
                elements[inner.outputs[0]] = Source(source, axis, body.inputs[0])
    return Iteration(node, body, states, stacked, elements, False, runs)


def _loop_carried(node: ir.Node, body: ir.Graph) -> tuple[State, ...] | None:
    """The states of a Loop; `None` if one is absent."""
    count = len(node.inputs) - 2
    return _states(list(node.inputs[2:]), body.inputs[2:], body.outputs[1 : count + 1], node.outputs[:count])


def _inductions(body: ir.Graph, states: Sequence[State], facts: Facts) -> Inductions:
    return Inductions(body.inputs[0], [(one.initial, one.before, one.after) for one in states], body, facts)


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
