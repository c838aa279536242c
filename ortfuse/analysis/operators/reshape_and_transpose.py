"""Operators that rearrange all elements of a tensor (Reshape, Transpose, DepthToSpace) or return its sizes (Shape,
Size).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.ranges.bounds_by_sizes import Ends, bounds, bounds_of
from ortfuse.analysis.ranges.last_axis_repeats_halves_or_pairs import (
    if_last_axis_is_kept,
    in_pairs,
    keeps_size,
    operand_repeats,
    periods,
)
from ortfuse.analysis.ranges.queries import Asking, columns, ranges
from ortfuse.analysis.ranges.range import Range
from ortfuse.analysis.ranges.vector_norms import (
    norm_of,
    norm_question,
    norms,
)
from ortfuse.analysis.transfer.evaluate_small_tensors import Arrays, moves_elements
from ortfuse.analysis.transfer.transfer_function_registry import (
    Op,
    UnknownError,
    normalize_axes,
    normalize_axis,
    transfer,
)
from ortfuse.analysis.transfer.value_fact import UNKNOWN, Fact, Shape, static_shape
from ortfuse.ir.dims import (
    Dim,
    DimLike,
    exact_div,
    floor_div,
    is_broadcast_of,
    is_nonnegative,
    is_nonzero,
    is_positive,
    product,
)
from ortfuse.ir.operator_registry import describe
from ortfuse.ir.traits import FILLS, JOINS, MOVES, RESHAPES


@transfer("Reshape")
def reshape(op: Op) -> Fact:
    """Reshape to the target in input 1 (an attribute before opset 5)."""
    data = op.fact(0)
    target = op.integers(1) if op.version >= 5 else op.attr_ints("shape")
    if target is None:
        return Fact(data.dtype, rank_of_target(op.shape(1)))
    return moved(data, reshaped(data.shape, target, allow_zero=op.attr_int("allowzero", 0) == 1))


def rank_of_target(shape: Shape | None) -> Shape | None:
    """Unknown dimensions, one for each element of a shape tensor of the given shape."""
    if shape is None or len(shape) != 1 or not isinstance(shape[0], int):
        return None
    return (UNKNOWN,) * shape[0]


def moved(source: Fact, shape: Shape | None) -> Fact:
    """The same elements in the same order, with another shape."""
    return Fact(source.dtype, shape, source.elements())


def reshaped(data: Shape | None, target: tuple[DimLike | None, ...], *, allow_zero: bool) -> Shape:
    """The shape that Reshape gives a tensor of shape `data`.

    A symbolic element of the target means itself if it can be neither -1 nor, with ``allowzero=0``, a 0 that copies the input's
    dimension (see `_means_itself`); otherwise that dimension is unknown.
    """
    if not allow_zero:
        target = tuple([one if _means_itself(one, i, data) else None for i, one in enumerate(target)])
    else:
        target = tuple([one if not isinstance(one, Dim) or is_nonnegative(one) else None for one in target])
    dims: list[DimLike] = []
    open_at: int | None = None
    known = True
    for position, element in enumerate(target):
        if element == -1:
            open_at = position
            dims.append(UNKNOWN)
        elif element is None:
            known = False
            dims.append(UNKNOWN)
        elif element == 0 and not allow_zero:
            dims.append(data[position] if data is not None and position < len(data) else UNKNOWN)
        else:
            dims.append(element)
    if data is None:
        return tuple(dims)
    if open_at is not None and known:
        dims[open_at] = _remaining(data, dims, open_at)
    elif open_at is None and not known:
        _solve_single(data, target, dims)
    return tuple(dims)


def _means_itself(element: DimLike | None, position: int, data: Shape | None) -> bool:
    """Whether an element of a target is that size in every run, although a 0 copies a size of the input.

    It is if it can be 0 only where the size in its place is. If it is 0 because it divides the number of elements, the result
    is as empty as the input only if the size in its place is 0 too, or if another element of the target makes it so: one that is
    -1 or happens to be 0 too, neither of which is considered.
    """
    if not isinstance(element, Dim) or is_positive(element):
        return True
    if data is None or not is_nonnegative(element):
        return False
    if position < len(data):
        there = data[position]
        if is_broadcast_of(there, element) or is_positive(exact_div(element, there) or 0):
            return True
    total = product(data)
    return total != 0 and exact_div(total, element) is not None


def _remaining(data: Shape, dims: list[DimLike], position: int) -> DimLike:
    """The size that -1 stands for: the input's element count divided by the other dimensions (other sizes are runtime errors)."""
    left, right = list(data), [dim for index, dim in enumerate(dims) if index != position]
    for dim in list(right):
        if dim in left:  # cancelling equal dimensions first keeps the polynomials small
            left.remove(dim)
            right.remove(dim)
    divisor = product(right)
    return UNKNOWN if divisor == 0 else floor_div(product(left), divisor)


def _solve_single(data: Shape, target: tuple[DimLike | None, ...], dims: list[DimLike]) -> None:
    """Find the only unknown dimension of a target without -1 from the number of elements, if it is certain."""
    if target.count(None) != 1:
        return
    position = target.index(None)
    others = product([dim for index, dim in enumerate(dims) if index != position])
    found = exact_div(product(data), others) if is_nonzero(others) else None
    if found is not None:
        dims[position] = found


@moves_elements("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape_arrays(op: Op, arrays: Arrays, results: tuple[Fact, ...]) -> Arrays:
    """The elements in the shape of the result."""
    return [arrays[0].reshape(static_shape(results[0].shape) or ())]


@transfer("Flatten")
def flatten(op: Op) -> Fact:
    """A matrix: the product of the dimensions before `axis` by the product of the others."""
    data = op.fact(0)
    if data.shape is None:
        return Fact(data.dtype, (UNKNOWN, UNKNOWN))
    axis = op.attr_int("axis", 1)
    axis = axis + len(data.shape) if axis < 0 else axis
    return moved(data, (product(data.shape[:axis]), product(data.shape[axis:])))


@transfer("Squeeze")
def squeeze(op: Op) -> Fact:
    """Remove dimensions of size 1: those of `axes`, or all."""
    data = op.fact(0)
    axes = op.int_list("axes", 1)
    shape = op.known_shape()
    if axes is not None and not axes:
        return Fact(data.dtype)  # an empty list means all dimensions to the runtime, none to ONNX
    if axes is None:
        if not all(dim == 1 or is_nonzero(dim - 1) for dim in shape):
            raise UnknownError  # whether a symbolic dimension is removed depends on the run
        return moved(data, tuple([dim for dim in shape if dim != 1]))
    removed = normalize_axes(axes, len(shape))
    return moved(data, tuple([dim for index, dim in enumerate(shape) if index not in removed]))


@transfer("Unsqueeze")
def unsqueeze(op: Op) -> Fact:
    """Insert dimensions of size 1 so that they stand at `axes`."""
    data = op.fact(0)
    axes = op.int_list("axes", 1)
    shape = op.known_shape()
    if axes is None:
        raise UnknownError
    rank = len(shape) + len(axes)
    if len(axes) == 1:
        axis = normalize_axis(axes[0], rank)
        return moved(data, (*shape[:axis], 1, *shape[axis:]))
    inserted = normalize_axes(axes, rank)
    if len(set(inserted)) != len(axes):
        raise UnknownError  # a repeated axis is invalid
    rest = iter(shape)
    return moved(data, tuple([1 if index in inserted else next(rest) for index in range(rank)]))


@transfer("Transpose")
def transpose(op: Op) -> Fact:
    """Permute the dimensions; reversed without `perm`."""
    data = op.fact(0)
    perm = op.attr_ints("perm")
    if data.shape is None:
        return Fact(data.dtype, None if perm is None else (UNKNOWN,) * len(perm))
    if perm is None:
        perm = tuple(range(len(data.shape)))[::-1]
    if len(perm) != len(data.shape):
        raise UnknownError
    elements = data.elements() if len(perm) < 2 else None
    return Fact(data.dtype, tuple([data.shape[axis] for axis in perm]), elements)


@moves_elements("Transpose")
def transpose_arrays(op: Op, arrays: Arrays, results: tuple[Fact, ...]) -> Arrays:
    """The elements with permuted axes."""
    return [np.transpose(arrays[0], op.attr_ints("perm"))]


@columns("Transpose")
def transposed_column(op: Asking) -> Range | None:
    """The answer for the operand if the last axis remains the last one."""
    return op.range(0) if _last_stays_last(op) else None


def _last_stays_last(op: Asking) -> bool:
    """Whether a Transpose leaves the last axis in place."""
    perm = op.attr_ints("perm")
    return bool(perm) and perm is not None and perm[-1] == len(perm) - 1


periods("Transpose")(if_last_axis_is_kept(_last_stays_last))


@norms("Transpose")
def transposed_norm(op: Asking) -> float | None:
    """The answer for the operand along the axis that ends up here."""
    rank = len(op.known_shape(0))
    perm = op.attr_ints("perm") or tuple(range(rank))[::-1]
    return norm_of(op, 0, axis=perm[norm_question(op).axis + rank] - rank)


@transfer("SpaceToDepth", "DepthToSpace")
def depth_space(op: Op) -> Fact:
    """Move blocks of pixels between space and channels."""
    batch, channels, height, width = _four(op.known_shape())
    block = op.attr_int("blocksize", 1)
    if op.node.op_type == "SpaceToDepth":
        channels, height, width = channels * block**2, floor_div(height, block), floor_div(width, block)
    else:
        channels, height, width = floor_div(channels, block**2), height * block, width * block
    return Fact(op.dtype(), (batch, channels, height, width))


def _four(shape: Shape) -> tuple[DimLike, DimLike, DimLike, DimLike]:
    if len(shape) != 4:
        raise UnknownError
    return shape[0], shape[1], shape[2], shape[3]


@transfer("Shape")
def shape_(op: Op) -> Fact:
    """The dimensions of the input from `start` to `end`."""
    shape = op.shape()
    if shape is None:
        return Fact(ir.DataType.INT64, (UNKNOWN,))
    if op.version >= 15:
        end = op.attribute("end")
        shape = shape[_clamped(op.attr_int("start", 0), len(shape)) : _clamped(end, len(shape))]
    return Fact(ir.DataType.INT64, (len(shape),), shape)


def _clamped(index: int | None, rank: int) -> int:
    if index is None:
        return rank
    return max(0, min(rank, index + rank if index < 0 else index))


@transfer("Size")
def size(op: Op) -> Fact:
    """The number of elements of the input."""
    shape = op.shape()
    return Fact(ir.DataType.INT64, (), None if shape is None else (product(shape),))


@ranges(*(MOVES - JOINS - FILLS - {"Identity"}))
def moved_range(op: Asking) -> Range | None:
    """Elements of the first operand."""
    return op.range(0)


@bounds(*(MOVES - JOINS - FILLS))
def moved_bounds(op: Asking) -> Ends:
    """Those of the operand."""
    return bounds_of(op, 0)


@columns(*RESHAPES)
def reshaped_column(op: Asking) -> Range | None:
    """The answer for the operand if the last axis keeps its size, or has size 1."""
    before, after = op.known_shape(0), op.result.shape
    if not before or before[-1] == 1 or (after and before[-1] == after[-1]):
        return op.range(0)
    return None


@periods(*RESHAPES)
def reshape_period(op: Asking) -> bool:
    """A repeating operand if the last axis keeps its size; pairs also if they had an axis of their own."""
    if keeps_size(op):
        return operand_repeats(op)
    before, after = op.known_shape(0), op.result.shape or ()
    merged = len(before) > 1 and before[-1] == 2 and before[-2] * 2 == after[-1]
    return in_pairs(op) and merged and operand_repeats(op)


@norms(*RESHAPES)
def reshaped_norm(op: Asking) -> float | None:
    """Along an axis that is kept, split or merged, with the axes behind it as they were."""
    before, after, asked = op.known_shape(0), op.result.shape, norm_question(op)
    if after is None:
        return None
    place = asked.axis + len(after)
    behind = [dim for dim in after[place + 1 :] if dim != 1]
    for axis in range(-1, -len(before) - 1, -1):
        if [dim for dim in before[axis + len(before) + 1 :] if dim != 1] == behind and before[axis] != 1:
            return _resized_norm(op, axis, before[axis], after[place])
    return None


def _resized_norm(op: Asking, axis: int, old: Any, new: Any) -> float | None:
    part = norm_question(op).part
    if old == new:
        return norm_of(op, 0, axis=axis)
    if not isinstance(old, int) or not isinstance(new, int):
        return None
    if old % new == 0:  # split: consecutive parts
        return norm_of(op, 0, axis=axis, part=new if part is None else part)
    if new % old == 0 and part is None:  # merged
        return norm_of(op, 0, axis=axis) * math.sqrt(new // old)
    return norm_of(op, 0, axis=axis) if part is not None and old % part == 0 else None


describe("Reshape", size_operands=(1,))
