"""Fuse bilinear sampling, written as gathers of four pixels with weights, to GridSample.

x, y = pixels that grid points to        left, top = floor(x), floor(y)        right, bottom = left + 1, top + 1
grid_sample(image, grid) = image[top, left] (right - x) (bottom - y) + image[bottom, left] (right - x) (y - top)
                         + image[top, right] (x - left) (bottom - y) + image[bottom, right] (x - left) (y - top)

Networks write this out for exporters without the operator, in some 60 to 80 nodes. With `zero_padding` the image gets a border
of zeros, and samples outside are moved there. With `border_padding` the coordinates are clamped to the nearest pixel. Pixels
are gathered from flattened rows. Coordinates are taken to be finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Guard, Match, Pattern, attr, const, op, rearrange, scalar, var

BORDER = (0, 0, 1, 1, 0, 0, 1, 1)

image, grid = var("image", "b c h w"), var("grid", "b r s 2")


def _is(number: int) -> Any:
    return lambda value, facts: facts.scalar(value) == number


def _is_number(value: ir.Value, facts: Facts) -> bool:
    return facts.scalar(value) is not None


zero, one = const("zero", _is(0), "0"), const("one", _is(1), "1")


def _pixel(axis: int, name: str, aligned: bool) -> Pattern:
    """The coordinates of the grid along one axis of the image: `axis` is 0 for x and 1 for y, `name` its letter."""
    place = op.Gather(grid, const(f"number_{name}", _is(axis), str(axis)), axis=3)
    scaled = scalar(f"size_{name}") * (place + 1.0)
    return (scaled if aligned else 0.5 * (scaled - 1.0)).named(f"pixel_{name}")


class _OnBorder:
    """The values along one axis if coordinates outside are clamped to the border of zeros."""

    def __init__(self, axis: int, name: str, aligned: bool) -> None:
        pixel = rearrange("b r s -> b (r s)", _pixel(axis, name, aligned))
        first = op.Cast(op.Floor(pixel), to=7)
        second = op.Add(first, one)
        self.shares = (op.Cast(second, to=1) - pixel, pixel - op.Cast(first, to=1))
        """The weights of the pixels before and behind the coordinate."""
        self._last = const(f"last_{name}", _is_number, "a number")
        self.numbers = [self._within(number) for number in (second, op.Add(second, one))]
        """The indices of both pixels, in the image with its border."""

    def _within(self, number: Pattern) -> Pattern:
        above = op.Where(op.Less(number, zero), zero, number)
        return op.Where(op.Greater(above, self._last), self._last, above)


class _Clamped:
    """The values along one axis if the nearest pixel stands for those outside."""

    def __init__(self, axis: int, name: str, aligned: bool) -> None:
        pixel = _pixel(axis, name, aligned)
        first = op.Floor(pixel)
        second = (first + 1.0).named(f"second_{name}")
        self.shares = (second - pixel, pixel - first)
        last = const(f"last_{name}", _is_number, "a number")
        self.numbers = [op.Clip(number, const("lowest", _is(0), "0"), last) for number in (first, second)]


def _points_to_pixels(aligned: bool) -> Guard:
    """-1 and 1 are the centres of the outer pixels, or the borders of the image, along both axes."""

    def points_to_pixels(match: Match) -> Refusal | None:
        for axis, name in (("w", "x"), ("h", "y")):
            size, number = match.size(axis), match[f"size_{name}"]
            wanted = None if size is None else (size - 1) / 2 if aligned else size
            if wanted is None or not math.isclose(number, wanted, rel_tol=1e-6):
                return match.unless_value(f"size_{name}", False, "the size of the image")
        return None

    return points_to_pixels


def _ends_at(match: Match, border: int, width: float | None) -> Refusal | None:
    """A refusal unless the last pixels are those of the image with a border, and rows are as long."""
    for axis, name in (("w", "x"), ("h", "y")):
        size, last = match.size(axis), match.facts.scalar(match[f"last_{name}"])
        if size is None or last != size + 2 * border - 1:
            return match.refuse("value", f"last_{name}", "the number of the last pixel")
    size = match.size("w")
    return match.unless_value("width", size is not None and width == size + 2 * border, "the length of a row")


def stays_within_the_border(match: Match) -> Refusal | None:
    """Require that coordinates outside are clamped to the border of zeros, and rows are as long as with it."""
    return _ends_at(match, 1, match.facts.scalar(match["width"]))


def stays_within_the_image(match: Match) -> Refusal | None:
    """Require that coordinates outside are clamped into the image."""
    return _ends_at(match, 0, match["width"])


def _sum(across: Any, down: Any, part: Callable[[Pattern, Pattern, Pattern], Pattern]) -> Pattern:
    """The sum of four pixels, each of `part(number in its row, number of its row, share)`."""
    parts = [
        part(across.numbers[i], down.numbers[j], across.shares[i] * down.shares[j]) for i in (0, 1) for j in (0, 1)
    ]
    return parts[0] + parts[1] + parts[2] + parts[3]


def _on_border(aligned: bool) -> Pattern:
    padded = op.Pad(image, pads=BORDER, constant_value=attr("filling", lambda number, facts: not number, "0"))
    pixels = rearrange("b c p q -> b c (p q)", padded)
    width = const("width", _is_number, "a number")

    def part(column: Pattern, row: Pattern, share: Pattern) -> Pattern:
        number = rearrange("b n -> b c n", op.Add(column, op.Mul(row, width)))
        return op.GatherElements(pixels, number, axis=2) * rearrange("b n -> b 1 n", share)

    return rearrange("b c (r s) -> b c r s", _sum(_OnBorder(0, "x", aligned), _OnBorder(1, "y", aligned), part))


def _clamped(aligned: bool) -> Pattern:
    pixels = rearrange("b c h w -> b c (h w)", image)

    def part(column: Pattern, row: Pattern, share: Pattern) -> Pattern:
        number = rearrange("b r s -> b c (r s)", op.Cast(row * scalar("width") + column, to=7))
        sampled = rearrange("b c (r s) -> b c r s", op.GatherElements(pixels, number, axis=2))
        return sampled * rearrange("b r s -> b 1 r s", share)

    return _sum(_Clamped(0, "x", aligned), _Clamped(1, "y", aligned), part)


def _rules(name: str, formula: str, pattern: Callable[[bool], Pattern], padding: str | None, constants: dict[str, Any],
           stays: Guard) -> list[Rule]:  # fmt: skip
    numbers = {"zero": 0, "one": 1, "number_x": 0, "number_y": 1, **constants}
    return [
        Rule(
            name=f"grid_sample.from_pixel_gathers_{name}{'_align_corners' if aligned else ''}",
            formula=formula,
            pattern=pattern(aligned),
            replace=op.GridSample(image, grid, align_corners=int(aligned), padding_mode=padding),
            guards=(_points_to_pixels(aligned), stays),
            exactness=Exactness.ROUNDING,
            source="ONNX operator GridSample",
            test=RuleTest(
                shapes={"b": 2, "c": 2, "h": 3, "w": 4, "r": 2, "s": 5, "p": 5, "q": 6, "n": 10}
                | dict.fromkeys(numbers, ""),
                constants=numbers,
                attributes={"filling": [None, 0.0]},
                scalars={"size_x": [1.5 if aligned else 4], "size_y": [1.0 if aligned else 3], "width": [4]},
                opset=17,
            ),
        )
        for aligned in (False, True)
    ]


SAMPLE = "sum of the four pixels around each place, each with its share, "

RULES = [
    *_rules("zero_padding", SAMPLE + "0 outside", _on_border, None, {"last_x": 5, "last_y": 4, "width": 6},
            stays_within_the_border),
    *_rules("border_padding", SAMPLE + "clamped", _clamped, "border", {"lowest": 0.0, "last_x": 3.0, "last_y": 2.0},
            stays_within_the_image),
]  # fmt: skip
