"""The summary of a loop: how each loop-carried value is updated, and whether other values depend on any.

    unchanged                  s' = s                                  a constant of the loop
    counted                    s' = s + b                              an induction variable, a + b t
    appended                   s' = insert(s, y)                       a list of the values of all iterations
    recurrence, step           h' = cell(h, x), operator(h, x)         a cell of an LSTM, GRU or RNN, or the operator itself
    window                     W' = concat(W, x)[1:]                   the last elements of a sequence
    linear                     S' = g S + k v                          a sum of products of first degree in the state

The transformations of `ortfuse.transforms.recurrence` read it. Rows may keep a state where a mask says so (`choices`). A state
with another update may still be known, if its next value depends on no state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias, TypeVar

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.loop_summary.find_recurrent_cells import Recurrence, recurrences
from ortfuse.analysis.loop_summary.induction_variables import Affine
from ortfuse.analysis.loop_summary.linear_state import LinearState, linear_states
from ortfuse.analysis.loop_summary.loop_structure import Iteration, State
from ortfuse.analysis.loop_summary.masked_selects import Choices
from ortfuse.analysis.loop_summary.recurrent_operators_in_body import Step, steps_in
from ortfuse.analysis.loop_summary.windows import Window, window_of

_T = TypeVar("_T")


@dataclass(frozen=True)
class Unchanged:
    """A state that no iteration changes."""


@dataclass(frozen=True)
class Counted:
    """A state that grows by a number in each iteration."""

    numbers: Affine


@dataclass(frozen=True)
class Appended:
    """A sequence to which each iteration appends a value."""

    value: ir.Value


Update: TypeAlias = "Unchanged | Counted | Appended | Recurrence | Step | Window | LinearState"


@dataclass(frozen=True)
class LoopSummary:
    """The summary of a loop.

    Attributes:
        iteration: The loop.
        choices: Tells which values masks choose.
        updates: The update of each state, by the state after an iteration; none for one that is updated otherwise.
    """

    iteration: Iteration
    choices: Choices
    updates: Mapping[ir.Value, Update]

    @cached_property
    def cells(self) -> Mapping[ir.Value, Recurrence]:
        """The recurrent cells, by their new hidden states."""
        return {one.output: one for one in self._of(Recurrence)}

    @cached_property
    def steps(self) -> Mapping[ir.Node, Step]:
        """The operators that make one step of a recurrence."""
        return {one.node: one for one in self._of(Step)}

    @property
    def is_linear(self) -> bool:
        """Whether a state changes linearly."""
        return any(self._of(LinearState))

    @property
    def kinds(self) -> str:
        """The recurrences by their names."""
        cells, steps = (one.kind for one in self.cells.values()), (node.op_type for node in self.steps)
        return ", ".join(sorted({*cells, *steps, *(["linear"] if self.is_linear else [])}))

    def _of(self, kind: type[_T]) -> Iterable[_T]:
        return (one for one in self.updates.values() if isinstance(one, kind))


def summary_of(iteration: Iteration, facts: Facts, *, linear: bool) -> LoopSummary:
    """The summary of a loop; `linear`: whether to look for linear states."""
    choices = Choices(iteration.node.graph, facts, iteration)
    updates: dict[ir.Value, Update] = {}
    for kind in (recurrences(iteration, choices, facts), steps_in(iteration, facts)):
        updates |= {state.after: one for one in kind.values() for state in one.states}
    for state in iteration.states:
        found = _plain(state, iteration) or (None if iteration.is_reverse else window_of(state, facts))
        if found is not None:
            updates[state.after] = found
    if linear:
        updates = {one.state.after: one for one in linear_states(iteration, facts)} | updates
    return LoopSummary(iteration, choices, updates)


def _plain(state: State, iteration: Iteration) -> Update | None:
    """The update of a state that nothing is computed of."""
    if state.after is state.before:
        return Unchanged()
    if state.inserted is not None:
        return Appended(state.inserted)
    numbers = iteration.counters.affine(state.before)
    return None if numbers is None else Counted(numbers)
