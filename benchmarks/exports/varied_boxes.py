"""Boxes that are suppressed, samples at the border, and masks that are inputs."""

from __future__ import annotations

import torch
from cases.sampling import suppressed
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.exports.varied_declare import BATCH, BATCH_LENGTH, Family, normal, positive

family = Family()
RECIPES = family.recipes
PREDICTED = {"boxes": positive(2, 20, 4), "scores": positive(2, 3, 20)}
SINGLE = {"boxes": positive(20, 4), "scores": positive(3, 20)}


def _suppress(boxes: Tensor, scores: Tensor) -> Tensor:
    return suppressed(boxes if boxes.dim() == 3 else boxes[None], scores if scores.dim() == 3 else scores[None])


def _columns(boxes: Tensor, scores: Tensor) -> Tensor:
    boxes = boxes.sigmoid()
    x, y, w, h = boxes.split(1, -1)
    return _suppress(torch.cat([x - w / 2, y - h / 2, x + w / 2, y + h / 2], -1), scores)


def _stacked(boxes: Tensor, scores: Tensor) -> Tensor:
    boxes = boxes.sigmoid()
    x, y, w, h = boxes.unbind(-1)
    return _suppress(torch.stack([x - 0.5 * w, y - 0.5 * h, x + 0.5 * w, y + 0.5 * h], dim=-1), scores)


def _pairs(boxes: Tensor, scores: Tensor) -> Tensor:
    boxes = boxes.sigmoid()
    half = boxes[..., 2:] / 2
    return _suppress(torch.cat([boxes[..., :2] - half, boxes[..., :2] + half], -1), scores)


for _name, _given in {"columns": _columns, "stacked": _stacked, "pairs": _pairs}.items():
    for _where, _inputs in {"images": PREDICTED, "single": SINGLE}.items():

        def _named(boxes: Tensor, scores: Tensor, given: object = _given) -> Tensor:
            made: Tensor = given(boxes, scores)  # type: ignore[operator]
            return made

        _named.__name__ = f"suppressed_{_name}_{_where}"
        family.function(_inputs, {})(_named)


def border_sample(im: Tensor, grid: Tensor, align_corners: bool) -> Tensor:
    """Bilinear sampling with coordinates that are clamped, as stereo and flow networks write it."""
    n, c, h, w = im.shape
    x, y = grid[..., 0], grid[..., 1]
    x = (x + 1) / 2 * (w - 1) if align_corners else ((x + 1) * w - 1) / 2
    y = (y + 1) / 2 * (h - 1) if align_corners else ((y + 1) * h - 1) / 2
    x0, y0 = torch.floor(x), torch.floor(y)
    x1, y1 = x0 + 1, y0 + 1
    wa, wb, wc, wd = (x1 - x) * (y1 - y), (x1 - x) * (y - y0), (x - x0) * (y1 - y), (x - x0) * (y - y0)
    x0, x1, y0, y1 = x0.clamp(0, w - 1), x1.clamp(0, w - 1), y0.clamp(0, h - 1), y1.clamp(0, h - 1)
    flat, size = im.reshape(n, c, h * w), grid.shape[1:3]

    def at(ys: Tensor, xs: Tensor) -> Tensor:
        index = (ys * w + xs).long().reshape(n, 1, -1).expand(-1, c, -1)
        return torch.gather(flat, 2, index).reshape(n, c, *size)

    parts = ((y0, x0, wa), (y1, x0, wb), (y0, x1, wc), (y1, x1, wd))
    total = [at(ys, xs) * share.unsqueeze(1) for ys, xs, share in parts]
    return total[0] + total[1] + total[2] + total[3]


@family.function({"im": normal(2, 3, 6, 7), "grid": normal(2, 5, 4, 2)}, {})
def sampled_at_the_border(im: Tensor, grid: Tensor) -> Tensor:
    return border_sample(im, grid, False)


@family.function({"im": normal(2, 3, 6, 7), "grid": normal(2, 5, 4, 2)}, {})
def sampled_at_the_border_align_corners(im: Tensor, grid: Tensor) -> Tensor:
    return border_sample(im, grid, True)


class _GivenMask(nn.Module):
    """Attention with a mask of numbers that is an input, for one length or for one head."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.qkv, self.out, self.form = nn.Linear(32, 96), nn.Linear(32, 32), form

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, 4, 8).permute(2, 0, 3, 1, 4)
        if self.form:
            made = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask.expand(b, 4, n, n))
            return self.out(made.transpose(1, 2).reshape(b, n, 32))
        weights = (q @ k.transpose(-1, -2) * 8**-0.5 + mask).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, n, 32))


for _shape, _axes in (
    ((2, 1, 6, 6), {0: "batch", 2: "length", 3: "length"}),
    ((2, 1, 1, 6), {0: "batch", 3: "length"}),
):
    family.add(
        f"mask_given_{'rows' if _shape[2] > 1 else 'keys'}",
        lambda: _GivenMask(""),
        {"x": normal(2, 6, 32), "mask": normal(*_shape)},
        {"x": BATCH_LENGTH, "mask": _axes},
    )
    family.add(
        f"mask_given_{'rows' if _shape[2] > 1 else 'keys'}_fixed",
        lambda: _GivenMask(""),
        {"x": normal(2, 6, 32), "mask": normal(*_shape)},
        {"x": BATCH, "mask": BATCH},
    )

family.add(
    "mask_given_expanded",
    lambda: _GivenMask("expanded"),
    {"x": normal(2, 6, 32), "mask": normal(2, 1, 6, 6)},
    {"x": BATCH_LENGTH, "mask": {0: "batch", 2: "length", 3: "length"}},
)
family.add(
    "mask_given_expanded_fixed",
    lambda: _GivenMask("expanded"),
    {"x": normal(2, 6, 32), "mask": normal(2, 1, 6, 6)},
    {},
)
