"""Rotary embeddings of queries and keys, as repositories write them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.exports.varied_attention import Layers, layers_of
from benchmarks.exports.varied_declare import BATCH, Family, normal

family = Family()
RECIPES = family.recipes
layers = layers_of(family)
X = {"x": normal(2, 6, 32)}


def _angles(length: int, size: int = 8) -> tuple[Tensor, Tensor]:
    inverse = 1.0 / (10000 ** (torch.arange(0, size, 2).float() / size))
    angles = torch.outer(torch.arange(length).float(), inverse)
    return angles.cos(), angles.sin()


def _rotary(form: str) -> Callable[..., Tensor]:
    def turn(x: Tensor) -> Tensor:
        length = x.shape[1] if form.endswith("bsnh") else x.shape[2]
        cos, sin = _angles(6)
        if form.endswith("bsnh"):
            cos, sin = cos[:, None], sin[:, None]
        if form.startswith("negative"):
            first, second = x.chunk(2, -1)
            return x * torch.cat([cos, cos], -1) + torch.cat([second, -first], -1) * torch.cat([sin, sin], -1)
        if form.startswith("partial"):
            part, kept = x[..., :4], x[..., 4:]
            cos, sin = cos[..., :2], sin[..., :2]
            first, second = part.chunk(2, -1)
            turned = part * torch.cat([cos, cos], -1) + torch.cat([-second, first], -1) * torch.cat([sin, sin], -1)
            return torch.cat([turned, kept], -1)
        if form.startswith("concatenated"):
            a, b = x[..., 0::2], x[..., 1::2]
            return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
        if form.startswith("complex"):
            pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
            return torch.view_as_real(pairs * torch.complex(cos, sin)).flatten(-2)
        a, b = x.reshape(*x.shape[:-1], 4, 2).unbind(-1)
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2) + 0.0 * length

    def given(self: Layers, x: Tensor) -> Tensor:
        if form.endswith("bsnh"):
            q, k, v = (f(x).view(-1, 6, 4, 8) for f in (self.q, self.k, self.v))
            q, k, v = turn(q).transpose(1, 2), turn(k).transpose(1, 2), v.transpose(1, 2)
        else:
            q, k, v = self.heads(x)
            q, k = turn(q * 8**-0.5) if form == "scaled" else turn(q), turn(k)
        return self.merged(functional.scaled_dot_product_attention(q, k, v))

    return given


for _form in (
    "negative",
    "negative_bsnh",
    "partial",
    "partial_bsnh",
    "concatenated",
    "concatenated_bsnh",
    "complex",
    "complex_bsnh",
    "scaled",
    "pairs",
    "pairs_bsnh",
):
    _made = _rotary(_form)
    _made.__name__ = f"turned_{_form}"
    layers(X, {"x": BATCH})(_made)
