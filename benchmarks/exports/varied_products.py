"""Linear layers, einsums, losses, reductions and arithmetic, as repositories spell them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.exports.varied_declare import BATCH_LENGTH, Family, bools, integers, normal, positive

family = Family()
RECIPES = family.recipes
X = {"x": normal(2, 6, 8)}
ALL = {"x": BATCH_LENGTH}
IMAGE = {"x": normal(2, 6, 8, 8)}
HEADS = {name: normal(2, 4, 6, 8) for name in "qkv"}
HEAD_AXES = {name: {0: "batch", 2: "length"} for name in "qkv"}


class _Products(nn.Module):
    """Linear layers one after the other, side by side, with scales."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.a, self.b, self.c, self.form = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 16, bias=False), form
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 16, bias=False)
        self.scale, self.shift = nn.Parameter(torch.rand(8)), nn.Parameter(torch.rand(8))
        self.gain = nn.Parameter(torch.rand(16))

    def forward(self, x: Tensor) -> Tensor:
        forms = {
            "two": lambda: self.b(self.a(x)),
            "lora": lambda: self.a(x) + 0.5 * self.up(self.down(x)),
            "parallel": lambda: self.a(x) + 0.3 * self.c(x),
            "difference": lambda: self.a(x) - self.c(x),
            "input_scale": lambda: self.a(x * self.scale),
            "input_shift": lambda: self.a((x - self.shift) * self.scale),
            "output_scale": lambda: self.a(x) * self.gain,
            "layer_scale": lambda: x + self.scale * self.b(functional.gelu(self.a(x))),
            "output_shift": lambda: self.c(x) + self.gain + 1.0,
            "standardised": lambda: self.a((x - 0.45) / 0.225),
            "equalised": lambda: (
                functional.linear(x, self.a.weight * (1 / math.sqrt(8)), self.a.bias * 1.0) * math.sqrt(2)
            ),
            "weight_norm": lambda: functional.linear(
                x, self.a.weight / self.a.weight.norm(dim=1, keepdim=True), self.a.bias
            ),
            "vector": lambda: x @ self.scale,
            "one_column": lambda: x @ self.scale[:, None],
            "sum_of_products": lambda: (x @ self.c.weight.t()) + (x.flip(1) @ self.c.weight.t()),
            "bilinear": lambda: functional.bilinear(x, x, torch.outer(self.scale, self.shift)[None].expand(3, 8, 8)),
        }
        return forms[self.form]()


for _form in (
    "two",
    "lora",
    "parallel",
    "difference",
    "input_scale",
    "input_shift",
    "output_scale",
    "layer_scale",
    "output_shift",
    "standardised",
    "equalised",
    "weight_norm",
    "vector",
    "one_column",
    "sum_of_products",
    "bilinear",
):
    family.add(f"products_{_form}", lambda form=_form: _Products(form), X, ALL)

PAIR = {"x": normal(2, 6, 8), "y": normal(2, 6, 8)}
PAIR_AXES = {"x": BATCH_LENGTH, "y": BATCH_LENGTH}
for _name, _text in {
    "inner": "bnd,bnd->bn",
    "outer": "bi,bj->bij",
    "matmul": "bnd,bmd->bnm",
    "sum": "bnd->bd",
    "transpose": "bnd->dbn",
    "private": "bnd,bm->bn",
    "three": "bn,bnd,bd->b",
    "four": "bn,bm,bd,be->nmde",
    "ellipsis": "...d,...d->...",
    "ellipsis_one": "...ij->...ji",
    "trace": "bii->b",
    "ellipsis_matmul": "...nd,...md->...nm",
    "ellipsis_weight": "...d,de->...e",
    "heads": "bnhd,bmhd->bhnm",
    "three_rope": "n,d,bd->bnd",
    "ellipsis_three": "...n,...n,d->...d",
}.items():
    _sizes = {"b": 2, "n": 6, "d": 8, "m": 5, "i": 4, "j": 3, "e": 7, "h": 3}

    _shapes = [
        ([2, 4] if "..." in part else []) + [_sizes[one] for one in part.replace(".", "")]
        for part in _text.partition("->")[0].split(",")
    ]

    class _Einsum(nn.Module):
        """An einsum."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

        def forward(self, **values: Tensor) -> Tensor:
            return torch.einsum(self.text, *values.values())

    family.add(
        f"einsum_{_name}",
        lambda text=_text: _Einsum(text),
        {f"x{number}": normal(*shape) for number, shape in enumerate(_shapes)},
        {},
    )


@family.function({"x": normal(4, 5), "y": integers(5, 4)}, {})
def cross_entropy(x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(x, y)


@family.function({"x": normal(4, 5), "y": integers(5, 4)}, {})
def cross_entropy_gathered(x: Tensor, y: Tensor) -> Tensor:
    return -x.log_softmax(-1).gather(-1, y.unsqueeze(-1)).squeeze(-1).mean()


@family.function({"x": normal(4, 5), "y": integers(5, 4)}, {})
def cross_entropy_one_hot(x: Tensor, y: Tensor) -> Tensor:
    return -(functional.one_hot(y, 5).float() * x.log_softmax(-1)).sum(-1).mean()


@family.function({"x": normal(4, 5), "y": integers(5, 4)}, {})
def label_smoothing(x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(x, y, label_smoothing=0.1)


@family.function({"x": normal(4, 5), "y": positive(4, 5)}, {})
def sigmoid_focal(x: Tensor, y: Tensor) -> Tensor:
    p = torch.sigmoid(x)
    ce = functional.binary_cross_entropy_with_logits(x, y, reduction="none")
    p_t = p * y + (1 - p) * (1 - y)
    return ((0.25 * y + 0.75 * (1 - y)) * ce * (1 - p_t) ** 2).mean()


@family.function({"x": normal(4, 5), "y": positive(4, 5)}, {})
def binary_cross_entropy(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return (
        functional.binary_cross_entropy_with_logits(x, y),
        functional.smooth_l1_loss(x, y),
        functional.kl_div(x.log_softmax(1), y),
    )


@family.function(IMAGE)
def reduced_twice(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return x.sum(-1).sum(-1), x.mean(3).mean(2), x.max(3)[0].max(2)[0], x.amin(3).amin(2)


@family.function(IMAGE)
def reduced_over_leading(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.sum(0), x.mean((0, 1))


@family.function(X, ALL)
def norms(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return (
        x.norm(dim=-1),
        x.abs().sum(-1),
        x.pow(2).sum(),
        torch.linalg.vector_norm(x),
        x.abs().sum(),
    )


@family.function(X, ALL)
def soft_minimum(x: Tensor) -> tuple[Tensor, Tensor]:
    return -(-x).max(-1)[0], -(-x).logsumexp(-1)


@family.function({"x": positive(2, 6, 8)}, ALL)
def powers(x: Tensor) -> tuple[Tensor, ...]:
    return x**0.5, x**-0.5, x**3, x**1.5, x.sqrt() ** 2, x.log().exp(), x**-1, 1 / (x + 1).sqrt()


@family.function(PAIR, PAIR_AXES)
def inverse_arithmetic(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x * (1 / (y.abs() + 1)), x / (1 / (y.abs() + 1)), x + -y, x - -y, -(x - y), -x * -y, 0 - x, 1 - (1 - x)


@family.function(PAIR, PAIR_AXES)
def minimum_and_maximum(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return torch.max(x, y) - torch.min(x, y), torch.max(x, -x), -torch.max(-x, -y), torch.max(x, torch.max(x, y))


@family.function({"p": bools(2, 6), "q": bools(2, 6)}, {})
def masks_combined(p: Tensor, q: Tensor) -> tuple[Tensor, ...]:
    both = p.float() * q.float()
    return both > 0, (~p & ~q), (1 - p.long()).bool(), (p.float() * q.float()) == 0, ~(p.float() < 0.5), p ^ True


@family.function({"x": normal(2, 6, 8), "mask": bools(2, 6)}, {"x": BATCH_LENGTH, "mask": BATCH_LENGTH})
def masks_applied(x: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    m = mask[..., None].to(x.dtype)
    return x * m + -1e9 * (1 - m), torch.where(~mask[..., None], x, 0.0), (mask == False).float(), (1.0 - m) * -10000.0  # noqa: E712


@family.function({"ids": integers(9, 2, 6)}, {"ids": BATCH_LENGTH})
def masks_from_tokens(ids: Tensor) -> tuple[Tensor, ...]:
    mask = ids.ne(0)
    return mask.long().cumsum(1) * mask.long(), (ids != 0).float().sum(1), torch.logical_not(ids == 0)
