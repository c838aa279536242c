"""Index maps of operators that put elements at indices: ScatterElements, ScatterND. The indices have to rise evenly.

An element of the result is that update whose index it is, if there is one: the function from the places of updates to indices is
inverted, axis by axis. It has to have an inverse, because nothing says which of two updates of one element is the last.
"""

from __future__ import annotations

from dataclasses import dataclass

from ortfuse.analysis.index_maps.box import Box, atom_of, axes, has_axes
from ortfuse.analysis.index_maps.concat_pad_where import chosen_if
from ortfuse.analysis.index_maps.element_expressions import Element, number_of, simplest
from ortfuse.analysis.index_maps.index_map_query import Moving, element_map
from ortfuse.analysis.index_maps.prove_inequalities import is_never_negative
from ortfuse.analysis.transfer.transfer_function_registry import UnknownError
from ortfuse.ir.dims import DimLike, floor_div, symbols
from ortfuse.ir.dims.polynomial import split_off


@dataclass(frozen=True)
class _Inverse:
    """The place of the update along an axis, and formulas that are at least 0 if there is one."""

    place: DimLike
    conditions: tuple[DimLike, ...]


@element_map("ScatterElements", "Scatter")
def scatter_elements(op: Moving) -> Element:
    """The data, with updates at indices along an axis."""
    _demand_assignment(op)
    place, sizes = list(op.place), op.known_shape(1)
    axis = op.axis("axis", 0, len(place))
    index = _index(op, axes(len(sizes)), op.known_shape(0)[axis])
    found = _inverse(index, axis, place[axis], sizes[axis])
    conditions = [
        sizes[number] - 1 - here
        for number, here in enumerate(place)
        if number != axis and sizes[number] != op.shape_after[number]
    ]
    place[axis] = found.place
    return chosen_if([*conditions, *found.conditions], op.at(2, place), op.at(0, op.place))


@element_map("ScatterND")
def scatter_nd(op: Moving) -> Element:
    """The data, with updates at lists of indices."""
    _demand_assignment(op)
    data, sizes, place = op.known_shape(0), op.known_shape(1), op.place
    count, batch = sizes[-1], sizes[:-1]
    if not isinstance(count, int):
        raise UnknownError
    left = {number for number, size in enumerate(batch) if size != 1}
    update: list[DimLike] = [0] * len(batch)
    conditions: list[DimLike] = []
    for number in range(count):
        index = _index(op, (*axes(len(batch)), number), data[number])
        along = _axis_of(index, len(batch))
        if along is None:
            conditions += [place[number] - index, index - place[number]]
            continue
        if along not in left:
            raise UnknownError
        left.remove(along)
        found = _inverse(index, along, place[number], batch[along])
        update[along] = found.place
        conditions += found.conditions
    if left:
        raise UnknownError
    open_ones = [formula for formula in conditions if not is_never_negative(formula, op.box)]
    return chosen_if(open_ones, op.at(2, (*update, *place[count:])), op.at(0, place))


def _demand_assignment(op: Moving) -> None:
    if op.attr_str("reduction", "none") != "none":
        raise UnknownError


def _index(op: Moving, place: tuple[DimLike, ...], size: DimLike) -> DimLike:
    """The index for an update, counted from the front.

    Raises:
        UnknownError: It is no formula, or may be negative in one place and not in another.
    """
    box = Box.of_shape(op.known_shape(1))
    formula = number_of(simplest(op.at(1, place), box))
    if is_never_negative(formula, box):
        return formula
    if is_never_negative(-1 - formula, box):
        return formula + size
    raise UnknownError


def _axis_of(index: DimLike, count: int) -> int | None:
    """The one axis of the updates along which an index rises.

    Raises:
        UnknownError: There are several.
    """
    found = [number for number in range(count) if split_off(index, atom_of(number))[1] != 0]
    if len(found) > 1 or (not found and has_axes(index)):
        raise UnknownError
    return found[0] if found else None


def _inverse(index: DimLike, axis: int, here: DimLike, size: DimLike) -> _Inverse:
    """Return the place along an axis of this size at which the index is `here`."""
    rest, step = split_off(index, atom_of(axis))
    if any(_contains(formula, axis) for formula in (rest, step)):
        raise UnknownError
    if size == 1:
        index = rest
        return _Inverse(0, (here - index, index - here))
    if not isinstance(step, int) or step == 0:
        raise UnknownError
    distance = here - rest if step > 0 else rest - here
    place = floor_div(distance, abs(step))
    multiple = () if abs(step) == 1 else (abs(step) * place - distance,)
    return _Inverse(place, (place, size - 1 - place, *multiple))


def _contains(formula: DimLike, axis: int) -> bool:
    return atom_of(axis).name in symbols(formula)
