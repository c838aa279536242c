"""Coordinates of the pixels of a resized image in its source image, by the modes of Resize."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def _aligned(size: int, made: int) -> tuple[Array, int]:
    return np.arange(made) * (size - 1), max(made - 1, 1)


def _half_pixel(size: int, made: int) -> tuple[Array, int]:
    return (2 * np.arange(made) + 1) * size - made, 2 * made


def _asymmetric(size: int, made: int) -> tuple[Array, int]:
    return np.arange(made) * size, made


_FRACTIONS: Mapping[str, Callable[[int, int], tuple[Array, int]]] = {
    "half_pixel": _half_pixel,
    "align_corners": _aligned,
    "asymmetric": _asymmetric,
}
"""The places along an axis as numerators and their denominator, by coordinate_transformation_mode."""

MODES = tuple(_FRACTIONS)


def places(mode: str, size: int, made: int) -> Array:
    """The coordinates of `made` pixels along an axis of `size` pixels."""
    numerators, denominator = _FRACTIONS[mode](size, made)
    return np.asarray(numerators / denominator)


def scale(size: int, made: int) -> np.float32 | None:
    """A factor with which the operator makes an axis exactly that long, in whatever precision; `None` if there is none."""
    factor = np.float32(made / size)
    return next((one for one in (factor, np.nextafter(factor, np.float32(np.inf))) if _makes(one, size) == made), None)


def _makes(factor: np.float32, size: int) -> int | None:
    """The number of pixels that a factor makes of so many; `None` if that depends on the precision."""
    made = {int(np.float32(factor * np.float32(size))), int(float(factor) * size)}
    return made.pop() if len(made) == 1 else None


NEAREST = (
    ("asymmetric", "floor"),
    ("half_pixel", "round_prefer_ceil"),
    ("half_pixel", "round_prefer_floor"),
    ("align_corners", "round_prefer_ceil"),
)
"""The ways to choose the nearest pixel: coordinate_transformation_mode and nearest_mode."""


def nearest(mode: str, rounding: str, size: int, made: int) -> Array | None:
    """The pixels nearest to those places; `None` where the rounding of float32, as the operator computes, is not exact enough."""
    numerators, denominator = _FRACTIONS[mode](size, made)
    factor = scale(size, made)
    if factor is None:
        return None
    exact = _rounded(rounding, numerators, denominator)
    near = _rounded(rounding, _in_float32(mode, size, made, factor).astype(np.float64), 1)
    return np.clip(exact, 0, size - 1).astype(np.int64) if np.array_equal(exact, near) else None


def _rounded(rounding: str, numerators: Array, denominator: int) -> Array:
    if rounding == "floor":
        return numerators // denominator
    if rounding == "round_prefer_ceil":
        return (2 * numerators + denominator) // (2 * denominator)
    return -((denominator - 2 * numerators) // (2 * denominator))


def _in_float32(mode: str, size: int, made: int, factor: np.float32) -> Array:
    numbers, half = np.arange(made, dtype=np.float32), np.float32(0.5)
    if mode == "asymmetric":
        return numbers / factor
    if mode == "half_pixel":
        return (numbers + half) / factor - half
    return numbers * np.float32(size - 1) / np.float32(max(made - 1, 1))
