"""Recurrent networks: language models whose layers are operators, cells that are unrolled, or a loop; a speech net.

Language models of the gated delta rule (arXiv:2412.06464), as a scan and as a compiled loop.
"""

from __future__ import annotations

import functools

import torch
from drawing import Input
from exporting import EXPORTERS, Case
from torch import nn
from torch._higher_order_ops.scan import scan
from torch.nn.functional import linear, normalize, softplus

from cases.common import TS_AND_DYNAMO, VOCABULARY

STEPS, EMBEDDED, HIDDEN, LAYERS = 7, 8, 12, 2
TOKENS = {"input_ids": Input(("batch", STEPS), "tokens", high=VOCABULARY)}
SPEECH = {"features": Input(("batch", "frames", 10), "normal")}


class Unrolled(nn.Module):
    """Layers of cells in a Python loop over time, on [batch, time, size]."""

    def __init__(
        self, kind: type[nn.LSTMCell | nn.GRUCell], inputs: int = EMBEDDED, hidden: int = HIDDEN, layers: int = LAYERS
    ) -> None:
        super().__init__()
        self.cells = nn.ModuleList([kind(hidden if layer else inputs, hidden) for layer in range(layers)])

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        steps = list(x.unbind(1))
        for cell in self.cells:
            state = None
            for time, step in enumerate(steps):
                state = cell(step, state)
                steps[time] = state[0] if isinstance(state, tuple) else state
        return torch.stack(steps, 1), None


@torch.jit.script
def _lstm_loop(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor, b: torch.Tensor, rb: torch.Tensor) -> torch.Tensor:
    """A compiled loop over time: an LSTM."""
    h, c = torch.zeros(x.size(0), r.size(1)), torch.zeros(x.size(0), r.size(1))
    states: list[torch.Tensor] = []
    for time in range(x.size(1)):
        i, f, g, o = (linear(x[:, time], w, b) + linear(h, r, rb)).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        states.append(h)
    return torch.stack(states, 1)


@torch.jit.script
def _gru_loop(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor, b: torch.Tensor, rb: torch.Tensor) -> torch.Tensor:
    """A compiled loop over time: a GRU."""
    h = torch.zeros(x.size(0), r.size(1))
    states: list[torch.Tensor] = []
    for time in range(x.size(1)):
        ri, zi, ni = linear(x[:, time], w, b).chunk(3, 1)
        rh, zh, nh = linear(h, r, rb).chunk(3, 1)
        z = torch.sigmoid(zi + zh)
        h = z * h + (1 - z) * torch.tanh(ni + torch.sigmoid(ri + rh) * nh)
        states.append(h)
    return torch.stack(states, 1)


class _Looped(nn.Module):
    """Layers that are compiled loops, one after the other."""

    def __init__(self, kind: type[nn.LSTMCell | nn.GRUCell]) -> None:
        super().__init__()
        self.cells = nn.ModuleList([kind(EMBEDDED if layer == 0 else HIDDEN, HIDDEN) for layer in range(LAYERS)])

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        for cell in self.cells:
            loop = _lstm_loop if isinstance(cell, nn.LSTMCell) else _gru_loop
            x = loop(x, cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)
        return x, None


def _delta_step(
    state: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rate: torch.Tensor, decay: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One step of the gated delta rule on a state [batch, heads, keys, values]: the new state, and what is read of it."""
    state = state * decay.exp().unsqueeze(-1).unsqueeze(-1)
    known = (state * k.unsqueeze(-1)).sum(-2)
    state = state + k.unsqueeze(-1) * ((v - known) * rate.unsqueeze(-1)).unsqueeze(-2)
    return state, (state * q.unsqueeze(-1)).sum(-2)


@torch.jit.script
def _delta_loop(
    state: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rate: torch.Tensor, decay: torch.Tensor
) -> torch.Tensor:
    """A compiled loop over time: the gated delta rule, on [batch, time, heads, ...]."""
    results: list[torch.Tensor] = []
    for time in range(q.size(1)):
        key = k[:, time].unsqueeze(-1)
        state = state * decay[:, time].exp().unsqueeze(-1).unsqueeze(-1)
        known = (state * key).sum(dim=-2)
        state = state + key * ((v[:, time] - known) * rate[:, time].unsqueeze(-1)).unsqueeze(-2)
        results.append((state * q[:, time].unsqueeze(-1)).sum(dim=-2))
    return torch.stack(results, 1)


class GatedDelta(nn.Module):
    """A layer of the gated delta rule: 2 heads, keys of 4, values of 6."""

    HEADS, KEYS, VALUES = 2, 4, HIDDEN // 2

    def __init__(self, compiled: bool) -> None:
        super().__init__()
        sizes = (self.HEADS * self.KEYS, self.HEADS * self.KEYS, self.HEADS * self.VALUES, self.HEADS, self.HEADS)
        self.maps, self.compiled = nn.ModuleList([nn.Linear(EMBEDDED, size) for size in sizes]), compiled

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        q, k, v, rate, decay = (linear_map(x) for linear_map in self.maps)
        q, k, v = (one.view(*x.shape[:2], self.HEADS, -1) for one in (q, k, v))
        given = (normalize(q, dim=-1), normalize(k, dim=-1), v, rate.sigmoid(), -softplus(decay))
        first = torch.zeros(x.shape[0], self.HEADS, self.KEYS, self.VALUES)
        if self.compiled:
            return _delta_loop(first, *given).flatten(2), None
        results = scan(lambda state, step: _delta_step(state, *step), first, given, dim=1)[1]
        return results.movedim(0, 1).flatten(2), None


class LanguageModel(nn.Module):
    """An embedding, recurrent layers, a linear head."""

    def __init__(
        self, layers: nn.Module, vocabulary: int = VOCABULARY, embedded: int = EMBEDDED, hidden: int = HIDDEN
    ) -> None:
        super().__init__()
        self.embedding, self.layers = nn.Embedding(vocabulary, embedded), layers
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embedding(input_ids))[0])


class Speech(nn.Module):
    """Convolutions over frames, recurrent layers in both directions, log-probabilities of characters."""

    def __init__(
        self,
        kind: type[nn.LSTM | nn.GRU] = nn.GRU,
        features: int = 10,
        channels: int = 16,
        hidden: int = HIDDEN,
        characters: int = 20,
    ) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(features, channels, 5, stride=2, padding=2)
        self.layers = kind(channels, hidden, LAYERS, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, characters)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.convolution(features.transpose(1, 2))).transpose(1, 2)
        return self.head(self.layers(x)[0]).log_softmax(-1)


def lstm_operator() -> nn.Module:
    """Embedding, two layers of LSTM, linear head."""
    return LanguageModel(nn.LSTM(EMBEDDED, HIDDEN, LAYERS, batch_first=True))


def gru_operator() -> nn.Module:
    """Embedding, two layers of GRU, linear head."""
    return LanguageModel(nn.GRU(EMBEDDED, HIDDEN, LAYERS, batch_first=True))


def unrolled(kind: type[nn.LSTMCell | nn.GRUCell]) -> nn.Module:
    """The same of cells in a Python loop over time."""
    return LanguageModel(Unrolled(kind))


def looped(kind: type[nn.LSTMCell | nn.GRUCell]) -> nn.Module:
    """The same of loops over time that are compiled."""
    return LanguageModel(_Looped(kind))


def gated_delta(compiled: bool) -> nn.Module:
    """The same of a layer of the gated delta rule."""
    return LanguageModel(GatedDelta(compiled))


SENTENCES = {"input_ids": Input(("batch", "sequence"), "tokens", high=VOCABULARY)}
LENGTHS = ({"batch": 2, "sequence": 6}, {"batch": 3, "sequence": 9})
SIZES = ({"batch": 2}, {"batch": 3})

CASES = (
    Case("lstm", lstm_operator, TOKENS, SIZES, exporters=TS_AND_DYNAMO, layers=LAYERS),
    Case("gru", gru_operator, TOKENS, SIZES, exporters=TS_AND_DYNAMO, layers=LAYERS),
    Case("lstm_cells", functools.partial(unrolled, nn.LSTMCell), TOKENS, SIZES, exporters=EXPORTERS, layers=LAYERS),
    Case("gru_cells", functools.partial(unrolled, nn.GRUCell), TOKENS, SIZES, exporters=EXPORTERS, layers=LAYERS),
    Case("lstm_loop", functools.partial(looped, nn.LSTMCell), TOKENS, SIZES, exporters=("ts",), layers=LAYERS),
    Case("gru_loop", functools.partial(looped, nn.GRUCell), TOKENS, SIZES, exporters=("ts",), layers=LAYERS),
    Case("delta_loop", functools.partial(gated_delta, True), SENTENCES, LENGTHS, exporters=("ts",), layers=1),
    Case("delta_scan", functools.partial(gated_delta, False), TOKENS, SIZES, exporters=("dynamo",), layers=1),
    Case(
        "speech",
        Speech,
        SPEECH,
        ({"batch": 2, "frames": 20}, {"batch": 3, "frames": 31}),
        exporters=("ts",),
        layers=LAYERS,
    ),
)
