"""Channels of a layer in values that are moved or averaged from its result, by index maps."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.index_maps import ELEMENT_MAPS, Element, Fill, Read, Select, axes
from ortfuse.analysis.index_maps.evaluation import formula_values
from ortfuse.analysis.linear_maps.carriers import carried
from ortfuse.ir.dims import Dim, DimLike, substituted, symbols
from ortfuse.ir.traits import MOVES, has

Array: TypeAlias = "np.ndarray[Any, Any]"

MOST_CARRIERS = 4
"""The most means and maxima between a map and a layer."""

LARGEST_GRID = 1 << 20
"""The most positions that are looked at for the channels that stand there."""


@dataclass(frozen=True)
class Reading:
    """Elements of a source that stand in a value.

    Attributes:
        source: The source.
        index: The position along each of its axes as a formula of the position in the value; `None` if several are combined.
        conditions: Formulas that are at least 0 where they stand.
        is_maximum: Whether they are maxima of elements.
    """

    source: ir.Value
    index: tuple[DimLike | None, ...]
    conditions: tuple[DimLike, ...]
    is_maximum: bool = False


@dataclass(frozen=True)
class Readings:
    """The elements that a value is made of.

    Attributes:
        read: Those of other values.
        has_zeros: Whether there are zeros among them, as padding.
    """

    read: tuple[Reading, ...]
    has_zeros: bool


def readings_of(
    value: ir.Value, facts: Facts, depth: int = MOST_CARRIERS, sources: Collection[ir.Value] = ()
) -> Readings | None:
    """Return the elements that a value is made of, through movement, means and maxima.

    Args:
        value: The value.
        facts: The facts.
        depth: The most means and maxima on the way.
        sources: Values that are taken as they are.

    Returns:
        The elements; `None` if there are other numbers among them.
    """
    found = facts.index_map(value, sources)
    if found is None:
        return None
    read: list[Reading] = []
    has_zeros = False
    for element, conditions in _pieces(found.element, ()):
        if isinstance(element, Read):
            inner = _through(Reading(element.value, element.index, conditions), facts, depth)
            if inner is None:
                return None
            read += inner.read
            has_zeros = has_zeros or inner.has_zeros
        elif isinstance(element, Fill) and not any(element.content):
            has_zeros = True
        else:
            return None
    return Readings(tuple(read), has_zeros)


def _pieces(element: Element, conditions: tuple[DimLike, ...]) -> Iterator[tuple[Element, tuple[DimLike, ...]]]:
    if isinstance(element, Select):
        yield from _pieces(element.then, (*conditions, element.condition))
        yield from _pieces(element.otherwise, (*conditions, -element.condition - 1))
    else:
        yield element, conditions


def _through(reading: Reading, facts: Facts, depth: int) -> Readings | None:
    """The elements of whatever an operator combines to those that are read, if it is one that carries maps."""
    node = reading.source.producer()
    how = None if node is None or not depth else carried(node, facts)
    if how is None or node is None or node.inputs[0] is None:
        return Readings((reading,), False)
    inner = readings_of(node.inputs[0], facts, depth - 1)
    if inner is None:
        return None
    known = {f"@{before}": reading.index[after] for before, after in how.axes.items()}
    read = tuple(
        replace(
            one,
            index=tuple(_moved(formula, known) for formula in one.index),
            conditions=(*reading.conditions, *_known(one.conditions, known)),
            is_maximum=one.is_maximum or how.is_maximum or reading.is_maximum,
        )
        for one in inner.read
    )
    return Readings(read, inner.has_zeros)


def _moved(formula: DimLike | None, known: dict[str, DimLike | None]) -> DimLike | None:
    """A formula of positions by others; `None` if it depends on one along which elements are combined."""
    if formula is None or not isinstance(formula, Dim):
        return formula
    formulas = {name: known.get(name) for name in symbols(formula) if name.startswith("@")}
    if None in formulas.values():
        return None
    return substituted(formula, {name: one for name, one in formulas.items() if one is not None})


def _known(conditions: Sequence[DimLike], known: dict[str, DimLike | None]) -> Iterator[DimLike]:
    """Those of conditions that do not depend on positions along which elements are combined."""
    for condition in conditions:
        if (moved := _moved(condition, known)) is not None:
            yield moved


def axes_in(formula: DimLike | None) -> frozenset[int]:
    """Return the axes whose positions a formula depends on."""
    names = symbols(formula) if isinstance(formula, Dim) else ()
    return frozenset(int(name[1:]) for name in names if name.startswith("@"))


def by_channel(
    constant: Array, neutral: float, shape: Sequence[DimLike], reading: Reading, axis: int, channels: int
) -> Array | None:
    """Return a constant of a value as one number for each channel of a source, `neutral` for those that do not stand in it.

    Args:
        constant: Numbers that broadcast to the value.
        neutral: The number of other channels.
        shape: The shape of the value.
        reading: The elements of the source in the value.
        axis: The axis of the channels in the source.
        channels: Their number.

    Returns:
        The numbers; `None` if one belongs to no single channel, or a channel has several.
    """
    formula = reading.index[axis]
    if constant.size == 1:
        return np.full(channels, float(constant.reshape(())))
    if formula is None or constant.ndim > len(shape):
        return None
    wide = constant.reshape((1,) * (len(shape) - constant.ndim) + constant.shape)
    varying = {number for number, size in enumerate(wide.shape) if size != 1}
    if not varying <= axes_in(formula):
        return None
    grid = _grid(shape, axes_in(formula))
    if grid is None or any(wide.shape[number] != shape[number] for number in varying):
        return None
    places = _values(formula, grid)
    if places is None or places.min(initial=0) < 0:
        return None
    numbers = wide[tuple(grid[number] if number in varying else 0 for number in range(len(shape)))].reshape(-1)
    numbers = np.broadcast_to(numbers, places.shape)
    for condition in reading.conditions:
        if axes_in(condition) and axes_in(condition) <= axes_in(formula):
            holds = _values(condition, grid)
            if holds is None:
                return None
            inside = holds >= 0
            places, numbers, grid = places[inside], numbers[inside], grid[:, inside]
    if places.size and places.max() >= channels:
        return None
    result = np.full(channels, neutral)
    result[places] = numbers
    return result if bool(np.all(result[places] == numbers)) else None


def along(constant: Array, rank: int, reading: Reading, axis: int, size: int) -> tuple[Array, Array] | None:
    """Return the positions along an axis of a value at which elements of a source stand, and a constant of the source there.

    Args:
        constant: Numbers that broadcast to the source.
        rank: The number of axes of the source.
        reading: The elements of the source in the value.
        axis: The axis of the value.
        size: Its size.

    Returns:
        The positions and numbers; `None` if they depend on the position along another axis too.
    """
    grid = np.zeros((axis + 1, size), np.int64)
    grid[axis] = np.arange(size)
    for condition in reading.conditions:
        if axes_in(condition) != {axis}:
            continue  # more positions than there are may be looked at, but not fewer
        holds = _values(condition, grid)
        if holds is None:
            return None
        grid = grid[:, holds >= 0]
    wide = constant.reshape((1,) * (rank - constant.ndim) + constant.shape)
    chosen: list[Array | int] = []
    for number, count in enumerate(wide.shape):
        formula = reading.index[number]
        if count == 1:
            chosen.append(0)
            continue
        places = _values(formula, grid) if formula is not None and axes_in(formula) <= {axis} else None
        if places is None or places.min(initial=0) < 0 or places.max(initial=0) >= count:
            return None
        chosen.append(places)
    return grid[axis], np.broadcast_to(wide[tuple(chosen)], grid[axis].shape)


def channels_read(shape: Sequence[DimLike], reading: Reading, axis: int) -> Array | None:
    """Return the channels of a source that stand in a value, and perhaps some more; `None` if that is not known.

    Args:
        shape: The shape of the value.
        reading: The elements of the source in the value.
        axis: The axis of the channels in the source.
    """
    formula = reading.index[axis]
    grid = None if formula is None else _grid(shape, axes_in(formula))
    return None if formula is None or grid is None else _values(formula, grid)


def _grid(shape: Sequence[DimLike], axes: frozenset[int]) -> Array | None:
    """All positions along some axes of known size, 0 along the others: a row for each axis."""
    sizes = [shape[axis] if axis in axes else 1 for axis in range(len(shape))]
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) != len(sizes) or not 0 < np.prod(known, dtype=np.int64) <= LARGEST_GRID:
        return None
    return np.indices(known).reshape(len(known), -1)


def _values(formula: DimLike, grid: Array) -> Array | None:
    """The values of a formula; `None` if it depends on sizes that are not known."""
    try:
        return formula_values(formula, grid, {})
    except KeyError:
        return None


def whole(value: ir.Value, rank: int) -> Readings:
    """Return the elements of a value, each where it is."""
    return Readings((Reading(value, axes(rank), ()),), False)


def is_moved_or_carried(node: ir.Node, facts: Facts) -> bool:
    """Return whether readings are followed through a node."""
    return (has(node, MOVES) and ELEMENT_MAPS.of(node) is not None) or carried(node, facts) is not None
