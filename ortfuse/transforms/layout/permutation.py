"""Permutations of axes in Transpose's notation: axis i of the result is axis `order[i]` of the operand."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import TypeAlias

Order: TypeAlias = tuple[int, ...]


def unmoved(rank: int) -> Order:
    """The order that leaves all axes where they are."""
    return tuple(range(rank))


def is_unmoved(order: Order) -> bool:
    """Whether all axes stay where they are."""
    return order == unmoved(len(order))


@functools.cache
def then(first: Order, second: Order) -> Order:
    """The order of a Transpose by `first` followed by one by `second`."""
    return tuple(first[axis] for axis in second)


@functools.cache
def between(start: Order, end: Order) -> Order:
    """The Transpose that makes of what lies in order `start` what lies in order `end`."""
    return tuple(start.index(axis) for axis in end)


def inverse(order: Order) -> Order:
    """The order of the Transpose that undoes one."""
    return between(order, unmoved(len(order)))


def swaps_last_two(order: Order) -> bool:
    """Whether the last two axes are swapped and nothing else is moved."""
    rank = len(order)
    return rank >= 2 and order == (*range(rank - 2), rank - 1, rank - 2)


def extended(part: Sequence[int], rank: int) -> Order:
    """An order of all axes that has those of `part` in its order, each other one behind the axis before it."""
    order = list(part)
    present = set(part)
    for axis in range(rank):
        if axis not in present:
            order.insert(order.index(axis - 1) + 1 if axis else 0, axis)
    return tuple(order)


def restricted(order: Iterable[int], axes: Sequence[int]) -> Order:
    """The order of a value that has only `axes`, in that sequence, where all axes lie in `order`."""
    place = {axis: index for index, axis in enumerate(axes)}
    return tuple(place[axis] for axis in order if axis in place)
