"""Normalisations and Softmax by their formulas, as papers and repositories spell them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.exports.varied_declare import BATCH_LENGTH, Family, normal

family = Family()
RECIPES = family.recipes
X = {"x": normal(2, 6, 8)}
ALL = {"x": BATCH_LENGTH}
IMAGE = {"x": normal(2, 6, 8, 8)}
HEADS = {name: normal(2, 4, 6, 8) for name in "qkv"}
HEAD_AXES = {name: {0: "batch", 2: "length"} for name in "qkv"}


class _Norm(nn.Module):
    """A normalisation by its formula."""

    def __init__(self, form: str, size: int = 8) -> None:
        super().__init__()
        self.weight, self.bias, self.form = nn.Parameter(torch.rand(size)), nn.Parameter(torch.rand(size)), form

    def forward(self, x: Tensor) -> Tensor:
        if self.form == "variance":
            u, s = x.mean(-1, keepdim=True), (x - x.mean(-1, keepdim=True)).pow(2).mean(-1, keepdim=True)
            return self.weight * ((x - u) / torch.sqrt(s + 1e-6)) + self.bias
        if self.form == "std":
            return self.weight * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + self.bias
        if self.form == "squares":
            u = x.mean(-1, keepdim=True)
            return (x - u) * torch.rsqrt((x * x).mean(-1, keepdim=True) - u * u + 1e-6) * self.weight + self.bias
        if self.form == "rms":
            return self.weight * (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x)
        if self.form == "gemma":
            return (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)) * (1.0 + self.weight)
        if self.form == "norm":
            return x / (x.norm(2, dim=-1, keepdim=True) * 8**-0.5 + 1e-8) * self.weight
        if self.form == "l2":
            return functional.normalize(x, dim=-1) * 8**0.5 * self.weight
        if self.form == "var_mean":
            var, mean = torch.var_mean(x, dim=-1, keepdim=True, unbiased=False)
            return (x - mean) / torch.sqrt(var + 1e-5) * self.weight + self.bias
        raise ValueError(self.form)


for _form in ("variance", "std", "squares", "rms", "gemma", "norm", "l2", "var_mean"):
    family.add(f"norm_by_{_form}", lambda form=_form: _Norm(form), X, ALL)


class _Norm2d(nn.Module):
    """A normalisation of pictures by its formula."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.weight, self.bias, self.form = nn.Parameter(torch.rand(6)), nn.Parameter(torch.rand(6)), form

    def forward(self, x: Tensor) -> Tensor:
        if self.form == "channels":
            u = x.mean(1, keepdim=True)
            s = (x - u).pow(2).mean(1, keepdim=True)
            x = (x - u) / torch.sqrt(s + 1e-6)
        elif self.form == "groups":
            n, c, h, w = x.shape
            x = x.view(n, 3, -1)
            x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
            x = x.view(n, c, h, w)
        elif self.form == "instance":
            mean, var = x.mean((2, 3), keepdim=True), x.var((2, 3), keepdim=True, unbiased=False)
            x = (x - mean) * torch.rsqrt(var + 1e-5)
        elif self.form == "ada":
            size = x.shape[:2]
            std = (x.view(*size, -1).var(dim=2, unbiased=False) + 1e-5).sqrt().view(*size, 1, 1)
            x = (x - x.view(*size, -1).mean(dim=2).view(*size, 1, 1)) / std
        elif self.form == "grn":
            last = x.permute(0, 2, 3, 1)
            gx = torch.norm(last, p=2, dim=(1, 2), keepdim=True)
            return self.weight * (last * (gx / (gx.mean(-1, keepdim=True) + 1e-6))) + self.bias + last
        elif self.form == "pixel":
            return x / torch.sqrt(torch.mean(x**2, dim=1, keepdim=True) + 1e-8)
        elif self.form == "filter_response":
            nu2 = torch.mean(x.pow(2), dim=[2, 3], keepdim=True)
            return torch.max(x * torch.rsqrt(nu2 + 1e-6), self.bias[:, None, None])
        elif self.form == "last":
            last = x.permute(0, 2, 3, 1)
            mean, var = last.mean((1, 2), keepdim=True), last.var((1, 2), keepdim=True, unbiased=False)
            return (last - mean) / torch.sqrt(var + 1e-3) * self.weight + self.bias
        return self.weight[:, None, None] * x + self.bias[:, None, None]


for _form in ("channels", "groups", "instance", "ada", "grn", "pixel", "filter_response", "last"):
    family.add(f"norm2d_by_{_form}", lambda form=_form: _Norm2d(form), IMAGE)


@family.function(X, ALL)
def softmax_by_formula(x: Tensor) -> Tensor:
    e = torch.exp(x - x.max(dim=-1, keepdim=True)[0])
    return e / e.sum(dim=-1, keepdim=True)


@family.function(X, ALL)
def softmax_without_shift(x: Tensor) -> Tensor:
    e = x.exp()
    return e / e.sum(1, keepdim=True)


@family.function(X, ALL)
def softmax_of_shifted(x: Tensor) -> Tensor:
    return (x - x.amax(-1, keepdim=True)).softmax(-1)


@family.function(X, ALL)
def log_softmax_by_logsumexp(x: Tensor) -> Tensor:
    return x - torch.logsumexp(x, dim=-1, keepdim=True)


@family.function(X, ALL)
def log_of_softmax(x: Tensor) -> Tensor:
    return torch.log(functional.softmax(x, dim=-1))


@family.function(X, ALL)
def exp_of_log_softmax(x: Tensor) -> Tensor:
    return torch.exp(functional.log_softmax(x, dim=-1)) * x


@family.function(X, ALL)
def logsumexp_stable(x: Tensor) -> Tensor:
    top = x.max(-1, keepdim=True)[0]
    return top + (x - top).exp().sum(-1, keepdim=True).log()


@family.function(X, ALL)
def entropy_of_softmax(x: Tensor) -> Tensor:
    p = x.softmax(-1)
    return -(p * p.log()).sum(-1)


@family.function({"x": normal(2, 6, 8, 4)}, ALL)
def softmax_over_inner_axis(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.softmax(1), x.log_softmax(2)
