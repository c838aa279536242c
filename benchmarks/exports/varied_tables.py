"""Networks over graphs, sets of points and tables: message passing, recommenders, tabular networks."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.exports.varied_declare import BATCH, BATCH_LENGTH, Family, integers, normal, positive

family = Family()
RECIPES = family.recipes
SERIES = {"x": normal(2, 12, 6)}
ROWS = {"x": BATCH_LENGTH}


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
