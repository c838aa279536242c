"""Operators on sequences of tensors, tracked as far as the length is known."""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.analysis.costs import cost, nothing
from ortfuse.analysis.operators.concat_and_split import concatenated
from ortfuse.analysis.transfer.transfer_function_registry import Op, UnknownError, normalize_axis, transfer
from ortfuse.analysis.transfer.value_fact import UNKNOWN, Fact, Shape
from ortfuse.ir.dims import DimLike
from ortfuse.ir.operator_registry import describe


@transfer("SequenceEmpty")
def sequence_empty(op: Op) -> Fact:
    """The empty sequence."""
    return Fact(items=())


@transfer("SequenceConstruct")
def sequence_construct(op: Op) -> Fact:
    """The inputs as a sequence."""
    return Fact(items=tuple([op.fact(index) for index in range(len(op.inputs))]))


@transfer("SequenceInsert")
def sequence_insert(op: Op) -> Fact:
    """The sequence with a tensor inserted, at the end by default."""
    items = _items(op)
    position = _insertion(op, len(items)) if op.has(2) else len(items)
    return Fact(items=(*items[:position], op.fact(1), *items[position:]))


def _items(op: Op) -> tuple[Fact, ...]:
    items = op.fact(0).items
    if items is None:
        raise UnknownError
    return items


def _insertion(op: Op, length: int) -> int:
    """Before which element to insert; -1 means before the last, and only `length` itself means at the end."""
    position = op.constants(2)[0]
    return length if position == length else normalize_axis(position, length)


@transfer("SequenceErase")
def sequence_erase(op: Op) -> Fact:
    """The sequence with one element removed, by default the last."""
    items = _items(op)
    position = _position(op, 1, len(items)) if op.has(1) else len(items) - 1
    return Fact(items=items[:position] + items[position + 1 :])


def _position(op: Op, index: int, length: int) -> int:
    return normalize_axis(op.constants(index)[0], length)


@transfer("SequenceAt")
def sequence_at(op: Op) -> Fact:
    """One element of the sequence."""
    items = _items(op)
    return items[_position(op, 1, len(items))]


@transfer("SequenceLength")
def sequence_length(op: Op) -> Fact:
    """The number of elements."""
    items = op.fact(0).items
    return Fact(ir.DataType.INT64, (), None if items is None else (len(items),))


@transfer("ConcatFromSequence")
def concat_from_sequence(op: Op) -> Fact:
    """The elements joined along an axis, a new one with ``new_axis``."""
    items = list(_items(op))
    axis = op.attr_int("axis", 0)
    if op.attr_int("new_axis", 0):
        items = [Fact(item.dtype, _with_axis(item.shape, axis)) for item in items]
    return concatenated(items, axis)


def _with_axis(shape: Shape | None, axis: int) -> Shape | None:
    if shape is None:
        return None
    position = normalize_axis(axis, len(shape) + 1)
    return (*shape[:position], 1, *shape[position:])


@transfer("SplitToSequence")
def split_to_sequence(op: Op) -> Fact:
    """The input cut along an axis: into parts of one size, of given sizes, or of size 1."""
    data = op.fact(0)
    shape = op.known_shape()
    axis = op.axis("axis", 0, len(shape))
    sizes = _part_sizes(op, shape[axis])
    keep: list[Shape] = [(size,) for size in sizes]
    if not op.attr_int("keepdims", 1) and (not op.has(1) or op.shape(1) == ()):
        # The runtime minds it if all parts have one size, and fails if that is not 1; the standard, if no size is given.
        if any(size != 1 for size in sizes):
            raise UnknownError
        keep = [()] * len(sizes)
    return Fact(items=tuple([Fact(data.dtype, shape[:axis] + kept + shape[axis + 1 :]) for kept in keep]))


_MAX_LENGTH = 64


def _part_sizes(op: Op, dim: DimLike) -> list[DimLike]:
    if op.has(1) and op.shape(1) != ():
        given = op.integers(1)
        if given is None:
            raise UnknownError
        return [UNKNOWN if size is None else size for size in given]
    step = op.constants(1)[0] if op.has(1) else 1
    if not isinstance(dim, int) or step <= 0 or dim > step * _MAX_LENGTH:
        raise UnknownError
    return [min(step, dim - start) for start in range(0, dim, step)]


cost(
    *("SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceInsert", "SequenceErase", "SequenceLength"),
    *("SplitToSequence", "ConcatFromSequence", "Optional", "OptionalGetElement", "OptionalHasElement"),
)(nothing)

describe("SequenceEmpty", float32_unless="dtype")
