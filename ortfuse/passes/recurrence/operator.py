"""The operators LSTM, GRU and RNN, as the passes of this folder make them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from ortfuse.facts.facts import Facts
from ortfuse.passes.building import Builder
from ortfuse.passes.recurrence.weights import Weights
from ortfuse.rewrite import Exactness

_USUAL = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
"""The activations that need not be given."""

OLDEST = 7
"""The opset from which on the operators have the form that is written here."""


@dataclass(frozen=True)
class Rounds:
    """What inspectors are told of a change that rounds elsewhere, as a rule tells them."""

    name: str
    exactness: Exactness = Exactness.ROUNDING


SLOWER = "the runtime's RNN is slower than its cells unless the batch is 1"
"""What stands in the way where an operator does not pay."""


def pays(kind: str, output: ir.Value, facts: Facts) -> bool:
    """Whether the runtime's operator is as fast as cells with this output, [batch, size].

    Its LSTM and GRU are faster from 3 steps on (1.1 to 5 times, at 16 to 512 units and a batch of 1 or 16). Its RNN is 1.2 times
    as fast for one row, and down to 0.3 times for 16 rows.
    """
    shape = facts.shape(output)
    return kind != "RNN" or (shape is not None and shape[0] == 1)


def operator(weights: Weights, inputs: Sequence[ir.Value | None], direction: int, build: Builder) -> Sequence[ir.Value]:
    """The outputs of a recurrent operator on these inputs, run in this direction (1 or -1)."""
    attributes: dict[str, Any] = {"hidden_size": weights.size}
    if direction < 0:
        attributes["direction"] = "reverse"
    if [name for name, _, _ in weights.activations] != _USUAL[weights.kind]:
        attributes["activations"] = [name for name, _, _ in weights.activations]
        for number, name in enumerate(("activation_alpha", "activation_beta"), 1):
            if numbers := [one[number] for one in weights.activations if one[number] is not None]:
                attributes[name] = numbers
    if weights.reset_offsets is not None:
        attributes["linear_before_reset"] = 1
    return build.node(weights.kind, inputs, attributes, 3 if weights.kind == "LSTM" else 2)
