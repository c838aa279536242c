"""Convolutional networks of several parts: segmentation, detection, restoration, video, classifiers of bytes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.exports.varied_declare import Family, integers, normal, positive
from benchmarks.exports.varied_vision import LayerNorm2d, Net, Residual, stem

family = Family()
RECIPES = family.recipes
PICTURE = {"x": normal(2, 3, 32, 32)}


def unit(a: int, b: int, size: int = 3, act: Callable[[], nn.Module] = nn.ReLU, **options: Any) -> nn.Sequential:
    """Convolution, normalisation, activation."""
    return nn.Sequential(nn.Conv2d(a, b, size, padding=size // 2, bias=False, **options), nn.BatchNorm2d(b), act())


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
