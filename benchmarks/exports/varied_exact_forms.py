"""Formulas in the exact forms that rules look for: in half precision, of bounded values, of weights used twice."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.exports.varied_declare import BATCH, BATCH_LENGTH, Family, integers, normal, positive

family = Family()
RECIPES = family.recipes
X = {"x": normal(2, 6, 8)}
ALL = {"x": BATCH_LENGTH}
IMAGE = {"x": normal(2, 6, 8, 8)}
HEADS = {name: normal(2, 4, 6, 8) for name in "qkv"}
HEAD_AXES = {name: {0: "batch", 2: "length"} for name in "qkv"}


@family.function({"x": normal(2, 6, 8)}, ALL)
def relu_twice(x: Tensor) -> Tensor:
    return functional.relu(functional.relu(x)) + 1


@family.function({"x": normal(2, 6, 8)}, ALL)
def selu_in_one_where(x: Tensor) -> Tensor:
    return torch.where(x > 0, 1.0507009873554805 * x, 1.7580993408473766 * (torch.exp(x) - 1))


@family.function({"x": normal(2, 6, 8)}, ALL)
def celu_by_relu_and_minimum(x: Tensor) -> Tensor:
    return functional.relu(x) + torch.minimum(torch.zeros(()), 0.5 * (torch.exp(x / 0.5) - 1))


@family.function({"x": normal(2, 6, 8)}, ALL)
def celu_by_where(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 0.5 * (torch.exp(x / 0.5) - 1))


@family.function({"x": normal(2, 6, 8)}, ALL)
def tanh_of_bounded(x: Tensor) -> Tensor:
    y = torch.sigmoid(x)
    return (torch.exp(y) - torch.exp(-y)) / (torch.exp(y) + torch.exp(-y))


@family.function({"x": normal(2, 6, 8)}, ALL)
def log_softmax_of_shifted(x: Tensor) -> Tensor:
    shifted = x - x.max(-1, keepdim=True)[0]
    return shifted - torch.log(torch.exp(shifted).sum(-1, keepdim=True))


@family.function({"x": normal(2, 6, 8)}, ALL)
def lp_normalised(x: Tensor) -> tuple[Tensor, Tensor]:
    return functional.normalize(x, p=2.0, dim=-1), functional.normalize(x, p=1.0, dim=1)


@family.function({"x": normal(2, 6, 8)}, ALL)
def reductions_of_torch(x: Tensor) -> tuple[Tensor, ...]:
    return x.norm(p=1, dim=1), torch.logsumexp(x, 1), x.square().sum(1), x.norm(p=2), x.norm(p=1), x.exp().sum(1).log()


class _Half(nn.Module):
    """Half precision with islands in single precision."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.lin, self.form = nn.Linear(8, 8).half(), form
        self.norm, self.weight = nn.LayerNorm(8), nn.Parameter(torch.rand(8).half())

    def forward(self, x: Tensor) -> Tensor:
        if self.form == "gelu":
            return functional.gelu(self.lin(x).float()).half()
        if self.form == "layer_norm":
            weight, bias = self.weight.float(), self.weight.float()
            return functional.layer_norm(x.float(), (8,), weight, bias).half()
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).half() * self.weight


for _form in ("gelu", "layer_norm", "rms_norm"):
    family.add(f"half_{_form}", lambda form=_form: _Half(form), {"x": lambda: torch.randn(2, 6, 8).half()}, ALL)


class _More(nn.Module):
    """Normalisations with a second scale, differences of products, and weights that are used twice."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.norm, self.form = nn.LayerNorm(8), form
        self.a, self.b = nn.Linear(8, 16, bias=False), nn.Linear(8, 16)
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 16, bias=False)
        self.gain, self.shift = nn.Parameter(torch.rand(8)), nn.Parameter(torch.rand(8))

    def forward(self, x: Tensor) -> Tensor:
        form = self.form
        if form == "norm_scaled":
            return self.norm(x) * self.gain + self.shift
        if form == "norm_plain_scaled":
            return functional.layer_norm(x, (8,)) * (1 + self.gain) + self.shift
        if form == "rms_scaled":
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.gain * self.shift
        if form == "l2_norm":
            return functional.normalize(x, dim=-1) * math.sqrt(8) * self.gain
        if form == "lora_removed":
            return self.b(x) - 0.5 * self.up(self.down(x))
        if form == "scaled_self":
            y = self.a(x)
            return y + 0.3 * y
        if form == "two_biases":
            return self.b(x) + torch.cat([self.gain, self.shift])
        if form == "two_inputs":
            return self.a(x) + self.a(x * x)
        if form == "two_inputs_difference":
            return self.a(x) - self.a(x.flip(1))
        if form == "gram":
            return (x.transpose(1, 2) @ x).transpose(1, 2)
        if form == "low_rank_chain":
            return x @ (self.down.weight.t() @ (self.up.weight.t() @ torch.rand(16, 3)))
        if form == "dynamic_chain":
            return (x @ x.transpose(1, 2)) @ (x[..., :2] @ self.up.weight.t())
        if form == "linear_attention":
            return (x.softmax(-1) @ x.softmax(1).transpose(1, 2)) @ x
        if form == "expanded_operand":
            return x @ self.a.weight.t().unsqueeze(0).expand(x.shape[0], -1, -1)
        flat = x.reshape(-1, 8)
        if form == "gemm_of_transposed":
            return torch.addmm(self.shift[:2], flat.t()[:8, :2].t(), self.down.weight.t())
        return torch.mm(self.up.weight, flat[:, :2].t()).t()


for _form in (
    "norm_scaled",
    "norm_plain_scaled",
    "rms_scaled",
    "l2_norm",
    "lora_removed",
    "scaled_self",
    "two_biases",
    "two_inputs",
    "two_inputs_difference",
    "gram",
    "low_rank_chain",
    "dynamic_chain",
    "linear_attention",
    "expanded_operand",
    "gemm_of_transposed",
    "mm_transposed",
):
    family.add(f"more_{_form}", lambda form=_form: _More(form), {"x": normal(2, 6, 8)}, ALL)


class _Mlp(nn.Module):
    """Two layers on rows, with an activation between them."""

    def __init__(self, activation: nn.Module, bias: bool) -> None:
        super().__init__()
        self.first, self.second, self.activation = nn.Linear(8, 16, bias), nn.Linear(16, 4, bias), activation

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.activation(self.first(x)))


for _name, _activation in {
    "relu": nn.ReLU(),
    "sigmoid": nn.Sigmoid(),
    "tanh": nn.Tanh(),
    "leaky": nn.LeakyReLU(0.1),
    "gelu": nn.GELU(),
}.items():
    for _bias in (False, True):
        family.add(
            f"mlp_{_name}{'' if _bias else '_without_bias'}",
            lambda act=_activation, bias=_bias: _Mlp(act, bias),
            {"x": normal(5, 8)},
            {"x": BATCH},
        )


# Pictures and boxes


@family.function({"x": normal(2, 6, 8, 8)})
def bilinear_by_four_gathers(x: Tensor) -> Tensor:
    at = ((torch.arange(16) + 0.5) / 2 - 0.5).clamp(min=0)
    low = at.floor().long()
    high, part = (low + 1).clamp(max=7), at - low
    a, b = x[:, :, low][..., low], x[:, :, low][..., high]
    c, d = x[:, :, high][..., low], x[:, :, high][..., high]
    top, bottom = a + (b - a) * part, c + (d - c) * part
    return top + (bottom - top) * part[:, None]


@family.function({"theta": normal(2, 2, 3)}, {})
def affine_grid_of_torch(theta: Tensor) -> Tensor:
    return functional.affine_grid(theta, [2, 3, 6, 7], align_corners=False)


@family.function({"theta": normal(2, 2, 3), "base": normal(42, 3)}, {"theta": BATCH})
def affine_grid_by_sum(theta: Tensor, base: Tensor) -> Tensor:
    return (base[None, :, :, None] * theta.transpose(1, 2)[:, None]).sum(-2).view(-1, 6, 7, 2)


@family.function({"x": integers(9, 2, 6)}, {"x": BATCH_LENGTH})
def masks_of_pairs(x: Tensor) -> tuple[Tensor, ...]:
    keep = x != 0
    length = x.shape[1]
    causal = torch.arange(length)[None, :] <= torch.arange(length)[:, None]
    both = causal[None, None] & keep[:, None, None]
    return both, torch.where(both, 0.0, -1e9), (keep[:, None, :] | ~keep[:, :, None]), positive_mask(keep)


def positive_mask(keep: Tensor) -> Tensor:
    """A mask of rows and columns."""
    return keep.unsqueeze(1).float() * keep.unsqueeze(2).float()


@family.function({"logits": normal(3, 6, 8)}, {})
def marginal_in_log_space(logits: Tensor) -> Tensor:
    top = logits.amax(1, keepdim=True)
    safe = torch.where(top.isinf(), torch.zeros_like(top), top)
    return (logits - safe).exp().sum(1, keepdim=True).log() + safe


@family.function({"x": positive(2, 4, 8)}, ALL)
def einsum_with_ellipses(x: Tensor) -> tuple[Tensor, ...]:
    return (
        torch.einsum("...ij->...ji", x),
        torch.einsum("...i,...i->...", x, x),
        torch.einsum("...n,...n,...n->...", x, x, x),
    )
