"""Networks over sequences, sets, graphs and tables: recurrence, time series, speech, state spaces, experts, recommenders."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.exports.varied_declare import BATCH, BATCH_LENGTH, Family, integers, normal, positive

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


class Graph(nn.Module):
    """Message passing over edges (GCN, GAT, GIN, SAGE) by gather and scatter, or by a dense adjacency."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.w, self.own = kind, nn.Linear(6, 8), nn.Linear(6, 8)
        self.a, self.b, self.eps = nn.Linear(8, 1), nn.Linear(8, 1), nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges[0], edges[1]
        n, h = x.shape[0], self.w(x)
        if self.kind == "gcn":
            degree = torch.zeros(n).scatter_add(0, target, torch.ones_like(target, dtype=torch.float32)) + 1
            scale = degree.pow(-0.5)
            weight = (scale[source] * scale[target]).unsqueeze(-1)
            return torch.zeros_like(h).index_add(0, target, h[source] * weight) + h / degree.unsqueeze(-1)
        if self.kind == "gat":
            score = functional.leaky_relu(self.a(h)[source] + self.b(h)[target], 0.2)
            weight = torch.exp(score - score.max())
            total = torch.zeros(n, 1).index_add(0, target, weight) + 1e-9
            return functional.elu(torch.zeros_like(h).index_add(0, target, h[source] * (weight / total[target])))
        if self.kind == "gin":
            around = torch.zeros_like(x).scatter_add(0, target.unsqueeze(-1).expand(-1, 6), x[source])
            return functional.relu(self.w((1 + self.eps) * x + around))
        count = torch.zeros(n, 1).index_add(0, target, torch.ones(target.shape[0], 1)).clamp(min=1)
        mean = torch.zeros_like(x).index_add(0, target, x[source]) / count
        return functional.normalize(self.own(x) + self.w(mean), p=2.0, dim=-1)


for kind in ("gcn", "gat", "gin", "sage"):
    family.add(
        f"graph_{kind}",
        functools.partial(Graph, kind),
        {"x": normal(7, 6), "edges": integers(7, 2, 15)},
        {"x": {0: "nodes"}, "edges": {1: "edges"}},
    )


class DenseGraph(nn.Module):
    """A normalised adjacency times features; attention with a mask of edges."""

    def __init__(self, attend: bool) -> None:
        super().__init__()
        self.attend, self.w, self.a = attend, nn.Linear(6, 8, bias=False), nn.Parameter(torch.randn(16, 1))

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        h = self.w(x)
        linked = (adjacency > 0.5).float() + torch.eye(x.shape[1])
        if not self.attend:
            scale = linked.sum(-1).clamp(min=1).pow(-0.5)
            return functional.relu((scale.unsqueeze(-1) * linked * scale.unsqueeze(-2)) @ h)
        n = h.shape[1]
        pairs = torch.cat([h.unsqueeze(2).expand(-1, -1, n, -1), h.unsqueeze(1).expand(-1, n, -1, -1)], dim=-1)
        e = functional.leaky_relu(torch.matmul(pairs, self.a).squeeze(3), 0.2)
        return functional.softmax(torch.where(linked > 0, e, torch.full_like(e, -9e15)), dim=-1) @ h


class EdgeConv(nn.Module):
    """DGCNN: nearest neighbours in the space of features."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(6, 8, 1, bias=False), nn.BatchNorm2d(8), nn.LeakyReLU(0.2))

    def forward(self, x: Tensor) -> Tensor:
        inner = -2 * torch.matmul(x.transpose(2, 1), x)
        square = torch.sum(x**2, dim=1, keepdim=True)
        index = (-square - inner - square.transpose(2, 1)).topk(k=3, dim=-1)[1]
        b, c, n = x.shape
        flat = (index + torch.arange(b).view(-1, 1, 1) * n).view(-1)
        points = x.transpose(2, 1).contiguous()
        around = points.view(b * n, -1)[flat, :].view(b, n, 3, c)
        own = points.view(b, n, 1, c).repeat(1, 1, 3, 1)
        return self.conv(torch.cat((around - own, own), dim=3).permute(0, 3, 1, 2)).max(dim=-1)[0]


class PointNet(nn.Module):
    """Shared layers over points, a transform, a maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.t, self.f = nn.Conv1d(3, 8, 1), nn.Sequential(nn.Conv1d(3, 8, 1), nn.BatchNorm1d(8), nn.ReLU())
        self.m, self.out = nn.Linear(8, 9), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        matrix = self.m(torch.max(functional.relu(self.t(x)), 2, keepdim=True)[0].view(-1, 8)).view(
            -1, 3, 3
        ) + torch.eye(3)
        y = torch.bmm(x.transpose(2, 1), matrix).transpose(2, 1)
        return functional.log_softmax(self.out(torch.max(self.f(y), 2)[0]), dim=1)


family.add("dense_gcn", functools.partial(DenseGraph, False), {"x": normal(2, 5, 6), "adjacency": positive(2, 5, 5)})
family.add("dense_gat", functools.partial(DenseGraph, True), {"x": normal(2, 5, 6), "adjacency": positive(2, 5, 5)})
family.add("edge_conv", EdgeConv, {"x": normal(2, 3, 9)})
family.add("point_net", PointNet, {"x": normal(2, 3, 9)}, {"x": {0: "batch", 2: "points"}})


class Recommender(nn.Module):
    """Embeddings of fields and crossings: FM, DeepFM, DCN, DLRM, two towers, DIN."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.table, self.linear = kind, nn.Embedding(40, 8), nn.Embedding(40, 1)
        self.deep = nn.Sequential(nn.Linear(48, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        self.out, self.cross, self.bias = nn.Linear(8, 1), nn.Linear(48, 48), nn.Parameter(torch.zeros(1))
        self.dense, self.att = nn.Linear(5, 8), nn.Sequential(nn.Linear(32, 8), nn.PReLU(), nn.Linear(8, 1))
        self.register_buffer("offsets", torch.tensor([0, 5, 10, 18, 25, 30]))

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        e = self.table(ids + self.offsets)
        if self.kind == "fm":
            first = self.linear(ids + self.offsets).sum(1) + self.bias
            both = (e.sum(1) ** 2 - (e**2).sum(1)).sum(1, keepdim=True) * 0.5
            return torch.sigmoid(first + both + self.out(self.deep(e.flatten(1)))).squeeze(1)
        if self.kind == "dcn":
            x0 = e.view(-1, 48)
            y = x0
            for _ in range(2):
                y = x0 * self.cross(y) + y
            return self.out(self.deep(y)).sigmoid()
        if self.kind == "dlrm":
            all_fields = torch.cat([self.dense(x).relu().unsqueeze(1), e], dim=1)
            products = torch.bmm(all_fields, all_fields.transpose(1, 2))
            rows, columns = torch.tril_indices(7, 7, offset=-1)
            return torch.sigmoid(self.out(self.dense(products[:, rows, columns][:, :5])))
        if self.kind == "towers":
            user, item = e[:, :3].mean(1), e[:, 3:].sum(1) / math.sqrt(3)
            return (functional.normalize(user) * functional.normalize(item)).sum(-1) / 0.1
        target, history = e[:, :1], e[:, 1:]
        spread = target.expand(-1, history.size(1), -1)
        score = self.att(torch.cat([spread, history, spread - history, spread * history], -1))
        score = score.masked_fill((ids[:, 1:] == 0).unsqueeze(-1), -4294967295.0).softmax(1)
        return self.out((score * history).sum(1)).sigmoid().squeeze(-1)


for kind in ("fm", "dcn", "dlrm", "towers", "din"):
    given = {"ids": integers(5, 3, 6), "x": normal(3, 5)}
    family.add(f"recommender_{kind}", functools.partial(Recommender, kind), given, {"ids": BATCH, "x": BATCH})


class Table(nn.Module):
    """Tabular networks: TabNet's masks, feature tokens, a soft tree, residual layers."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.norm, self.fc = kind, nn.BatchNorm1d(6), nn.Linear(6, 16)
        self.mask, self.weight = nn.Linear(8, 6), nn.Parameter(torch.randn(6, 8))
        self.bias, self.cls = nn.Parameter(torch.randn(6, 8)), nn.Parameter(torch.randn(1, 8))
        self.layer, self.out = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True), nn.Linear(8, 3)
        self.leaves, self.splits, self.r = nn.Parameter(torch.randn(8, 3)), nn.Linear(6, 7), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        if self.kind == "tabnet":
            prior, total = torch.ones_like(x), torch.zeros(x.shape[0], 8)
            attended = functional.glu(self.fc(x), dim=-1)
            for _ in range(2):
                mask = torch.softmax(self.mask(attended) * prior, dim=-1)
                prior = prior * (1.3 - mask)
                attended = functional.glu(self.fc(x * mask), dim=-1)
                total = total + functional.relu(attended)
            return self.out(total)
        if self.kind == "tokens":
            tokens = x.unsqueeze(-1) * self.weight + self.bias
            y = self.layer(torch.cat([self.cls.expand(x.shape[0], 1, -1), tokens], dim=1))
            return self.out(y[:, 0])
        if self.kind == "tree":
            p = torch.sigmoid(self.splits(x)).clamp(1e-6, 1 - 1e-6)
            level1 = torch.stack([p[:, 0], 1 - p[:, 0]], 1)
            level2 = (level1.unsqueeze(2) * torch.stack([p[:, 1:3], 1 - p[:, 1:3]], 2)).flatten(1)
            level3 = (level2.unsqueeze(2) * torch.stack([p[:, 3:7], 1 - p[:, 3:7]], 2)).flatten(1)
            return level3 @ self.leaves
        angles = 2 * math.pi * x.unsqueeze(-1) * self.weight
        y = torch.cat([torch.sin(angles), torch.cos(angles)], -1).mean(1)
        return self.out(functional.selu(self.r(y)) + functional.softsign(y[:, :8]))


for kind in ("tabnet", "tokens", "tree", "periodic"):
    family.add(f"table_{kind}", functools.partial(Table, kind), {"x": normal(3, 6)})


class Spectrum(nn.Module):
    """A filter bank by convolution with sines, logarithm, normalisation by utterance, and a small network."""

    def __init__(self) -> None:
        super().__init__()
        angle = 2 * math.pi * torch.arange(9)[:, None] * torch.arange(16)[None] / 16
        self.register_buffer("real", torch.cos(angle).unsqueeze(1))
        self.register_buffer("imaginary", torch.sin(angle).unsqueeze(1))
        self.register_buffer("mel", torch.rand(6, 9))
        self.conv = nn.Sequential(nn.Conv1d(6, 8, 5, padding=2, dilation=1), nn.ReLU(), nn.BatchNorm1d(8))

    def forward(self, x: Tensor) -> Tensor:
        emphasised = torch.cat([x[:, :1], x[:, 1:] - 0.97 * x[:, :-1]], dim=1)
        frames = functional.pad(emphasised.unsqueeze(1), (8, 8))
        power = functional.conv1d(frames, self.real, stride=8).pow(2) + functional.conv1d(
            frames, self.imaginary, stride=8
        ).pow(2)
        mel = torch.log(torch.matmul(self.mel, power).clamp(min=1e-10))
        mel = (mel - mel.mean(-1, keepdim=True)) / (mel.std(-1, keepdim=True) + 1e-5)
        return self.conv(mel).amax(-1)


class Separation(nn.Module):
    """Conv-TasNet: encoder, global normalisation, mask, decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Conv1d(1, 8, 4, 2, bias=False), nn.ConvTranspose1d(8, 1, 4, 2, bias=False)
        self.gain, self.bias = nn.Parameter(torch.ones(1, 8, 1)), nn.Parameter(torch.zeros(1, 8, 1))
        self.mask = nn.Sequential(nn.Conv1d(8, 12, 1), nn.PReLU(), nn.Conv1d(12, 16, 1))

    def forward(self, x: Tensor) -> Tensor:
        e = functional.relu(self.encoder(x.unsqueeze(1)))
        mean = e.mean((1, 2), keepdim=True)
        var = ((e - mean) ** 2).mean((1, 2), keepdim=True)
        y = self.gain * (e - mean) / torch.pow(var + 1e-8, 0.5) + self.bias
        b, n, k = e.shape
        masks = self.mask(y).view(b, 2, n, k).softmax(1)
        return self.decoder((masks * e.unsqueeze(1)).view(b * 2, n, k)).view(b, 2, -1)


class Vocoder(nn.Module):
    """HiFi-GAN: transposed convolutions and residual blocks, averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.pre, self.post = nn.Conv1d(6, 16, 7, padding=3), nn.Conv1d(8, 1, 7, padding=3)
        self.up = nn.utils.parametrizations.weight_norm(nn.ConvTranspose1d(16, 8, 4, 2, padding=1))
        self.res = nn.ModuleList([nn.Conv1d(8, 8, k, padding=k // 2) for k in (3, 5, 7)])

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(functional.leaky_relu(self.pre(x), 0.1))
        total = None
        for r in self.res:
            z = r(functional.leaky_relu(y, 0.1)) + y
            total = z if total is None else total + z
        return torch.tanh(self.post(functional.leaky_relu(total / 3)))


class Snake(nn.Module):
    """x + sin(a x)^2 / a, and a quantiser's nearest code."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha, self.conv, self.codes = (
            nn.Parameter(torch.ones(1, 6, 1)),
            nn.Conv1d(6, 4, 3, padding=1),
            nn.Embedding(9, 4),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x + (self.alpha + 1e-9).reciprocal() * torch.sin(self.alpha * x).pow(2))
        z = y.permute(0, 2, 1).reshape(-1, 4)
        d = (
            z.pow(2).sum(1, keepdim=True)
            - 2 * z @ self.codes.weight.t()
            + self.codes.weight.pow(2).sum(1, keepdim=True).t()
        )
        q = self.codes((-d).max(1)[1]).view(x.shape[0], -1, 4).transpose(1, 2)
        return y + (q - y)


class Seq2Seq(nn.Module):
    """Bahdanau's attention, three steps of a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.cell = nn.GRU(6, 8, batch_first=True), nn.GRUCell(16, 8)
        self.w, self.u, self.v, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        memory, hidden = self.encoder(x)
        h = hidden[-1]
        token, outs = torch.zeros(x.shape[0], 8), []
        for _ in range(3):
            score = self.v(torch.tanh(self.w(memory) + self.u(h).unsqueeze(1))).squeeze(-1)
            context = torch.bmm(score.softmax(-1).unsqueeze(1), memory).squeeze(1)
            h = self.cell(torch.cat([token, context], -1), h)
            token = self.out(torch.cat([h, context], -1))
            outs.append(token)
        return torch.stack(outs, 1)


class Set(nn.Module):
    """Attention to learnt queries (Perceiver, set transformers), with PyTorch's module and a mask of padding."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.seeds = how, nn.Parameter(torch.randn(1, 3, 16))
        self.mha = nn.MultiheadAttention(16, 2, batch_first=True, kdim=6, vdim=6)
        self.decoder, self.embed = nn.TransformerDecoderLayer(16, 2, 24, batch_first=True), nn.Linear(6, 16)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        seeds = self.seeds.expand(x.shape[0], -1, -1)
        if self.how == "decoder":
            return self.decoder(seeds, self.embed(x), memory_key_padding_mask=mask == 0)
        return seeds + self.mha(seeds, x, x, key_padding_mask=mask == 0)[0]


AUDIO: dict[str, Callable[[], nn.Module]] = {"vocoder": Vocoder, "snake_codes": Snake}
family.add("filter_bank", Spectrum, {"x": normal(2, 64)})
family.add("conv_tasnet", Separation, {"x": normal(2, 40)}, {"x": BATCH_LENGTH})
for name, audio in AUDIO.items():
    family.add(name, audio, {"x": normal(2, 6, 10)}, {"x": {0: "batch", 2: "length"}})
family.add("bahdanau", Seq2Seq, SERIES, ROWS)
PADDED = {"x": normal(2, 7, 6), "mask": lambda: (torch.arange(7) < torch.tensor([[7], [5]])).long()}
for how in ("decoder", "attention"):
    family.add(f"set_{how}", functools.partial(Set, how), PADDED, {"x": BATCH_LENGTH, "mask": BATCH_LENGTH})
