"""The structure of a Loop or Scan: loop-carried values, scanned inputs, stacked results, and the number of iterations.

In formulas of indices the iteration number is a variable, so that index maps (`ortfuse.analysis.index_maps`) say which values of
the body are elements of values outside, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.index_maps import ELEMENT_MAPS, Element, IndexMap, IndexMapOf, Number, Read, Select, Taken
from ortfuse.analysis.loop_summary.induction_variables import Inductions
from ortfuse.analysis.loop_summary.linear_form import Source
from ortfuse.analysis.node_parameters import attribute_value
from ortfuse.ir.dims import Dim, DimLike, ceil_div, is_nonnegative, is_positive, substituted, symbol
from ortfuse.ir.walk import used_values

_TAKING = frozenset({"Gather", "Slice", "Split", "GatherElements", "GatherND"})
"""The operators that take elements of their first operand."""


@dataclass(frozen=True)
class State:
    """A loop-carried value: before the loop, before and after an iteration, and after the loop."""

    initial: ir.Value
    before: ir.Value
    after: ir.Value
    final: ir.Value

    @property
    def inserted(self) -> ir.Value | None:
        """The value that each iteration appends to a sequence that is empty before the loop."""
        first, last = self.initial.producer(), self.after.producer()
        if first is None or last is None or first.op_type != "SequenceEmpty" or last.op_type != "SequenceInsert":
            return None
        is_appended = len(last.inputs) == 2 and last.inputs[0] is self.before
        return last.inputs[1] if is_appended and not self.final.is_graph_output() else None


@dataclass(frozen=True)
class Stacked:
    """A value of the body of which the values of all iterations are stacked along an axis."""

    value: ir.Value
    result: ir.Value
    axis: int


@dataclass(frozen=True)
class Loop:
    """A Loop or Scan whose loop-carried values are all present.

    Attributes:
        node: The node.
        body: Its body.
        states: The loop-carried values.
        first: The place of the first state among the operands of the node, and among the inputs of the body.
        skipped: How many results of the body, the condition of a Loop, are no results of the node.
    """

    node: ir.Node
    body: ir.Graph
    states: tuple[State, ...]
    first: int
    skipped: int

    @property
    def counter(self) -> ir.Value | None:
        """The input of the body that is the iteration number of a Loop."""
        return self.body.inputs[0] if self.first else None

    def inductions(self, facts: Facts) -> Inductions:
        """The induction variables."""
        return Inductions(self.counter, [(one.initial, one.before, one.after) for one in self.states], self.body, facts)


def loop_of(node: ir.Node, facts: Facts) -> Loop | None:
    """The structure of a Loop or Scan; `None` for other nodes."""
    attribute = node.attributes.get("body")
    if node.domain or node.op_type not in ("Loop", "Scan") or attribute is None or attribute.is_ref():
        return None
    is_scan = node.op_type == "Scan"
    scanned = attribute_value(node, "num_scan_inputs", facts) if is_scan else 0
    if not isinstance(scanned, int) or (is_scan and facts.version(node) < 9):
        return None
    body, first, skipped = attribute.as_graph(), 0 if is_scan else 2, 0 if is_scan else 1
    count = len(node.inputs) - first - scanned
    is_whole = len(body.inputs) == len(node.inputs) and len(body.outputs) == skipped + len(node.outputs)
    initial = [value for value in node.inputs[first:] if value is not None]
    if not is_whole or not 0 <= count <= len(node.outputs) or len(initial) < len(node.inputs) - first:
        return None
    after = map(origin, body.outputs[skipped : skipped + count])
    states = tuple(map(State, initial[:count], body.inputs[first:], after, node.outputs))
    return Loop(node, body, states, first, skipped)


@dataclass(frozen=True)
class Iteration(Loop):
    """A loop whose number of iterations is known before it starts.

    Attributes:
        stacked: What is stacked.
        runs: The number of iterations.
        number: The position of an iteration among the elements of scanned values, as the variable of formulas.
        is_reverse: Whether elements are taken, and stacked, from the last to the first.
        given: What inputs of the body are, for questions about index maps.
        counters: The induction variables.
        facts: What is known of values.
    """

    stacked: tuple[Stacked, ...]
    runs: DimLike
    number: Dim
    is_reverse: bool
    given: Mapping[ir.Value, Number | Taken]
    counters: Inductions
    facts: Facts

    @property
    def may_be_empty(self) -> bool:
        """Whether the body may not be run at all."""
        return not is_positive(self.runs)

    def counts(self, value: ir.Value | None) -> bool:
        """Whether a value is the iteration number."""
        return self.counters.is_number(value, self.runs)

    @cached_property
    def elements(self) -> Mapping[ir.Value, Source]:
        """The values of the body that are elements of values outside, one after the other in all iterations, or falling."""
        whole = {node.inputs[0] for node in self.body if node.op_type in _TAKING and node.inputs[0] is not None}
        outside = frozenset(value for value in whole if value.graph is not self.body)
        maps = self.facts.answering(IndexMapOf(outside, self.given, self.body))
        moved = [value for node in self.body if ELEMENT_MAPS.of(node) is not None for value in node.outputs]
        found = {value: self._element(maps(value)) for value in moved}
        scanned = {
            value: Source(one.value, one.axis, one.index)
            for value, one in self.given.items()
            if isinstance(one, Taken) and one.axis is not None
        }
        return scanned | {value: source for value, source in found.items() if source is not None}

    def taken(self, source: Source) -> tuple[int, int, int] | None:
        """How many elements before and behind those of all iterations are left out, and the step to the next one.

        The step is -1 or at least 1. `None` if an iteration takes another element, or perhaps none.
        """
        shape, name = self.facts.shape(source.value), "?iteration"
        if shape is None or source.axis is None:
            return None
        step = substituted(source.index, {name: self.number + 1}) - source.index
        first = substituted(source.index, {name: 0 if step != -1 else self.runs - 1})
        if not isinstance(step, int) or not isinstance(first, int) or first < 0 or step < -1 or step == 0:
            return None
        rest = shape[source.axis] - first
        if step > 1:
            return (first, 0, step) if ceil_div(rest, step) == self.runs else None
        behind = rest - self.runs
        return (first, behind, step) if isinstance(behind, int) and behind >= 0 else None

    @property
    def sized(self) -> Source | None:
        """A value of which all elements are taken, so that its size is the number of iterations."""
        return next((one for one in self.elements.values() if self.taken(one) in ((0, 0, 1), (0, 0, -1))), None)

    def _element(self, found: IndexMap | None) -> Source | None:
        """The element of which another value is all of."""
        at = None if found is None else self._within_runs(found.element)
        shape = None if at is None or at.value.graph is self.body else self.facts.shape(at.value)
        if found is None or at is None or shape is None:
            return None
        whole = IndexMap.identity(at.value, found.shape).element
        assert isinstance(whole, Read)
        for axis, index in enumerate(at.index):
            is_whole = (
                shape[:axis] + shape[axis + 1 :] == found.shape
                and at.index[:axis] + at.index[axis + 1 :] == whole.index
            )
            source = Source(at.value, axis, index)
            if is_whole and index != 0 and self.taken(source) is not None:
                return source
        return None

    def _within_runs(self, element: Element) -> Read | None:
        """The element that is read in all iterations, by conditions that hold because there are so many."""
        left = {"?iteration": self.runs - 1 - symbol("?left")}
        while isinstance(element, Select) and is_nonnegative(substituted(element.condition, left)):
            element = element.then
        return element if isinstance(element, Read) else None


def iteration_of(node: ir.Node, facts: Facts) -> Iteration | None:
    """The iteration of a Loop or Scan; `None` for other nodes, and for loops that may end early or of unknown length."""
    loop = loop_of(node, facts)
    if loop is None:
        return None
    return _of_loop(loop, facts) if loop.counter is not None else _of_scan(loop, facts)


def obstacle(node: ir.Node, facts: Facts) -> str:
    """Why the number of iterations of a Loop is not known."""
    loop = loop_of(node, facts)
    if loop is None:
        return "one of its loop-carried values is absent"
    return loop.inductions(facts).obstacle(node.inputs[0], origin(loop.body.outputs[0]))


def fails_if_empty(iteration: Iteration) -> bool:
    """Whether the model fails if the body does not run at all, as joining the elements of an empty sequence does."""
    users = [use.node for state in iteration.states if state.inserted is not None for use in state.final.uses()]
    return any(user.op_type == "ConcatFromSequence" and user.graph is iteration.node.graph for user in users)


def _of_loop(loop: Loop, facts: Facts) -> Iteration | None:
    node, body, counters = loop.node, loop.body, loop.inductions(facts)
    condition = node.inputs[1] if len(node.inputs) > 1 else None
    runs = counters.runs(node.inputs[0], condition, origin(body.outputs[0]))
    if runs is None:
        return None
    count, number = len(loop.states), _number(runs)
    stacked = tuple(Stacked(origin(body.outputs[1 + n]), node.outputs[n], 0) for n in range(count, len(node.outputs)))
    given = _given(loop, counters, runs, number) | {body.inputs[0]: Number(number)}
    return Iteration(node, body, loop.states, loop.first, 1, stacked, runs, number, False, given, counters, facts)


def _given(loop: Loop, counters: Inductions, runs: DimLike, number: Dim) -> dict[ir.Value, Number | Taken]:
    """Return the values of states that each iteration leaves as they are, or that are counted from the first on."""
    given: dict[ir.Value, Number | Taken] = {}
    for state in loop.states:
        if state.after is state.before:
            given[state.before] = Taken(state.initial)
        elif counters.is_counted(runs) and (found := counters.affine(state.before)) is not None:
            given[state.before] = Number(found.start + found.step * number)
    return given


def _of_scan(loop: Loop, facts: Facts) -> Iteration | None:
    node, body, count = loop.node, loop.body, len(loop.states)
    taken, stacks = _axes(node, "input", len(node.inputs) - count), _axes(node, "output", len(node.outputs) - count)
    if taken is None or stacks is None or len({*taken[1], *stacks[1]}) != 1:
        return None
    shapes = [facts.shape(value) for value in node.inputs[count:]]
    known = [shape for shape in shapes if shape is not None]
    sizes = {shape[axis] for shape, axis in zip(known, taken[0], strict=False)}
    ranks = [facts.rank(value) for value in body.outputs[count:]]
    if len(known) < len(shapes) or len(sizes) != 1 or None in ranks:
        return None
    (runs,) = sizes
    number, counters, is_reverse = _number(runs), loop.inductions(facts), taken[1] == {1}
    # Where elements are taken from the last to the first, the variable is their place, and no counter.
    given = _given(loop, counters, runs, number)
    given = {value: one for value, one in given.items() if not (is_reverse and isinstance(one, Number))}
    for value, inner, axis, shape in zip(node.inputs[count:], body.inputs[count:], taken[0], known, strict=True):
        assert value is not None
        given[inner] = Taken(value, axis % len(shape), number)
    results = zip(body.outputs[count:], node.outputs[count:], stacks[0], ranks, strict=True)
    stacked = tuple(Stacked(origin(value), result, axis % ((rank or 0) + 1)) for value, result, axis, rank in results)
    return Iteration(node, body, loop.states, 0, 0, stacked, runs, number, is_reverse, given, counters, facts)


def _number(runs: DimLike) -> Dim:
    """The variable that stands for the iteration number."""
    return symbol("?iteration", 0, runs - 1 if isinstance(runs, int) and runs > 0 else None)


def _axes(node: ir.Node, kind: str, count: int) -> tuple[list[int], set[int]] | None:
    """The axes along which a Scan takes its inputs or stacks its outputs, and the directions (1: reverse)."""
    found = []
    for name in (f"scan_{kind}_axes", f"scan_{kind}_directions"):
        attribute = node.attributes.get(name)
        if attribute is not None and attribute.is_ref():
            return None
        found.append([0] * count if attribute is None else list(attribute.as_ints()))
    return (found[0], set(found[1])) if all(len(one) == count for one in found) else None


def dependents(value: ir.Value) -> set[ir.Value]:
    """The values of a graph that are computed from one of it, itself included."""
    found = {value}
    for node in value.graph or ():
        if any(one in found for one in used_values(node)):
            found.update(node.outputs)
    return found


def needed(values: Iterable[ir.Value], body: ir.Graph) -> set[ir.Value]:
    """The values from which the values of a body are computed, themselves included."""
    waiting, found = [*values], set[ir.Value]()
    while waiting:
        value = waiting.pop()
        if value not in found:
            found.add(value)
            producer = value.producer()
            if producer is not None and value.graph is body:
                waiting += used_values(producer)
    return found


def origin(value: ir.Value) -> ir.Value:
    """The value that a result of a body is, behind the Identity that gives it a name of its own."""
    node = value.producer()
    while node is not None and node.op_type == "Identity" and not node.domain and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    return value
