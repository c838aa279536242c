"""Masks of attention, as repositories write them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.exports.varied_attention import Layers, layers_of
from benchmarks.exports.varied_declare import BATCH_LENGTH, Family, bools, normal

family = Family()
RECIPES = family.recipes
layers = layers_of(family)
X = {"x": normal(2, 6, 32)}


MASKED = {"x": normal(2, 6, 32), "mask": bools(2, 6)}
MASK_AXES = {"x": BATCH_LENGTH, "mask": BATCH_LENGTH}


def _masked(form: str) -> Callable[..., Tensor]:
    def given(self: Layers, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        n, keep = x.shape[1], mask[:, None, None, :]
        causal = torch.tril(torch.ones(n, n, dtype=torch.bool))
        scores = q @ k.transpose(-1, -2) * 8**-0.5
        if form == "finite_where_keep":
            scores = torch.where(keep, scores, -1e4)
        elif form == "finite_where_hide":
            scores = torch.where(~keep, -65504.0, scores + self.table[None, :, :1, :1])
        elif form == "keep_times":
            scores = scores * keep.float() + -1e9 * (1.0 - keep.float())
        elif form == "keep_times_finite":
            scores = keep.float() * scores + (1.0 - keep.float()) * -1e4
        elif form == "gpt2_constant":
            b = causal.float()[None, None]
            scores = scores * b - 1e4 * (1 - b)
        elif form == "subtracted":
            scores = scores - (1.0 - keep.float()) * 1e9
        elif form == "scale_behind":
            scores = (q @ k.transpose(-1, -2) + (1.0 - keep.float()) * -1e9) * 8**-0.5
        elif form == "scale_behind_bias":
            scores = (q @ k.transpose(-1, -2) + self.table[None, :, :1, :1].expand(1, 4, 6, 6)) * 8**-0.5
        elif form == "multiplied":
            m = keep.float()
            scores = scores * m + (1 - m) * -1e30
            return self.merged((scores.softmax(-1) * m) @ v)
        elif form == "keras":
            scores = scores + (1.0 - keep.float()) * torch.finfo(torch.float32).min
        elif form == "hidden_rows":
            weights = scores.masked_fill(~keep, float("-inf")).softmax(-1).masked_fill(~keep, 0.0)
            return self.merged(weights @ v)
        elif form == "hidden_rows_of_pairs":
            both = keep & mask[:, None, :, None]
            weights = scores.masked_fill(~both, float("-inf")).softmax(-1)
            return self.merged(torch.where(both.any(-1, keepdim=True), weights, 0.0) @ v)
        elif form == "zeroed_rows":
            allowed = torch.where(keep, 0.0, torch.finfo(torch.float32).min)
            allowed = allowed * ~torch.all(allowed == torch.finfo(torch.float32).min, dim=-1, keepdim=True)
            return self.merged(functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed))
        elif form == "causal_fill":
            scores = scores.masked_fill(~causal, -1e9).masked_fill(~keep, -1e9)
        elif form == "bool_expanded":
            both = keep.expand(x.shape[0], 1, n, n)
            return self.merged(functional.scaled_dot_product_attention(q, k, v, attn_mask=both.repeat(1, 4, 1, 1)))
        elif form == "clamped":
            scores = torch.max(scores + (1.0 - keep.float()) * -1e9, torch.tensor(torch.finfo(torch.float32).min))
        return self.merged(scores.softmax(-1) @ v)

    return given


for _form in (
    "finite_where_keep",
    "finite_where_hide",
    "keep_times",
    "keep_times_finite",
    "gpt2_constant",
    "subtracted",
    "scale_behind",
    "scale_behind_bias",
    "multiplied",
    "keras",
    "hidden_rows",
    "hidden_rows_of_pairs",
    "zeroed_rows",
    "causal_fill",
    "bool_expanded",
    "clamped",
):
    _made = _masked(_form)
    _made.__name__ = f"masked_{_form}"
    layers(MASKED, MASK_AXES)(_made)
