"""Attention, heads and products as repositories write them, in layouts that the architectures of transformers do not have."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.exports.varied_declare import BATCH, BATCH_LENGTH, Family, normal

family = Family()
RECIPES = family.recipes
X = {"x": normal(2, 6, 32)}
ALL = {"x": BATCH_LENGTH}


class Layers(nn.Module):
    """Linear layers for queries, keys and values of 4 heads, and a function that uses them."""

    def __init__(self, given: Callable[..., Tensor]) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(32, 32) for _ in range(4))
        self.qkv, self.given = nn.Linear(32, 96), given
        self.norm, self.other = nn.LayerNorm(8), nn.LayerNorm(8)
        self.scale, self.lam = nn.Parameter(torch.rand(4, 1, 1)), nn.Parameter(torch.rand(1))
        self.table = nn.Parameter(torch.rand(4, 16, 16))

    def forward(self, **values: Tensor) -> Tensor:
        return self.given(self, **values)

    def heads(self, x: Tensor) -> list[Tensor]:
        """Queries, keys and values as [batch, heads, length, size]."""
        return [f(x).view(x.shape[0], -1, 4, 8).transpose(1, 2) for f in (self.q, self.k, self.v)]

    def merged(self, x: Tensor) -> Tensor:
        """The heads side by side."""
        return self.out(x.transpose(1, 2).reshape(x.shape[0], -1, 32))


def layers_of(family: Family) -> Callable[..., Callable[[Callable[..., Tensor]], Callable[..., Tensor]]]:
    """A decorator that adds a function of layers and inputs to a family as a module."""

    def layers(inputs: object = X, axes: object = ALL) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
        def added(given: Callable[..., Tensor]) -> Callable[..., Tensor]:
            family.add(given.__name__, lambda: Layers(given), inputs, axes)  # type: ignore[arg-type]
            return given

        return added

    return layers


layers = layers_of(family)


@layers()
def torch_sequence_first(self: Layers, x: Tensor) -> Tensor:
    y = x.transpose(0, 1)
    n, b, c = y.shape
    q, k, v = (f(y).contiguous().view(n, b * 4, 8).transpose(0, 1) for f in (self.q, self.k, self.v))
    weights = torch.bmm(q * 8**-0.5, k.transpose(1, 2)).softmax(-1)
    return self.out(torch.bmm(weights, v).transpose(0, 1).contiguous().view(n, b, c)).transpose(0, 1)


@layers({"x": normal(6, 2, 32)}, {"x": {0: "length", 1: "batch"}})
def multihead_of_torch(self: Layers, x: Tensor) -> Tensor:
    made, _ = functional.multi_head_attention_forward(
        x,
        x,
        x,
        32,
        4,
        self.qkv.weight,
        self.qkv.bias,
        None,
        None,
        False,
        0.0,
        self.out.weight,
        self.out.bias,
        training=False,
        need_weights=False,
    )
    return made


@layers()
def differential(self: Layers, x: Tensor) -> Tensor:
    b, n, _ = x.shape
    q, k = (f(x).view(b, n, 8, 4).transpose(1, 2) for f in (self.q, self.k))
    v = self.v(x).view(b, n, 4, 8).transpose(1, 2)
    weights = (q @ k.transpose(-1, -2) * 0.5).softmax(-1).view(b, 4, 2, n, n)
    return self.merged((weights[:, :, 0] - self.lam * weights[:, :, 1]) @ v)


@layers()
def differential_of_repeated_values(self: Layers, x: Tensor) -> Tensor:
    q, k, v = self.heads(x)
    v = torch.cat(torch.chunk(v, 2, dim=1), dim=-1).repeat(1, 2, 1, 1)
    made = (q @ k.transpose(-1, -2) * 8**-0.5).softmax(-1) @ v
    first, second = made.chunk(2, dim=1)
    return (first - self.lam * second).transpose(1, 2).flatten(2)


@layers()
def differential_two_products(self: Layers, x: Tensor) -> Tensor:
    q, k, v = self.heads(x)
    weights = (q @ k.transpose(-1, -2) * 8**-0.5).softmax(-1)
    return torch.cat([weights @ v, weights @ (v * 0.5 + 1)], dim=-1).transpose(1, 2).flatten(2)


@layers({"x": normal(2, 32, 5, 5)}, {"x": BATCH})
def yolo_position_attention(self: Layers, x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    q, k, v = (x.flatten(2) + 0.1).view(b, 4, 8, h * w), x.flatten(2).view(b, 4, 8, -1) * 0.7, x.view(b, 4, 8, -1)
    attn = (q.transpose(-2, -1) @ k * 8**-0.5).softmax(dim=-1)
    return (v @ attn.transpose(-2, -1)).view(b, c, h, w) + x


class _PSA(nn.Module):
    """The attention of position-sensitive blocks of YOLO."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Conv2d(32, 64, 1), nn.Conv2d(32, 32, 1)
        self.pe = nn.Conv2d(32, 32, 3, 1, 1, groups=32)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        q, k, v = self.qkv(x).view(b, 4, 16, h * w).split([4, 4, 8], dim=2)
        attn = ((q.transpose(-2, -1) @ k) * 0.5).softmax(dim=-1)
        made = (v @ attn.transpose(-2, -1)).view(b, c, h, w) + self.pe(v.reshape(b, c, h, w))
        return self.proj(made)


family.add("yolo_psa", _PSA, {"x": normal(2, 32, 5, 5)}, {"x": BATCH})
family.add("yolo_psa_sizes", _PSA, {"x": normal(2, 32, 5, 5)}, {"x": {0: "batch", 2: "h", 3: "w"}})


class _NonLocal(nn.Module):
    """A non-local block, or the attention of a SAGAN or of a VQGAN."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.q, self.k, self.v, self.form = *(nn.Conv2d(16, 16, 1) for _ in range(3)), form
        self.gamma, self.norm = nn.Parameter(torch.rand(1)), nn.GroupNorm(4, 16)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        y = self.norm(x)
        q, k, v = self.q(y), self.k(y), self.v(y)
        if self.form == "vqgan":
            weights = (torch.bmm(q.reshape(b, c, h * w).permute(0, 2, 1), k.reshape(b, c, h * w)) * c**-0.5).softmax(2)
            return x + torch.bmm(v.reshape(b, c, h * w), weights.permute(0, 2, 1)).reshape(b, c, h, w)
        if self.form == "sagan":
            energy = torch.bmm(q.view(b, -1, w * h).permute(0, 2, 1), k.view(b, -1, w * h)).softmax(-1)
            return self.gamma * torch.bmm(v.view(b, -1, w * h), energy.permute(0, 2, 1)).view(b, c, w, h) + x
        if self.form == "columns":
            scores = torch.bmm(k.flatten(2).transpose(1, 2), q.flatten(2))
            return x + torch.bmm(v.flatten(2), scores.softmax(1)).view(b, c, h, w)
        weights = torch.matmul(q.flatten(2).transpose(1, 2), k.flatten(2)).softmax(-1)
        return x + torch.matmul(weights, v.flatten(2).transpose(1, 2)).permute(0, 2, 1).reshape(b, c, h, w)


for _form in ("vqgan", "sagan", "columns", "non_local"):
    family.add(
        f"picture_attention_{_form}", lambda form=_form: _NonLocal(form), {"x": normal(2, 16, 4, 4)}, {"x": BATCH}
    )


def _windows(self: Layers, x: Tensor, mask: Tensor, form: str) -> Tensor:
    b, n, c = x.shape
    q, k, v = self.qkv(x).reshape(b, n, 3, 4, 8).permute(2, 0, 3, 1, 4)
    scores = (q * 8**-0.5) @ k.transpose(-2, -1) + self.table[None]
    if form == "swin":
        count = mask.shape[0]
        scores = (scores.view(b // count, count, 4, n, n) + mask[None, :, None]).view(-1, 4, n, n)
    elif form == "merged":
        count = mask.shape[0]
        scores = scores.view(b // count, count, 4, n, n) + mask.unsqueeze(1).unsqueeze(0)
        scores = scores.reshape(b * 4, n, n).softmax(-1)
        return (scores @ v.reshape(b * 4, n, 8)).view(b, 4, n, 8).transpose(1, 2).reshape(b, n, c)
    return self.merged(scores.softmax(-1) @ v)


for _form in ("swin", "merged", "plain"):

    def _given(self: Layers, x: Tensor, mask: Tensor, form: str = _form) -> Tensor:
        return _windows(self, x, mask, form)

    _given.__name__ = f"windows_{_form}"
    layers({"x": normal(8, 16, 32), "mask": normal(4, 16, 16)}, {"x": BATCH})(_given)
    _given.__name__ = f"windows_{_form}_fixed"
    layers({"x": normal(8, 16, 32), "mask": normal(4, 16, 16)}, {})(_given)


@layers({"x": normal(2, 3, 16, 32)}, {"x": BATCH})
def windows_in_a_5d_tensor(self: Layers, x: Tensor) -> Tensor:
    b, w, n, _ = x.shape
    q, k, v = (f(x).view(b, w, n, 4, 8).transpose(2, 3) for f in (self.q, self.k, self.v))
    made = (q @ k.transpose(-1, -2) * 8**-0.5).softmax(-1) @ v
    return self.out(made.transpose(2, 3).reshape(b, w, n, 32))


@layers({"x": normal(2, 16, 32)}, {"x": BATCH})
def grid_relative_positions(self: Layers, x: Tensor) -> Tensor:
    q, k, v = self.heads(x)
    scores = q * 8**-0.5 @ k.transpose(-2, -1)
    r = q.reshape(-1, 4, 4, 4, 8)
    rel_h = torch.einsum("bnhwc,hkc->bnhwk", r, self.table[:, :4, :8])
    rel_w = torch.einsum("bnhwc,wkc->bnhwk", r, self.table[:, 4:8, :8])
    scores = (scores.view(-1, 4, 4, 4, 4, 4) + rel_h[..., :, None] + rel_w[..., None, :]).view(-1, 4, 16, 16)
    return self.merged(scores.softmax(-1) @ v)


@layers({"x": normal(2, 16, 32)}, {"x": BATCH})
def grid_relative_positions_merged_heads(self: Layers, x: Tensor) -> Tensor:
    b = x.shape[0]
    q, k, v = self.qkv(x).reshape(b, 16, 3, 4, -1).permute(2, 0, 3, 1, 4).reshape(3, b * 4, 16, -1).unbind(0)
    scores = (q * 8**-0.5) @ k.transpose(-2, -1)
    r = q.reshape(-1, 4, 4, 8)
    rel_h = torch.einsum("bhwc,hkc->bhwk", r, self.table[:, :4, :8])
    rel_w = torch.einsum("bhwc,wkc->bhwk", r, self.table[:, 4:8, :8])
    scores = (scores.view(-1, 4, 4, 4, 4) + rel_h[:, :, :, :, None] + rel_w[:, :, :, None, :]).view(-1, 16, 16)
    made = (scores.softmax(-1) @ v).view(b, 4, 16, 8)
    return self.merged(made)


@layers()
def key_without_bias_needed(self: Layers, x: Tensor) -> Tensor:
    q, k, v = self.heads(x)
    return self.merged(functional.scaled_dot_product_attention(q, k, v))


@layers()
def normed_heads(self: Layers, x: Tensor) -> Tensor:
    q, k, v = self.heads(x)
    return self.merged(functional.scaled_dot_product_attention(self.norm(q), self.other(k), v))


@layers()
def rms_normed_heads(self: Layers, x: Tensor) -> Tensor:
    def norm(y: Tensor) -> Tensor:
        return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6) * self.norm.weight

    q, k, v = self.heads(x)
    return self.merged((norm(q) @ norm(k).transpose(-1, -2) * 8**-0.5).softmax(-1) @ v)


@layers({"x": normal(2, 1, 32), "past": normal(2, 2, 9, 8)}, {"x": BATCH, "past": {0: "batch", 2: "past"}})
def grouped_decode(self: Layers, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
    b = x.shape[0]
    q = self.q(x).view(b, 1, 4, 8).transpose(1, 2)
    new = self.k(x)[..., :16].view(b, 1, 2, 8).transpose(1, 2)
    k = torch.cat([past, new], dim=2)
    v = torch.cat([past * 0.5, new * 0.5], dim=2)
    wide = [y[:, :, None].expand(b, 2, 2, -1, 8).reshape(b, 4, -1, 8) for y in (k, v)]
    return self.merged((q @ wide[0].transpose(-1, -2) * 8**-0.5).softmax(-1) @ wide[1]), k


@layers()
def grouped_5d(self: Layers, x: Tensor) -> Tensor:
    b, n, _ = x.shape
    q = self.q(x).view(b, n, 2, 2, 8).permute(0, 2, 3, 1, 4)
    k, v = (f(x)[..., :16].view(b, n, 2, 1, 8).permute(0, 2, 3, 1, 4) for f in (self.k, self.v))
    made = (q @ k.transpose(-1, -2) * 8**-0.5).softmax(-1) @ v
    return self.out(made.permute(0, 3, 1, 2, 4).reshape(b, n, 32))


@layers()
def grouped_5d_einsum(self: Layers, x: Tensor) -> Tensor:
    b, n, _ = x.shape
    q = self.q(x).view(b, n, 2, 2, 8)
    k, v = (f(x)[..., :16].view(b, n, 2, 8) for f in (self.k, self.v))
    weights = torch.einsum("bngrd,bmgd->bgrnm", q, k).mul(8**-0.5).softmax(-1)
    return self.out(torch.einsum("bgrnm,bmgd->bngrd", weights, v).reshape(b, n, 32))


@layers({"x": normal(2, 6, 32), "y": normal(2, 5, 32)}, {"x": BATCH_LENGTH, "y": {0: "batch", 1: "other"}})
def joint_of_two_streams(self: Layers, x: Tensor, y: Tensor) -> Tensor:
    q, k, v = self.heads(x)
    other = [f(y).view(y.shape[0], -1, 4, 8).transpose(1, 2) for f in (self.v, self.q, self.k)]
    made = functional.scaled_dot_product_attention(
        *(torch.cat([a, b], dim=2) for a, b in zip((q, k, v), other, strict=True))
    )
    return self.merged(made)


@layers({"x": normal(2, 1, 32), "past": normal(2, 2, 9, 8)}, {"x": BATCH, "past": {0: "batch", 2: "past"}})
def grouped_decode_by_option(self: Layers, x: Tensor, past: Tensor) -> Tensor:
    q = self.q(x).view(-1, 1, 4, 8).transpose(1, 2)
    new = self.k(x)[..., :16].view(-1, 1, 2, 8).transpose(1, 2)
    k = torch.cat([past, new], dim=2)
    return self.merged(functional.scaled_dot_product_attention(q, k, k * 0.5, enable_gqa=True))


@layers({"x": normal(2, 1, 32), "past": normal(2, 2, 9, 8)}, {"x": BATCH, "past": {0: "batch", 2: "past"}})
def grouped_decode_rows(self: Layers, x: Tensor, past: Tensor) -> Tensor:
    q = self.q(x).view(-1, 2, 2, 8)
    new = self.k(x)[..., :16].view(-1, 1, 2, 8).transpose(1, 2)
    k = torch.cat([past, new], dim=2)
    weights = (q @ k.transpose(-1, -2) * 8**-0.5).softmax(-1)
    return self.out((weights @ k).reshape(-1, 1, 32))
