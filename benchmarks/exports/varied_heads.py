"""Attention and rotary embeddings by their formulas, as papers and repositories spell them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.exports.varied_declare import BATCH, BATCH_LENGTH, Family, bools, normal

family = Family()
RECIPES = family.recipes
X = {"x": normal(2, 6, 8)}
ALL = {"x": BATCH_LENGTH}
IMAGE = {"x": normal(2, 6, 8, 8)}
HEADS = {name: normal(2, 4, 6, 8) for name in "qkv"}
HEAD_AXES = {name: {0: "batch", 2: "length"} for name in "qkv"}


@family.function(HEADS, HEAD_AXES)
def attention_plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))).softmax(-1) @ v


@family.function({**HEADS, "mask": bools(2, 6)}, HEAD_AXES | {"mask": BATCH_LENGTH})
def attention_filled(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    return scores.masked_fill(mask[:, None, None, :] == 0, -1e9).softmax(-1) @ v


@family.function({**HEADS, "mask": bools(2, 6)}, HEAD_AXES | {"mask": BATCH_LENGTH})
def attention_multiplied_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    keep = mask[:, None, None, :].float()
    scores = (q @ k.transpose(-1, -2)) * 8**-0.5
    return (scores * keep - 10000.0 * (1 - keep)).softmax(-1) @ v


@family.function({**HEADS, "mask": bools(2, 6)}, HEAD_AXES | {"mask": BATCH_LENGTH})
def attention_hidden_rows(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    hidden = ~mask[:, None, None, :]
    scores = (q @ k.transpose(-1, -2)).masked_fill(hidden, float("-inf"))
    return scores.softmax(-1).masked_fill(hidden, 0.0) @ v


@family.function({**HEADS, "mask": bools(2, 6)}, HEAD_AXES | {"mask": BATCH_LENGTH})
def attention_nan_to_zero(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = (q @ k.transpose(-1, -2) * 0.35).masked_fill(~mask[:, None, None, :], float("-inf"))
    weights = scores.softmax(-1)
    return torch.where(torch.isnan(weights), 0.0, weights) @ v


@family.function(HEADS, HEAD_AXES)
def attention_clipped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) * 0.35
    return torch.max(scores, torch.tensor(torch.finfo(torch.float32).min)).softmax(-1) @ v


@family.function(HEADS, HEAD_AXES)
def attention_soft_cap(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) * 0.35
    return (torch.tanh(scores / 30.0) * 30.0).softmax(-1) @ v


@family.function(HEADS, HEAD_AXES)
def attention_columns(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return v.transpose(-1, -2) @ (k @ q.transpose(-1, -2) * 0.35).softmax(-2)


@family.function({"x": normal(2, 32, 6, 6)})
def attention_over_pixels(x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    q, k, v = x.reshape(b * 4, c // 4, h * w), x.reshape(b * 4, -1, h * w) * 0.5, x.reshape(b * 4, -1, h * w) + 1
    weights = torch.einsum("bct,bcs->bts", q, k).mul(0.3).softmax(-1)
    return torch.einsum("bts,bcs->bct", weights, v).reshape(b, c, h, w)


@family.function({"x": normal(2, 32, 6, 6)})
def attention_self_gan(x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    query, key = x.view(b, c, -1).permute(0, 2, 1), x.view(b, c, -1) * 0.5
    weights = torch.bmm(query, key).softmax(-1)
    return torch.bmm(x.view(b, c, -1), weights.permute(0, 2, 1)).view(b, c, h, w)


class _Heads(nn.Module):
    """Multi-head attention in a layout."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.qkv, self.out, self.form = nn.Linear(32, 96), nn.Linear(32, 32), form
        self.scale = nn.Parameter(torch.rand(4, 1, 1))
        self.sink = nn.Parameter(torch.rand(4))

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        if self.form == "sequence_first":
            q, k, v = (part.reshape(b, n * 4, 8).transpose(0, 1) for part in self.qkv(x).chunk(3, -1))
            made = (q @ k.transpose(1, 2) * 8**-0.5).softmax(-1) @ v
            return self.out(made.transpose(0, 1).reshape(b, n, 32))
        if self.form == "einsum":
            q, k, v = self.qkv(x).view(b, n, 3, 4, 8).unbind(2)
            weights = torch.einsum("bnhd,bmhd->bhnm", q, k).mul(8**-0.5).softmax(-1)
            return self.out(torch.einsum("bhnm,bmhd->bnhd", weights, v).reshape(b, n, 32))
        q, k, v = self.qkv(x).reshape(b, n, 3, 4, 8).permute(2, 0, 3, 1, 4)
        if self.form == "cosine":
            scores = functional.normalize(q, dim=-1) @ functional.normalize(k, dim=-1).transpose(-2, -1)
            made = (scores * self.scale.clamp(max=4.6).exp()).softmax(-1) @ v
        elif self.form == "temperature":
            made = (q @ k.transpose(-2, -1) / self.scale).softmax(-1) @ v
        elif self.form == "sinks":
            scores = q @ k.transpose(-2, -1) * 8**-0.5
            wide = torch.cat([scores, self.sink.reshape(1, -1, 1, 1).expand(b, -1, n, -1)], -1)
            made = wide.softmax(-1)[..., :-1] @ v
        elif self.form == "merged":
            q, k, v = (part.reshape(b * 4, n, 8) for part in (q * 8**-0.5, k, v))
            made = torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(-1), v).view(b, 4, n, 8)
        elif self.form == "talking":
            scores = torch.einsum("bhnm,hg->bgnm", q @ k.transpose(-2, -1), torch.eye(4) * 0.5 + 0.1)
            made = scores.softmax(-1) @ v
        elif self.form == "query_norm":
            made = functional.scaled_dot_product_attention(
                functional.rms_norm(q, (8,)), functional.layer_norm(k, (8,)), v
            )
        else:
            made = functional.scaled_dot_product_attention(q, k, v, is_causal=self.form == "causal")
        return self.out(made.transpose(1, 2).reshape(b, n, 32))


for _form in ("einsum", "cosine", "temperature", "sinks", "merged", "talking", "query_norm", "causal", "plain"):
    family.add(f"heads_{_form}", lambda form=_form: _Heads(form), {"x": normal(2, 6, 32)}, ALL)
for _form in ("cosine", "sinks", "query_norm"):
    family.add(f"heads_{_form}_fixed", lambda form=_form: _Heads(form), {"x": normal(1, 6, 32)}, {})


def _angles(length: int) -> tuple[Tensor, Tensor]:
    inverse = 1.0 / (10000 ** (torch.arange(0, 8, 2).float() / 8))
    angles = torch.outer(torch.arange(length).float(), inverse)
    return angles.cos(), angles.sin()


@family.function({"x": normal(2, 4, 6, 8)}, {"x": BATCH})
def rotary_two_halves(x: Tensor) -> Tensor:
    cos, sin = _angles(6)
    a, b = x[..., :4], x[..., 4:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


@family.function({"x": normal(2, 4, 6, 8)}, {"x": BATCH})
def rotary_pairs_stacked(x: Tensor) -> Tensor:
    cos, sin = _angles(6)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)


@family.function({"x": normal(2, 4, 6, 8)}, {"x": BATCH})
def rotary_pairs_concatenated(x: Tensor) -> Tensor:
    cos, sin = _angles(6)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


@family.function({"x": normal(2, 6, 4, 8)}, {"x": BATCH})
def rotary_complex(x: Tensor) -> Tensor:
    cos, sin = _angles(6)
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * torch.complex(cos, sin)[None, :, None]).flatten(3)


@family.function({"x": normal(2, 6, 4, 8)}, {"x": BATCH})
def rotary_complex_by_hand(x: Tensor) -> Tensor:
    cos, sin = (part[:, None, :] for part in _angles(6))
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).reshape(x.shape)


@family.function({"x": normal(2, 4, 6, 8)}, {"x": BATCH})
def rotary_every_two(x: Tensor) -> Tensor:
    cos, sin = (part.repeat_interleave(2, dim=-1) for part in _angles(6))
    turned = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    return x * cos + turned * sin


@family.function({"x": normal(2, 4, 6, 8)}, {"x": BATCH})
def rotary_negative(x: Tensor) -> Tensor:
    cos, sin = (torch.cat([part, part], -1) for part in _angles(6))
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([second, -first], -1) * sin


@family.function({"x": normal(2, 4, 6, 16)}, {"x": BATCH})
def rotary_partial(x: Tensor) -> Tensor:
    cos, sin = (torch.cat([part, part], -1) for part in _angles(6))
    turned, kept = x[..., :8], x[..., 8:]
    first, second = turned.chunk(2, -1)
    return torch.cat([turned * cos + torch.cat([-second, first], -1) * sin, kept], dim=-1)


@family.function({"x": normal(2, 6, 4, 16)}, {"x": BATCH})
def rotary_partial_before_heads(x: Tensor) -> Tensor:
    cos, sin = (torch.cat([part, part], -1)[:, None] for part in _angles(6))
    turned, kept = x[..., :8], x[..., 8:]
    first, second = turned.chunk(2, -1)
    return torch.cat([turned * cos + torch.cat([-second, first], -1) * sin, kept], dim=-1)


@family.function({"x": normal(2, 6, 4, 8)}, {"x": BATCH})
def rotary_two_halves_before_heads(x: Tensor) -> Tensor:
    cos, sin = (part[:, None] for part in _angles(6))
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
