"""Convolutional networks: classifiers, segmentation, detection, restoration, 1-d and 3-d, and diffusion's UNets and coders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.exports.varied_declare import Family, normal

family = Family()
RECIPES = family.recipes
PICTURE = {"x": normal(2, 3, 32, 32)}


def unit(a: int, b: int, size: int = 3, act: Callable[[], nn.Module] = nn.ReLU, **options: Any) -> nn.Sequential:
    """Convolution, normalisation, activation."""
    return nn.Sequential(nn.Conv2d(a, b, size, padding=size // 2, bias=False, **options), nn.BatchNorm2d(b), act())


class Net(nn.Module):
    """Parts one after the other, then a classifier over the mean."""

    def __init__(self, parts: Sequence[nn.Module], channels: int) -> None:
        super().__init__()
        self.parts, self.head = nn.Sequential(*parts), nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.flatten(functional.adaptive_avg_pool2d(self.parts(x), 1), 1))


class Residual(nn.Module):
    """x + f(x), times a gain."""

    def __init__(self, inner: nn.Module, gain: float = 1.0) -> None:
        super().__init__()
        self.inner, self.gain = inner, nn.Parameter(torch.tensor([gain]))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x) * self.gain


class Gate(nn.Module):
    """x times f(x)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x * self.inner(x)


def squeeze(c: int, last: nn.Module) -> Gate:
    """Squeeze and excitation."""
    return Gate(
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(c, c // 2, 1), nn.SiLU(), nn.Conv2d(c // 2, c, 1), last)
    )


class Cbam(nn.Module):
    """Attention over channels, then over space, by means and maxima."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(c, c // 2), nn.ReLU(), nn.Linear(c // 2, c))
        self.space = nn.Conv2d(2, 1, 7, padding=3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, c = x.shape[:2]
        scale = torch.sigmoid(self.mlp(x.mean((2, 3))) + self.mlp(x.amax((2, 3)))).view(b, c, 1, 1)
        x = x * scale
        both = torch.cat([x.mean(1, keepdim=True), x.max(1, keepdim=True)[0]], dim=1)
        return x * self.space(both).sigmoid()


class ChannelConv(nn.Module):
    """ECA: a 1-d convolution over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 1, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.adaptive_avg_pool2d(x, 1)
        y = self.conv(y.squeeze(-1).transpose(-1, -2)).transpose(-1, -2).unsqueeze(-1)
        return x * y.sigmoid().expand_as(x)


class Ghost(nn.Module):
    """GhostNet: half of the channels from cheap convolutions."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.b, self.first, self.cheap = b, unit(a, b // 2, 1), unit(b // 2, b // 2, groups=b // 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return torch.cat([y, self.cheap(y)], dim=1)[:, : self.b]


class Coordinate(nn.Module):
    """Coordinate attention: pools along each axis."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.joint = unit(c, c // 2, 1, nn.Hardswish)
        self.h, self.w = nn.Conv2d(c // 2, c, 1), nn.Conv2d(c // 2, c, 1)

    def forward(self, x: Tensor) -> Tensor:
        h, w = x.shape[2:]
        y = torch.cat([x.mean(3, keepdim=True), x.mean(2, keepdim=True).permute(0, 1, 3, 2)], dim=2)
        rows, columns = torch.split(self.joint(y), [h, w], dim=2)
        return x * self.h(rows).sigmoid() * self.w(columns.permute(0, 1, 3, 2)).sigmoid()


class SplitAttention(nn.Module):
    """ResNeSt: softmax over two branches by channel."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.conv, self.one, self.two = unit(c, 2 * c, groups=2), nn.Conv2d(c, c // 2, 1), nn.Conv2d(c // 2, 2 * c, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        b, c = y.shape[:2]
        parts = torch.split(y, c // 2, dim=1)
        weights = self.two(functional.relu(self.one(functional.adaptive_avg_pool2d(parts[0] + parts[1], 1))))
        weights = functional.softmax(weights.view(b, 2, -1), dim=1).view(b, -1, 1, 1)
        return sum(w * p for w, p in zip(torch.split(weights, c // 2, dim=1), parts, strict=True))


class Res2(nn.Module):
    """Res2Net: hierarchical groups."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList([unit(c // 4, c // 4) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        first, *rest = torch.chunk(x, 4, 1)
        outs, last = [first], torch.zeros_like(first)
        for conv, part in zip(self.convs, rest, strict=True):
            last = conv(part + last)
            outs.append(last)
        return torch.cat(outs, 1)


class Shuffle(nn.Module):
    """Shuffled groups of channels."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.conv = unit(c // 2, c // 2, groups=2)

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=1)
        y = torch.cat((a, self.conv(b)), 1)
        n, c, h, w = y.shape
        return y.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)


class Involution(nn.Module):
    """Kernels computed from the pixel."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.kernel = nn.Sequential(nn.Conv2d(c, c // 2, 1), nn.ReLU(), nn.Conv2d(c // 2, 9 * 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        weight = self.kernel(x).view(b, 2, 9, h, w).unsqueeze(2)
        out = functional.unfold(x, 3, padding=1).view(b, 2, c // 2, 9, h, w)
        return (weight * out).sum(dim=3).view(b, c, h, w)


class LayerNorm2d(nn.Module):
    """Normalisation over channels, written out."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(c)), nn.Parameter(torch.zeros(c))

    def forward(self, x: Tensor) -> Tensor:
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        x = (x - u) / torch.sqrt(s + 1e-6)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class Mixer(nn.Module):
    """MLP-Mixer over patches."""

    def __init__(self, c: int, patches: int) -> None:
        super().__init__()
        self.a, self.b = nn.LayerNorm(c), nn.LayerNorm(c)
        self.tokens = nn.Sequential(nn.Linear(patches, 24), nn.GELU(), nn.Linear(24, patches))
        self.channels = nn.Sequential(nn.Linear(c, 40), nn.GELU(), nn.Linear(40, c))

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        y = x.flatten(2).transpose(1, 2)
        y = y + self.tokens(self.a(y).transpose(1, 2)).transpose(1, 2)
        y = y + self.channels(self.b(y))
        return y.transpose(1, 2).reshape(b, c, h, w)


class Gmlp(nn.Module):
    """gMLP's spatial gate."""

    def __init__(self, c: int, patches: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(c), nn.Linear(c, 2 * c), nn.Linear(c, c)
        self.space, self.gate = nn.Conv1d(patches, patches, 1), nn.LayerNorm(c)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        y = x.flatten(2).transpose(1, 2)
        u, v = functional.gelu(self.up(self.norm(y))).chunk(2, dim=-1)
        y = y + self.down(u * self.space(self.gate(v)))
        return y.transpose(1, 2).view(b, c, h, w)


class ExternalAttention(nn.Module):
    """Attention with the pixels as tokens, queries from a reduced map (as PVT, Twins)."""

    def __init__(self, c: int, heads: int, reduce: int) -> None:
        super().__init__()
        self.heads, self.q, self.kv = heads, nn.Linear(c, c), nn.Linear(c, 2 * c)
        self.reduce, self.norm, self.out = nn.Conv2d(c, c, reduce, reduce), nn.LayerNorm(c), nn.Linear(c, c)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        tokens = x.flatten(2).permute(0, 2, 1)
        q = self.q(tokens).reshape(b, -1, self.heads, c // self.heads).permute(0, 2, 1, 3)
        small = self.norm(self.reduce(x).reshape(b, c, -1).permute(0, 2, 1))
        kv = self.kv(small).reshape(b, -1, 2, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        attention = (q @ kv[0].transpose(-2, -1) * (c // self.heads) ** -0.5).softmax(dim=-1)
        y = self.out((attention @ kv[1]).transpose(1, 2).reshape(b, h * w, c))
        return x + y.permute(0, 2, 1).view(b, c, h, w)


class ChannelAttention(nn.Module):
    """XCiT: attention between channels, of normalised keys and queries."""

    def __init__(self, c: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(c, 3 * c), nn.Linear(c, c)
        self.temperature = nn.Parameter(torch.ones(heads, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        y = x.flatten(2).transpose(1, 2)
        q, k, v = self.qkv(y).reshape(b, h * w, 3, self.heads, c // self.heads).permute(2, 0, 3, 4, 1).unbind(0)
        attention = (
            functional.normalize(q, dim=-1) @ functional.normalize(k, dim=-1).transpose(-2, -1) * self.temperature
        ).softmax(-1)
        y = self.out((attention @ v).permute(0, 3, 1, 2).reshape(b, h * w, c))
        return x + y.transpose(1, 2).reshape(b, c, h, w)


class PartConv(nn.Module):
    """FasterNet: a convolution over a part of the channels."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.c, self.conv = c // 4, nn.Conv2d(c // 4, c // 4, 3, padding=1, bias=False)
        self.mlp = nn.Sequential(nn.Conv2d(c, 2 * c, 1), nn.BatchNorm2d(2 * c), nn.ReLU(), nn.Conv2d(2 * c, c, 1))

    def forward(self, x: Tensor) -> Tensor:
        a, b = torch.split(x, [self.c, x.shape[1] - self.c], dim=1)
        return x + self.mlp(torch.cat((self.conv(a), b), 1))


def stem(c: int = 16, **options: Any) -> nn.Module:
    """The first convolution, of stride 2."""
    return unit(3, c, stride=2, **options)


BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "se_hardsigmoid": lambda: squeeze(16, nn.Hardsigmoid()),
    "se_sigmoid": lambda: Residual(squeeze(16, nn.Sigmoid())),
    "cbam": lambda: Cbam(16),
    "eca": ChannelConv,
    "ghost": lambda: Ghost(16, 16),
    "coordinate_attention": lambda: Coordinate(16),
    "resnest": lambda: SplitAttention(16),
    "res2net": lambda: Res2(16),
    "shuffled": lambda: Shuffle(16),
    "involution": lambda: Involution(16),
    "layer_norm_2d": lambda: nn.Sequential(LayerNorm2d(16), nn.Conv2d(16, 16, 1), nn.GELU()),
    "mixer": lambda: Mixer(16, 256),
    "gmlp": lambda: Gmlp(16, 256),
    "reduced_attention": lambda: ExternalAttention(16, 2, 4),
    "channel_attention": lambda: ChannelAttention(16, 2),
    "fasternet": lambda: PartConv(16),
    "group_norm_mish": lambda: nn.Sequential(nn.GroupNorm(4, 16), nn.Mish(), nn.Conv2d(16, 16, 3, padding=1)),
    "instance_norm_prelu": lambda: nn.Sequential(nn.InstanceNorm2d(16, affine=True), nn.PReLU(16)),
    "dilated": lambda: nn.Sequential(unit(16, 16, dilation=1), nn.Conv2d(16, 16, 3, padding=4, dilation=4), nn.ELU()),
    "layer_scale": lambda: Residual(nn.Sequential(nn.Conv2d(16, 16, 7, padding=3, groups=16), nn.BatchNorm2d(16)), 0.1),
    "local_response": lambda: nn.Sequential(nn.LocalResponseNorm(3), nn.Conv2d(16, 16, 1), nn.Softplus()),
    "pool_formers": lambda: Residual(
        nn.Sequential(nn.GroupNorm(1, 16), nn.AvgPool2d(3, 1, 1, count_include_pad=False))
    ),
    "reflect_padded": lambda: nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(16, 16, 3), nn.LeakyReLU(0.2)),
    "channel_dropped_relu6": lambda: nn.Sequential(
        unit(16, 16, act=nn.ReLU6), nn.Dropout2d(), unit(16, 16, 1, act=nn.ReLU6)
    ),
}
for name, block in BLOCKS.items():
    family.add(f"cnn_{name}", lambda block=block: Net([stem(), block(), block()], 16), PICTURE)  # type: ignore[misc]
