"""Draw random elements of an input where its role leaves a choice.

The usual choice differs from seed to seed, so that several sets of inputs show different things: integers that nothing restricts
are small, of both signs, and large in turn; counts go through several numbers. The others are what an exploration tries
(`ortfuse.runtime.inputs.coverage_guided_inputs`).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

Array = np.ndarray[Any, Any]

SMALL = 4
"""Upper bound of integers that neither select nor mask anything, in the usual draw."""

COUNTS = (2, 1, 3, 0, 5, 7)
"""The counts (trip counts, lengths, numbers of repetitions) that are drawn in turn."""

_AXES = 8
"""More elements than this are not the sizes of a tensor."""

_WIDE = 1000
"""Upper bound of the larger ones among usual integers."""

_QUANTISED = frozenset({ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16})
"""Types of quantised numbers and of samples, whose whole range is drawn from."""


class Integers(Enum):
    """The distribution of integers that nothing restricts."""

    USUAL = "small, of both signs, or larger, by seed"
    SMALL = "not negative, and small"
    SIGNED = "of both signs"
    EXTREME = "of both signs, with the least and the largest of the type"


class Masks(Enum):
    """The distribution of masks."""

    PADDED = "rows with tails that are hidden"
    HIDDEN = "some rows are hidden entirely"
    WHOLE = "nothing is hidden"


@dataclass(frozen=True)
class Drawing:
    """The distribution of an input.

    Attributes:
        integers: How integers that nothing restricts are drawn.
        masks: How masks are drawn.
        count: The number that all elements are of an input that tells sizes; `None` for one of `COUNTS` by seed.
        varied: Whether they are small and differ instead.
        truth: The value of all truth values that are no mask; `None` for random ones.
        scale: The scale of floating-point numbers, which are normally distributed.
        offset: Their mean.
    """

    integers: Integers = Integers.USUAL
    masks: Masks = Masks.PADDED
    count: int | None = None
    varied: bool = False
    truth: bool | None = None
    scale: float = 1.0
    offset: float = 0.0

    @property
    def is_special(self) -> bool:
        """Whether it draws numbers that no usual draw has: those at the ends of a type, or negative counts."""
        return self.integers is Integers.EXTREME or (self.count is not None and self.count < 0)


USUAL = Drawing()
EASIER = (Drawing(integers=Integers.SMALL, count=1), Drawing(integers=Integers.SMALL, varied=True))
"""Numbers that models run on which refuse the usual ones."""


def numbers(drawing: Drawing, shape: Sequence[int], rng: np.random.Generator) -> Array:
    """Floating-point numbers."""
    drawn = np.asarray(rng.standard_normal(tuple(shape)))
    return drawn if drawing.scale == 1 and not drawing.offset else np.asarray(drawn * drawing.scale + drawing.offset)


def truths(drawing: Drawing, shape: Sequence[int], rng: np.random.Generator) -> Array:
    """Truth values."""
    drawn = np.asarray(rng.integers(0, 2, tuple(shape)))
    return drawn if drawing.truth is None else np.full_like(drawn, drawing.truth)


def counts(drawing: Drawing, name: str, shape: Sequence[int], seed: int, rng: np.random.Generator) -> Array:
    """Counts; all elements are the same, so that sizes of several axes grow together, unless they are too many for that."""
    if math.prod(shape) > _AXES or drawing.varied:
        return np.asarray(rng.integers(1 if drawing.varied else 0, SMALL, tuple(shape)))
    turn = seed + zlib.crc32(name.encode()) % len(COUNTS)
    return np.full(tuple(shape), COUNTS[turn % len(COUNTS)] if drawing.count is None else drawing.count)


def integers(drawing: Drawing, kind: ir.DataType, shape: Sequence[int], seed: int, rng: np.random.Generator) -> Array:
    """Integers that nothing restricts."""
    shape, limits = tuple(shape), ml_dtypes.iinfo(kind.numpy())  # type: ignore[no-untyped-call]
    if kind in _QUANTISED:
        return np.asarray(rng.integers(limits.min, limits.max, shape, endpoint=True))
    if drawing.integers is Integers.SMALL:
        return np.asarray(rng.integers(0, SMALL, shape))
    if drawing.integers is Integers.EXTREME:
        extremes = np.array([limits.min, limits.min + 1, limits.max - 1, limits.max], kind.numpy())
        usual = _between(-_WIDE, _WIDE, limits, shape, rng).astype(kind.numpy())
        return np.where(rng.random(shape) < 0.25, rng.choice(extremes, shape), usual)
    if drawing.integers is Integers.SIGNED or seed % 3 == 1:
        return _between(-SMALL, SMALL, limits, shape, rng)
    most = SMALL if seed % 3 == 0 else _WIDE
    return _between(0 if seed % 3 == 0 else -_WIDE, most, limits, shape, rng)


def _between(low: int, high: int, limits: Any, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    return np.asarray(rng.integers(max(low, int(limits.min)), min(high, int(limits.max)), shape))
