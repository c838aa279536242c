"""Loops and Scans that compute all their runs at once: of recurrent cells, linear states, and of what treats each element alike.

    scan(h, x[t] -> h = cell(h, x[t]), y[t] = head(h))  =  head(operator(x))        scan(x[t] -> f(x[t]))  =  f(x)

A body is resolved as a whole, or not at all: elements of sequences are the sequences, cells whose states are handed on are an
LSTM, GRU or RNN, states that change linearly are a LinearAttention of the runtime (see `linear`), and operators that treat runs
alike are applied to all of them at once (see `lifted`). States are stacked as outputs of the loop, or in a sequence that is
joined to one tensor behind it.

Left alone: loops that may end early or run an unknown number of times; Loops that may not run at all, of whose results the
runtime makes up the sizes (a Scan of nothing fails in the runtime, as does joining a sequence without elements, so that what
succeeds has run); bodies with anything else
in them, such as states that are handed on in another way. What holds a cell or a linear state and is left alone is noted for
the user.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortfuse.facts.facts import Facts
from ortfuse.graph.traits import MICROSOFT
from ortfuse.graph.walk import Scope, describe
from ortfuse.passes.building import Builder
from ortfuse.passes.context import Context
from ortfuse.passes.recurrence.cell import Cell, Cells
from ortfuse.passes.recurrence.form import Source
from ortfuse.passes.recurrence.iteration import Iteration, State, fails_if_empty, inserted, iteration_of
from ortfuse.passes.recurrence.lifted import Lifted
from ortfuse.passes.recurrence.linear import LinearState, Reading, linear_states
from ortfuse.passes.recurrence.linear_attention import LinearAttention, UnfitError
from ortfuse.passes.recurrence.operands import from_front, initial_state, is_zero, shape_of, to_front
from ortfuse.passes.recurrence.operator import OLDEST, SLOWER, Rounds, operator, pays
from ortfuse.passes.recurrence.weights import Weights, weights_of
from ortfuse.pattern.operators import parameter
from ortfuse.refusal import refuse

_ALL = 2**31
"""An end of a Slice that is behind every element."""

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
        count = sum(self._replace(node, scope, context) for node, scope in found if node.op_type in ("Loop", "Scan"))
        if count:
            # What is known of the states in the bodies of later loops rests on the sizes of these results, now known.
            context.editor.renew_facts()
        return count

    def _replace(self, node: ir.Node, scope: Scope, context: Context) -> bool:
        iteration = iteration_of(node, context.facts)
        if iteration is None or node.graph is None:
            return False
        cells = _cells(iteration, context.facts)
        has_linear = context.target.supports(MICROSOFT, "LinearAttention", 1, [ir.DataType.FLOAT] * 3)
        found = linear_states(iteration, context.facts) if has_linear else ()
        linear = [one for one in found if one.state.after not in cells]
        name = f"{Loops.name}.{'recurrent' if cells else 'linear' if linear else 'elementwise'}"
        with context.editor.change(name, rule=Rounds(name), nodes=[node]) as change:
            try:
                if not self.always and not all(
                    pays(cell.kind, cell.output, context.facts) for cell, _, _ in cells.values()
                ):
                    raise _UnresolvedError(f"{SLOWER} (`loops{{always=true}}`)")
                _resolve(iteration, cells, linear, scope, context, self)
            except _UnresolvedError as why:
                change.cancel(refuse("left_out", node, found=str(why)))
                held = [cell.kind for cell, _, _ in cells.values()] + ["linear"] * bool(linear)
                if held:
                    kinds = ", ".join(sorted(set(held)))
                    context.note(
                        f"{describe(node)} holds states of a recurrent network ({kinds}) and stays as it is: {why}"
                    )
        if change:
            context.log.statistics(name).hits += 1
        return bool(change)


_Recurrence = tuple[Cell, Weights, tuple[Source, ...]]


def _cells(iteration: Iteration, facts: Facts) -> dict[ir.Value, _Recurrence]:
    """The cells of a body by their new hidden state, which is handed on, as the cell state of an LSTM is."""
    finder, handed_on = Cells(facts, iteration.elements), {state.after: state.before for state in iteration.states}
    found = {}
    for state in iteration.states:
        cell = None if state.after.graph is not iteration.body else finder.cell(state.after)
        if cell is None or (cell.hidden is not None and cell.hidden is not state.before):
            continue
        if cell.memory is not None and handed_on.get(cell.memory[0]) is not cell.memory[1]:
            continue
        made = weights_of(cell, Source(state.before), finder.forms.columns(state.after) or 0)
        if made is not None:
            found[state.after] = (cell, *made)
    return found


def _resolve(
    iteration: Iteration,
    cells: dict[ir.Value, _Recurrence],
    linear: Sequence[LinearState],
    scope: Scope,
    context: Context,
    options: Loops,
) -> None:
    """Replace the results of a loop that are used, and the loop."""
    may_be_empty = iteration.node.op_type == "Loop" and iteration.may_be_empty and not fails_if_empty(iteration)
    if may_be_empty and not options.nonempty:
        why = f"it may not run at all (it runs {iteration.runs} times; `loops{{nonempty=true}}` takes for granted that it does)"
        raise _UnresolvedError(why)
    whole = _Whole(iteration, cells, linear, Builder(scope, context.editor, iteration.node), context, options.always)
    replacements = []
    # What is stacked comes first: of a linear state, what is read says which axis is which.
    for stacked in iteration.stacked:
        if stacked.result.uses() or stacked.result.is_graph_output():
            rank = whole.rank(stacked.value) + 1
            replacements.append((stacked.result, from_front(whole.of(stacked.value), stacked.axis, rank, whole.build)))
    changing = {one.state.after for one in linear}
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

    def __init__(
        self,
        iteration: Iteration,
        cells: dict[ir.Value, _Recurrence],
        linear: Sequence[LinearState],
        build: Builder,
        context: Context,
        always: bool,
    ) -> None:
        self._always = always
        self.build = build
        self._iteration, self._cells, self._context, self._facts = iteration, cells, context, context.facts
        self._linear = {one.state.after: one for one in linear}
        self._lifted = Lifted(self, build, context.facts)
        self._made: dict[ir.Value, ir.Value] = {}
        self._finals: dict[ir.Value, ir.Value] = {}

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
        memory = {cell.memory[0]: output for output, (cell, _, _) in self._cells.items() if cell.memory is not None}
        if state.after in memory:
            self.of(memory[state.after])
        elif state.after in self._cells:
            self.of(state.after)
        elif state.after in self._linear and state.after not in self._finals:
            self._read(self._linear[state.after], None)
        if state.after in self._finals:
            return [(state.final, self._finals[state.after])]
        raise _UnresolvedError(f"the state '{state.before.name}' is handed on in another way")

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
        if value in self._cells:
            return self._recurrent(*self._cells[value])
        node = value.producer()
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

    def _recurrent(self, cell: Cell, weights: Weights, inputs: Sequence[Source]) -> ir.Value:
        """The hidden states of a cell, of which the final ones are kept too."""
        states = {state.after: state.initial for state in self._iteration.states}
        initial = [states[cell.output], *([] if cell.memory is None else [states[cell.memory[0]]])]
        self._demand_sizes(cell, inputs, initial)
        sequence = self.build.concat([self._input(source) for source in inputs], 2)
        constants = [
            self.build.constant(self._context.spill.keep(array[None])) for array in weights.arrays(self._facts)
        ]
        given = [initial_state(Source(value), self.build, self._facts) for value in initial]
        pads = self._iteration.may_be_empty and cell.kind == "GRU"
        made = operator(
            weights,
            [self._padded(sequence) if pads else sequence, *constants, None, *given],
            -1 if self._iteration.is_reverse else 1,
            self.build,
        )
        states_of_runs = self.build.squeeze(made[0], 1)
        if pads:
            first, end = (1, _ALL) if self._iteration.is_reverse else (0, -1)
            states_of_runs = self.build.slice(states_of_runs, 0, first, end)
        finals = [cell.output] if cell.memory is None else [cell.output, cell.memory[0]]
        self._finals |= {state: self.build.squeeze(value, 0) for state, value in zip(finals, made[1:], strict=True)}
        if pads:
            last = 0 if self._iteration.is_reverse else -1
            self._finals[cell.output] = self.build.gather(states_of_runs, 0, last)
        return states_of_runs

    def _padded(self, sequence: ir.Value) -> ir.Value:
        """A sequence with a step of zeros behind its last one, for a kernel that ends the process if it is given none."""
        pads = [0] * 6
        pads[0 if self._iteration.is_reverse else 3] = 1
        return self.build.pad(sequence, pads)

    def _input(self, source: Source) -> ir.Value:
        if source.axis is None:
            return self.of(source.value)
        if source.index is not next(iter(self._iteration.elements.values())).index:
            raise _UnresolvedError(f"an element of '{source.value.name}' is the same in all runs")
        return to_front(source.value, source.axis, 3, self.build)

    def _demand_sizes(self, cell: Cell, inputs: Sequence[Source], initial: Sequence[ir.Value]) -> None:
        """Refuse a cell whose operands are not known to have the sizes and the type that the operator takes."""
        facts, shape = self._facts, self._facts.shape(cell.output)
        shapes = [shape_of(source, facts) for source in inputs]
        if (
            shape is None
            or len(shape) != 2
            or any(one is None or len(one) != 2 or one[0] != shape[0] for one in shapes)
        ):
            raise _UnresolvedError("the sizes of batch and states are not known to be equal")
        if any(not is_zero(Source(value), facts) and facts.shape(value) != shape for value in initial):
            raise _UnresolvedError("an initial state is not known to have the size of the others")
        if any(
            facts.dtype(value) != ir.DataType.FLOAT for value in (cell.output, *initial, *(one.value for one in inputs))
        ):
            raise _UnresolvedError("only float32 has a kernel")
