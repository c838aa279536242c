"""The recurrent cells in the body of a loop whose states are handed on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.loop_summary.cell_weights import Weights, weights_of
from ortfuse.analysis.loop_summary.linear_form import Source
from ortfuse.analysis.loop_summary.loop_structure import Iteration, State
from ortfuse.analysis.loop_summary.masked_selects import Bound, Choices, Mask
from ortfuse.analysis.loop_summary.recurrent_cell import Cells


@dataclass(frozen=True)
class Recurrence:
    """A cell whose states are handed on.

    Attributes:
        output: Its new hidden state.
        weights: Its weights.
        inputs: Its inputs, in the order of the weights.
        states: The hidden state, and the cell state of an LSTM.
        lengths: The lengths of the rows, which keep their states from their end on, or the mask of the runs in which they take
            part; `None` if they have none.
    """

    output: ir.Value
    weights: Weights
    inputs: tuple[Source, ...]
    states: tuple[State, ...]
    lengths: Bound | Mask | None

    @property
    def kind(self) -> str:
        """LSTM, GRU or RNN."""
        return self.weights.kind


def recurrences(iteration: Iteration, choices: Choices, facts: Facts) -> Mapping[ir.Value, Recurrence]:
    """The cells of a body, by their new hidden states."""
    finder, found = Cells(facts, iteration.elements), {}
    updates = [(state, *_update(state, choices)) for state in iteration.states]
    for state, value, lengths in updates:
        cell = finder.cell(value) if value.graph is iteration.body else None
        if cell is None or (cell.hidden is not None and cell.hidden is not state.before):
            continue
        states = [state]
        if cell.memory is not None:
            after, before = cell.memory
            states += [one for one, new, same in updates if (new, one.before, same) == (after, before, lengths)][:1]
        made = weights_of(cell, Source(state.before), finder.forms.columns(value) or 0, finder.forms.facts)
        if made is None or len(states) != 1 + (cell.memory is not None):
            continue
        if not {source.value for source in made[1]} & {one.before for one in iteration.states}:
            found[value] = Recurrence(value, *made, tuple(states), lengths)
    return found


def _update(state: State, choices: Choices) -> tuple[ir.Value, Bound | Mask | None]:
    """The next value of a state before the end of each row, and the lengths of the rows."""
    choice = choices.choice(state.after)
    if choice is None or choice.behind is not state.before:
        return state.after, None
    return choice.before, choice.bound
