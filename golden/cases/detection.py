"""A detector by the structure of YOLO 8: cross-stage blocks, a pyramid up and down, distances as distributions."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import torch
from exporting import Case
from torch import Tensor, nn
from torch.nn import functional as f

from cases.blocks import unit
from cases.common import IMAGE_SIZES, TS_AND_DYNAMO, image

_unit = functools.partial(unit, act=nn.SiLU())


class _CrossStage(nn.Module):
    """Half of the channels pass, bottlenecks in a row read the other half, all is joined (arXiv:1911.11929)."""

    def __init__(self, inputs: int, outputs: int, depth: int, residual: bool = True) -> None:
        super().__init__()
        half, self.residual = outputs // 2, residual
        self.before, self.after = _unit(inputs, outputs, 1), _unit((2 + depth) * half, outputs, 1)
        self.chain = nn.ModuleList([nn.Sequential(_unit(half, half), _unit(half, half)) for _ in range(depth)])

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.before(x).chunk(2, 1))
        for block in self.chain:
            parts.append(parts[-1] + block(parts[-1]) if self.residual else block(parts[-1]))
        result: Tensor = self.after(torch.cat(parts, 1))
        return result


class _Pools(nn.Module):
    """A pool three times over, all of it joined (arXiv:1406.4729)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.before, self.after = _unit(channels, channels // 2, 1), _unit(2 * channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        found = [self.before(x)]
        for _ in range(3):
            found.append(f.max_pool2d(found[-1], 5, 1, 2))
        result: Tensor = self.after(torch.cat(found, 1))
        return result


class _Pyramid(nn.Module):
    """Three levels, the smaller ones enlarged and joined to the larger, then the other way (arXiv:1803.01534)."""

    def __init__(self, widths: Sequence[int], depth: int) -> None:
        super().__init__()
        wide, middle, narrow = widths
        self.up = nn.ModuleList(
            [_CrossStage(narrow + middle, middle, depth, False), _CrossStage(middle + wide, wide, depth, False)]
        )
        self.shrink = nn.ModuleList([_unit(wide, wide, 3, 2), _unit(middle, middle, 3, 2)])
        self.down = nn.ModuleList(
            [_CrossStage(wide + middle, middle, depth, False), _CrossStage(middle + narrow, narrow, depth, False)]
        )

    def forward(self, wide: Tensor, middle: Tensor, narrow: Tensor) -> list[Tensor]:
        middle = self.up[0](torch.cat([f.interpolate(narrow, scale_factor=2.0, mode="nearest"), middle], 1))
        wide = self.up[1](torch.cat([f.interpolate(middle, scale_factor=2.0, mode="nearest"), wide], 1))
        middle = self.down[0](torch.cat([self.shrink[0](wide), middle], 1))
        return [wide, middle, self.down[1](torch.cat([self.shrink[1](middle), narrow], 1))]


class _Heads(nn.Module):
    """Scores of classes, and boxes whose four distances are means of distributions over bins (arXiv:2006.04388)."""

    def __init__(self, widths: Sequence[int], classes: int, bins: int, size: int) -> None:
        super().__init__()
        self.classes, self.bins = classes, bins
        self.boxes = nn.ModuleList([self._head(width, widths[0], 4 * bins) for width in widths])
        self.scores = nn.ModuleList([self._head(width, widths[0], classes) for width in widths])
        levels = [(stride, size // stride) for stride in (8, 16, 32)]
        centres = [torch.cartesian_prod(*[torch.arange(cells) + 0.5] * 2).flip(1).T for _, cells in levels]
        self.register_buffer("anchors", torch.cat(centres, 1))
        self.register_buffer("strides", torch.cat([torch.full((1, n * n), float(stride)) for stride, n in levels], 1))
        self.register_buffer("distances", torch.arange(bins, dtype=torch.float32).view(1, bins, 1, 1))

    @staticmethod
    def _head(inputs: int, hidden: int, outputs: int) -> nn.Module:
        return nn.Sequential(_unit(inputs, hidden), _unit(hidden, hidden), nn.Conv2d(hidden, outputs, 1))

    def forward(self, levels: list[Tensor]) -> Tensor:
        found = [
            torch.cat([boxes(x), scores(x)], 1).flatten(2)
            for x, boxes, scores in zip(levels, self.boxes, self.scores, strict=True)
        ]
        boxes, scores = torch.cat(found, 2).split((4 * self.bins, self.classes), 1)
        batch, _, anchors = boxes.shape
        bins = boxes.view(batch, 4, self.bins, anchors).transpose(2, 1).softmax(1)
        near, far = f.conv2d(bins, self.distances).view(batch, 4, anchors).chunk(2, 1)
        low, high = self.anchors - near, self.anchors + far
        return torch.cat([torch.cat([(low + high) / 2, high - low], 1) * self.strides, scores.sigmoid()], 1)


class Detector(nn.Module):
    """Centres, sizes and scores, [batch, 4 + classes, anchors], of square images."""

    def __init__(
        self,
        size: int = 64,
        widths: Sequence[int] = (4, 4, 8, 8, 8),
        depths: Sequence[int] = (1, 1, 1, 1),
        classes: int = 3,
        bins: int = 4,
    ) -> None:
        super().__init__()
        self.stem = _unit(3, widths[0], 3, 2)
        self.stages = nn.ModuleList(
            [
                nn.Sequential(_unit(inputs, outputs, 3, 2), _CrossStage(outputs, outputs, depth))
                for (inputs, outputs), depth in zip(itertools.pairwise(widths), depths, strict=True)
            ]
        )
        self.pools = _Pools(widths[-1])
        self.pyramid = _Pyramid(widths[2:], depths[0])
        self.heads = _Heads(widths[2:], classes, bins, size)

    def forward(self, pixel_values: Tensor) -> Tensor:
        levels = [self.stem(pixel_values)]
        for stage in self.stages:
            levels.append(stage(levels[-1]))
        result: Tensor = self.heads(self.pyramid(*levels[2:4], self.pools(levels[4])))
        return result


def yolo() -> nn.Module:
    """The smallest that has everything."""
    return Detector()


CASES = (Case("yolo", yolo, image(64), IMAGE_SIZES, exporters=TS_AND_DYNAMO),)
