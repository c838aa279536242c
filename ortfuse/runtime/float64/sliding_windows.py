"""Sliding windows over images: start positions, sizes and padding."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any


def positions(kernel: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The positions of a kernel."""
    return itertools.product(*map(range, kernel))


def within(places: Sequence[Any]) -> tuple[Any, ...]:
    """An index of these places on the axes behind the first two."""
    return (slice(None), slice(None), *places)


def strided(first: Sequence[int], sizes: Sequence[int], steps: Sequence[int]) -> list[slice]:
    """Slices of so many elements from the given ones on."""
    return [
        slice(low, low + (size - 1) * step + 1 if size else low, step)
        for low, size, step in zip(first, sizes, steps, strict=True)
    ]


def or_ones(given: Sequence[int] | None, axes: int) -> list[int]:
    """The number given for each axis, by default 1."""
    return list(given) if given is not None else [1] * axes


def padding(
    auto_pad: str, pads: Sequence[int] | None, sizes: Sequence[int], extents: Sequence[int], steps: Sequence[int]
) -> tuple[list[int], list[int]]:
    """The number of zeros before and behind each axis."""
    axes = len(sizes)
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        totals = [
            max((-(-size // step) - 1) * step + extent - size, 0)
            for size, extent, step in zip(sizes, extents, steps, strict=True)
        ]
        less, more = [total // 2 for total in totals], [total - total // 2 for total in totals]
        return (less, more) if auto_pad == "SAME_UPPER" else (more, less)
    given = list(pads or [0] * (2 * axes)) if auto_pad == "NOTSET" else [0] * (2 * axes)
    return given[:axes], given[axes:]
