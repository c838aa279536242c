"""Enlarged images.

repeat(x, r, s) = rearrange(x, b c h w -> b c (h r) (w s)) = resize(x, [1, 1, r, s])        the nearest pixel
resize(resize(x, a), b) = resize(x, a b), of whole pixels

Every pixel becomes a block: as Reshape, Expand and Reshape (4 to 40 times slower on four sizes), or as Gathers of rows and
columns (3 to 18 times slower).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.dims import DimLike
from ortfuse.pattern import Match, Op, Pattern, all_attributes, computed, const, op, opt, rearrange, var
from ortfuse.refusal import Refusal
from ortfuse.rewrite import Exactness, Proof, Rule, Variation

x = var("x")


def blocks_are_known(match: Match) -> Refusal | None:
    """Rows or columns are repeated, a known number of times."""
    sizes = [match.size(name) for name in ("r", "s") if name in match.dims]
    if None not in sizes and max(size or 0 for size in sizes) > 1:
        return None
    return match.refuse("condition", "root", "rows or columns repeated a known number of times", f"of {sizes}")


_NEAREST: dict[str, Any] = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}

# Before opset 13 a region has to be given, although it means nothing here.
region = computed("region", lambda match: np.zeros(0, np.float32))


def _enlarged(scales: Any) -> Op:
    made: Op = op.Resize(x, region, computed("scales", lambda match: np.asarray([1, 1, *scales(match)], np.float32)),
                         **_NEAREST)  # fmt: skip
    return made


def _repeats(match: Match, name: str, axis: int) -> int | None:
    """How many times constant indices repeat each element of an axis of known size; `None` if they do something else."""
    shape, indices = match.shape("x"), match.const(name)
    size = None if shape is None or len(shape) != 4 else shape[axis]
    if not isinstance(size, int) or not size or indices.ndim != 1 or len(indices) % size:
        return None
    times = len(indices) // size
    return times if times and np.array_equal(indices, np.repeat(np.arange(size), times)) else None


def repeat_rows_and_columns(match: Match) -> Refusal | None:
    """The indices name every row, and every column, the same number of times, in their order."""
    for name, axis in (("rows", 2), ("columns", 3)):
        if _repeats(match, name, axis) is None:
            return match.unless_value(name, False, f"every index of axis {axis} the same number of times")
    return None


def _both(match: Match) -> list[int | None]:
    return [_repeats(match, "rows", 2), _repeats(match, "columns", 3)]


rows, columns = const("rows"), const("columns")
gathered: Pattern = op.Gather(op.Gather(x, rows, axis=2), columns, axis=3)
gathered = gathered | op.Gather(op.Gather(x, columns, axis=3), rows, axis=2)


def _repeated(name: str, before: str, after: str, scales: Any) -> Rule:
    return Rule(
        name=f"resize.{name}",
        pattern=rearrange(f"{before} -> {after}", var("x", before)),
        replace=_enlarged(scales),
        guards=(blocks_are_known,),
        exactness=Exactness.EXACT,
        source="ONNX operator Resize",
        proof=Proof(shapes={"c": 3, "r": 2, "s": 3, "h": 4, "w": 5}),
    )


# Twice in a row

_COPYING = {("asymmetric", "floor"), ("half_pixel", "round_prefer_floor")}
"""The ways in which the nearest pixel of an image that is enlarged a whole number of times is the one at that place."""


def _resized(operand: Pattern, name: str) -> Op:
    inputs = [opt(var(f"{name}_{kind}")) for kind in ("roi", "scales", "sizes")]
    made: Op = op.Resize(operand, *inputs, attributes=all_attributes(name)).named(f"{name}_result")
    return made


def _copies(match: Match, name: str, source: str) -> list[int] | None:
    """How many times pixels are copied along each axis; `None` if something else is done or the numbers are not known."""
    how, before, after = match[name], match.shape(source), match.shape(f"{name}_result")
    way = how.get("coordinate_transformation_mode", "half_pixel"), how.get("nearest_mode", "round_prefer_floor")
    if how.get("mode", "nearest") != "nearest" or way not in _COPYING or before is None or after is None:
        return None
    scales = None if match[f"{name}_scales"] is None else match.const(f"{name}_scales")
    if scales is not None and scales.size and "axes" not in how:
        whole = scales.shape == (len(before),) and bool(np.all((scales >= 1) & (scales == np.floor(scales))))
        return [int(scale) for scale in scales] if whole else None
    found = [_times(old, new) for old, new in zip(before, after, strict=True)]
    known = [times for times in found if times is not None]
    return known if len(known) == len(found) else None


def _times(before: DimLike, after: DimLike) -> int | None:
    """How many times as large an axis becomes."""
    if not isinstance(before, int) or not isinstance(after, int) or not 0 < before <= after or after % before:
        return None
    return after // before


def both_copy_pixels(match: Match) -> Refusal | None:
    """Each time the image is enlarged by copies of its pixels, a known number of times."""
    for name, source in (("first", "x"), ("second", "first_result")):
        if _copies(match, name, source) is None:
            return match.refuse("condition", f"{name}_result", "every pixel copied a known number of times")
    return None


def _at_once(match: Match) -> Any:
    pairs = zip(_copies(match, "first", "x") or (), _copies(match, "second", "first_result") or (), strict=True)
    return np.asarray([first * second for first, second in pairs], np.float32)


def _scales(name: str, numbers: list[float]) -> Any:
    """Scales, which are float32 whatever the image is; none where sizes say how large it becomes."""
    return lambda build: build.constant(
        np.asarray([] if f"{name}_sizes" in build.shapes else numbers, np.float32), ir.DataType.FLOAT
    )


RULES = [
    _repeated("repeated", "b c h w", "b c (h r) (w s)", lambda match: [match.size("r"), match.size("s")]),
    _repeated("repeated_rows", "b c h w", "b c (h r) w", lambda match: [match.size("r"), 1]),
    _repeated("repeated_columns", "b c h w", "b c h (w r)", lambda match: [1, match.size("r")]),
    _repeated("repeated_samples", "b c h", "b c (h r)", lambda match: [match.size("r")]),
    Rule(
        name="resize.gathered",
        formula="x[..., rows, columns], each row and column several times",
        pattern=gathered,
        replace=_enlarged(_both),
        guards=(repeat_rows_and_columns,),
        exactness=Exactness.EXACT,
        source="ONNX operator Resize",
        proof=Proof(
            shapes={"x": "b 3 2 3", "rows": "4", "columns": "9"},
            constants={"rows": np.repeat(np.arange(2), 2), "columns": np.repeat(np.arange(3), 3)},
            counterexamples={
                "one is left out": Variation(constants={"rows": np.array([0, 0, 0, 0])}),
                "in another order": Variation(constants={"columns": np.tile(np.arange(3), 3)}),
            },
        ),
    ),
    Rule(
        name="resize.twice",
        formula="Resize(Resize(x)), both of whole pixels",
        pattern=_resized(_resized(x, "first"), "second"),
        replace=op.Resize(x, region, computed("scales", _at_once), **_NEAREST),
        guards=(both_copy_pixels,),
        exactness=Exactness.EXACT,
        source="ONNX operator Resize",
        proof=Proof(
            shapes=(
                {"x": "b 3 2 3", "first_roi": "0", "first_scales": "4", "second_roi": "0", "second_scales": "4"},
                {
                    "x": "1 3 2 3", "first_roi": "0", "first_scales": "4", "first_sizes": "4",
                    "second_roi": "0", "second_scales": "4", "second_sizes": "4",
                },
            ),
            inputs={"first_scales": _scales("first", [1, 1, 2, 3]), "second_scales": _scales("second", [1, 1, 2, 1])},
            constants={
                "first_roi": np.zeros(0), "second_roi": np.zeros(0),
                "first_sizes": np.array([1, 3, 4, 9]), "second_sizes": np.array([1, 3, 8, 9]),
            },
            attributes={"first": [_NEAREST, {"mode": "nearest"}], "second": [_NEAREST, {}]},
            counterexamples={
                "by means": Variation(attributes={"second": {"mode": "linear"}}),
                "the pixel before": Variation(
                    attributes={"first": {"mode": "nearest", "nearest_mode": "floor"}}
                ),
                "made smaller": Variation(inputs={"second_scales": _scales("second", [1, 1, 0.5, 1])}),
            },
        ),
    ),
]  # fmt: skip
