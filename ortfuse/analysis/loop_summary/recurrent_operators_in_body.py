"""The operators LSTM, GRU and RNN: their operands and results, and those that make one step in each iteration of a body."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.loop_summary.loop_structure import Iteration, State
from ortfuse.analysis.node_parameters import attribute_value, parameter
from ortfuse.ir.traits import RESHAPES

USUAL = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
"""The activations that need not be given."""

_MOST_INPUTS, LENGTHS, STATES = 8, 4, 5
"""How many inputs the operators have, and which says how long each sequence is, and which is the first of the initial states."""


def is_operator(node: ir.Node) -> bool:
    """Whether a node is one of the operators."""
    return node.op_type in USUAL and not node.domain


def operands_of(node: ir.Node) -> list[ir.Value | None]:
    """The inputs of an operator, absent ones included."""
    return [*node.inputs, *([None] * (_MOST_INPUTS - len(node.inputs)))]


def results_of(node: ir.Node) -> list[ir.Value | None]:
    """The outputs of an operator, absent ones included."""
    given = [None if value.name == "" else value for value in node.outputs]
    return [*given, *([None] * (result_count(node.op_type) - len(given)))]


def result_count(kind: str) -> int:
    """How many outputs an operator has."""
    return 3 if kind == "LSTM" else 2


def steps_of(node: ir.Node, facts: Facts) -> int | None:
    """The number of steps of an operator that runs forward over all of its sequences."""
    shape, lengths = facts.shape(node.inputs[0]), operands_of(node)[LENGTHS]
    options = [attribute_value(node, name, facts) for name in ("direction", "layout")]
    if shape is None or lengths is not None or options[0] != "forward" or options[1] not in (None, 0):
        return None
    return shape[0] if isinstance(shape[0], int) and shape[0] > 0 else None


def unreshaped(value: ir.Value | None) -> ir.Value | None:
    """The value whose elements a value has in their order."""
    while value is not None and (node := value.producer()) is not None and node.op_type in RESHAPES and not node.domain:
        value = node.inputs[0]
    return value


def dropped_axes(node: ir.Node, facts: Facts) -> tuple[int, ...] | None:
    """The axes of size 1 that a Squeeze drops, or a Reshape that does nothing else; `None` for other nodes."""
    if node.domain or node.op_type not in ("Squeeze", "Reshape"):
        return None
    if node.op_type == "Squeeze":
        axes = parameter(node, "axes", facts)
        is_known = isinstance(axes, tuple | list) and all(isinstance(axis, int) for axis in axes)
        return tuple(axes) if is_known else None
    before, after = facts.shape(node.inputs[0]), facts.shape(node.outputs[0])
    places = [place for place, size in enumerate(before or ()) if size == 1]
    found = [place for place in places if before is not None and before[:place] + before[place + 1 :] == after]
    return (found[0],) if found else None


@dataclass(frozen=True)
class Step:
    """An operator in a body, with the hidden state, and the cell state of an LSTM."""

    node: ir.Node
    states: tuple[State, ...]


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
    before = unreshaped(operands_of(node)[index])
    for state in iteration.states if result is not None else ():
        if state.before is before and unreshaped(state.after) is result and facts.rank(before) in (2, 3):
            shapes = facts.shape(state.initial), facts.shape(before), facts.shape(state.after)
            return state if None not in shapes and shapes[0] == shapes[1] == shapes[2] else None
    return None
