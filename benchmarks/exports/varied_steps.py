"""Decoding steps, pools, patches, long convolutions and guarded sums in the words of repositories that have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.exports.varied_attention import ALL, Layers, layers_of
from benchmarks.exports.varied_declare import BATCH, Family, bools, normal

family = Family()
RECIPES = family.recipes
layers = layers_of(family)

STATE = {"x": BATCH, "state": BATCH}
HEADS = {name: {0: "batch"} for name in ("q", "k", "v", "mask")}
CACHE = {"x": BATCH, **{name: {0: "batch", 2: "past"} for name in ("keys", "values")}}


class Module(nn.Module):
    """A function of layers by name."""

    def __init__(self, given: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.given, self.layers = given, nn.ModuleDict(layers)

    def forward(self, **values: Tensor) -> Any:
        return self.given(self.layers, **values)


# Steps of state space models (Mamba, arXiv:2312.00752): a causal convolution whose window is a state


def _rolled(conv: nn.Conv1d, new: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    state = torch.cat([torch.roll(state, -1, -1)[:, :, :-1], new], -1)
    return torch.sum(state * conv.weight[:, 0, :], -1) + conv.bias, state


def _summed(conv: nn.Conv1d, new: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    joined = torch.cat([state, new], -1)
    return torch.sum(joined * conv.weight[:, 0, :], -1) + conv.bias, joined[:, :, 1:]


def _convolved(conv: nn.Conv1d, new: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    joined = torch.cat([state, new], -1)
    return functional.conv1d(joined, conv.weight, conv.bias, groups=64), joined[:, :, 1:]


def _convolved_longer(conv: nn.Conv1d, new: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    joined = torch.cat([state, new], -1)
    return functional.conv1d(joined, conv.weight, conv.bias, groups=64)[:, :, -1:].squeeze(-1), joined[:, :, -4:]


def _step(step: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    def given(layers: Any, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        out, state = step(layers["conv"], layers["inner"](x).unsqueeze(-1), state)
        return functional.silu(out), state

    return given


for _name, _made, _length in (
    ("rolled", _rolled, 4),
    ("summed", _summed, 3),
    ("convolved", _convolved, 3),
    ("convolved_longer", _convolved_longer, 4),
):
    family.add(
        f"mamba_step_{_name}",
        lambda made=_made: Module(_step(made), conv=nn.Conv1d(64, 64, 4, groups=64), inner=nn.Linear(32, 64)),  # type: ignore[misc]
        {"x": normal(2, 32), "state": normal(2, 64, _length)},
        STATE,
    )


# Attention


@layers({"x": normal(2, 1, 32), "keys": normal(2, 2, 5, 8), "values": normal(2, 2, 5, 8)}, CACHE)
def decode_step_of_groups(self: Layers, x: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
    q, k, v = self.heads(x)
    keys, values = torch.cat([keys, k[:, :2]], 2), torch.cat([values, v[:, :2]], 2)
    scores = q.reshape(-1, 2, 2, 8) @ keys.transpose(-1, -2) * 8**-0.5
    return self.merged((scores.softmax(-1) @ values).reshape(-1, 4, 1, 8)), keys, values


@layers()
def scores_of_keys_and_queries(self: Layers, x: Tensor) -> Tensor:
    q, k, v = self.heads(x)
    scores = (k @ q.transpose(-1, -2)).transpose(-1, -2) * 8**-0.5
    return self.merged(scores.softmax(-1) @ v)


@layers()
def values_first_causal(self: Layers, x: Tensor) -> Tensor:
    q, k, v = self.heads(x)
    hidden = torch.full((x.shape[1], x.shape[1]), -1e9).triu(1)
    weights = (q @ k.transpose(-1, -2) * 8**-0.5 + hidden).softmax(-1)
    return self.merged((v.transpose(-1, -2) @ weights.transpose(-1, -2)).transpose(-1, -2))


@layers(axes={"x": BATCH})
def masked_by_constant_product(self: Layers, x: Tensor) -> Tensor:
    q, k, v = self.heads(x)
    seen = torch.ones(6, 6).tril()
    scores = q @ k.transpose(-1, -2) * 8**-0.5 * seen + torch.finfo(x.dtype).min * (1 - seen)
    return self.merged(scores.softmax(-1) @ v)


@layers({"x": normal(6, 2, 32), "hidden": bools(2, 6)}, {"x": {0: "length", 1: "batch"}, "hidden": ALL["x"]})
def sequence_first_masked(self: Layers, x: Tensor, hidden: Tensor) -> Tensor:
    length, batch, _ = x.shape
    q, k, v = (f(x).view(length, batch * 4, 8).transpose(0, 1) for f in (self.q, self.k, self.v))
    scores = torch.bmm(q * 8**-0.5, k.transpose(1, 2)).view(batch, 4, length, length)
    scores = scores.masked_fill(hidden[:, None, None, :], float("-inf")).view(batch * 4, length, length)
    return self.out(torch.bmm(scores.softmax(-1), v).transpose(0, 1).reshape(length, batch, 32))


@family.function({**{name: normal(2, 4, 64, 32) for name in "qkv"}, "mask": normal(2, 1, 64, 64)}, HEADS)
def masked_as_given(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@family.function({name: normal(1, 1500, 12, 64) for name in "qkv"}, {})
def long_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    heads = (x.transpose(1, 2) for x in (q, k, v))
    return functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)


@layers({"x": normal(2, 16, 32)})
def grid_of_rows_and_columns(self: Layers, x: Tensor) -> Tensor:
    """Decomposed relative positions with an axis of heads (arXiv:2112.01526)."""
    q, k, v = self.heads(x)
    scores, rows = (q * 8**-0.5) @ k.transpose(-2, -1), q.reshape(-1, 4, 4, 4, 8)
    tables = self.table[0, :, :8].reshape(4, 4, 8), self.table[1, :, :8].reshape(4, 4, 8)
    above, beside = (torch.einsum(f"bhpqc,{axis}kc->bhpqk", rows, one) for axis, one in zip("pq", tables, strict=True))
    grid = scores.view(-1, 4, 4, 4, 4, 4) + above[..., :, None] + beside[..., None, :]
    return self.merged(grid.view(-1, 4, 16, 16).softmax(-1) @ v)


class ComplexAngles(nn.Module):
    """Rotary embeddings as Llama has them (github.com/meta-llama/llama): products of complex numbers, before heads come first."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(16.0), 10000 ** -(torch.arange(0, 8, 2) / 8))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
        turns = self.turns[: q.shape[1]].view(1, -1, 1, 4)
        pairs = (torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2)) for x in (q, k))
        return tuple(torch.view_as_real(one * turns).flatten(3) for one in pairs)


family.add("turned_complex_of_llama", ComplexAngles, {"q": normal(1, 7, 4, 8), "k": normal(1, 7, 4, 8)}, {})


# Pools, patches and long convolutions


def _images(name: str, given: Callable[[Tensor], Tensor]) -> None:
    family.add(
        name,
        lambda: Module(lambda layers, x: given(layers["conv"](x)), conv=nn.Conv2d(3, 8, 3, padding=1)),
        {"x": normal(2, 3, 8, 8)},
    )


def _signals(name: str, given: Callable[[Tensor], Tensor], conv: Callable[[], nn.Module]) -> None:
    family.add(
        name, lambda: Module(lambda layers, x: given(layers["conv"](x)), conv=conv()), {"x": normal(1, 256, 300)}, {}
    )


_images("pool_max_of_all", lambda x: functional.max_pool2d(x.relu(), (8, 8)).flatten(1))
_images("pool_mean_of_blocks", lambda x: x.reshape(x.shape[0], 8, 4, 2, 4, 2).mean((3, 5)))
_signals("pool_max_of_signal", lambda x: functional.max_pool1d(x.relu(), 3, 2, 1), lambda: nn.Conv1d(256, 256, 3))
_signals("pool_mean_of_signal", lambda x: functional.avg_pool1d(x, 2), lambda: nn.Conv1d(256, 256, 3))
for _kind, _after in (("silu", functional.silu), ("relu", functional.relu)):
    _signals(f"depthwise_wide_{_kind}", _after, lambda: nn.Conv1d(256, 256, 31, padding=15, groups=256))


@layers({"x": normal(2, 3, 32, 32)}, {"x": BATCH})
def patches_by_einops(self: Layers, x: Tensor) -> Tensor:
    """``rearrange(x, "b c (h p) (w q) -> b (h w) (p q c)")`` as einops computes it (github.com/lucidrains/vit-pytorch)."""
    rows = x.reshape(-1, 3, 8, 4, 8, 4).permute(0, 2, 4, 3, 5, 1).reshape(-1, 64, 48)
    return functional.linear(rows, torch.cat([self.qkv.weight, self.q.weight[:, :16].repeat(3, 1)], 1)[:, :48])


# Norms, and logarithms of sums


@family.function({"x": normal(1, 21, 32, 32)}, {})
def norm_of_all(x: Tensor) -> Tensor:
    return x.pow(2).sum().sqrt()


@family.function({"x": normal(2, 6, 16)})
def log_sum_exp_as_torch(x: Tensor) -> Tensor:
    largest = x.amax(-1, keepdim=True)
    largest = torch.where(largest.abs() == float("inf"), 0.0, largest)
    return torch.log(torch.exp(x - largest).sum(-1)) + largest.squeeze(-1)


@family.function({"a": normal(2, 3, 4), "b": normal(4, 5), "c": normal(5, 6), "d": normal(6, 2)})
def einsum_four_with_ellipsis(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return torch.einsum("...i,ij,jk,kl->...l", a, b, c, d)
