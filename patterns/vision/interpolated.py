"""Images resized by the means of the four pixels around each place, as one operator.

v[y, x] = pixels taken at constant places          a = v[y, x] + (v[y, x + 1] - v[y, x]) across, b the same a row below
resize(image) = a + (b - a) down

torch.export decomposes interpolate so: every pixel is read four times, each time with its axes moved to the front and back.
Places are taken for those of the operator if they differ by rounding alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ortfuse.pattern import Match, Op, Pattern, computed, const, op, var
from ortfuse.refusal import Refusal
from ortfuse.rewrite import Exactness, Proof, Rule, Variation

from .._common import floating
from .resizing import region

Array = np.ndarray[Any, Any]

x = var("x", "b c h w")
CORNERS = ("above_left", "above_right", "below_left", "below_right")


def _aligned(size: int, made: int) -> Array:
    return np.arange(made) * ((size - 1) / max(made - 1, 1))


def _half_pixel(size: int, made: int) -> Array:
    return (np.arange(made) + 0.5) * (size / made) - 0.5


def _asymmetric(size: int, made: int) -> Array:
    return np.arange(made) * (size / made)


PLACES: Mapping[str, Callable[[int, int], Array]] = {
    "half_pixel": _half_pixel,
    "align_corners": _aligned,
    "asymmetric": _asymmetric,
}
"""Where the pixels of an image that is made lie in the one it is made of, by coordinate_transformation_mode."""


def _along(match: Match, axis: int) -> Array | None:
    """The places along an axis, 0 for rows and 1 for columns, in pixels; `None` if they are not the same throughout."""
    taken = [match.const(name) for name in CORNERS]
    shape, share = taken[0].shape, match.const("across" if axis else "down")
    if (
        len(shape) != 3
        or shape[2] != 2
        or not np.all(np.isfinite(share))
        or any(places.shape != shape for places in taken)
    ):
        return None
    if share.shape[-1:] != shape[1:2] if axis else share.shape[-2:] != (shape[0], 1):
        return None
    numbers = [places[..., axis] if axis else places[..., axis].T for places in taken]
    if share.size != shape[axis] or any(
        not np.array_equal(one, np.broadcast_to(one[:1], one.shape)) for one in numbers
    ):
        return None
    lines = [one[0].astype(np.float64) for one in numbers]
    first, second = lines[0], lines[1 if axis else 2]
    pairs = (lines[2], lines[3]) if axis else (lines[1], lines[3])
    if not (np.array_equal(first, pairs[0]) and np.array_equal(second, pairs[1])):
        return None
    wide = (second != first) & (second != first + 1)
    return None if np.any(wide) or np.any(first < 0) else first + (second - first) * share.reshape(-1)


def _mode(match: Match) -> str | None:
    """The coordinate_transformation_mode whose places these are."""
    found = [_along(match, axis) for axis in (0, 1)]
    sizes = match.size("h"), match.size("w")
    fits = []
    for places, size in zip(found, sizes, strict=True):
        if places is None or not size or not len(places) or _scale(size, len(places)) is None:
            return None
        fits.append({name for name, wanted in PLACES.items() if _are_near(places, wanted(size, len(places)), size)})
    return next((name for name in PLACES if all(name in fit for fit in fits)), None)


def _are_near(places: Array, wanted: Array, size: int) -> bool:
    return bool(np.all(np.abs(places - np.clip(wanted, 0, size - 1)) <= 1e-6 * max(size, 16)))


def _scale(size: int, made: int) -> np.float32 | None:
    """A factor, as float32, with which the operator makes an image of exactly that size."""
    scale = np.float32(made / size)
    candidates = (scale, np.nextafter(scale, np.float32(np.inf)))
    return next((one for one in candidates if int(np.float32(one * np.float32(size))) == made), None)


def are_places_of_resize(match: Match) -> Refusal | None:
    """Places and shares are those of the operator in one of its modes, for an image of known size."""
    return None if _mode(match) is not None else match.refuse("condition", "root", "pixels evenly apart")


def _resized(match: Match) -> Pattern:
    def scales(match: Match) -> Array:
        made = [match.const(CORNERS[0]).shape[axis] for axis in (0, 1)]
        sizes = [match.size(name) or 1 for name in ("h", "w")]
        return np.asarray([1, 1, *(_scale(size, new) or 1 for size, new in zip(sizes, made, strict=True))], np.float32)

    made: Op = op.Resize(
        x, region, computed("scales", scales), mode="linear", coordinate_transformation_mode=_mode(match)
    )
    return made


pixels = op.Transpose(x, perm=(2, 3, 0, 1)).kept()


def _taken(name: str) -> Pattern:
    made: Op = op.Transpose(op.GatherND(pixels, const(name)), perm=(2, 3, 0, 1))
    return made


def _between(one: Pattern, other: Pattern, share: str) -> Pattern:
    return one + (other - one) * const(share)


corners = [_taken(name) for name in CORNERS]
above = _between(corners[0], corners[1], "across").named("above")
below = _between(corners[2], corners[3], "across").named("below")


def _constants(mode: str, size: tuple[int, int], made: tuple[int, int]) -> dict[str, Array]:
    """The constants of an instance."""
    places = [np.clip(PLACES[mode](old, new), 0, old - 1) for old, new in zip(size, made, strict=True)]
    first = [np.floor(one).astype(np.int64) for one in places]
    second = [np.minimum(one + 1, old - 1) for one, old in zip(first, size, strict=True)]
    rows, columns = (first[0], second[0]), (first[1], second[1])
    grids = [np.stack(np.meshgrid(row, column, indexing="ij"), -1) for row, column in itertools.product(rows, columns)]
    return {
        **dict(zip(CORNERS, grids, strict=True)),
        "across": places[1] - first[1],
        "down": (places[0] - first[0])[:, None],
    }


_CONSTANTS = _constants("half_pixel", (3, 4), (5, 7))

RULES = [
    Rule(
        name="resize.interpolated",
        formula="a + (b - a) down, a = v[y, x] + (v[y, x + 1] - v[y, x]) across, b the same a row below",
        pattern=_between(above, below, "down"),
        replace=_resized,
        makes=("Resize",),
        guards=(floating("x"), are_places_of_resize),
        exactness=Exactness.ROUNDING,
        source="ONNX operator Resize",
        proof=Proof(
            shapes={"c": 2, "h": 3, "w": 4, "across": "7", "down": "5 1", **dict.fromkeys(CORNERS, "5 7 2")},
            constants=_CONSTANTS,
            opset=17,
            counterexamples={
                "of aligned corners": Variation(constants=_constants("align_corners", (3, 4), (5, 7))),
                "of corners at 0": Variation(constants=_constants("asymmetric", (3, 4), (5, 7))),
                "with other shares": Variation(constants={"across": _CONSTANTS["across"] ** 2}),
                "columns mixed": Variation(constants={CORNERS[0]: _CONSTANTS[CORNERS[0]][:, ::-1]}),
            },
        ),
    )
]
