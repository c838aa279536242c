"""Activations by their formulas, as papers and repositories spell them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.exports.varied_declare import BATCH, BATCH_LENGTH, Family, normal, positive

family = Family()
RECIPES = family.recipes
X = {"x": normal(2, 6, 8)}
ALL = {"x": BATCH_LENGTH}
IMAGE = {"x": normal(2, 6, 8, 8)}
HEADS = {name: normal(2, 4, 6, 8) for name in "qkv"}
HEAD_AXES = {name: {0: "batch", 2: "length"} for name in "qkv"}


@family.function(X, ALL)
def gelu_by_erf(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


@family.function(X, ALL)
def gelu_by_normal_cdf(x: Tensor) -> Tensor:
    return x * torch.distributions.Normal(0.0, 1.0).cdf(x)


@family.function(X, ALL)
def gelu_new(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))


@family.function(X, ALL)
def gelu_fast(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))


@family.function(X, ALL)
def gelu_by_sigmoid(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.5957691216 * (x + 0.044715 * x**3))


@family.function({"x": normal(2, 6, 8), "bias": normal(8)}, ALL)
def bias_gelu_training(x: Tensor, bias: Tensor) -> Tensor:
    x = x + bias
    return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))


@family.function(X, ALL)
def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


@family.function(X, ALL)
def swish_by_exp(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


@family.function(X, ALL)
def sigmoid_by_exp(x: Tensor) -> Tensor:
    return 1.0 / (1.0 + torch.exp(-x))


@family.function(X, ALL)
def sigmoid_by_exp_of_x(x: Tensor) -> Tensor:
    e = torch.exp(x)
    return e / (1.0 + e)


@family.function(X, ALL)
def sigmoid_by_tanh(x: Tensor) -> Tensor:
    return 0.5 * (torch.tanh(0.5 * x) + 1)


@family.function(X, ALL)
def tanh_by_exp(x: Tensor) -> Tensor:
    return (torch.exp(x) - torch.exp(-x)) / (torch.exp(x) + torch.exp(-x))


@family.function(X, ALL)
def tanh_by_exp_of_2x(x: Tensor) -> Tensor:
    e = torch.exp(-2 * x)
    return (1 - e) / (1 + e)


@family.function(X, ALL)
def tanh_by_sigmoid(x: Tensor) -> Tensor:
    return 2 * torch.sigmoid(2 * x) - 1


@family.function(X, ALL)
def squashed_logits(x: Tensor) -> Tensor:
    return 2.0 / (1.0 + torch.exp(-2.0 * x)) - 1.0


@family.function(X, ALL)
def mish_by_formula(x: Tensor) -> Tensor:
    return x * torch.tanh(functional.softplus(x))


@family.function(X, ALL)
def mish_by_log1p(x: Tensor) -> Tensor:
    return x * torch.tanh(torch.log(1 + torch.exp(x)))


@family.function(X, ALL)
def softplus_by_log1p(x: Tensor) -> Tensor:
    return torch.log1p(torch.exp(x))


@family.function(X, ALL)
def softplus_stable(x: Tensor) -> Tensor:
    return torch.clamp(x, min=0) + torch.log1p(torch.exp(-x.abs()))


@family.function(X, ALL)
def softplus_by_maximum(x: Tensor) -> Tensor:
    return torch.maximum(x, torch.zeros_like(x)) + torch.log(1 + torch.exp(-torch.abs(x)))


@family.function(X, ALL)
def softplus_beta(x: Tensor) -> Tensor:
    return functional.softplus(x, beta=3.0, threshold=10.0)


@family.function(X, ALL)
def softplus_by_where(x: Tensor) -> Tensor:
    return torch.where(x > 20, x, torch.log(1 + torch.exp(x)))


@family.function(X, ALL)
def softsign_by_formula(x: Tensor) -> Tensor:
    return x / (1 + x.abs())


@family.function(X, ALL)
def leaky_by_max(x: Tensor) -> Tensor:
    return torch.max(x, 0.1 * x)


@family.function(X, ALL)
def leaky_by_where(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, x * 0.01)


@family.function(X, ALL)
def leaky_by_relus(x: Tensor) -> Tensor:
    return functional.relu(x) - 0.2 * functional.relu(-x)


@family.function({"x": normal(2, 6, 8), "slope": positive(8)}, ALL)
def prelu_by_relus(x: Tensor, slope: Tensor) -> Tensor:
    return functional.relu(x) + slope * (x - x.abs()) * 0.5


class _PReLU(nn.Module):
    """A PReLU by its formula, as ports from Keras and Caffe have it."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.slope, self.form = nn.Parameter(torch.rand(1, 6, 1, 1)), form

    def forward(self, x: Tensor) -> Tensor:
        if self.form == "where":
            return torch.where(x > 0, x, self.slope * x)
        if self.form == "minmax":
            return torch.clamp(x, min=0) + self.slope * torch.clamp(x, max=0)
        return functional.relu(x) - self.slope * functional.relu(-x)


for _form in ("where", "minmax", "relus"):
    family.add(f"prelu_by_{_form}", lambda form=_form: _PReLU(form), IMAGE)
family.add("prelu_same_slopes", lambda: nn.PReLU(6, 0.3), IMAGE)
RECIPES["prelu_same_slopes"] = type(RECIPES["prelu_same_slopes"])(
    RECIPES["prelu_same_slopes"].build, {"x": BATCH}, False
)


@family.function(X, ALL)
def elu_by_where(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 1.3 * (torch.exp(x) - 1))


@family.function(X, ALL)
def elu_by_expm1(x: Tensor) -> Tensor:
    return torch.where(x >= 0, x, torch.expm1(x))


@family.function(X, ALL)
def elu_by_max_and_min(x: Tensor) -> Tensor:
    return torch.clamp(x, min=0) + torch.clamp(0.5 * (torch.exp(x) - 1), max=0)


@family.function(X, ALL)
def celu_by_max_and_min(x: Tensor) -> Tensor:
    return torch.clamp(x, min=0) + torch.clamp(0.5 * (torch.exp(x / 0.5) - 1), max=0)


@family.function(X, ALL)
def celu_by_elu(x: Tensor) -> Tensor:
    return 1.5 * functional.elu(x / 1.5)


@family.function(X, ALL)
def selu_by_where(x: Tensor) -> Tensor:
    return 1.0507009873554805 * torch.where(x >= 0.0, x, 1.6732632423543772 * torch.exp(x) - 1.6732632423543772)


@family.function(X, ALL)
def selu_by_elu(x: Tensor) -> Tensor:
    return 1.0507009873554805 * functional.elu(x, 1.6732632423543772)


@family.function(X, ALL)
def thresholded_by_where(x: Tensor) -> Tensor:
    return torch.where(x > 0.4, x, torch.zeros_like(x))


@family.function(X, ALL)
def thresholded_by_mask(x: Tensor) -> Tensor:
    return x * (x > 1.0).float()


@family.function(X, ALL)
def hard_swish_by_relu6(x: Tensor) -> Tensor:
    return x * functional.relu6(x + 3) / 6


@family.function(X, ALL)
def hard_sigmoid_by_clamp(x: Tensor) -> Tensor:
    return torch.clamp(x * 0.2 + 0.5, 0.0, 1.0)


@family.function(X, ALL)
def relu6_by_minmax(x: Tensor) -> Tensor:
    return torch.minimum(torch.maximum(x, torch.tensor(0.0)), torch.tensor(6.0))


@family.function(X, ALL)
def relu_of_clamped(x: Tensor) -> Tensor:
    return functional.relu(x.clamp(-1, 4)).clamp(max=3)


@family.function(X, ALL)
def squared_relu(x: Tensor) -> Tensor:
    return functional.relu(x) ** 2


@family.function(X, ALL)
def star_relu(x: Tensor) -> Tensor:
    return 0.8944 * functional.relu(x).square() - 0.4472


@family.function(X, ALL)
def swiglu_chunked(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return functional.silu(gate) * up


@family.function(X, ALL)
def geglu_chunked(x: Tensor) -> Tensor:
    value, gate = x.chunk(2, dim=-1)
    return value * functional.gelu(gate)


@family.function(X, ALL)
def clamped_swiglu(x: Tensor) -> Tensor:
    gate, linear = x[..., ::2], x[..., 1::2]
    gate, linear = gate.clamp(max=7.0), linear.clamp(-7.0, 7.0)
    return gate * torch.sigmoid(1.702 * gate) * (linear + 1)
