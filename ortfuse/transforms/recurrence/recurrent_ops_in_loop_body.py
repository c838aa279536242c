"""Operators LSTM, GRU and RNN that make one step in each run of a body, and hand on their states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.transforms.node_builder import Builder
from ortfuse.transforms.recurrence.describe_loop import Iteration, State
from ortfuse.transforms.recurrence.recurrent_operator import (
    STATES,
    is_operator,
    operands_of,
    origin,
    results_of,
    steps_of,
)


@dataclass(frozen=True)
class Step:
    """An operator in a body, with the hidden state, and the cell state of an LSTM."""

    node: ir.Node
    states: tuple[State, ...]

    def over_runs(
        self, sequence: ir.Value, weights: Sequence[ir.Value | None], is_reverse: bool, build: Builder, facts: Facts
    ) -> Sequence[ir.Value]:
        """The results of the operator over all runs, of inputs [runs, 1, batch, size] and the weights, biases first."""
        initial = [_as_state(state.initial, build, facts) for state in self.states]
        operands = [
            build.squeeze(sequence, 1),
            *weights[:3],
            None,
            *initial,
            *([None] * (2 - len(initial))),
            weights[3],
        ]
        while operands[-1] is None:
            operands.pop()
        attributes = {name: one.value for name, one in self.node.attributes.items()}
        attributes["direction"] = "reverse" if is_reverse else "forward"
        return build.node(self.node.op_type, operands, attributes, len(results_of(self.node)))

    def finals(self, results: Sequence[ir.Value], build: Builder, facts: Facts) -> Mapping[ir.Value, ir.Value]:
        """The states after the last run, by what they are in the body."""
        return {
            state.after: value if facts.rank(state.before) == 3 else build.squeeze(value, 0)
            for state, value in zip(self.states, results[1:], strict=True)
        }


def _as_state(value: ir.Value, build: Builder, facts: Facts) -> ir.Value | None:
    if facts.fill(value) == 0:
        return None
    return value if facts.rank(value) == 3 else build.unsqueeze(value, 0)


def steps_in(iteration: Iteration, facts: Facts) -> Mapping[ir.Node, Step]:
    """The operators of a body that make one step in each run."""
    found = {}
    for node in iteration.body:
        if is_operator(node) and steps_of(node, facts) == 1:
            states, final, *memory = results_of(node)
            handed = [
                _handed_on(iteration, node, STATES + place, one, facts) for place, one in enumerate((final, *memory))
            ]
            if handed[0] is None:
                handed[0] = _handed_on(iteration, node, STATES, states, facts)
            known = tuple(state for state in handed if state is not None)
            if len(known) == len(handed):
                found[node] = Step(node, known)
    return found


def _handed_on(iteration: Iteration, node: ir.Node, index: int, result: ir.Value | None, facts: Facts) -> State | None:
    """The state of the body that an operator begins with and leaves."""
    before = origin(operands_of(node)[index])
    for state in iteration.states if result is not None else ():
        if state.before is before and origin(state.after) is result and facts.rank(before) in (2, 3):
            shapes = facts.shape(state.initial), facts.shape(before), facts.shape(state.after)
            return state if None not in shapes and shapes[0] == shapes[1] == shapes[2] else None
    return None
