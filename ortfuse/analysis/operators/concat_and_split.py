"""Operators that concatenate and split tensors: Concat and Split."""

from __future__ import annotations

import math

import numpy as np

from ortfuse.analysis.ranges.last_axis_repeats_halves_or_pairs import in_pairs, operand_repeats, periods
from ortfuse.analysis.ranges.queries import Asking, columns, is_last, ranges
from ortfuse.analysis.ranges.range import Range, union
from ortfuse.analysis.ranges.vector_norms import norm_of, norm_question, norms
from ortfuse.analysis.transfer.evaluate_small_tensors import Arrays, moves_elements
from ortfuse.analysis.transfer.transfer_function_registry import Op, UnknownError, normalize_axis, transfer
from ortfuse.analysis.transfer.value_fact import MAX_ELEMENTS, UNKNOWN, Element, Elements, Fact, Shape, static_size
from ortfuse.ir.dims import Dim, DimLike, ceil_div, exact_div, is_nonzero, is_positive, total
from ortfuse.ir.operator_registry import describe


@transfer("Concat")
def concat(op: Op) -> Fact:
    """Join along an axis."""
    return concatenated([op.fact(index) for index in range(len(op.inputs))], op.attr_int("axis", 1))


def concatenated(facts: list[Fact], axis: int) -> Fact:
    """The tensors joined along an axis."""
    dtype = next((fact.dtype for fact in facts if fact.dtype is not None), None)
    ranked = next((fact.shape for fact in facts if fact.shape is not None), None)
    if ranked is None:
        return Fact(dtype)
    axis = normalize_axis(axis, len(ranked))
    shapes = [fact.shape if fact.shape is not None else (UNKNOWN,) * len(ranked) for fact in facts]
    # The runtime does not look at the other sizes of an empty part.
    certain = [shape for shape in shapes if is_positive(shape[axis])]
    dims = [_shared([shape[index] for shape in shapes], certain, index) for index in range(len(ranked))]
    sizes = [shape[axis] for shape in shapes]
    dims[axis] = UNKNOWN if any(size is UNKNOWN for size in sizes) else total(sizes)
    return Fact(dtype, tuple(dims), _joined(facts, dims[axis]) if len(ranked) == 1 else None)


def _shared(sizes: list[DimLike], certain: list[Shape], index: int) -> DimLike:
    """The size along an axis that parts have in common: what all say, or those that are not empty."""
    if len(set(sizes)) == 1:
        return sizes[0]
    return best_dim([shape[index] for shape in certain]) if certain else UNKNOWN


def best_dim(dims: list[DimLike]) -> DimLike:
    """The most informative of several equal dimensions: a number, else a formula, else an unknown."""
    for dim in dims:
        if isinstance(dim, int):
            return dim
    return min(dims, key=lambda dim: (dim.fresh, dim.size) if isinstance(dim, Dim) else (False, 0))


def _joined(facts: list[Fact], size: DimLike) -> Elements | None:
    """The concatenated elements of vectors; those of an untracked vector are unknown."""
    if not isinstance(size, int) or size > MAX_ELEMENTS:
        return None
    joined: list[Element] = []
    for fact in facts:
        elements = fact.elements()
        joined += elements if elements is not None else (None,) * (static_size(fact.shape) or 0)
    return tuple(joined)


@moves_elements("Concat")
def concat_arrays(op: Op, arrays: Arrays, results: tuple[Fact, ...]) -> Arrays:
    """The elements of all operands."""
    return [np.concatenate(arrays, axis=op.attr_int("axis", 1))]


@ranges("Concat", by_element=True)
def concat_range(op: Asking) -> Range | None:
    """Elements of all operands. The first column comes from one of them, whatever the axis."""
    return union(op.ranges())


@columns("Concat")
def concat_column(op: Asking) -> Range | None:
    """Along the last axis, that of the operand at this end if it is provably not empty; otherwise those of all operands."""
    end = len(op.node.inputs) - 1 if is_last(op) else 0
    shape = op.known_shape(end)
    decides = op.axis("axis", 1, len(shape)) == len(shape) - 1 and is_nonzero(shape[-1])
    return op.range(end) if decides else union(op.ranges())


@periods("Concat")
def concat_period(op: Asking) -> bool:
    """Along the last axis: the same tensor twice, or operands that all consist of pairs. Else: if all operands repeat."""
    rank = len(op.known_shape(0))
    indices = range(len(op.inputs))
    if op.axis("axis", 1, rank) != rank - 1:
        return all(operand_repeats(op, index) for index in indices)
    twice = len(op.inputs) == 2 and op.operand(0) is op.operand(1)
    if not in_pairs(op):
        return twice
    return (twice and op.known_shape(0)[-1] == 1) or all(
        isinstance(size := op.known_shape(index)[-1], int) and size % 2 == 0 and operand_repeats(op, index)
        for index in indices
    )


@norms("Concat")
def concat_norm(op: Asking) -> float | None:
    """Along the axis, of all operands together; otherwise the longest."""
    rank, asked = len(op.known_shape(0)), norm_question(op)
    count = len(op.node.inputs)
    if op.axis("axis", 1, rank) != asked.axis + rank:
        return max(norm_of(op, index) for index in range(count))
    return math.sqrt(sum(norm_of(op, index, part=None) ** 2 for index in range(count)))


@transfer("Split")
def split(op: Op) -> tuple[Fact, ...]:
    """Cut along an axis into given or equal parts."""
    data = op.fact(0)
    shape = op.known_shape()
    axis = op.axis("axis", 0, len(shape))
    sizes = _split_sizes(op, shape[axis])
    dtype, elements = data.dtype, data.elements() if len(shape) == 1 else None
    facts, start = [], 0
    for size in sizes:
        part = None
        if not isinstance(size, int):
            elements = None  # where the parts after one of unknown size begin is unknown too
        elif elements is not None:
            part, start = elements[start : start + size], start + size
        facts.append(Fact(dtype, (*shape[:axis], size, *shape[axis + 1 :]), part))
    return tuple(facts)


def _split_sizes(op: Op, dim: DimLike) -> list[DimLike]:
    count = op.output_count
    given = op.integers(1) if op.has(1) else op.attr_ints("split")
    if given is not None and len(given) == count:
        return [UNKNOWN if size is None else size for size in given]
    if given is not None or op.has(1):
        return [UNKNOWN] * count
    if op.version < 18:
        return [dim if count == 1 else exact_div(dim, count) or UNKNOWN] * count
    size = ceil_div(dim, count)
    return [size] * (count - 1) + [dim - size * (count - 1)]


@moves_elements("Split")
def split_arrays(op: Op, arrays: Arrays, results: tuple[Fact, ...]) -> Arrays:
    """The elements of each part."""
    axis = op.attr_int("axis", 0)
    sizes = [fact.shape[axis] if fact.shape is not None else None for fact in results]
    if not all(isinstance(size, int) for size in sizes):
        raise UnknownError
    return np.split(arrays[0], np.cumsum(np.array(sizes, dtype=np.int64))[:-1], axis=axis)


describe("Split", size_operands=(1,))
