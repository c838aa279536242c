"""Index maps of operators that take elements: Slice, Split, Gather, GatherElements, GatherND."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ortfuse.analysis.index_maps.element_expressions import MOST_PIECES, Element, Select, lifted, number_of
from ortfuse.analysis.index_maps.index_map_query import Moving, element_map
from ortfuse.analysis.transfer.transfer_function_registry import UnknownError, normalize_axes
from ortfuse.ir.dims import DimLike, is_nonnegative, maximum, minimum, total

_OPEN_ENDS = frozenset({2**31 - 1, 2**63 - 1})
"""Ends of Slices with negative steps that ONNX and the runtime read differently."""


@element_map("Slice")
def slice_(op: Moving) -> Element:
    """Evenly spaced elements along axes."""
    shape, place = op.known_shape(0), list(op.place)
    if op.version < 10:
        starts: Sequence[DimLike | None] | None = op.attr_ints("starts")
        ends: Sequence[DimLike | None] | None = op.attr_ints("ends")
        axes, steps = op.attr_ints("axes"), None
    else:
        starts, ends = op.integers(1), op.integers(2)
        if starts is None or None in starts:
            (count,) = op.known_shape(1)
            starts = [number_of(op.at(1, (number,))) for number in range(count if isinstance(count, int) else 0)]
        axes = op.constants(3) if op.has(3) else None
        steps = op.constants(4) if op.has(4) else None
    if starts is None:
        raise UnknownError
    axes = normalize_axes(range(len(starts)) if axes is None else axes, len(shape))
    for number, axis in enumerate(axes):
        step = 1 if steps is None else steps[number]
        if step < 0 and (ends is None or ends[number] is None or ends[number] in _OPEN_ENDS):
            raise UnknownError
        place[axis] = _first(shape[axis], starts[number], step) + step * place[axis]
    return op.at(0, place)


def _first(size: DimLike, start: DimLike | None, step: int) -> DimLike:
    """The first position that a Slice takes, if it takes any.

    Raises:
        UnknownError: That is not known.
    """
    if start is None or step == 0:
        raise UnknownError
    if is_nonnegative(start):
        return start if step > 0 else minimum(start, size - 1)
    if start == -1:
        return size - 1
    if is_nonnegative(-1 - start):
        return maximum(0, size + start)
    raise UnknownError


@element_map("Split")
def split(op: Moving) -> Element:
    """A part along an axis."""
    if len(op.node.outputs) > MOST_PIECES:
        raise UnknownError
    place = list(op.place)
    axis = op.axis("axis", 0, len(place))
    before: list[DimLike] = []
    for output in op.node.outputs:
        if output is op.output:
            place[axis] = place[axis] + total(before)
            return op.at(0, place)
        shape = op.analysis.fact(output).shape
        if shape is None:
            break
        before.append(shape[axis])
    raise UnknownError


def _from_front(index: Element, size: DimLike, at: Callable[[DimLike], Element]) -> Element:
    """The element at an index along an axis; a negative one is counted from the end."""

    def found(one: Element) -> Element:
        formula = number_of(one)
        if isinstance(formula, int):
            return at(formula if formula >= 0 else formula + size)
        return Select(formula, at(formula), at(formula + size))

    return lifted(found, index)


@element_map("Gather")
def gather(op: Moving) -> Element:
    """The elements at indices along an axis."""
    data, place = op.known_shape(0), op.place
    axis, count = op.axis("axis", 0, len(data)), len(op.known_shape(1))
    behind = place[axis + count :]
    index = op.at(1, place[axis : axis + count])
    return _from_front(index, data[axis], lambda one: op.at(0, (*place[:axis], one, *behind)))


@element_map("GatherElements")
def gather_elements(op: Moving) -> Element:
    """One element for each index."""
    data, place = op.known_shape(0), op.place
    axis = op.axis("axis", 0, len(data))
    return _from_front(op.at(1, place), data[axis], lambda one: op.at(0, (*place[:axis], one, *place[axis + 1 :])))


@element_map("GatherND")
def gather_nd(op: Moving) -> Element:
    """The elements at lists of indices."""
    data, indices, place = op.known_shape(0), op.known_shape(1), op.place
    batch, count = op.attr_int("batch_dims", 0), indices[-1]
    if not isinstance(count, int):
        raise UnknownError
    where, behind = place[: len(indices) - 1], place[len(indices) - 1 :]

    def element(number: int, found: tuple[DimLike, ...]) -> Element:
        if number == count:
            return op.at(0, (*where[:batch], *found, *behind))
        index = op.at(1, (*where, number))
        return _from_front(index, data[batch + number], lambda one: element(number + 1, (*found, one)))

    return element(0, ())
