"""The fewest operators that make one array of another, found by trying all chains.

The elements of the array are all different, so that two chains are equal if their results are. The operators are Reshape,
Transpose, Slice, Gather at one index, Expand and Pad with zeros; a Tile is slower than an Expand between two Reshapes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

MOST_AXES = 4


def fewest(source: Array, wanted: Array, most: int) -> int | None:
    """Return the fewest operators that make an array of another one; `None` if they are not fewer than `most`."""
    if _same(source, wanted):
        return 0
    seen = {_key(source)}
    states = [source]
    for count in range(1, most):
        if any(is_one_step(state, wanted) for state in states):
            return count
        if count + 1 >= most:
            return None
        following: list[Array] = []
        for state in states:
            for after in steps(state, wanted):
                if (key := _key(after)) not in seen:
                    seen.add(key)
                    following.append(after)
        states = following
    return None


def _key(array: Array) -> tuple[tuple[int, ...], bytes]:
    return array.shape, array.tobytes()


def _same(one: Array, other: Array) -> bool:
    return one.shape == other.shape and bool((one == other).all())


def is_one_step(array: Array, wanted: Array) -> bool:
    """Return whether one operator makes an array of another one."""
    if array.size == wanted.size and bool((array.reshape(-1) == wanted.reshape(-1)).all()):
        return True
    if array.ndim == wanted.ndim:
        if sorted(array.shape) == sorted(wanted.shape) and any(
            _same(array.transpose(perm), wanted) for perm in permutations(range(array.ndim))
        ):
            return True
        if _is_slice(array, wanted) or _is_pad(array, wanted):
            return True
    if array.ndim == wanted.ndim + 1 and any(
        _same(array.take(index, axis), wanted) for axis in range(array.ndim) for index in range(array.shape[axis])
    ):
        return True
    return _is_expand(array, wanted)


def _is_slice(array: Array, wanted: Array) -> bool:
    """Evenly spaced elements along each axis: those of the first and the second one wanted tell where they are."""
    if not wanted.size or any(few > size for few, size in zip(wanted.shape, array.shape, strict=True)):
        return False
    first = np.argwhere(array == wanted.reshape(-1)[0])
    if len(first) != 1:
        return False
    windows: list[Any] = []
    for axis, size in enumerate(wanted.shape):
        start = int(first[0][axis])
        step = 1
        if size > 1:
            place = [0] * wanted.ndim
            place[axis] = 1
            second = np.argwhere(array == wanted[tuple(place)])
            if len(second) != 1:
                return False
            step = int(second[0][axis]) - start
        places = [start + step * number for number in range(size)]
        if step == 0 or min(places) < 0 or max(places) >= array.shape[axis]:
            return False
        windows.append(places)
    return _same(array[np.ix_(*windows)], wanted)


def _is_pad(array: Array, wanted: Array) -> bool:
    if not array.size or any(size < few for size, few in zip(wanted.shape, array.shape, strict=True)):
        return False
    found = np.argwhere(wanted == array.reshape(-1)[0])
    for corner in found:
        ends = [start + size for start, size in zip(corner, array.shape, strict=True)]
        if all(end <= size for end, size in zip(ends, wanted.shape, strict=True)):
            whole = np.zeros_like(wanted)
            whole[tuple([slice(start, end) for start, end in zip(corner, ends, strict=True)])] = array
            if _same(whole, wanted):
                return True
    return False


def _is_expand(array: Array, wanted: Array) -> bool:
    try:
        return wanted.ndim >= array.ndim and _same(np.broadcast_to(array, wanted.shape), wanted)
    except ValueError:
        return False


def steps(array: Array, wanted: Array) -> Iterator[Array]:
    """Yield what single operators make of an array, as far as chains to another one may need it."""
    for shape in _shapes(array.size, MOST_AXES):
        if shape != array.shape:
            yield array.reshape(shape)
    for perm in permutations(range(array.ndim)):
        if perm != tuple(range(array.ndim)):
            yield array.transpose(perm)
    for axis, size in enumerate(array.shape):
        for index in range(size):
            yield array.take(index, axis)
        for step in (1, 2, 3, -1, -2):
            for start in range(size):
                for end in range(start + 1, size + 1) if step > 0 else range(start - 1, -2, -1):
                    window = range(start, end, step)
                    if 0 < len(window) < size or (step < 0 and len(window) == size):
                        yield array.take(list(window), axis)
    if wanted.size > array.size:
        for axis, size in enumerate(array.shape):
            if size == 1:
                yield from (array.repeat(count, axis) for count in (2, 3))


def _shapes(size: int, most: int) -> Iterator[tuple[int, ...]]:
    """Yield the shapes of a number of elements, those with one axis of size 1 included."""
    if most == 1:
        yield (size,)
        return
    for first in range(1, size + 1):
        if size % first == 0:
            for rest in _shapes(size // first, most - 1):
                if (first, *rest).count(1) < 2:
                    yield (first, *rest)
    yield from _shapes(size, most - 1)
