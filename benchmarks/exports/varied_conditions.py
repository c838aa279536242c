"""Formulas on normalised inputs, of large sizes, of legacy repositories: whatever rules ask for besides the formula itself."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.exports.varied_declare import BATCH, BATCH_LENGTH, Family, bools, normal, positive

family = Family()
RECIPES = family.recipes
LARGE = {"x": normal(1, 64, 56, 56)}
WIDE = {"x": normal(4, 64, 256)}


class _Masked(nn.Module):
    """Attention over normalised inputs, whose scores are bounded."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.norm, self.form = nn.LayerNorm(32), form
        self.q, self.k, self.v, self.out = (nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.norm(x)
        b, n, _ = x.shape
        q, k, v = (f(x).view(b, n, 4, 8).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores, keep = q @ k.transpose(-1, -2) * 8**-0.5, mask[:, None, None, :]
        m = keep.float()
        if self.form == "where":
            weights = torch.where(keep, scores, -1e9).softmax(-1)
        elif self.form == "multiplied":
            weights = (scores * m + (1 - m) * -1e9).softmax(-1) * m
        elif self.form == "zeroed":
            weights = torch.where(keep, torch.where(keep, scores, -1e9).softmax(-1), 0.0)
        elif self.form == "constant":
            ones = torch.tril(torch.ones(6, 6))[None, None]
            weights = (scores * ones + (1 - ones) * -1e4).softmax(-1)
        elif self.form == "hidden":
            weights = scores.masked_fill(~keep, float("-inf")).softmax(-1)
        elif self.form == "lowest":
            weights = (scores + (1.0 - m) * torch.finfo(torch.float32).min).softmax(-1)
        else:
            made = functional.scaled_dot_product_attention(q, k, v, attn_mask=((1 - m) * -1e4).expand(b, 4, n, n))
            return self.out(made.transpose(1, 2).reshape(b, n, 32))
        return self.out((weights @ v).transpose(1, 2).reshape(b, n, 32))


for _form in ("where", "multiplied", "zeroed", "constant", "hidden", "lowest", "expanded"):
    family.add(
        f"normed_mask_{_form}",
        lambda form=_form: _Masked(form),
        {"x": normal(2, 6, 32), "mask": bools(2, 6)},
        {"x": BATCH, "mask": BATCH} if _form == "constant" else {"x": BATCH_LENGTH, "mask": BATCH_LENGTH},
    )


@family.function({"qkv": normal(2, 48, 9)})
def guided_diffusion_legacy(qkv: Tensor) -> Tensor:
    bs, width, length = qkv.shape
    ch = width // 6
    q, k, v = qkv.reshape(bs * 2, ch * 3, length).split(ch, dim=1)
    scale = 1 / math.sqrt(math.sqrt(ch))
    weight = torch.einsum("bct,bcs->bts", q * scale, k * scale).softmax(-1)
    return torch.einsum("bts,bcs->bct", weight, v).reshape(bs, -1, length)


@family.function({"qkv": normal(2, 48, 64)})
def guided_diffusion(qkv: Tensor) -> Tensor:
    bs, width, length = qkv.shape
    ch = width // 6
    q, k, v = qkv.chunk(3, dim=1)
    scale = 1 / math.sqrt(math.sqrt(ch))
    weight = torch.einsum(
        "bct,bcs->bts", (q * scale).view(bs * 2, ch, length), (k * scale).view(bs * 2, ch, length)
    ).softmax(-1)
    return torch.einsum("bts,bcs->bct", weight, v.reshape(bs * 2, ch, length)).reshape(bs, -1, length)


@family.function({"qkv": normal(2, 96, 8, 8)})
def yolo_attention_of_pictures(qkv: Tensor) -> Tensor:
    b, _, h, w = qkv.shape
    q, k, v = qkv.view(b, 4, 24, h * w).split([8, 8, 8], dim=2)
    attn = (q.transpose(-2, -1) @ k) * 8**-0.5
    return (v @ attn.softmax(dim=-1).transpose(-2, -1)).view(b, 32, h, w)


@family.function({"q": normal(2, 6, 4, 8), "k": normal(2, 6, 4, 8), "v": normal(2, 6, 4, 8)}, {})
def differential_two_calls(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    weights = (q @ k.transpose(-1, -2) * 8**-0.5).softmax(-1)
    return torch.cat([(weights @ v).transpose(1, 2), (weights @ (v + 1)).transpose(1, 2)], -1)


@family.function(WIDE, {})
def picked_channels(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[:, [3, 4, 5, 6]] * 2, torch.index_select(x, 2, torch.arange(4, 20))


@family.function(WIDE, {})
def large_reductions(x: Tensor) -> tuple[Tensor, ...]:
    return (
        x.norm(p=1, dim=1),
        torch.logsumexp(x, 1),
        x.square().sum(1),
        x.norm(p=2),
        x.abs().sum(),
        x.exp().sum(1).log(),
    )


@family.function(WIDE, {})
def large_reductions_of_all(x: Tensor) -> tuple[Tensor, ...]:
    return x.abs().sum(), x.pow(2).sum(), x.pow(2).sum().sqrt(), torch.logsumexp(x, (0, 1, 2))


@family.function({"x": normal(8, 64, 256)}, {})
def large_unit_vectors(x: Tensor) -> Tensor:
    return functional.normalize(x, dim=1)


for _name, _module in {
    "mish": nn.Mish(),
    "softplus": nn.Softplus(),
    "prelu": nn.PReLU(64),
    "celu": nn.CELU(0.7),
    "gelu": nn.GELU(),
}.items():

    class _Named(nn.Module):
        """A module whose input is called `x`."""

        def __init__(self, made: nn.Module) -> None:
            super().__init__()
            self.made = made

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.made(x)
            return found

    family.add(f"large_{_name}", lambda made=_module: _Named(made), LARGE, {})


class _Group(nn.Module):
    """A normalisation of groups by its formula, of known and of open sizes."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.weight, self.bias, self.form = (
            nn.Parameter(torch.rand(1, 64, 1, 1)),
            nn.Parameter(torch.rand(1, 64, 1, 1)),
            form,
        )

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        if self.form == "group":
            y = x.view(n, 8, -1)
            y = (y - y.mean(-1, keepdim=True)) / torch.sqrt(y.var(-1, keepdim=True, unbiased=False) + 1e-5)
            return y.view(n, c, h, w) * self.weight + self.bias
        if self.form == "group_5d":
            y = x.view(n, 8, c // 8, h, w)
            mean, var = y.mean((2, 3, 4), keepdim=True), y.var((2, 3, 4), keepdim=True, unbiased=False)
            return ((y - mean) / torch.sqrt(var + 1e-5)).view(n, c, h, w) * self.weight + self.bias
        mean, var = x.mean((2, 3), keepdim=True), x.var((2, 3), keepdim=True, unbiased=False)
        factor = self.weight * torch.rsqrt(var + 1e-5)
        return x * factor + (self.bias - mean * factor)


for _form in ("group", "group_5d", "moments"):
    family.add(f"large_{_form}_norm", lambda form=_form: _Group(form), LARGE, {})
    family.add(f"open_{_form}_norm", lambda form=_form: _Group(form), LARGE, {"x": {0: "n", 2: "h", 3: "w"}})


class _Products(nn.Module):
    """Products that share operands, or whose order matters."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.a, self.b = form, nn.Linear(64, 64), nn.Linear(64, 64)
        self.norm, self.gain, self.shift = nn.LayerNorm(64), nn.Parameter(torch.rand(64)), nn.Parameter(torch.rand(64))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        form = self.form
        if form == "left":
            return x @ y + x @ (y * y)
        if form == "left_difference":
            return x @ y - x @ y.flip(0)
        if form == "right":
            return y @ x + (y * y) @ x
        if form == "chain":
            return (x @ x.t()) @ y[:, :2]
        if form == "chain_right":
            return x[:2] @ (y @ (x @ y))
        if form == "linear_attention":
            return (x.softmax(1) @ y.softmax(0)[:, :4]) @ (y[:4] @ x)
        if form == "transposed":
            return (x @ y.t()).t()
        if form == "transposed_left":
            return (x.t() @ y).t()
        if form == "gemm_of_transposed":
            return torch.addmm(self.shift, x, y.t())
        if form == "norm_scaled":
            return self.norm(x) * self.gain + self.shift
        if form == "norm_modulated":
            return functional.layer_norm(x, (64,)) * (1 + self.gain) + self.shift
        if form == "l2":
            return x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6) * 8.0
        if form == "l2_rsqrt":
            return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-12)
        if form == "residual_scaled":
            made = x @ self.a.weight
            return made + self.gain * made
        return self.a(x) + self.shift


for _form in (
    "left",
    "left_difference",
    "right",
    "chain",
    "chain_right",
    "linear_attention",
    "transposed",
    "transposed_left",
    "gemm_of_transposed",
    "norm_scaled",
    "norm_modulated",
    "l2",
    "l2_rsqrt",
    "residual_scaled",
    "two_biases",
):
    family.add(f"shared_{_form}", lambda form=_form: _Products(form), {"x": normal(64, 64), "y": normal(64, 64)}, {})


def _at(x: Tensor, index: Tensor, c: int, size: tuple[int, int]) -> Tensor:
    n = x.shape[0]
    return torch.gather(x, 2, index.unsqueeze(1).expand(-1, c, -1)).reshape(n, c, *size)


def mm_sample(im: Tensor, grid: Tensor, align_corners: bool) -> Tensor:
    """Bilinear sampling with a border of zeros, as detection toolboxes write it for runtimes without the operator."""
    n, c, h, w = im.shape
    _, gh, gw, _ = grid.shape
    x, y = grid[:, :, :, 0], grid[:, :, :, 1]
    x = ((x + 1) / 2) * (w - 1) if align_corners else ((x + 1) * w - 1) / 2
    y = ((y + 1) / 2) * (h - 1) if align_corners else ((y + 1) * h - 1) / 2
    x, y = x.view(n, -1), y.view(n, -1)
    x0, y0 = torch.floor(x).long(), torch.floor(y).long()
    x1, y1 = x0 + 1, y0 + 1
    wa, wb = ((x1 - x) * (y1 - y)).unsqueeze(1), ((x1 - x) * (y - y0)).unsqueeze(1)
    wc, wd = ((x - x0) * (y1 - y)).unsqueeze(1), ((x - x0) * (y - y0)).unsqueeze(1)
    padded = functional.pad(im, pad=[1, 1, 1, 1], mode="constant", value=0)
    ph, pw = h + 2, w + 2
    x0, x1, y0, y1 = x0 + 1, x1 + 1, y0 + 1, y1 + 1
    bounded = []
    for at, most in ((x0, pw - 1), (x1, pw - 1), (y0, ph - 1), (y1, ph - 1)):
        at = torch.where(at < 0, torch.tensor(0), at)
        bounded.append(torch.where(at > most, torch.tensor(most), at))
    x0, x1, y0, y1 = bounded
    flat = padded.view(n, c, -1)
    parts = [
        torch.gather(flat, 2, (xs + ys * pw).unsqueeze(1).expand(-1, c, -1))
        for xs, ys in ((x0, y0), (x0, y1), (x1, y0), (x1, y1))
    ]
    return (parts[0] * wa + parts[1] * wb + parts[2] * wc + parts[3] * wd).reshape(n, c, gh, gw)


@family.function({"im": normal(2, 3, 6, 7), "grid": normal(2, 5, 4, 2)}, {})
def sampled_by_toolbox(im: Tensor, grid: Tensor) -> Tensor:
    return mm_sample(im, grid, False)


@family.function({"im": normal(2, 3, 6, 7), "grid": normal(2, 5, 4, 2)}, {})
def sampled_by_toolbox_align_corners(im: Tensor, grid: Tensor) -> Tensor:
    return mm_sample(im, grid, True)


@family.function({"x": positive(2, 16, 16)}, {})
def powers_of_two_pictures(x: Tensor) -> tuple[Tensor, ...]:
    return x**2 * x**2, (x**2) ** 0.5, torch.exp(torch.log(x) * 2), torch.rsqrt(x) ** 2, x.reciprocal() * x
