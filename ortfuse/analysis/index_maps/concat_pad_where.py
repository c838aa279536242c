"""Index maps of operators that put together elements of several tensors: Concat, Pad, Where, Trilu, EyeLike, OneHot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ortfuse.analysis.index_maps.element_expressions import (
    MOST_PIECES,
    Element,
    Number,
    Select,
    fill_of,
    lifted,
    number_of,
)
from ortfuse.analysis.index_maps.index_map_query import Moving, element_map
from ortfuse.analysis.index_maps.prove_inequalities import is_never_negative
from ortfuse.analysis.index_maps.reshape_transpose_expand import reshaped_place
from ortfuse.analysis.transfer.transfer_function_registry import UnknownError, normalize_axes
from ortfuse.ir.dims import DimLike, mod


def chosen_if(conditions: Sequence[DimLike], then: Element, otherwise: Element) -> Element:
    """Return the first element where all formulas are at least 0, else the second."""
    for condition in reversed(conditions):
        if condition != 0:
            then = Select(condition, then, otherwise)
    return then


def constant_of(op: Moving, number: int) -> Element:
    """Return the element of a tensor of the type of the output that holds one number.

    Raises:
        UnknownError: Its type is unknown, or has no numbers.
    """
    dtype = op.result_dtype
    if dtype.name in ("STRING", "UNDEFINED"):
        raise UnknownError
    return fill_of(dtype, np.array([number]).astype(dtype.numpy())[0])


@element_map("Concat")
def concat(op: Moving) -> Element:
    """Elements of each operand, one after the other along an axis."""
    if len(op.inputs) > MOST_PIECES:
        raise UnknownError
    place = op.place
    axis = op.axis("axis", 1, len(place))
    found: Element | None = None
    ends: list[DimLike] = [0]
    for index in range(len(op.inputs)):
        ends.append(ends[-1] + op.known_shape(index)[axis])
    for index in reversed(range(len(op.inputs))):
        part = op.at(index, (*place[:axis], place[axis] - ends[index], *place[axis + 1 :]))
        found = part if found is None else Select(ends[index + 1] - 1 - place[axis], part, found)
    if found is None:
        raise UnknownError
    return found


@element_map("Pad")
def pad(op: Moving) -> Element:
    """The elements, and a number or elements again around them."""
    shape, mode = op.known_shape(0), op.attr_str("mode", "constant")
    given = op.integers(1) if op.version >= 11 else op.attr_ints("pads" if op.version >= 2 else "paddings")
    axes = normalize_axes(op.constants(3), len(shape)) if op.has(3) else tuple(range(len(shape)))
    if given is None or len(given) != 2 * len(axes):
        raise UnknownError
    pads = {axis: (given[number], given[number + len(axes)]) for number, axis in enumerate(axes)}
    if mode == "constant":
        return _padded_with_number(op, pads, shape)
    return _padded_with_elements(op, pads, shape, mode)


Pads = dict[int, tuple["DimLike | None", "DimLike | None"]]


def _padded_with_number(op: Moving, pads: Pads, shape: Sequence[DimLike]) -> Element:
    place, conditions = list(op.place), list[DimLike]()
    for axis, (before, behind) in pads.items():
        if before is None or behind is None:
            raise UnknownError
        place[axis] = place[axis] - before
        conditions += [place[axis]] if before != 0 else []
        conditions += [shape[axis] - 1 - place[axis]] if behind != 0 else []
    return chosen_if(conditions, op.at(0, place), _padding(op)) if conditions else op.at(0, place)


def _padding(op: Moving) -> Element:
    if op.version >= 11 and op.has(2):
        return op.at(2, (0,) * len(op.known_shape(2)))
    number = op.attribute("value") if op.version < 11 else None
    if number:
        raise UnknownError
    return constant_of(op, 0)


def _padded_with_elements(op: Moving, pads: Pads, shape: Sequence[DimLike], mode: str) -> Element:
    """Elements of the tensor beyond its ends, whose index along each axis is a choice between formulas."""

    def element(place: tuple[DimLike, ...], left: tuple[int, ...]) -> Element:
        if not left:
            return op.at(0, place)
        (axis, *others), size = left, shape[left[0]]
        before, behind = pads[axis]
        if before is None or behind is None or mode not in ("edge", "reflect", "wrap"):
            raise UnknownError
        here = place[axis] - before

        def along(position: DimLike) -> Element:
            return element((*place[:axis], position, *place[axis + 1 :]), tuple(others))

        if mode == "wrap":
            return along(mod(here, size))
        first, last = (0, size - 1) if mode == "edge" else (-here, 2 * (size - 1) - here)
        found = along(here) if behind == 0 else Select(size - 1 - here, along(here), along(last))
        return found if before == 0 else Select(here, found, along(first))

    cut = any(isinstance(number, int) and number < 0 for pair in pads.values() for number in pair)
    if cut:
        raise UnknownError
    return element(op.place, tuple(axis for axis, pair in pads.items() if pair != (0, 0)))


@element_map("Where")
def where(op: Moving) -> Element:
    """Elements of one or the other tensor, by a condition that the position decides.

    Rationale: The runtime's kernel gives zeros of the first tensor the sign of a zero of the second: the map is what ONNX says.
    """
    condition, then, otherwise = op.broadcast_at(0), op.broadcast_at(1), op.broadcast_at(2)
    if then == otherwise:
        return then
    return lifted(lambda one: Select(number_of(one) - 1, then, otherwise), condition)


@element_map("Trilu")
def trilu(op: Moving) -> Element:
    """The elements on one side of a diagonal, and zeros."""
    *_, row, column = op.place
    found = op.integers(1) if op.has(1) else (0,)
    diagonal = found[0] if found else None
    if diagonal is None:
        raise UnknownError
    past = column - row - diagonal
    return Select(past if op.attr_int("upper", 1) else -past, op.at(0, op.place), constant_of(op, 0))


@element_map("EyeLike")
def eye_like(op: Moving) -> Element:
    """Ones on a diagonal, and zeros."""
    row, column = op.place
    past = column - row - op.attr_int("k", 0)
    return chosen_if([past, -past], constant_of(op, 1), constant_of(op, 0))


@element_map("OneHot")
def one_hot(op: Moving) -> Element:
    """The second of two numbers at the index, the first elsewhere."""
    place, depth = op.place, op.integers(1)
    axis = op.axis("axis", -1, len(place))
    size = depth[0] if depth else None
    if size is None:
        raise UnknownError
    here, off, on = place[axis], op.at(2, (0,)), op.at(2, (1,))

    def lit(index: Element) -> Element:
        formula = number_of(index)
        plain, wrapped = here - formula, here - formula - size
        counted = chosen_if([plain, -plain], on, off)
        return Select(formula, counted, chosen_if([wrapped, -wrapped], on, off))

    return lifted(lit, op.at(0, (*place[:axis], *place[axis + 1 :])))


@element_map("ConstantOfShape")
def constant_of_shape(op: Moving) -> Element:
    """One number."""
    tensor = op.attribute("value")
    return constant_of(op, 0) if tensor is None else fill_of(tensor.dtype, tensor.numpy().reshape(-1)[0])


@element_map("NonZero")
def non_zero(op: Moving) -> Element:
    """The positions of all elements, if none is 0."""
    found = op.map_of(0)
    if (
        not found.shape
        or not isinstance(found.element, Number)
        or not is_never_negative(found.element.formula - 1, op.box.of_shape(found.shape))
    ):
        raise UnknownError
    row, count = op.place
    rows = reshaped_place((count,), (op.shape_after[1],), found.shape)
    element: Element = Number(rows[-1])
    for number in reversed(range(len(rows) - 1)):
        element = Select(number - row, Number(rows[number]), element)
    return element
