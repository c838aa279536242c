"""Resizing and sampling by their formulas, as repositories spell them."""

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


@family.function(IMAGE)
def nearest_by_repeat(x: Tensor) -> Tensor:
    return x.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)


@family.function(IMAGE)
def nearest_by_expand(x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    return x[:, :, :, None, :, None].expand(-1, -1, -1, 2, -1, 2).reshape(b, c, h * 2, w * 2)


@family.function({"x": normal(2, 6, 9)})
def nearest_1d_by_expand(x: Tensor) -> Tensor:
    return x.unsqueeze(-1).repeat(1, 1, 1, 3).view(x.shape[0], 6, -1)


@family.function(IMAGE)
def nearest_by_index(x: Tensor) -> Tensor:
    rows, columns = (torch.arange(16) // 2 for _ in range(2))
    return x[:, :, rows][:, :, :, columns]


@family.function(IMAGE)
def nearest_by_index_grid(x: Tensor) -> Tensor:
    rows, columns = (torch.arange(16) // 2 for _ in range(2))
    return x[:, :, rows[:, None], columns[None]]


@family.function(IMAGE)
def interpolated_twice(x: Tensor) -> Tensor:
    return functional.interpolate(functional.interpolate(x, scale_factor=2.0), scale_factor=2.0)


@family.function(IMAGE)
def bilinear_by_index(x: Tensor) -> Tensor:
    at = ((torch.arange(16) + 0.5) / 2 - 0.5).clamp(min=0)
    low = at.floor().long()
    high, part = (low + 1).clamp(max=7), at - low
    rows = x[:, :, low] + (x[:, :, high] - x[:, :, low]) * part[:, None]
    return rows[..., low] + (rows[..., high] - rows[..., low]) * part


@family.function({"x": normal(2, 3, 6, 7), "grid": normal(2, 5, 4, 2)}, {})
def sampled_by_operator(x: Tensor, grid: Tensor) -> Tensor:
    return functional.grid_sample(x, grid.clamp(-1.2, 1.2), align_corners=False)


@family.function({"theta": normal(2, 2, 3), "x": normal(2, 3, 6, 7)}, {})
def affine_sampled(theta: Tensor, x: Tensor) -> Tensor:
    return functional.grid_sample(
        x, functional.affine_grid(theta, [2, 3, 6, 7], align_corners=False), align_corners=False
    )


def _pixels(x: Tensor, at: Tensor, border: bool, corners: bool) -> Tensor:
    """The four pixels around each place, each with its share."""
    n, c, h, w = x.shape
    gx = (at[..., 0] + 1) / 2 * (w - 1) if corners else ((at[..., 0] + 1) * w - 1) / 2
    gy = (at[..., 1] + 1) / 2 * (h - 1) if corners else ((at[..., 1] + 1) * h - 1) / 2
    if border:
        gx, gy = gx.clamp(0, w - 1), gy.clamp(0, h - 1)
    x0, y0 = gx.floor(), gy.floor()
    total = torch.zeros(n, c, *at.shape[1:3])
    for xi, yi in ((x0, y0), (x0 + 1, y0), (x0, y0 + 1), (x0 + 1, y0 + 1)):
        share = (1 - (gx - xi).abs()) * (1 - (gy - yi).abs())
        inside = ((xi >= 0) & (xi <= w - 1) & (yi >= 0) & (yi <= h - 1)).float()
        index = (yi.clamp(0, h - 1) * w + xi.clamp(0, w - 1)).long().view(n, 1, -1).expand(-1, c, -1)
        total = total + x.view(n, c, -1).gather(2, index).view(n, c, *at.shape[1:3]) * (share * inside).unsqueeze(1)
    return total


for _border in (False, True):
    for _corners in (False, True):

        class _Sampled(nn.Module):
            """Bilinear sampling by gathers, for runtimes without GridSample."""

            def __init__(self, border: bool, corners: bool) -> None:
                super().__init__()
                self.how = border, corners

            def forward(self, x: Tensor, at: Tensor) -> Tensor:
                return _pixels(x, at, *self.how)

        family.add(
            f"sampled_by_pixels{'_border' * _border}{'_corners' * _corners}",
            lambda how=(_border, _corners): _Sampled(*how),
            {"x": normal(2, 3, 6, 7), "at": normal(2, 5, 4, 2)},
            {},
        )
