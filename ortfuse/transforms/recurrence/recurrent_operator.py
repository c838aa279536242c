"""LSTM, GRU and RNN operators, as the passes of this folder make them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.loop_summary.cell_weights import Weights
from ortfuse.analysis.loop_summary.recurrent_operators_in_body import USUAL, Step, result_count
from ortfuse.transforms.context import Context
from ortfuse.transforms.node_builder import Builder

HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
"""Types of cells that an operator computes in float32, between Casts, where the runtime has no kernel for them."""

OLDEST = 7
"""The opset from which on the operators have the form that is written here."""


SLOWER = "the runtime's RNN is slower than its cells unless the batch is 1"
"""The remark on an RNN operator that is slower than its cells."""


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
    return build.node(weights.kind, inputs, attributes, result_count(weights.kind))


def step_over_iterations(
    step: Step, sequence: ir.Value, weights: Sequence[ir.Value | None], is_reverse: bool, build: Builder, facts: Facts
) -> Sequence[ir.Value]:
    """The results of an operator over all iterations, of inputs [iterations, 1, batch, size] and the weights, biases first."""
    initial = [_as_state(state.initial, build, facts) for state in step.states]
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
    attributes = {name: one.value for name, one in step.node.attributes.items()}
    attributes["direction"] = "reverse" if is_reverse else "forward"
    return build.node(step.node.op_type, operands, attributes, result_count(step.node.op_type))


def final_of_step(step: Step, results: Sequence[ir.Value], build: Builder, facts: Facts) -> Mapping[ir.Value, ir.Value]:
    """The states after the last run, by what they are in the body."""
    return {
        state.after: value if facts.rank(state.before) == 3 else build.squeeze(value, 0)
        for state, value in zip(step.states, results[1:], strict=True)
    }


def _as_state(value: ir.Value, build: Builder, facts: Facts) -> ir.Value | None:
    if facts.fill(value) == 0:
        return None
    return value if facts.rank(value) == 3 else build.unsqueeze(value, 0)
