"""Class `Range`: the set of numbers that the elements of a tensor can have.

Integers and truth values are Python integers, exact at any size; floats are numbers of the element type, stored as float64.
Zeros of different sign are not distinguished. A range holds for every element, and so says nothing about an empty tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.dims import DimLike, bounds

Number = int | float
Piece = tuple[Number, Number]
"""The lowest and the highest of some numbers, which may be equal."""

MAX_LEVELS = 8
"""The most single numbers that a range keeps separately."""

FAR = 1e30
"""Larger numbers are kept separate as long as possible, so that one that stands for "none" is not mixed with data."""

LARGEST_CONSTANT = 1 << 22
"""Constants with more elements than this are not read."""

_LARGEST_SIZE = 1 << 60
"""Upper bound of numbers computed from the sizes of tensors, if nothing else bounds them."""

_EXACT = 1 << 53
_SAMPLE = 64


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers that the elements of a value can be, in every run of the model.

    Attributes:
        points: single numbers.
        interval: the lowest and the highest of the other numbers, None if there are only points.
        nan: whether an element may be NaN.
    """

    points: frozenset[Number]
    interval: Piece | None = None
    nan: bool = False

    @property
    def pieces(self) -> list[Piece]:
        """The points and the interval."""
        return [(point, point) for point in self.points] + ([] if self.interval is None else [self.interval])

    @property
    def low(self) -> Number:
        """The lowest number."""
        return min(low for low, _ in self.pieces)

    @property
    def high(self) -> Number:
        """The highest number."""
        return max(high for _, high in self.pieces)

    @property
    def levels(self) -> frozenset[Number] | None:
        """Every number there can be, if they are few and none is NaN."""
        return self.points if self.interval is None and not self.nan else None

    @property
    def is_finite(self) -> bool:
        """Whether no element is infinite or NaN."""
        return not self.nan and -math.inf < self.low and self.high < math.inf

    @property
    def truths(self) -> frozenset[int]:
        """The possible values of a Boolean: 0 (false), 1 (true) or both."""
        return frozenset(truth for truth in (0, 1) if self.holds(truth))

    def holds(self, number: Number) -> bool:
        """Whether an element may be this number."""
        return any(low <= number <= high for low, high in self.pieces)


def of_pieces(pieces: Iterable[Piece], nan: bool = False) -> Range | None:
    """The range that contains all these numbers; None if there are none."""
    pieces = list(pieces)
    points = {low for low, high in pieces if low == high}
    wide = [piece for piece in pieces if piece[0] != piece[1]]
    if len(points) > MAX_LEVELS:
        near = {point for point in points if abs(point) < FAR}
        # Too many single numbers are merged into an interval: neighbouring ones first and, if that is not enough, all of them.
        merged = near if len(points - near) <= MAX_LEVELS else points
        wide.append((min(merged), max(merged)))
        points -= merged
    if not wide:
        return Range(frozenset(points), None, nan) if points else None
    low, high = min(low for low, _ in wide), max(high for _, high in wide)
    return Range(frozenset(point for point in points if not low <= point <= high), (low, high), nan)


def one_of(*numbers: Number) -> Range:
    """The range of a few given numbers."""
    return Range(frozenset(numbers))


def between(low: Number, high: Number, nan: bool = False) -> Range:
    """The range between two numbers."""
    return Range(frozenset((low,)), None, nan) if low == high else Range(frozenset(), (low, high), nan)


TRUTHS = one_of(0, 1)


def limits(dtype: ir.DataType) -> Piece:
    """The lowest and the highest number of an element type (infinities for floats)."""
    if dtype == ir.DataType.BOOL:
        return 0, 1
    if dtype.is_floating_point():
        return -math.inf, math.inf
    if dtype.bitwidth < 8:
        return -8, 15
    found = np.iinfo(dtype.numpy())
    return int(found.min), int(found.max)


def anything(dtype: ir.DataType) -> Range:
    """Everything that an element type can hold."""
    return TRUTHS if dtype == ir.DataType.BOOL else between(*limits(dtype), nan=dtype.is_floating_point())


def whatever_fits(dtype: ir.DataType | None) -> Range | None:
    """Everything that a truth value or integer can be; None for other types, about which nothing is then known."""
    return anything(dtype) if dtype is not None and (dtype == ir.DataType.BOOL or dtype.is_integer()) else None


def union(parts: Iterable[Range]) -> Range | None:
    """The union of ranges."""
    parts = list(parts)
    return of_pieces([piece for part in parts for piece in part.pieces], any(part.nan for part in parts))


def of_array(array: np.ndarray[Any, Any]) -> Range | None:
    """The range of an array; None if it is empty, too large, or holds text or complex numbers."""
    if array.dtype.kind not in "fiubV" or not 0 < array.size <= LARGEST_CONSTANT:
        return None
    whole = array.dtype.kind in "iub"
    flat = array.reshape(-1) if whole else array.reshape(-1).astype(np.float64, copy=False)
    low, high = flat.min(), flat.max()
    nan = bool(not whole and np.isnan(low))
    if nan:
        flat = flat[~np.isnan(flat)]
        if not flat.size:
            return None
        low, high = flat.min(), flat.max()
    pieces: list[Piece] = []
    if not whole and (low <= -FAR or high >= FAR):
        far = np.abs(flat) >= FAR
        pieces += _pieces(flat[far])
        flat = flat[~far]
    return of_pieces(pieces + _pieces(flat), nan)


def _pieces(flat: np.ndarray[Any, Any]) -> list[Piece]:
    """The single numbers if there are few, else the interval from the lowest to the highest."""
    if not flat.size:
        return []
    # A prefix with many different numbers settles it without sorting a large table.
    if len(np.unique(flat[:_SAMPLE])) <= MAX_LEVELS:
        numbers = np.unique(flat)
        if len(numbers) <= MAX_LEVELS:
            return [(number, number) for number in numbers.tolist()]
    return [(flat.min().item(), flat.max().item())]


def of_sizes(elements: Iterable[DimLike], dtype: ir.DataType) -> Range | None:
    """The range of integers computed from sizes: they stay within the bounds of their formulas and do not wrap around."""
    lowest, highest = limits(dtype)
    pieces: list[Piece] = []
    for element in elements:
        low, high = bounds(element)
        low, high = -_LARGEST_SIZE if low is None else low, _LARGEST_SIZE if high is None else high
        pieces.append((min(max(low, lowest), highest), max(min(high, highest), lowest)))
    return of_pieces(pieces)


def of_indices(size: DimLike) -> Range:
    """The range of the indices of an axis of a size; nothing is an index of an axis of size 0."""
    _, most = bounds(size)
    return between(0, max(_LARGEST_SIZE if most is None else most, 1) - 1)


def stored(pieces: Iterable[Piece], dtype: ir.DataType, nan: bool = False) -> Range | None:
    """Real numbers as an element type stores them: floats are rounded, possibly to infinity; integers may wrap around."""
    pieces = list(pieces)
    if dtype == ir.DataType.BOOL or dtype.is_integer():
        low, high = limits(dtype)
        fits = all(low <= first and last <= high for first, last in pieces)
        return of_pieces(pieces, nan) if fits and dtype.bitwidth >= 8 else anything(dtype)
    if dtype not in _ROUNDED or not pieces:
        return None
    with np.errstate(all="ignore"):
        ends = np.array([(_float(low, -1), _float(high, 1)) for low, high in pieces]).astype(dtype.numpy())
    return of_pieces([(low, high) for low, high in ends.astype(np.float64).tolist()], nan)


_ROUNDED = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


def _float(number: Number, outwards: int) -> float:
    """A number as float64; an integer too long for that is rounded outwards."""
    found = float(number)
    if isinstance(number, int) and abs(number) > _EXACT:
        found += outwards * abs(found) * 2.0**-6
    return found
