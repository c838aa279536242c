"""Networks over sequences: recurrence, time series, state spaces, experts."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.exports.varied_declare import BATCH_LENGTH, Family, normal

family = Family()
RECIPES = family.recipes
SERIES = {"x": normal(2, 12, 6)}
ROWS = {"x": BATCH_LENGTH}


class Recurrent(nn.Module):
    """An operator of PyTorch, and a head over its states in one of several ways."""

    def __init__(self, kind: str, head: str, **options: bool | int) -> None:
        super().__init__()
        self.rnn, self.head = getattr(nn, kind)(6, 8, **options), head
        width = 8 * (2 if options.get("bidirectional") else 1)
        self.out, self.score, self.norm = nn.Linear(width, 5), nn.Linear(width, 1), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        y, last = self.rnn(x)
        if self.head == "last":
            hidden = last[0] if isinstance(last, tuple) else last
            return self.out(hidden.transpose(0, 1).flatten(1)[:, -self.out.in_features :])
        if self.head == "attention":
            weights = torch.softmax(self.score(torch.tanh(y)), dim=1)
            return self.out((weights * y).sum(dim=1))
        if self.head == "ctc":
            return self.out(functional.relu(self.norm(y))).log_softmax(-1)
        return self.out(torch.cat([y.mean(1), y.max(1)[0]], dim=-1)[:, : self.out.in_features])


for kind in ("LSTM", "GRU", "RNN"):
    family.add(
        f"{kind.lower()}_attention", functools.partial(Recurrent, kind, "attention", batch_first=True), SERIES, ROWS
    )
family.add(
    "lstm_bi_ctc", functools.partial(Recurrent, "LSTM", "ctc", batch_first=True, bidirectional=True), SERIES, ROWS
)
family.add(
    "gru_bi_pooled", functools.partial(Recurrent, "GRU", "pooled", batch_first=True, bidirectional=True), SERIES, ROWS
)
family.add("lstm_stacked_last", functools.partial(Recurrent, "LSTM", "last", num_layers=2), SERIES, {})
family.add(
    "lstm_projected", functools.partial(Recurrent, "LSTM", "attention", batch_first=True, bias=False), SERIES, ROWS
)


class Cells(nn.Module):
    """Cells written by hand, unrolled over a fixed length."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.x, self.h = kind, nn.Linear(6, 32), nn.Linear(8, 32, bias=False)
        self.norm, self.keep = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], 8)
        c = torch.zeros_like(h)
        states = []
        for step in range(4):
            gates = self.x(x[:, step]) + self.h(h)
            a, b, d, e = gates.chunk(4, dim=1)
            if self.kind == "lstm":
                c = torch.sigmoid(b + 1.0) * c + torch.sigmoid(a) * torch.tanh(d)
                h = torch.sigmoid(e) * torch.tanh(c)
            elif self.kind == "minimal":
                f = torch.sigmoid(a)
                h = (1 - f) * h + f * torch.tanh(b + self.keep(f * h))
            elif self.kind == "indrnn":
                h = functional.relu(a + self.keep.bias * h)
            else:
                h = self.norm(h + torch.tanh(a) * torch.sigmoid(b) - 0.1 * h)
            states.append(h)
        return torch.stack(states, dim=1)


for kind in ("lstm", "minimal", "indrnn", "residual"):
    family.add(f"cells_{kind}", functools.partial(Cells, kind), {"x": normal(2, 4, 6)})


class ConvLstm(nn.Module):
    """A cell of convolutions, unrolled."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2 + 4, 16, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.shape[0], 4, 6, 6)
        c = h
        for step in range(3):
            i, f, o, g = torch.split(self.conv(torch.cat([x[:, step], h], 1)), 4, dim=1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return h


class Wavenet(nn.Module):
    """Dilated causal convolutions with gates and skips."""

    def __init__(self) -> None:
        super().__init__()
        self.dilations = (1, 2, 4)
        self.first = nn.Conv1d(1, 8, 1)
        self.convs = nn.ModuleList([nn.Conv1d(8, 16, 2, dilation=d) for d in self.dilations])
        self.skips = nn.ModuleList([nn.Conv1d(8, 12, 1) for _ in self.dilations])
        self.residuals = nn.ModuleList([nn.Conv1d(8, 8, 1) for _ in self.dilations])
        self.out = nn.Conv1d(12, 10, 1)

    def forward(self, x: Tensor) -> Tensor:
        y, total = self.first(x), torch.tensor(0.0)
        for d, conv, skip, residual in zip(self.dilations, self.convs, self.skips, self.residuals, strict=True):
            a, b = conv(functional.pad(y, (d, 0))).chunk(2, 1)
            z = torch.tanh(a) * torch.sigmoid(b)
            total, y = total + skip(z), (residual(z) + y) * math.sqrt(0.5)
        return self.out(functional.relu(total))


class Tcn(nn.Module):
    """Temporal blocks that chop what padding adds."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.utils.parametrizations.weight_norm(nn.Conv1d(6, 8, 3, padding=4, dilation=2))
        self.b, self.down, self.out = nn.Conv1d(8, 8, 3, padding=2), nn.Conv1d(6, 8, 1), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2)
        y = functional.relu(self.a(x)[:, :, :-4].contiguous())
        y = functional.relu(self.b(y)[..., :-2])
        return self.out(functional.relu(y + self.down(x))[:, :, -1])


class DLinear(nn.Module):
    """Moving averages take the trend out; two linear layers forecast."""

    def __init__(self) -> None:
        super().__init__()
        self.season, self.trend, self.pool = nn.Linear(12, 4), nn.Linear(12, 4), nn.AvgPool1d(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        padded = torch.cat([x[:, 0:1, :], x, x[:, -1:, :]], dim=1)
        trend = self.pool(padded.permute(0, 2, 1)).permute(0, 2, 1)
        season = x - trend
        out = self.season(season.permute(0, 2, 1)) + self.trend(trend.permute(0, 2, 1))
        return out.permute(0, 2, 1)


class NBeats(nn.Module):
    """Stacks of linear layers that subtract their backcast."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 16)) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        forecast = x[:, -1:]
        for block in self.blocks:
            theta = block(x)
            x, forecast = x - theta[:, :12], forecast + theta[:, 12:]
        return forecast


class RevIn(nn.Module):
    """Normalise a series, patch it, embed, forecast and undo (PatchTST)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.positions = nn.Linear(4, 16), nn.Parameter(torch.zeros(1, 5, 16))
        self.layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True, activation="gelu")
        self.out, self.gain = nn.Linear(5 * 16, 3), nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        std = torch.sqrt(torch.var(x, dim=1, keepdim=True, unbiased=False) + 1e-5)
        y = ((x - mean) / std * self.gain).permute(0, 2, 1)
        patches = y.unfold(-1, 4, 2)
        b, c, n, _ = patches.shape
        z = self.layer((self.embed(patches) + self.positions).reshape(b * c, n, 16))
        out = self.out(z.reshape(b, c, -1)).permute(0, 2, 1)
        return out / (self.gain + 1e-6) * std + mean


class Inverted(nn.Module):
    """iTransformer: variables as tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Linear(12, 16), nn.Linear(16, 4)
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))
        self.norm, self.c1, self.c2 = nn.LayerNorm(16), nn.Conv1d(16, 24, 1), nn.Conv1d(24, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.embed(x.permute(0, 2, 1))
        b, n, _ = y.shape
        q, k, v = (f(y).view(b, n, 2, 8) for f in (self.q, self.k, self.v))
        a = torch.softmax(torch.einsum("blhe,bshe->bhls", q, k) / math.sqrt(8), dim=-1)
        y = self.norm(y + self.o(torch.einsum("bhls,bshd->blhd", a, v).reshape(b, n, -1)))
        z = self.c2(functional.gelu(self.c1(y.transpose(-1, 1)))).transpose(-1, 1)
        return self.out(self.norm(y + z)).permute(0, 2, 1)


class Ssm(nn.Module):
    """A selective state space: discretised, scanned over a fixed length."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.conv = nn.Linear(6, 16), nn.Conv1d(8, 8, 3, padding=2, groups=8)
        self.proj, self.dt, self.out = nn.Linear(8, 2 + 8), nn.Linear(2, 8), nn.Linear(8, 6)
        self.a, self.d = nn.Parameter(torch.log(torch.arange(1.0, 5.0)).repeat(8, 1)), nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        u, gate = self.into(x).chunk(2, dim=-1)
        u = functional.silu(self.conv(u.transpose(1, 2))[..., : x.shape[1]]).transpose(1, 2)
        delta, b, c = torch.split(self.proj(u), [2, 4, 4], dim=-1)
        delta = functional.softplus(self.dt(delta))
        decay = torch.exp(torch.einsum("bld,dn->bldn", delta, -torch.exp(self.a)))
        update = torch.einsum("bld,bln,bld->bldn", delta, b, u)
        state, ys = torch.zeros(x.shape[0], 8, 4), []
        for step in range(5):
            state = decay[:, step] * state + update[:, step]
            ys.append(torch.einsum("bdn,bn->bd", state, c[:, step]))
        y = torch.stack(ys, dim=1) + u[:, :5] * self.d
        return self.out(y * functional.silu(gate[:, :5]))


class Retention(nn.Module):
    """RetNet: decay by distance instead of softmax, group normalisation by head."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.gate, self.out, self.norm = (
            nn.Linear(16, 48),
            nn.Linear(16, 16),
            nn.Linear(16, 16),
            nn.GroupNorm(2, 16),
        )

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = (t.view(b, n, 2, 8).transpose(1, 2) for t in self.qkv(x).split(16, dim=-1))
        index = torch.arange(n).float()
        gamma = (1 - 2.0 ** (-5 - torch.arange(2.0)))[:, None, None]
        distance = index[:, None] - index[None]
        decay = torch.where(distance >= 0, gamma ** distance.clamp(min=0), torch.zeros(()))
        y = (q @ k.transpose(-1, -2) / math.sqrt(8) * decay) @ v
        y = self.norm(y.transpose(1, 2).reshape(b * n, 16)).view(b, n, 16)
        return self.out(functional.silu(self.gate(x)) * y)


class Rwkv(nn.Module):
    """Token shift and channel mixing."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.mix = nn.ZeroPad2d((0, 0, 1, -1)), nn.Parameter(torch.rand(1, 1, 16))
        self.k, self.r, self.v = (
            nn.Linear(16, 32, bias=False),
            nn.Linear(16, 16, bias=False),
            nn.Linear(32, 16, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        before = self.shift(x)
        mixed = x * self.mix + before * (1 - self.mix)
        return torch.sigmoid(self.r(mixed)) * self.v(torch.square(torch.relu(self.k(mixed))))


class Experts(nn.Module):
    """Mixture of experts, each computed for all tokens, chosen ones weighted; or by one-hot dispatch."""

    def __init__(self, dispatch: str) -> None:
        super().__init__()
        self.dispatch, self.gate = dispatch, nn.Linear(16, 4, bias=False)
        self.up, self.down = nn.Parameter(torch.randn(4, 16, 24)), nn.Parameter(torch.randn(4, 24, 16))
        self.shared, self.sgate = nn.Linear(16, 16), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, 16)
        probabilities = self.gate(flat).softmax(-1, dtype=torch.float32)
        top, chosen = torch.topk(probabilities, 2, dim=-1)
        top = top / top.sum(-1, keepdim=True)
        if self.dispatch == "dense":
            weights = torch.zeros_like(probabilities).scatter(1, chosen, top)
            each = torch.einsum("tec,ecd->ted", functional.silu(torch.einsum("td,edc->tec", flat, self.up)), self.down)
            mixed = (each * weights.unsqueeze(-1)).sum(1)
        elif self.dispatch == "onehot":
            mask = functional.one_hot(chosen, 4).float()
            weights = (mask * top.unsqueeze(-1)).sum(1)
            hidden = functional.gelu(torch.matmul(flat.unsqueeze(0), self.up))
            mixed = (torch.bmm(hidden, self.down) * weights.t().unsqueeze(-1)).sum(0)
        else:
            up, down = self.up[chosen], self.down[chosen]
            hidden = functional.silu(torch.einsum("td,tkdc->tkc", flat, up))
            mixed = torch.einsum("tkc,tkcd,tk->td", hidden, down, top)
        return (mixed + torch.sigmoid(self.sgate(flat)) * self.shared(flat)).view_as(x)


family.add("conv_lstm", ConvLstm, {"x": normal(2, 3, 2, 6, 6)})
family.add("wavenet", Wavenet, {"x": normal(2, 1, 16)}, {"x": {0: "batch", 2: "length"}})
family.add("tcn", Tcn, SERIES, ROWS)
family.add("dlinear", DLinear, SERIES)
family.add("nbeats", NBeats, {"x": normal(2, 12)})
family.add("patch_forecast", RevIn, SERIES)
family.add("inverted", Inverted, SERIES)
family.add("selective_ssm", Ssm, {"x": normal(2, 5, 6)})
family.add("retention", Retention, {"x": normal(2, 7, 16)}, ROWS)
family.add("rwkv_mix", Rwkv, {"x": normal(2, 7, 16)}, ROWS)
for way in ("dense", "onehot", "gathered"):
    family.add(f"experts_{way}", functools.partial(Experts, way), {"x": normal(2, 5, 16)}, ROWS)
