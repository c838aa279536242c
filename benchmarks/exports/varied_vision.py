"""Convolutional networks: classifiers, segmentation, detection, restoration, 1-d and 3-d, and diffusion's UNets and coders."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.exports.varied_declare import Family, integers, normal, positive

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


class UNetSmall(nn.Module):
    """Encoder and decoder with skips, by transposed convolutions or by resizing."""

    def __init__(self, up: str) -> None:
        super().__init__()
        self.up = up
        self.d1, self.d2, self.d3 = unit(3, 8), unit(8, 16), unit(16, 32)
        self.t2, self.t1 = nn.ConvTranspose2d(32, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)
        self.r2, self.r1 = nn.Conv2d(32, 16, 1), nn.Conv2d(16, 8, 1)
        self.u2, self.u1, self.out = unit(32, 16), unit(16, 8), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.d1(x)
        b = self.d2(functional.max_pool2d(a, 2))
        c = self.d3(functional.max_pool2d(b, 2))
        if self.up == "transposed":
            y = self.u2(torch.cat([b, self.t2(c)], 1))
            return self.out(self.u1(torch.cat([a, self.t1(y)], 1)))
        grown = self.r2(functional.interpolate(c, size=b.shape[2:], mode=self.up))
        y = self.u2(torch.cat([b, grown], 1))
        return self.out(self.u1(torch.cat([a, self.r1(functional.interpolate(y, scale_factor=2.0, mode=self.up))], 1)))


for up in ("transposed", "nearest", "bilinear"):
    family.add(f"unet_{up}", functools.partial(UNetSmall, up), PICTURE)


class Aspp(nn.Module):
    """DeepLab's head: dilated branches and a pooled one."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(stem(), unit(16, 16, stride=2))
        self.branches = nn.ModuleList(
            [unit(16, 8, 1)]
            + [
                nn.Sequential(nn.Conv2d(16, 8, 3, padding=d, dilation=d, bias=False), nn.BatchNorm2d(8), nn.ReLU())
                for d in (2, 3)
            ]
        )
        self.pool, self.join, self.out = unit(16, 8, 1), unit(32, 16, 1), nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        pooled = functional.interpolate(
            self.pool(functional.adaptive_avg_pool2d(y, 1)), size=y.shape[-2:], mode="bilinear"
        )
        y = self.join(torch.cat([*(branch(y) for branch in self.branches), pooled], dim=1))
        return functional.interpolate(self.out(y), size=x.shape[-2:], mode="bilinear", align_corners=False).argmax(1)


class Fpn(nn.Module):
    """Feature pyramid with a head shared between levels, flattened and joined (RetinaNet, FCOS)."""

    def __init__(self, weighted: bool) -> None:
        super().__init__()
        self.weighted, self.weights = weighted, nn.Parameter(torch.ones(2, 2))
        self.c1, self.c2, self.c3 = unit(3, 8, stride=2), unit(8, 16, stride=2), unit(16, 32, stride=2)
        self.l2, self.l3, self.l1 = nn.Conv2d(16, 16, 1), nn.Conv2d(32, 16, 1), nn.Conv2d(8, 16, 1)
        self.tower = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU())
        self.classes, self.boxes = nn.Conv2d(16, 2 * 5, 3, padding=1), nn.Conv2d(16, 2 * 4, 3, padding=1)
        self.scales = nn.ParameterList([nn.Parameter(torch.tensor(1.0)) for _ in range(3)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a = self.c1(x)
        b = self.c2(a)
        c = self.c3(b)
        p3 = self.l3(c)
        p2 = self._join(self.l2(b), functional.interpolate(p3, scale_factor=2, mode="nearest"), 0)
        p1 = self._join(self.l1(a), functional.interpolate(p2, size=a.shape[-2:], mode="nearest"), 1)
        classes, boxes = [], []
        for level, scale in zip((p1, p2, p3), self.scales, strict=True):
            y = self.tower(level)
            n, _, h, w = y.shape
            one = self.classes(y).view(n, -1, 5, h, w).permute(0, 3, 4, 1, 2)
            classes.append(one.reshape(n, -1, 5).sigmoid())
            boxes.append(torch.exp(self.boxes(y) * scale).permute(0, 2, 3, 1).contiguous().view(n, -1, 4))
        return torch.cat(classes, 1), torch.cat(boxes, 1)

    def _join(self, a: Tensor, b: Tensor, at: int) -> Tensor:
        if not self.weighted:
            return a + b
        w = functional.relu(self.weights[at])
        return (w[0] * a + w[1] * b) / (w.sum() + 1e-4)


family.add("aspp", Aspp, PICTURE)
family.add("retina_fpn", functools.partial(Fpn, False), PICTURE, {"x": {0: "batch", 2: "h", 3: "w"}})
family.add("bifpn", functools.partial(Fpn, True), PICTURE)


class SuperResolution(nn.Module):
    """EDSR: residual blocks, shifted means, pixel shuffle."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.tail = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 3, 3, padding=1)
        self.body = nn.Sequential(
            *[Residual(nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())) for _ in range(2)]
        )
        self.up = nn.Sequential(nn.Conv2d(16, 64, 3, padding=1), nn.PixelShuffle(2))
        self.mean = nn.Parameter(torch.tensor([0.4, 0.5, 0.6]).view(1, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.head((x - self.mean) * 255.0)
        return (self.tail(self.up(self.body(y) + y)) / 255.0 + self.mean).clamp(0, 1)


class DenseFusion(nn.Module):
    """RDB: dense blocks with a scaled residual."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(8 * (i + 1), 8, 3, padding=1) for i in range(3)])
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(32, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.first(x)]
        for conv in self.convs:
            parts.append(functional.leaky_relu(conv(torch.cat(parts, 1)), 0.2))
        return self.last(torch.cat(parts, 1)) * 0.2 + parts[0]


class Gated(nn.Module):
    """NAFNet: a simple gate and a simplified channel attention."""

    def __init__(self) -> None:
        super().__init__()
        self.intro, self.norm, self.up = nn.Conv2d(3, 16, 3, padding=1), LayerNorm2d(16), nn.Conv2d(16, 32, 1)
        self.depth, self.sca, self.out = (
            nn.Conv2d(32, 32, 3, padding=1, groups=32),
            nn.Conv2d(16, 16, 1),
            nn.Conv2d(16, 16, 1),
        )
        self.beta = nn.Parameter(torch.zeros(1, 16, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        inp = self.intro(x)
        a, b = self.depth(self.up(self.norm(inp))).chunk(2, dim=1)
        y = a * b
        y = y * self.sca(functional.adaptive_avg_pool2d(y, 1))
        return inp + self.out(y) * self.beta


family.add("edsr", SuperResolution, {"x": positive(2, 3, 12, 12)}, {"x": {0: "batch", 2: "h", 3: "w"}})
family.add("rdb", DenseFusion, {"x": positive(2, 3, 12, 12)})
family.add("nafnet", Gated, {"x": positive(2, 3, 12, 12)}, {"x": {2: "h", 3: "w"}})


class Tokens(nn.Module):
    """CCT: convolutional tokens, pooled by attention weights."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(unit(3, 32, stride=2), nn.MaxPool2d(3, 2, 1))
        self.block = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True, activation="gelu", norm_first=True)
        self.pool, self.head = nn.Linear(32, 1), nn.Linear(32, 10)
        self.positions = nn.Parameter(torch.zeros(1, 64, 32))

    def forward(self, x: Tensor) -> Tensor:
        y = self.block(self.stem(x).flatten(2, 3).transpose(-2, -1) + self.positions)
        weights = functional.softmax(self.pool(y), dim=1)
        return self.head(torch.matmul(weights.transpose(-1, -2), y).squeeze(-2))


class SpatialTransformer(nn.Module):
    """STN: an affine grid from a small network."""

    def __init__(self) -> None:
        super().__init__()
        self.where, self.fc = nn.Sequential(nn.Conv2d(3, 4, 7, 2), nn.MaxPool2d(2), nn.ReLU()), nn.Linear(4 * 36, 6)

    def forward(self, x: Tensor) -> Tensor:
        theta = self.fc(self.where(x).flatten(1)).view(-1, 2, 3)
        ys, xs = torch.meshgrid(torch.linspace(-1, 1, 32), torch.linspace(-1, 1, 32), indexing="ij")
        base = torch.stack([xs, ys, torch.ones_like(xs)], -1).view(1, -1, 3)
        return torch.bmm(base.expand(theta.shape[0], -1, -1), theta.transpose(1, 2)).view(-1, 32, 32, 2)


class Volume(nn.Module):
    """3-d convolutions, factored as (2+1)-d."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv3d(3, 8, (1, 3, 3), padding=(0, 1, 1)), nn.Conv3d(8, 8, (3, 1, 1), padding=(1, 0, 0))
        self.norm, self.head = nn.BatchNorm3d(8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(functional.relu(self.norm(self.b(functional.relu(self.a(x))))).mean((2, 3, 4)))


class TemporalShift(nn.Module):
    """TSM: channels shifted along time."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c, h, w = x.shape
        out = torch.zeros_like(x)
        out[:, :-1, :2] = x[:, 1:, :2]
        out[:, 1:, 2:4] = x[:, :-1, 2:4]
        out[:, :, 4:] = x[:, :, 4:]
        y = functional.relu(self.conv(out.view(b * t, c, h, w))).view(b, t, c, h, w)
        return self.head(y.mean((3, 4))).mean(1)


family.add("compact_tokens", Tokens, PICTURE)
family.add("affine_grid_by_hand", SpatialTransformer, PICTURE)
family.add("r2plus1d", Volume, {"x": normal(2, 3, 4, 8, 8)})
family.add("temporal_shift", TemporalShift, {"x": normal(2, 4, 8, 6, 6)})


class Ssd(nn.Module):
    """SSD: heads of several maps, softmax, decoded boxes, the best of each class."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Sequential(stem(), unit(16, 16, stride=2)), unit(16, 24, stride=2)
        self.loc = nn.ModuleList([nn.Conv2d(16, 12, 3, padding=1), nn.Conv2d(24, 12, 3, padding=1)])
        self.conf = nn.ModuleList([nn.Conv2d(16, 12, 3, padding=1), nn.Conv2d(24, 12, 3, padding=1)])
        self.register_buffer("priors", torch.rand(3 * (64 + 16), 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a = self.a(x)
        maps = (a, self.b(a))
        loc = torch.cat(
            [f(m).permute(0, 2, 3, 1).reshape(m.size(0), -1) for f, m in zip(self.loc, maps, strict=True)], 1
        )
        conf = torch.cat(
            [f(m).permute(0, 2, 3, 1).reshape(m.size(0), -1) for f, m in zip(self.conf, maps, strict=True)], 1
        )
        loc, conf = loc.view(loc.size(0), -1, 4), functional.softmax(conf.view(conf.size(0), -1, 4), -1)
        centres = self.priors[:, :2] + loc[:, :, :2] * 0.1 * self.priors[:, 2:]
        sizes = self.priors[:, 2:] * torch.exp(loc[:, :, 2:] * 0.2)
        boxes = torch.cat((centres - sizes / 2, centres + sizes / 2), 2)
        return boxes, conf[..., 1:].transpose(1, 2)


class Classic(nn.Module):
    """AlexNet's way: adaptive pool and large linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.f = nn.Sequential(
            nn.Conv2d(3, 8, 5, 2, 2), nn.ReLU(True), nn.MaxPool2d(3, 2), nn.Conv2d(8, 16, 3), nn.ReLU(True)
        )
        self.c = nn.Sequential(nn.Dropout(), nn.Linear(16 * 4, 32), nn.ReLU(True), nn.Dropout(), nn.Linear(32, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.c(torch.flatten(functional.adaptive_avg_pool2d(self.f(x), (2, 2)), 1)).log_softmax(1)


class Uint8In(nn.Module):
    """A classifier that takes bytes in NHWC."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net([stem(), unit(16, 16)], 16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.permute(0, 3, 1, 2).contiguous().to(torch.float32).div(255)
        y = functional.softmax(self.net((x - 0.45) / 0.225), 1)
        return torch.max(y, 1)


family.add("ssd", Ssd, PICTURE)
family.add("alexnet_like", Classic, PICTURE)
family.add("uint8_classifier", Uint8In, {"x": integers(256, 2, 32, 32, 3, dtype=torch.uint8)})
