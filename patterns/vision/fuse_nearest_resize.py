"""Fuse images enlarged by repeated pixels to Resize in mode nearest, and merge two such Resizes.

repeat(x, r, s) = rearrange(x, b c h w -> b c (h r) (w s)) = resize(x, [1, 1, r, s])        the nearest pixel
resize(resize(x, a), b) = resize(x, a b), of whole pixels
x[..., grid of rows and columns] = x[..., rows, :][..., columns]

Every pixel becomes a block: as Reshape, Expand and Reshape (4 to 40 times slower on four sizes), or as Gathers of rows and
columns (3 to 18 times slower). For other sizes, some rows and columns are gathered more often than others.
torch.export gathers pixels by GatherND, with their axes moved to the front and back.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.dims import DimLike
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, Op, Pattern, all_attributes, computed, const, op, opt, rearrange, var

from ._resize_coordinates import NEAREST, Array, nearest, scale

x = var("x")


def blocks_are_known(match: Match) -> Refusal | None:
    """Rows or columns are repeated, a known number of times, and not as operands of products."""
    if _is_for_attention(match.root):
        return match.refuse("needless", "root", found="products of matrices alone use it")
    sizes = [match.size(name) for name in ("r", "s") if name in match.dims]
    if None not in sizes and max(size or 0 for size in sizes) > 1:
        return None
    return match.refuse("condition", "root", "rows or columns repeated a known number of times", f"of {sizes}")


_MOVES = frozenset({"Transpose", "Reshape", "Squeeze", "Unsqueeze"})


def _is_for_attention(value: ir.Value) -> bool:
    """Whether products of matrices alone use it, as they do keys and values whose heads are repeated."""
    level = [value]
    while level:
        users = [user for value in level for user in value.consumers()]
        if not users or any(user.op_type not in _MOVES | {"MatMul", "Attention"} for user in users):
            return False
        level = [user.outputs[0] for user in users if user.op_type in _MOVES]
    return True


_NEAREST: dict[str, Any] = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}

# Before opset 13 a region has to be given, although it means nothing here.
region = computed("region", lambda match: np.zeros(0, np.float32))


def _enlarged(scales: Any) -> Op:
    made: Op = op.Resize(x, region, computed("scales", lambda match: np.asarray([1, 1, *scales(match)], np.float32)),
                         **_NEAREST)  # fmt: skip
    return made


def _mode(match: Match) -> tuple[str, str] | None:
    """The way in which the nearest pixels are those of the indices; `None` if there is none, or no pixel is repeated."""
    taken = [match.const(name) for name in ("rows", "columns")]
    sizes = [match.size("h"), match.size("w")]
    if any(indices.ndim != 1 or not len(indices) for indices in taken) or not all(sizes):
        return None
    if not any(len(np.unique(indices)) < len(indices) for indices in taken):
        return None
    return next((way for way in NEAREST if all(map(partial(_are_nearest, way), taken, sizes))), None)


def _are_nearest(way: tuple[str, str], indices: Array, size: int | None) -> bool:
    found = nearest(*way, size or 1, len(indices))
    return found is not None and np.array_equal(found, indices)


def are_nearest_pixels(match: Match) -> Refusal | None:
    """The indices name the rows and columns that are nearest in one of the modes of the operator, some of them repeatedly."""
    return (
        None if _mode(match) is not None else match.unless_value("rows", False, "the nearest pixels of a resized image")
    )


def _nearest_pixels(match: Match) -> Pattern:
    mode, rounding = _mode(match) or NEAREST[0]
    made: Op = op.Resize(x, region, computed("scales", _scales_of_indices), mode="nearest",
                         coordinate_transformation_mode=mode, nearest_mode=rounding)  # fmt: skip
    return made


def _scales_of_indices(match: Match) -> Array:
    pairs = zip((match.size("h"), match.size("w")), ("rows", "columns"), strict=True)
    return np.asarray([1, 1, *(scale(size or 1, len(match.const(name))) for size, name in pairs)], np.float32)


def is_a_grid(match: Match) -> Refusal | None:
    """The indices are those of every one of some rows in every one of some columns."""
    return None if _grid(match.const("places")) is not None else match.unless_value("places", False, "a grid")


def _grid(places: Array) -> tuple[Array, Array] | None:
    """The rows and columns that make up a grid of places, [rows, columns, 2]."""
    if places.ndim != 3 or places.shape[2] != 2 or not places.size:
        return None
    rows, columns = places[:, 0, 0], places[0, :, 1]
    whole = np.stack(np.meshgrid(rows, columns, indexing="ij"), -1)
    return (rows, columns) if np.array_equal(places, whole) else None


def _line(axis: int) -> Any:
    def line(match: Match) -> Array:
        found = _grid(match.const("places"))
        assert found is not None
        return found[axis]

    return computed(("rows", "columns")[axis], line)


image = var("x", "b c h w")
rows, columns = const("rows"), const("columns")


def _repeated(before: str, after: str) -> Pattern:
    return rearrange(f"{before} -> {after}", var("x", before))


gathered: Pattern = op.Gather(op.Gather(image, rows, axis=2), columns, axis=3)
gathered = gathered | op.Gather(op.Gather(image, columns, axis=3), rows, axis=2)
_LAST = (2, 3, 0, 1)
"""The permutation that brings rows and columns to the front, and back again."""


def _taken(way: tuple[str, str], name: str, axis: int) -> Any:
    """The indices along an axis for the size that the rule test gives them."""

    def make(build: Any) -> ir.Value:
        size = build.dims("x")[axis]
        made: ir.Value = build.constant(nearest(*way, size, int(build.shapes[name])))
        return made

    return make


def _rows_and_columns(way: tuple[str, str]) -> dict[str, Any]:
    return {"rows": _taken(way, "rows", 2), "columns": _taken(way, "columns", 3)}


# Twice in a row

_COPYING = {("asymmetric", "floor"), ("half_pixel", "round_prefer_floor")}
"""The ways in which the nearest pixel of an image that is enlarged a whole number of times is the one at that place."""


def _resized(operand: Pattern, name: str) -> Op:
    inputs = [opt(var(f"{name}_{kind}")) for kind in ("roi", "scales", "sizes")]
    made: Op = op.Resize(operand, *inputs, attributes=all_attributes(name)).named(f"{name}_result")
    return made


def _copies(match: Match, name: str, source: str) -> list[int] | None:
    """The number of copies of pixels along each axis; `None` if something else is done or the numbers are not known."""
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
    """The factor by which an axis grows."""
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


_PLACES = np.stack(np.meshgrid([1, 0, 1], [0, 3], indexing="ij"), -1)

RULES = [
    Rule(
        name="resize.nearest_from_repeat",
        pattern=(_repeated("b c h w", "b c (h r) (w s)") | _repeated("b c h", "b c (h r)")).named("repeated"),
        replace=_enlarged(lambda match: [match.size(times) for times in ("rs", "r")[match.choice("repeated")]]),
        guards=(blocks_are_known,),
        exactness=Exactness.EXACT,
        source="ONNX operator Resize",
        test=RuleTest(
            shapes=({"c": 3, "r": 2, "s": 3, "h": 4, "w": 5, "x": "b 3 4 5"}, {"c": 3, "r": 2, "h": 4, "x": "b 3 4"}),
            alternatives=[{"repeated": axes} for axes in (0, 1)],
        ),
    ),
    Rule(
        name="resize.gather_nd_grid_to_two_gathers",
        formula="x[..., grid of rows and columns]",
        pattern=op.Transpose(op.GatherND(op.Transpose(image, perm=_LAST).kept(), const("places"), batch_dims=0), perm=_LAST),
        replace=op.Gather(op.Gather(x, _line(0), axis=2), _line(1), axis=3),
        guards=(is_a_grid,),
        exactness=Exactness.EXACT,
        source="ONNX operators Gather and GatherND",
        test=RuleTest(
            shapes={"x": "b 3 2 4", "places": "3 2 2"},
            constants={"places": _PLACES},
            counterexamples={
                "one is elsewhere": Variation(constants={"places": np.where(_PLACES == 3, 2, _PLACES)}),
                "columns before rows": Variation(constants={"places": _PLACES[..., ::-1] % 2}),
            },
            opset=17,
        ),
    ),
    Rule(
        name="resize.nearest_from_gathers",
        formula="x[..., rows, columns], the nearest to those of an image of another size",
        pattern=gathered,
        replace=_nearest_pixels,
        makes=("Resize",),
        guards=(are_nearest_pixels,),
        exactness=Exactness.EXACT,
        source="ONNX operator Resize",
        test=RuleTest(
            shapes={"x": "b 3 2 3", "rows": "4", "columns": "9"},
            inputs=_rows_and_columns(NEAREST[0]),
            counterexamples={
                "one is left out": Variation(inputs={"rows": lambda build: build.constant([0, 0, 0, 0])}),
                "in another order": Variation(inputs={"columns": lambda build: build.constant(np.tile(np.arange(3), 3))}),
                "none is repeated": Variation(inputs={"rows": lambda build: build.constant([1, 0])}),
                **{
                    f"by {' and '.join(way)}": Variation(
                        inputs=_rows_and_columns(way), shapes={"rows": "5", "columns": "7"}
                    )
                    for way in NEAREST
                },
            },
            typical=(
                {"x": "1 64 28 28", "rows": "56", "columns": "56"},
                {"x": "1 256 14 14", "rows": "28", "columns": "28"},
                {"x": "1 32 64 64", "rows": "150", "columns": "150"},
            ),
        ),
    ),
    Rule(
        name="resize.resize_of_resize",
        formula="Resize(Resize(x)), both of whole pixels",
        pattern=_resized(_resized(x, "first"), "second"),
        replace=op.Resize(x, region, computed("scales", _at_once), **_NEAREST),
        guards=(both_copy_pixels,),
        exactness=Exactness.EXACT,
        source="ONNX operator Resize",
        test=RuleTest(
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
