"""The values of the body of a loop over all iterations at once, computed outside of it.

A value is computed from those that it depends on, each along a new first axis: elements of sequences are the sequences, cells
whose states are loop-carried are an LSTM, GRU or RNN, and operators that treat iterations alike are applied to all at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortfuse.analysis.loop_summary.find_recurrent_cells import Recurrence
from ortfuse.analysis.loop_summary.linear_form import Source
from ortfuse.analysis.loop_summary.linear_state import LinearState, Reading
from ortfuse.analysis.loop_summary.loop_structure import State
from ortfuse.analysis.loop_summary.masked_selects import Bound, Choice, Mask
from ortfuse.analysis.loop_summary.recurrent_operators_in_body import Step, operands_of, results_of
from ortfuse.analysis.loop_summary.summary import Appended, Counted, LoopSummary, Unchanged
from ortfuse.analysis.loop_summary.windows import Window
from ortfuse.analysis.node_parameters import parameter
from ortfuse.ir.walk import describe
from ortfuse.transforms.context import Context
from ortfuse.transforms.node_builder import Builder
from ortfuse.transforms.recurrence.apply_body_ops_to_all_iterations import Lifted
from ortfuse.transforms.recurrence.compact_masked_iterations import OLDEST as OLDEST_WITH_HOLES
from ortfuse.transforms.recurrence.compact_masked_iterations import Compacted
from ortfuse.transforms.recurrence.elements_and_counters import ALL, OverIterations, UnresolvedError
from ortfuse.transforms.recurrence.linear_attention import LinearAttention
from ortfuse.transforms.recurrence.recurrent_operator import HALVES, final_of_step, operator, step_over_iterations
from ortfuse.transforms.recurrence.row_lengths import OLDEST as OLDEST_WITH_LENGTHS
from ortfuse.transforms.recurrence.row_lengths import ends_of_empty_rows, final_states, lengths_vector
from ortfuse.transforms.recurrence.sequence_operands import from_front, initial_state, is_zero, shape_of
from ortfuse.transforms.recurrence.sliding_window_states import Views

_READING = ("MatMul", "ReduceSum", "Einsum")
"""The operators that read a state by summing over an axis of it."""


class Vectorised:
    """The values of a body over all runs, computed outside of the loop."""

    def __init__(self, summary: LoopSummary, build: Builder, context: Context, always: bool) -> None:
        self._always = always
        self.build = build
        self._iteration, self._updates = summary.iteration, summary.updates
        self._cells, self._choices, self._steps = summary.cells, summary.choices, summary.steps
        self._context, self._facts = context, context.facts
        self._linear = {value: one for value, one in self._updates.items() if isinstance(one, LinearState)}
        self._lifted = Lifted(self, build, context.facts)
        self._over = OverIterations(self._iteration, build, context.facts)
        windows = [one for one in self._updates.values() if isinstance(one, Window)]
        self._views = Views(windows, self.of, self.constant, build, context.facts)
        self._made: dict[ir.Value, ir.Value] = {}
        self._finals: dict[ir.Value, ir.Value] = {}
        self._ended: dict[ir.Value, ir.Value] = {}
        self._states: dict[ir.Value, ir.Value] = {}
        self._ends_of: dict[Bound, ir.Value] = {}
        self._compacted_by: dict[Mask, Compacted] = {}
        self._pending: list[State] = []

    def of(self, value: ir.Value) -> ir.Value:
        """The values of all runs along a new first axis.

        Raises:
            UnresolvedError: They cannot be computed at once.
        """
        if value not in self._made:
            self._made[value] = self._computed(value)
        return self._made[value]

    def rank(self, value: ir.Value) -> int:
        """The rank of a value of the body."""
        rank = self._facts.rank(value)
        if rank is None:
            raise UnresolvedError(f"the rank of '{value.name}' is not known")
        return rank

    def final(self, state: State) -> list[tuple[ir.Value, ir.Value]]:
        """Return the replacements of the values that are computed from a state after the loop."""
        update = self._updates.get(state.after)
        if isinstance(update, Unchanged):
            return [(state.final, state.initial)]
        if isinstance(update, Appended):
            return [self._joined(use.node, update.value) for use in state.final.uses()]
        if isinstance(update, Counted):
            last = self._over.counted(state.before, update.numbers, self._over.count())
            return [(state.final, self.build.squeeze(last, 0))]
        if isinstance(update, Window) and (window := self._views.final(update)) is not None:
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
            raise UnresolvedError("its results are kept in a sequence that is not stacked")
        return node.outputs[0], from_front(self.of(value), axis % rank, rank, self.build)

    def _computed(self, value: ir.Value) -> ir.Value:
        element = self._iteration.elements.get(value)
        if element is not None and element.axis is not None:
            return self._over.elements(element, self.rank(value))
        if (seen := self._views.of(value)) is not None:
            return seen
        if value in self._cells:
            if self._cells[value].lengths is not None:
                raise UnresolvedError("what is computed behind the end of a row is used")
            return self._hidden(self._cells[value])
        numbers = None if self.is_same(value) else self._iteration.counters.affine(value)
        if numbers is not None and not self._iteration.is_reverse:
            return self._over.counted(value, numbers, self._over.numbers())
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
                raise UnresolvedError(f"a cell state of {describe(node)} is used")
            return self._made[value]
        if node is None or value.graph is not self._iteration.body:
            raise UnresolvedError(f"'{value.name}' is not known for all runs at once")
        if node.op_type in _READING or value in self._linear:
            for linear in self._linear.values():
                if (reading := linear.reading(value)) is not None:
                    return self._read(linear, reading)
        found = self._lifted.outputs(node)
        if found is None:
            raise UnresolvedError(f"it computes {describe(node)}")
        self._made |= dict(zip(node.outputs, found, strict=True))
        return self._made[value]

    def _after(self, state: State) -> ir.Value:
        """A state after each run, if that does not depend on what it was before."""
        shape = self._facts.shape(state.after)
        is_known = shape is not None and shape == self._facts.shape(state.initial)
        if not is_known or state in self._pending:
            raise UnresolvedError(f"the state '{state.before.name}' is handed on in another way")
        self._pending.append(state)
        whole = self.of(state.after)
        self._pending.pop()
        return whole

    def _delayed(self, state: State) -> ir.Value:
        """A state before each run: the first, and what it is after the runs before."""
        whole, first = self._after(state), self.build.unsqueeze(state.initial, 0)
        if self._iteration.is_reverse:
            return self.build.concat([self.build.slice(whole, 0, 1, ALL), first], 0)
        return self.build.concat([first, self.build.slice(whole, 0, 0, -1)], 0)

    def _read(self, linear: LinearState, reading: Reading | None) -> ir.Value:
        """Return the readings of a state in all iterations (without a reading: the final state), both of which are cached."""
        operator = LinearAttention(linear, self._over, self.of)
        found, final = operator.read(reading, self._always)
        self._finals[linear.state.after] = final
        return final if found is None else found

    def is_same(self, value: ir.Value) -> bool:
        """Whether a value is the same in all runs."""
        return value.graph is not self._iteration.body or self._facts.is_const(value)

    def constant(self, value: ir.Value) -> ir.Value:
        """A value that is the same in all runs, outside of the loop.

        Raises:
            UnresolvedError: It is another one in each run.
        """
        if value.graph is not self._iteration.body:
            return value
        if value.const_value is None or not value.is_initializer():
            raise UnresolvedError(f"'{value.name}' is computed in the body")
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
        if (choice.bound, choice.behind) == (taken.lengths, state.before) and self._facts.fill(state.initial) == 0:
            self._hidden(taken)
            self._finals[state.after] = self._ended[taken.output]

    def _step(self, node: ir.Node, step: Step) -> None:
        """Run an operator of the body over all runs."""
        if self._made.keys() & {*node.outputs}:
            return
        if self._iteration.may_be_empty and node.op_type == "GRU":
            raise UnresolvedError("its GRU may have no step, for which the runtime's kernel does not return")
        operands = operands_of(node)
        weights = [None if operands[place] is None else self.constant(operands[place]) for place in (1, 2, 3, 7)]  # type: ignore[arg-type]
        sequence = self.of(operands[0])  # type: ignore[arg-type]
        made = step_over_iterations(step, sequence, weights, self._iteration.is_reverse, self.build, self._facts)
        states, final, *_ = results_of(node)
        self._made |= {value: self.build.unsqueeze(made[0], 1) for value in [states] if value is not None}
        self._made |= {value: made[0] for value in [final] if value is not None}
        self._finals |= final_of_step(step, made, self.build, self._facts)

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
        if isinstance(one.lengths, Mask):
            sequence = self._compacted(one.lengths).sequence(sequence)
        pads, is_reverse = self._iteration.may_be_empty and one.kind == "GRU", self._iteration.is_reverse
        at_front = is_reverse and one.lengths is None
        sequence = self._padded(sequence, at_front) if pads else sequence
        counts = None if ends is None else self.build.node("Cast", [ends], {"to": ir.DataType.INT32})[0]
        direction = -1 if is_reverse else 1
        made = self._run(one, sequence, counts, given, direction)
        finals = made[1:]
        if one.lengths is not None and ends is not None:
            finals = final_states(finals, given, ends_of_empty_rows(one.lengths, ends, self._facts), self.build)
        states = self.build.squeeze(made[0], 1)
        if pads:
            states = self.build.slice(states, 0, *((1, ALL) if at_front else (0, -1)))
        for state, value in zip(one.states, finals, strict=True):
            self._finals[state.after] = self.build.squeeze(value, 0)
        self._ended[one.output] = (
            self.build.squeeze(made[1], 0) if finals[0] is not made[1] else self._finals[one.states[0].after]
        )
        if pads and one.lengths is None:
            self._finals[one.states[0].after] = self.build.gather(states, 0, 0 if is_reverse else -1)
        return states

    def _run(
        self,
        one: Recurrence,
        sequence: ir.Value,
        counts: ir.Value | None,
        given: Sequence[ir.Value | None],
        direction: int,
    ) -> Sequence[ir.Value]:
        """The outputs of the operator in the type of the cell, computed in float32."""
        dtype = self._facts.dtype(one.output)
        if dtype == ir.DataType.FLOAT:
            return operator(one.weights, sequence, counts, given, direction, self.build, self._context)
        operands = [self._cast(value, ir.DataType.FLOAT) for value in (sequence, *given)]
        assert operands[0] is not None
        made = operator(one.weights, operands[0], counts, operands[1:], direction, self.build, self._context)
        return [found for value in made if (found := self._cast(value, dtype)) is not None]

    def _cast(self, value: ir.Value | None, dtype: ir.DataType | None) -> ir.Value | None:
        return None if value is None or dtype is None else self.build.node("Cast", [value], {"to": dtype.value})[0]

    def _compacted(self, mask: Mask) -> Compacted:
        """The runs in which rows take part."""
        if mask not in self._compacted_by:
            if self.build.opset < OLDEST_WITH_HOLES:
                raise UnresolvedError(f"masks with holes are not counted before opset {OLDEST_WITH_HOLES}")
            self._compacted_by[mask] = Compacted(mask, self.build, self._facts, self._over.count())
        return self._compacted_by[mask]

    def _ends(self, lengths: Bound | Mask) -> ir.Value:
        """The lengths of the rows, at most the number of runs."""
        if isinstance(lengths, Mask):
            return self._compacted(lengths).counts
        if lengths not in self._ends_of:
            if self.build.opset < OLDEST_WITH_LENGTHS:
                raise UnresolvedError(f"lengths of rows are not compared before opset {OLDEST_WITH_LENGTHS}")
            self._ends_of[lengths] = lengths_vector(lengths, self._over.count(), self.build)
        return self._ends_of[lengths]

    def _chosen(self, value: ir.Value, choice: Choice, one: Recurrence) -> ir.Value:
        """The hidden states before the end of each row, and something else from there on."""
        if choice.bound != one.lengths or one.lengths is None:
            raise UnresolvedError("rows end elsewhere than their states are kept")
        if self._facts.shape(value) != self._facts.shape(one.output):
            raise UnresolvedError("the sizes of what rows are behind their ends are not known")
        states = self._hidden(one)
        if isinstance(one.lengths, Mask):
            return self._masked(value, choice, one, self._compacted(one.lengths))
        rest = self._behind(value, choice, one)
        if rest is None:
            return states
        numbers = self.build.unsqueeze(self._over.numbers(), 1, 2)
        is_before = self.build.node("Less", [numbers, self.build.unsqueeze(self._ends(one.lengths), 0, 2)])[0]
        return self.build.node("Where", [is_before, states, rest])[0]

    def _masked(self, value: ir.Value, choice: Choice, one: Recurrence, compacted: Compacted) -> ir.Value:
        """The hidden states of rows in the runs in which they take part, and something else in others."""
        states = self._states[one.output]
        for state in self._iteration.states:
            if (state.before, state.after) == (choice.behind, value):
                is_zero = self._facts.fill(state.initial) == 0
                first = self._zero(value) if is_zero else self.build.unsqueeze(state.initial, 0)
                return compacted.spread(states, first)
        rest = self._zero(value)
        if choice.behind is not None and self._facts.fill(choice.behind) != 0:
            rest = self.constant(choice.behind) if self.is_same(choice.behind) else self.of(choice.behind)
        found = compacted.spread(states, self._zero(value))
        return self.build.node("Where", [compacted.takes_part, found, rest])[0]

    def _zero(self, value: ir.Value) -> ir.Value:
        """A zero of the type of a value."""
        dtype = self._facts.dtype(value)
        assert dtype is not None
        return self.build.constant(ir.tensor([0.0], dtype))

    def _behind(self, value: ir.Value, choice: Choice, one: Recurrence) -> ir.Value | None:
        """Return the value of rows behind their ends in all iterations; `None` if it is 0, the default of the operator."""
        if choice.behind is None or self._facts.fill(choice.behind) == 0:
            return None
        for state in self._iteration.states:
            if (state.before, state.after) == (choice.behind, value):
                is_zero = self._facts.fill(state.initial) == 0
                if state is not one.states[0] and not is_zero:
                    raise UnresolvedError(f"the state '{state.before.name}' is handed on in another way")
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
        return self._over.elements(source, 2)

    def _demand_sizes(self, one: Recurrence, initial: Sequence[ir.Value]) -> None:
        """Refuse a cell whose operands are not known to have the sizes and the type that the operator takes."""
        facts, shape = self._facts, self._facts.shape(one.output)
        shapes = [shape_of(source, facts) for source in one.inputs]
        if (
            shape is None
            or len(shape) != 2
            or any(one is None or len(one) != 2 or one[0] != shape[0] for one in shapes)
        ):
            raise UnresolvedError("the sizes of batch and states are not known to be equal")
        if any(not is_zero(Source(value), facts) and facts.shape(value) != shape for value in initial):
            raise UnresolvedError("an initial state is not known to have the size of the others")
        values = (one.output, *initial, *(source.value for source in one.inputs))
        has_kernel = self._context.target.supports("", one.kind, self.build.opset, [ir.DataType.FLOAT] * 4)
        (dtype, *others) = {facts.dtype(value) for value in values}
        if others or (dtype != ir.DataType.FLOAT and dtype not in HALVES) or not has_kernel:
            raise UnresolvedError(f"the target has no kernel of {one.kind} for its types")
