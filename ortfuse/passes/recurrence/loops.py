"""Loops and Scans that compute all their runs at once: of recurrent cells, linear states, and of what treats each element alike.

    scan(h, x[t] -> h = cell(h, x[t]), y[t] = head(h))  =  head(operator(x))        scan(x[t] -> f(x[t]))  =  f(x)

A body is resolved as a whole, or not at all: elements of sequences are the sequences, cells whose states are handed on are an
LSTM, GRU or RNN, states that change linearly are a LinearAttention of the runtime (see `linear`), states that keep the last
elements are parts of the sequence (see `windows`), states that do not depend on what they were are those of the run before,
and operators that treat runs alike are applied to all of them at once (see
`lifted`). States are stacked as outputs of the loop, or in a sequence that is
joined to one tensor behind it. Rows that keep their states from the end of their length on are sequences of that length (see
`lengths`).

Left alone: loops that may end early or run an unknown number of times; Loops that may not run at all, of whose results the
runtime makes up the sizes (a Scan of nothing fails, and so do other nodes, so that what succeeds has run: see `nonempty`);
bodies with anything else in them, such as states that are handed on in another way. What holds a cell or a linear state and
is left alone is noted for the user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortfuse.assumptions import LOOPS_RUN
from ortfuse.graph.traits import MICROSOFT
from ortfuse.graph.walk import Scope, describe
from ortfuse.passes.building import Builder, Rounds
from ortfuse.passes.context import Context
from ortfuse.passes.recurrence.form import Source
from ortfuse.passes.recurrence.iteration import Iteration, State, inserted, iteration_of
from ortfuse.passes.recurrence.lengths import OLDEST as OLDEST_WITH_LENGTHS
from ortfuse.passes.recurrence.lengths import Choice, Choices, Lengths
from ortfuse.passes.recurrence.lifted import Lifted
from ortfuse.passes.recurrence.linear import LinearState, Reading, linear_states
from ortfuse.passes.recurrence.linear_attention import LinearAttention, UnfitError
from ortfuse.passes.recurrence.nonempty import Nonempty
from ortfuse.passes.recurrence.operands import from_front, initial_state, is_zero, shape_of, to_front
from ortfuse.passes.recurrence.operator import OLDEST, SLOWER, operands_of, operator, pays, results_of
from ortfuse.passes.recurrence.recurrences import Recurrence, recurrences
from ortfuse.passes.recurrence.stepped import Step, steps_in
from ortfuse.passes.recurrence.windows import Views, Window, windows_in
from ortfuse.pattern.operators import parameter
from ortfuse.refusal import refuse

_ALL = 2**31
"""An end of a Slice that is behind every element."""

_RANGES = 11
"""The opset from which on there is Range."""

_READING = ("MatMul", "ReduceSum", "Einsum")
"""The operators that read a state by summing over an axis of it."""


class _UnresolvedError(Exception):
    """Part of a body is nothing that can be computed for all runs at once; says what."""


@dataclass(frozen=True)
class Loops:
    """Computes all runs of a Loop or Scan at once.

    Attributes:
        always: Also with an operator that is slower than the cells.
        nonempty: Take for granted that Loops run at least once, which cannot be proved of one over a sequence of open length.
    """

    name: ClassVar[str] = "loops"
    always: bool = False
    nonempty: bool = False

    def run(self, context: Context) -> int:
        """Replace the loops that can be; returns how many were."""
        found = [(node, scope) for scope in context.scopes() if scope.opset >= OLDEST for node in scope.graph]
        sizes = Nonempty(context.model.graph, context.facts)
        loops = [(node, scope) for node, scope in found if node.op_type in ("Loop", "Scan")]
        count = sum(self._replace(node, scope, sizes, context) for node, scope in loops)
        if count:
            # What is known of the states in the bodies of later loops rests on the sizes of these results, now known.
            context.editor.renew_facts()
        return count

    def _replace(self, node: ir.Node, scope: Scope, sizes: Nonempty, context: Context) -> bool:
        iteration = iteration_of(node, context.facts)
        if iteration is None or node.graph is None:
            return False
        body = _body(iteration, context)
        kind = "recurrent" if body.cells or body.steps else "linear" if body.linear else "elementwise"
        name = f"{Loops.name}.{kind}"
        with context.editor.change(name, rule=Rounds(name), nodes=[node]) as change:
            try:
                is_slower = not all(pays(one.kind, one.output, context.facts) for one in body.cells.values())
                if is_slower and not self.always:
                    raise _UnresolvedError(f"{SLOWER} (`loops{{always=true}}`)")
                if not (self.nonempty or LOOPS_RUN in context.facts.assumed) and not sizes.surely_runs(node):
                    raise _UnresolvedError(_may_not_run(iteration))
                _resolve(body, scope, context, self.always)
            except _UnresolvedError as why:
                change.cancel(refuse("left_out", node, found=str(why)))
                if held := body.kinds:
                    context.note(
                        f"{describe(node)} holds states of a recurrent network ({held}) and stays as it is: {why}"
                    )
        if change:
            context.log.statistics(name).hits += 1
        return bool(change)


@dataclass(frozen=True)
class _Body:
    """What is recognised in the body of a loop.

    Attributes:
        iteration: What is handed on, taken and stacked.
        choices: What depends on the lengths of rows.
        cells: The recurrent cells, by their new hidden states.
        steps: The operators that make one step of a recurrence.
        linear: The states that change linearly.
        windows: The states that keep the last elements of a sequence, by what they are after a run.
    """

    iteration: Iteration
    choices: Choices
    cells: Mapping[ir.Value, Recurrence]
    steps: Mapping[ir.Node, Step]
    linear: Sequence[LinearState]
    windows: Mapping[ir.Value, Window]

    @property
    def kinds(self) -> str:
        """The recurrences by their names."""
        cells, steps = (one.kind for one in self.cells.values()), (node.op_type for node in self.steps)
        return ", ".join(sorted({*cells, *steps, *(["linear"] if self.linear else [])}))


def _body(iteration: Iteration, context: Context) -> _Body:
    choices = Choices(iteration, context.facts)
    cells, steps = recurrences(iteration, choices, context.facts), steps_in(iteration, context.facts)
    has_linear = context.target.supports(MICROSOFT, "LinearAttention", 1, [ir.DataType.FLOAT] * 3)
    found = linear_states(iteration, context.facts) if has_linear else ()
    handed_on = [one.states for one in cells.values()] + [one.states for one in steps.values()]
    recurrent = {state.after for states in handed_on for state in states}
    linear = [one for one in found if one.state.after not in recurrent]
    return _Body(iteration, choices, cells, steps, linear, windows_in(iteration, context.facts))


def _may_not_run(iteration: Iteration) -> str:
    """What stands in the way of a loop that may not run at all."""
    runs = f"it runs {iteration.runs} times; --assume {LOOPS_RUN} takes for granted that it does"
    return f"it may not run at all ({runs})"


def _resolve(body: _Body, scope: Scope, context: Context, always: bool) -> None:
    """Replace the results of a loop that are used, and the loop."""
    iteration = body.iteration
    build = Builder(scope, context.editor, iteration.node)
    whole = _Whole(body, build, context, always)
    replacements = []
    # What is stacked comes first: of a linear state, what is read says which axis is which.
    for stacked in iteration.stacked:
        if stacked.result.uses() or stacked.result.is_graph_output():
            rank = whole.rank(stacked.value) + 1
            replacements.append((stacked.result, from_front(whole.of(stacked.value), stacked.axis, rank, whole.build)))
    changing = {one.state.after for one in body.linear}
    for state in sorted(iteration.states, key=lambda state: state.after in changing):
        if state.final.uses() or state.final.is_graph_output():
            replacements += whole.final(state)
    for old, new in replacements:
        context.editor.replace(old, new)
        producer = old.producer()
        if producer is not None and producer is not iteration.node:
            context.editor.remove(producer)
    context.editor.remove(iteration.node)


class _Whole:
    """The values of a body over all runs, computed outside of the loop."""

    def __init__(self, body: _Body, build: Builder, context: Context, always: bool) -> None:
        self._always = always
        self.build = build
        self._iteration, self._cells, self._choices, self._steps = body.iteration, body.cells, body.choices, body.steps
        self._context, self._facts = context, context.facts
        self._linear = {one.state.after: one for one in body.linear}
        self._lifted = Lifted(self, build, context.facts)
        self._views = Views(body.windows, self.of, self.constant, build, context.facts)
        self._made: dict[ir.Value, ir.Value] = {}
        self._finals: dict[ir.Value, ir.Value] = {}
        self._ended: dict[ir.Value, ir.Value] = {}
        self._states: dict[ir.Value, ir.Value] = {}
        self._ends_of: dict[Lengths, ir.Value] = {}
        self._pending: list[State] = []

    def of(self, value: ir.Value) -> ir.Value:
        """The values of all runs along a new first axis.

        Raises:
            _UnresolvedError: They cannot be computed at once.
        """
        if value not in self._made:
            self._made[value] = self._computed(value)
        return self._made[value]

    def rank(self, value: ir.Value) -> int:
        """The rank of a value of the body."""
        rank = self._facts.rank(value)
        if rank is None:
            raise _UnresolvedError(f"the rank of '{value.name}' is not known")
        return rank

    def final(self, state: State) -> list[tuple[ir.Value, ir.Value]]:
        """What replaces the values that are computed of a state after the loop, each with its replacement."""
        if state.after is state.before:
            return [(state.final, state.initial)]
        if (value := inserted(state)) is not None:
            return [self._joined(use.node, value) for use in state.final.uses()]
        if (window := self._views.final(state)) is not None:
            return [(state.final, window)]
        self._follow(state)
        if state.after in self._linear and state.after not in self._finals:
            self._read(self._linear[state.after], None)
        if state.after not in self._finals:
            place = 0 if self._iteration.is_reverse else -1
            self._finals[state.after] = self.build.gather(self._after(state), 0, place)
        return [(state.final, self._finals[state.after])]

    def _joined(self, node: ir.Node, value: ir.Value) -> tuple[ir.Value, ir.Value]:
        """A sequence of the values of all runs that is joined along a new axis."""
        axis, rank = parameter(node, "axis", self._facts), self.rank(value) + 1
        stacks = node.op_type == "ConcatFromSequence" and parameter(node, "new_axis", self._facts) == 1
        if not stacks or not isinstance(axis, int) or node.graph is not self._iteration.node.graph:
            raise _UnresolvedError("its results are kept in a sequence that is not stacked")
        return node.outputs[0], from_front(self.of(value), axis % rank, rank, self.build)

    def _computed(self, value: ir.Value) -> ir.Value:
        element = self._iteration.elements.get(value)
        if element is not None and element.axis is not None:
            return to_front(element.value, element.axis, self.rank(value) + 1, self.build)
        if (seen := self._views.of(value)) is not None:
            return seen
        if value in self._cells:
            if self._cells[value].lengths is not None:
                raise _UnresolvedError("what is computed behind the end of a row is used")
            return self._hidden(self._cells[value])
        is_number = self._iteration.node.op_type == "Loop" and value is self._iteration.body.inputs[0]
        if is_number and self.rank(value) == 0:
            return self._numbers()
        choice = self._choices.choice(value)
        if choice is not None and choice.before in self._cells:
            return self._chosen(value, choice, self._cells[choice.before])
        for state in self._iteration.states:
            if state.before is value:
                return self._delayed(state)
        node = value.producer()
        if node is not None and node in self._steps:
            self._step(node, self._steps[node])
            if value not in self._made:
                raise _UnresolvedError(f"a cell state of {describe(node)} is used")
            return self._made[value]
        if node is None or value.graph is not self._iteration.body:
            raise _UnresolvedError(f"'{value.name}' is not known for all runs at once")
        if node.op_type in _READING or value in self._linear:
            for linear in self._linear.values():
                if (reading := linear.reading(value)) is not None:
                    return self._read(linear, reading)
        found = self._lifted.outputs(node)
        if found is None:
            raise _UnresolvedError(f"it computes {describe(node)}")
        self._made |= dict(zip(node.outputs, found, strict=True))
        return self._made[value]

    def _after(self, state: State) -> ir.Value:
        """A state after each run, if that does not depend on what it was before."""
        shape = self._facts.shape(state.after)
        is_known = shape is not None and shape == self._facts.shape(state.initial)
        if not is_known or state in self._pending:
            raise _UnresolvedError(f"the state '{state.before.name}' is handed on in another way")
        self._pending.append(state)
        whole = self.of(state.after)
        self._pending.pop()
        return whole

    def _delayed(self, state: State) -> ir.Value:
        """A state before each run: the first, and what it is after the runs before."""
        whole, first = self._after(state), self.build.unsqueeze(state.initial, 0)
        if self._iteration.is_reverse:
            return self.build.concat([self.build.slice(whole, 0, 1, _ALL), first], 0)
        return self.build.concat([first, self.build.slice(whole, 0, 0, -1)], 0)

    def _read(self, linear: LinearState, reading: Reading | None) -> ir.Value:
        """What is read of a state in all runs (without a reading: the state after the last run), both of which are kept."""
        operator = LinearAttention(linear, self._iteration, self.of, self.build, self._facts)
        try:
            found, final = operator.read(reading, self._always)
        except UnfitError as why:
            raise _UnresolvedError(str(why)) from None
        self._finals[linear.state.after] = final
        return final if found is None else found

    def is_same(self, value: ir.Value) -> bool:
        """Whether a value is the same in all runs."""
        return value.graph is not self._iteration.body or self._facts.is_const(value)

    def constant(self, value: ir.Value) -> ir.Value:
        """A value that is the same in all runs, outside of the loop.

        Raises:
            _UnresolvedError: It is another one in each run.
        """
        if value.graph is not self._iteration.body:
            return value
        if value.const_value is None or not value.is_initializer():
            raise _UnresolvedError(f"'{value.name}' is computed in the body")
        return self.build.constant(value.const_value)

    def _follow(self, state: State) -> None:
        """Compute the recurrence that a state is of, or whose hidden state it takes from 0 on, with its final states."""
        for one in self._cells.values():
            if any(state.after is own.after for own in one.states):
                self._hidden(one)
        for node, step in self._steps.items():
            if any(state.after is own.after for own in step.states):
                self._step(node, step)
        choice = self._choices.choice(state.after)
        taken = None if choice is None else self._cells.get(choice.before)
        if choice is None or taken is None or state.after in self._finals:
            return
        if (choice.lengths, choice.behind) == (taken.lengths, state.before) and self._facts.fill(state.initial) == 0:
            self._hidden(taken)
            self._finals[state.after] = self._ended[taken.output]

    def _step(self, node: ir.Node, step: Step) -> None:
        """Run an operator of the body over all runs."""
        if self._made.keys() & {*node.outputs}:
            return
        if self._iteration.may_be_empty and node.op_type == "GRU":
            raise _UnresolvedError("its GRU may have no step, for which the runtime's kernel does not return")
        operands = operands_of(node)
        weights = [None if operands[place] is None else self.constant(operands[place]) for place in (1, 2, 3, 7)]  # type: ignore[arg-type]
        sequence = self.of(operands[0])  # type: ignore[arg-type]
        made = step.over_runs(sequence, weights, self._iteration.is_reverse, self.build, self._facts)
        states, final, *_ = results_of(node)
        self._made |= {value: self.build.unsqueeze(made[0], 1) for value in [states] if value is not None}
        self._made |= {value: made[0] for value in [final] if value is not None}
        self._finals |= step.finals(made, self.build, self._facts)

    def _hidden(self, one: Recurrence) -> ir.Value:
        """The hidden states of a cell in all runs; the final ones are kept too."""
        if one.output not in self._states:
            self._states[one.output] = self._recurrent(one)
        return self._states[one.output]

    def _recurrent(self, one: Recurrence) -> ir.Value:
        initial = [state.initial for state in one.states]
        self._demand_sizes(one, initial)
        sequence = self.build.concat([self._input(source) for source in one.inputs], 2)
        given = [initial_state(Source(value), self.build, self._facts) for value in initial]
        ends = None if one.lengths is None else self._ends(one.lengths)
        pads, is_reverse = self._iteration.may_be_empty and one.kind == "GRU", self._iteration.is_reverse
        at_front = is_reverse and one.lengths is None
        sequence = self._padded(sequence, at_front) if pads else sequence
        counts = None if ends is None else self.build.node("Cast", [ends], {"to": ir.DataType.INT32})[0]
        direction = -1 if is_reverse else 1
        made = operator(one.weights, sequence, counts, given, direction, self.build, self._context)
        finals = made[1:]
        if one.lengths is not None and ends is not None:
            finals = one.lengths.finals(finals, given, ends, self.build, self._facts)
        states = self.build.squeeze(made[0], 1)
        if pads:
            states = self.build.slice(states, 0, *((1, _ALL) if at_front else (0, -1)))
        for state, value in zip(one.states, finals, strict=True):
            self._finals[state.after] = self.build.squeeze(value, 0)
        self._ended[one.output] = (
            self.build.squeeze(made[1], 0) if finals[0] is not made[1] else self._finals[one.states[0].after]
        )
        if pads and one.lengths is None:
            self._finals[one.states[0].after] = self.build.gather(states, 0, 0 if is_reverse else -1)
        return states

    def _ends(self, lengths: Lengths) -> ir.Value:
        """The lengths of the rows, at most the number of runs."""
        if lengths not in self._ends_of:
            if self.build.opset < OLDEST_WITH_LENGTHS:
                raise _UnresolvedError(f"lengths of rows are not compared before opset {OLDEST_WITH_LENGTHS}")
            self._ends_of[lengths] = lengths.vector(self._runs(), self.build)
        return self._ends_of[lengths]

    def _runs(self) -> ir.Value:
        """The number of runs as a vector of one element."""
        runs, element = self._iteration.runs, next(iter(self._iteration.elements.values()), None)
        if isinstance(runs, int):
            return self.build.ints([runs])
        if element is None:
            raise _UnresolvedError("the number of its runs is not that of the elements of a value")
        return self.build.gather(self.build.node("Shape", [element.value])[0], 0, [element.axis or 0])

    def _numbers(self) -> ir.Value:
        """The numbers of the runs."""
        if self.build.opset < _RANGES:
            raise _UnresolvedError(f"the numbers of its runs are not known before opset {_RANGES}")
        runs = self.build.squeeze(self._runs(), 0)
        return self.build.node("Range", [self.build.ints(0), runs, self.build.ints(1)])[0]

    def _chosen(self, value: ir.Value, choice: Choice, one: Recurrence) -> ir.Value:
        """The hidden states before the end of each row, and something else from there on."""
        if choice.lengths != one.lengths or one.lengths is None:
            raise _UnresolvedError("rows end elsewhere than their states are kept")
        if self._facts.shape(value) != self._facts.shape(one.output):
            raise _UnresolvedError("the sizes of what rows are behind their ends are not known")
        states = self._hidden(one)
        rest = self._behind(value, choice, one)
        if rest is None:
            return states
        numbers = self.build.unsqueeze(self._numbers(), 1, 2)
        is_before = self.build.node("Less", [numbers, self.build.unsqueeze(self._ends(one.lengths), 0, 2)])[0]
        return self.build.node("Where", [is_before, states, rest])[0]

    def _behind(self, value: ir.Value, choice: Choice, one: Recurrence) -> ir.Value | None:
        """What rows are behind their ends in all runs; `None` if it is 0, as the operator has it."""
        if choice.behind is None or self._facts.fill(choice.behind) == 0:
            return None
        for state in self._iteration.states:
            if (state.before, state.after) == (choice.behind, value):
                is_zero = self._facts.fill(state.initial) == 0
                if state is not one.states[0] and not is_zero:
                    raise _UnresolvedError(f"the state '{state.before.name}' is handed on in another way")
                if self._iteration.is_reverse:
                    return None if is_zero else self.build.unsqueeze(state.initial, 0)
                final = self._finals[state.after] if state is one.states[0] else self._ended[one.output]
                return self.build.unsqueeze(final, 0)
        return self.constant(choice.behind) if self.is_same(choice.behind) else self.of(choice.behind)

    def _padded(self, sequence: ir.Value, at_front: bool) -> ir.Value:
        """A sequence with one step of zeros more, for a kernel that ends the process if it is given none."""
        pads = [0] * 6
        pads[0 if at_front else 3] = 1
        return self.build.pad(sequence, pads)

    def _input(self, source: Source) -> ir.Value:
        if source.axis is None:
            return self.of(source.value)
        if source.index is not next(iter(self._iteration.elements.values())).index:
            raise _UnresolvedError(f"an element of '{source.value.name}' is the same in all runs")
        return to_front(source.value, source.axis, 3, self.build)

    def _demand_sizes(self, one: Recurrence, initial: Sequence[ir.Value]) -> None:
        """Refuse a cell whose operands are not known to have the sizes and the type that the operator takes."""
        facts, shape = self._facts, self._facts.shape(one.output)
        shapes = [shape_of(source, facts) for source in one.inputs]
        if (
            shape is None
            or len(shape) != 2
            or any(one is None or len(one) != 2 or one[0] != shape[0] for one in shapes)
        ):
            raise _UnresolvedError("the sizes of batch and states are not known to be equal")
        if any(not is_zero(Source(value), facts) and facts.shape(value) != shape for value in initial):
            raise _UnresolvedError("an initial state is not known to have the size of the others")
        values = (one.output, *initial, *(source.value for source in one.inputs))
        kinds = [ir.DataType.FLOAT] * 4
        has_kernel = self._context.target.supports("", one.kind, self.build.opset, kinds)
        if any(facts.dtype(value) != ir.DataType.FLOAT for value in values) or not has_kernel:
            raise _UnresolvedError(f"the target has no kernel of {one.kind} for its types")
