"""Fuse bilinear interpolation from gathered pixels to Resize.

v[y, x] = rows and columns taken by constants      a = v[y, x] + (v[y, x + 1] - v[y, x]) across, b the same a row below
resize(image) = a + (b - a) down

torch.export decomposes interpolate this way. Coordinates count as those of the operator if they differ by rounding alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, Op, Pattern, computed, const, op, var

from .._shared_guards import floating
from ._resize_coordinates import MODES, Array, places, scale
from .fuse_nearest_resize import region

x = var("x", "b c h w")
CORNERS = ("above_left", "above_right", "below_left", "below_right")
LINES = ("rows", "columns")
SHARES = ("down", "across")


def _along(match: Match, axis: int) -> Array | None:
    """The places along an axis, 0 for rows and 1 for columns, in pixels; `None` if they are not the same throughout."""
    lines = [match.const(f"{name}_{LINES[axis]}") for name in CORNERS]
    share, count = match.const(SHARES[axis]), len(lines[0]) if lines[0].ndim == 1 else 0
    fits = share.shape[-1:] == (count,) if axis else share.shape[-2:] == (count, 1)
    if not count or not fits or share.size != count or not np.all(np.isfinite(share)):
        return None
    pairs = ((0, 2), (1, 3)) if axis else ((0, 1), (2, 3))
    if not all(np.array_equal(lines[one], lines[other]) for one, other in pairs):
        return None
    first, second = (lines[one].astype(np.float64) for one, _ in pairs)
    wide = (second != first) & (second != first + 1)
    return None if np.any(wide) or np.any(first < 0) else first + (second - first) * share.reshape(-1)


def _mode(match: Match) -> str | None:
    """The coordinate_transformation_mode whose places these are."""
    fits = []
    for axis, size in enumerate((match.size("h"), match.size("w"))):
        found = _along(match, axis)
        if found is None or not size or scale(size, len(found)) is None:
            return None
        fits.append({mode for mode in MODES if _are_near(found, places(mode, size, len(found)), size)})
    return next((mode for mode in MODES if all(mode in fit for fit in fits)), None)


def _are_near(found: Array, wanted: Array, size: int) -> bool:
    return bool(np.all(np.abs(found - np.clip(wanted, 0, size - 1)) <= 1e-6 * max(size, 16)))


def are_places_of_resize(match: Match) -> Refusal | None:
    """Places and shares are those of the operator in one of its modes, for an image of known size."""
    return None if _mode(match) is not None else match.refuse("condition", "root", "pixels evenly apart")


def _resized(match: Match) -> Pattern:
    def scales(match: Match) -> Array:
        made = [len(match.const(f"{CORNERS[0]}_{line}")) for line in LINES]
        sizes = [match.size(name) or 1 for name in ("h", "w")]
        return np.asarray([1, 1, *(scale(size, new) or 1 for size, new in zip(sizes, made, strict=True))], np.float32)

    made: Op = op.Resize(
        x, region, computed("scales", scales), mode="linear", coordinate_transformation_mode=_mode(match)
    )
    return made


def _taken(name: str) -> Pattern:
    rows = op.Gather(x, const(f"{name}_rows"), axis=2).kept()
    made: Op = op.Gather(rows, const(f"{name}_columns"), axis=3)
    return made


def _between(one: Pattern, other: Pattern, share: str) -> Pattern:
    return one + (other - one) * const(share)


corners = [_taken(name) for name in CORNERS]
above = _between(corners[0], corners[1], "across").named("above")
below = _between(corners[2], corners[3], "across").named("below")


def _made(mode: str) -> dict[str, Any]:
    """The constants of an instance, of the size that the rule test gives the shares."""

    def number(axis: int) -> Any:
        def find(build: Any) -> tuple[Array, Array, Array]:
            size, shape = build.dims("x")[2 + axis], build.dims(SHARES[axis])
            found = np.clip(places(mode, size, shape[0]), 0, size - 1)
            first = np.floor(found).astype(np.int64)
            return first, np.minimum(first + 1, size - 1), (found - first).reshape(shape)

        return find

    def part(axis: int, index: int) -> Any:
        def make(build: Any) -> ir.Value:
            made: ir.Value = build.constant(number(axis)(build)[index])
            return made

        return make

    found = {share: part(axis, 2) for axis, share in enumerate(SHARES)}
    for corner, name in enumerate(CORNERS):
        found |= {f"{name}_rows": part(0, corner // 2), f"{name}_columns": part(1, corner % 2)}
    return found


def _to(rows: int, columns: int, **sizes: Any) -> dict[str, Any]:
    """Shapes for an image of so many rows and columns."""
    lines = {f"{name}_{line}": str(made) for name in CORNERS for line, made in zip(LINES, (rows, columns), strict=True)}
    return {**sizes, "across": str(columns), "down": f"{rows} 1", **lines}


RULES = [
    Rule(
        name="resize.bilinear_from_gathers",
        formula="a + (b - a) down, a = v[y, x] + (v[y, x + 1] - v[y, x]) across, b the same a row below",
        pattern=_between(above, below, "down"),
        replace=_resized,
        makes=("Resize",),
        guards=(floating("x"), are_places_of_resize),
        exactness=Exactness.ROUNDING,
        source="ONNX operator Resize",
        test=RuleTest(
            shapes=_to(5, 7, c=2, h=3, w=4),
            inputs=_made("half_pixel"),
            opset=17,
            counterexamples={
                "of aligned corners": Variation(inputs=_made("align_corners")),
                "of corners at 0": Variation(inputs=_made("asymmetric")),
                "with other shares": Variation(inputs={"across": lambda build: build.constant(np.linspace(0, 1, 7) ** 2)}),
                "columns mixed": Variation(inputs={f"{CORNERS[0]}_columns": lambda build: build.constant([3, 2, 1, 0, 1, 2, 3])}),
            },
            typical=(
                _to(56, 56, x="1 64 28 28"), _to(28, 28, x="1 256 14 14"), _to(150, 150, x="1 32 64 64"),
                _to(128, 128, x="1 3 256 256"),
            ),
        ),
    )
]  # fmt: skip
