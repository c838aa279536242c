"""Recurrent layers: RNN, GRU, LSTM."""

from __future__ import annotations

from ortfuse.analysis.costs import NodeSizes, cost, macs
from ortfuse.analysis.transfer.transfer_function_registry import Op, transfer
from ortfuse.analysis.transfer.value_fact import Fact
from ortfuse.ir.dims import DimLike
from ortfuse.ir.operator_registry import describe
from ortfuse.ir.traits import MICROSOFT


@transfer("DynamicQuantizeLSTM", domain=MICROSOFT)
def dynamic_quantize_lstm(op: Op) -> tuple[Fact, ...]:
    """As LSTM, with weights whose last two axes are exchanged."""
    data, weight = op.known_shape(0), op.known_shape(2)
    last = Fact(op.dtype(), (weight[0], data[1], weight[1]))
    return Fact(op.dtype(), (data[0], weight[0], data[1], weight[1])), last, last


@transfer("RNN", "GRU", "LSTM")
def recurrent(op: Op) -> tuple[Fact, ...]:
    """All hidden states [sequence, directions, batch, hidden], then the last hidden (and cell) state."""
    data, weight = op.known_shape(0), op.known_shape(2)
    directions, hidden = weight[0], weight[2]
    if op.attr_int("layout", 0):
        batch, sequence = data[0], data[1]
        states = Fact(op.dtype(), (batch, sequence, directions, hidden))
        last = Fact(op.dtype(), (batch, directions, hidden))
    else:
        sequence, batch = data[0], data[1]
        states = Fact(op.dtype(), (sequence, directions, batch, hidden))
        last = Fact(op.dtype(), (directions, batch, hidden))
    return states, last, last


def _recurrent_macs(at: NodeSizes) -> DimLike:
    """For each step and sample, the gates of all directions: the input's weights and the state's."""
    steps, samples, _ = at.shape(0)
    return steps * samples * (at.size(1) + at.size(2))


cost("LSTM", "GRU", "RNN", f"{MICROSOFT}.DynamicQuantizeLSTM")(macs(_recurrent_macs))

describe("GRU", "LSTM", "RNN", channel_axes=(2, 1, 2))
describe("Relu", "Sigmoid", "Softplus", "Softsign", "Tanh", recurrent_activation=())
describe("Elu", "LeakyRelu", recurrent_activation=("alpha",))
describe("HardSigmoid", recurrent_activation=("alpha", "beta"))
