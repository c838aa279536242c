"""The operators LSTM, GRU and RNN, as the passes of this folder make them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.traits import RESHAPES
from ortfuse.rewrite.pattern.node_parameters import attribute_value, parameter
from ortfuse.transforms.context import Context
from ortfuse.transforms.node_builder import Builder
from ortfuse.transforms.recurrence.cell_weights import Weights

USUAL = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
"""The activations that need not be given."""

_MOST_INPUTS, LENGTHS, STATES = 8, 4, 5
"""How many inputs the operators have, and which says how long each sequence is, and which is the first of the initial states."""

HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
"""Types of cells that an operator computes in float32, between Casts, where the runtime has no kernel for them."""

OLDEST = 7
"""The opset from which on the operators have the form that is written here."""


SLOWER = "the runtime's RNN is slower than its cells unless the batch is 1"
"""The remark on an RNN operator that is slower than its cells."""


def is_operator(node: ir.Node) -> bool:
    """Whether a node is one of the operators."""
    return node.op_type in USUAL and not node.domain


def operands_of(node: ir.Node) -> list[ir.Value | None]:
    """The inputs of an operator, absent ones included."""
    return [*node.inputs, *([None] * (_MOST_INPUTS - len(node.inputs)))]


def results_of(node: ir.Node) -> list[ir.Value | None]:
    """The outputs of an operator, absent ones included."""
    given = [None if value.name == "" else value for value in node.outputs]
    return [*given, *([None] * (_results(node.op_type) - len(given)))]


def _results(kind: str) -> int:
    return 3 if kind == "LSTM" else 2


def steps_of(node: ir.Node, facts: Facts) -> int | None:
    """The number of steps of an operator that runs forward over all of its sequences."""
    shape, lengths = facts.shape(node.inputs[0]), operands_of(node)[LENGTHS]
    options = [attribute_value(node, name, facts) for name in ("direction", "layout")]
    if shape is None or lengths is not None or options[0] != "forward" or options[1] not in (None, 0):
        return None
    return shape[0] if isinstance(shape[0], int) and shape[0] > 0 else None


def origin(value: ir.Value | None) -> ir.Value | None:
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


def pays(kind: str, output: ir.Value, facts: Facts) -> bool:
    """Whether the runtime's operator is as fast as cells with this output, [batch, size].

    Its LSTM and GRU are faster from 3 steps on (1.1 to 5 times, at 16 to 512 units and a batch of 1 or 16). Its RNN is 1.2 times
    as fast for one row, and down to 0.3 times for 16 rows.
    """
    shape = facts.shape(output)
    return kind != "RNN" or (shape is not None and shape[0] == 1)


def operator(
    weights: Weights,
    sequence: ir.Value,
    counts: ir.Value | None,
    states: Sequence[ir.Value | None],
    direction: int,
    build: Builder,
    context: Context,
) -> Sequence[ir.Value]:
    """The outputs of a recurrent operator on a sequence with lengths of rows and initial states, run in a direction (1 or -1)."""
    arrays = [*weights.arrays(context.facts), weights.peephole(context.facts)]
    *constants, peephole = [None if one is None else build.constant(context.spill.keep(one[None])) for one in arrays]
    inputs = [sequence, *constants, counts, *states, *([] if peephole is None else [peephole])]
    while inputs[-1] is None:
        inputs.pop()
    attributes: dict[str, Any] = {"hidden_size": weights.size}
    if direction < 0:
        attributes["direction"] = "reverse"
    if [name for name, _, _ in weights.activations] != USUAL[weights.kind]:
        attributes["activations"] = [name for name, _, _ in weights.activations]
        for number, name in enumerate(("activation_alpha", "activation_beta"), 1):
            if numbers := [one[number] for one in weights.activations if one[number] is not None]:
                attributes[name] = numbers
    if weights.reset_offsets is not None:
        attributes["linear_before_reset"] = 1
    return build.node(weights.kind, inputs, attributes, _results(weights.kind))
