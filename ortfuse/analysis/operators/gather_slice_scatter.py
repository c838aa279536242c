"""Operators that select or place elements: Gather, Slice, Scatter, TopK, NonZero."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.costs import cost, nothing, per_operand
from ortfuse.analysis.ranges.last_axis_repeats_halves_or_pairs import if_last_axis_is_kept, periods
from ortfuse.analysis.ranges.queries import Asking, columns, is_last, ranges
from ortfuse.analysis.ranges.range import Range, between, of_indices, one_of, union
from ortfuse.analysis.ranges.vector_norms import NormOf, norm_of, norm_question, norms, result_size_along, size_along
from ortfuse.analysis.transfer.elementwise_shape_functions import same_shape
from ortfuse.analysis.transfer.evaluate_small_tensors import Arrays, moves_elements
from ortfuse.analysis.transfer.slice_positions import positions, slice_length
from ortfuse.analysis.transfer.transfer_function_registry import Op, UnknownError, normalize_axes, transfer
from ortfuse.analysis.transfer.value_fact import UNKNOWN, Elements, Fact, Shape
from ortfuse.ir.dims import DimLike, product
from ortfuse.ir.operator_registry import describe


@transfer("Gather")
def gather(op: Op) -> Fact:
    """Slices of the input along an axis."""
    data, indices = op.fact(0), op.fact(1)
    if data.shape is None or indices.shape is None:
        return Fact(data.dtype)
    axis = op.axis("axis", 0, len(data.shape))
    shape = data.shape[:axis] + indices.shape + data.shape[axis + 1 :]
    return Fact(data.dtype, shape, _picked(data, indices) if len(data.shape) == 1 else None)


def _picked(data: Fact, indices: Fact) -> Elements | None:
    """The elements of a vector at constant positions."""
    positions = indices.elements()
    elements = None if positions is None else data.elements()
    if positions is None or elements is None:
        return None
    count = len(elements)
    return tuple([elements[i] if isinstance(i, int) and -count <= i < count else None for i in positions])


@columns("Gather")
def gather_column(op: Asking) -> Range | None:
    """The answer for the operand if whole rows are gathered."""
    return op.range(0) if _gathers_whole_rows(op) else None


def _gathers_whole_rows(op: Asking) -> bool:
    """Whether a Gather selects along an axis other than the last."""
    rank = len(op.known_shape(0))
    return op.axis("axis", 0, rank) != rank - 1


periods("Gather")(if_last_axis_is_kept(_gathers_whole_rows))


@moves_elements("Gather")
def gather_arrays(op: Op, arrays: Arrays, results: tuple[Fact, ...]) -> Arrays:
    """The elements at the indices."""
    return [np.take(arrays[0], arrays[1], axis=op.attr_int("axis", 0))]


@transfer("GatherElements")
def gather_elements(op: Op) -> Fact:
    """One element for each index."""
    return Fact(op.dtype(0), op.shape(1))


@transfer("GatherND")
def gather_nd(op: Op) -> Fact:
    """Slices of the input at the coordinates in the last axis of the indices."""
    data, indices = op.known_shape(0), op.known_shape(1)
    if not indices or not isinstance(indices[-1], int):
        return Fact(op.dtype(0))
    used = op.attr_int("batch_dims", 0) + indices[-1]
    return Fact(op.dtype(0), indices[:-1] + data[used:])


@transfer("ScatterElements", "Scatter", "ScatterND", "TensorScatter")
def scatter(op: Op) -> Fact:
    """The first input with some elements replaced."""
    return Fact(op.dtype(0), op.shape(0))


@ranges("ScatterND", "ScatterElements", "Scatter")
def scatter_range(op: Asking) -> Range | None:
    """Elements of the data, some of them replaced by updates."""
    return union([op.range(0), op.range(2)]) if op.attr_str("reduction", "none") == "none" else None


@transfer("Compress")
def compress(op: Op) -> Fact:
    """The slices along an axis (without one: the elements of the flattened input) where a condition holds."""
    if not op.given("axis"):
        return Fact(op.dtype(0), (UNKNOWN,))
    shape = op.known_shape()
    axis = op.axis("axis", 0, len(shape))
    return Fact(op.dtype(0), (*shape[:axis], UNKNOWN, *shape[axis + 1 :]))


@transfer("NonZero")
def non_zero(op: Op) -> Fact:
    """The coordinates of the elements that are not zero."""
    shape = op.shape()
    # ONNX leaves the result for scalars undefined; the runtime returns one row.
    return Fact(ir.DataType.INT64, (UNKNOWN if shape is None else max(len(shape), 1), UNKNOWN))


@transfer("TopK")
def top_k(op: Op) -> tuple[Fact, ...]:
    """The k largest or smallest elements along an axis, and their positions."""
    shape = op.known_shape()
    axis = op.axis("axis", -1, len(shape))
    count = (op.integers(1) or (None,))[0] if op.version >= 10 else op.attr_int("k", 0)
    dims = (*shape[:axis], UNKNOWN if count is None else count, *shape[axis + 1 :])
    return Fact(op.dtype(0), dims), Fact(ir.DataType.INT64, dims)


@ranges("TopK")
def top_k_range(op: Asking) -> Range | None:
    """Some of the elements, and their indices."""
    if op.node.outputs[0] is op.output:
        return op.range(0)
    shape = op.known_shape(0)
    return of_indices(shape[op.axis("axis", -1, len(shape))])


@ranges("NonZero")
def non_zero_range(op: Asking) -> Range | None:
    """Indices of the axes."""
    return union([of_indices(dim) for dim in op.known_shape(0)] or [one_of(0)])


@ranges("Unique")
def unique_range(op: Asking) -> Range | None:
    """Some of the elements; for the other outputs, indices, or how often they occur."""
    outputs = list(op.node.outputs)
    place = outputs.index(op.output)
    if place == 0:
        return op.range(0)
    found = of_indices(product(op.known_shape(0)))
    return between(1, found.high + 1) if place == 3 else found


@transfer("ArgMax", "ArgMin")
def arg_max(op: Op) -> Fact:
    """The position of the extreme element along an axis."""
    shape = op.known_shape()
    axis = op.axis("axis", 0, len(shape))
    kept = (1,) if op.attr_int("keepdims", 1) == 1 else ()
    return Fact(ir.DataType.INT64, shape[:axis] + kept + shape[axis + 1 :])


@transfer("OneHot")
def one_hot(op: Op) -> Fact:
    """An axis of size `depth` inserted into the shape of the indices."""
    indices = op.known_shape(0)
    depth = (op.integers(1) or (None,))[0]
    axis = op.attr_int("axis", -1)
    axis = axis + len(indices) + 1 if axis < 0 else axis
    return Fact(op.dtype(2), (*indices[:axis], UNKNOWN if depth is None else depth, *indices[axis:]))


@transfer("Unique")
def unique(op: Op) -> tuple[Fact, ...]:
    """The distinct elements (with an axis: slices), with their positions, inverse indices and counts."""
    positions = Fact(ir.DataType.INT64, (UNKNOWN,))
    data = op.known_shape()
    shape: Shape = (UNKNOWN,)
    length = product(data)
    if op.given("axis"):
        axis = op.axis("axis", 0, len(data))
        shape, length = (*data[:axis], UNKNOWN, *data[axis + 1 :]), data[axis]
    return Fact(op.dtype(0), shape), positions, Fact(ir.DataType.INT64, (length,)), positions


@transfer("Slice")
def slice_(op: Op) -> Fact:
    """A range of positions along axes (given by attributes before opset 10)."""
    data = op.fact(0)
    shape = op.known_shape()
    starts, ends, axes, steps = _slice_parameters(op)
    if axes is None:
        axes = tuple(range(len(starts if starts is not None else ends if ends is not None else shape)))
    dims = list(shape)
    for position, axis in enumerate(normalize_axes(axes, len(shape))):
        start = None if starts is None else starts[position]
        end = None if ends is None else ends[position]
        step = 1 if steps is None else steps[position]
        dims[axis] = slice_length(shape[axis], start, end, step)
    elements = None
    if len(shape) == 1 and starts and ends:
        elements = _sliced(data.elements(), starts[0], ends[0], 1 if steps is None else steps[0])
    return Fact(data.dtype, tuple(dims), elements)


Parameter = tuple[DimLike | None, ...] | None


def _slice_parameters(op: Op) -> tuple[Parameter, Parameter, tuple[int, ...] | None, Parameter]:
    if op.version < 10:
        return op.attr_ints("starts"), op.attr_ints("ends"), op.attr_ints("axes"), None
    axes = op.constants(3) if op.has(3) else None
    steps: Parameter = None
    if op.has(4):
        steps = op.integers(4)
        if steps is None:
            raise UnknownError
    return op.integers(1), op.integers(2), axes, steps


def _sliced(
    elements: Elements | None, start: DimLike | None, end: DimLike | None, step: DimLike | None
) -> Elements | None:
    if elements is None or not (isinstance(start, int) and isinstance(end, int) and isinstance(step, int)):
        return None
    found = positions(len(elements), start, end, step)
    return None if found is None else tuple([elements[position] for position in found])


@moves_elements("Slice")
def slice_arrays(op: Op, arrays: Arrays, results: tuple[Fact, ...]) -> Arrays:
    """The elements of the slice."""
    if op.version < 10:
        starts, ends, axes = op.attr_ints("starts") or (), op.attr_ints("ends") or (), op.attr_ints("axes")
        steps: tuple[int, ...] = (1,) * len(starts)
    else:
        starts, ends = op.constants(1), op.constants(2)
        axes = op.constants(3) if op.has(3) else None
        steps = op.constants(4) if op.has(4) else (1,) * len(starts)
    array = arrays[0]
    index = [slice(None)] * array.ndim
    for axis, start, end, step in zip(range(len(starts)) if axes is None else axes, starts, ends, steps, strict=True):
        found = positions(array.shape[axis], start, end, step)
        if found is None:
            raise UnknownError
        index[axis] = slice(found.start, None if found.stop < 0 else found.stop, step)
    return [array[tuple(index)]]


@columns("Slice")
def slice_column(op: Asking) -> Range | None:
    """The answer for the operand if the last axis is not sliced; the first one too, if it is sliced forwards from 0."""
    begins = [
        start == 0 and isinstance(step, int) and step > 0 and not is_last(op) for start, step in _cuts_of_last_axis(op)
    ]
    return op.range(0) if all(begins) else None


def _cuts_of_last_axis(op: Asking) -> list[tuple[DimLike | None, DimLike | None]]:
    """Start and step of a Slice on the last axis; an empty list if it does not slice that axis.

    Raises:
        UnknownError: it is unknown which axes are sliced.
    """
    last = len(op.known_shape(0)) - 1
    starts = op.attr_ints("starts") if op.version < 10 else op.integers(1)
    if starts is None:
        raise UnknownError
    axes = op.int_list("axes", 3)
    range_column = normalize_axes(range(len(starts)) if axes is None else axes, last + 1)
    steps = op.integers(4) if op.has(4) else (1,) * len(starts)
    if steps is None:
        raise UnknownError
    return [(start, step) for axis, start, step in zip(range_column, starts, steps, strict=True) if axis == last]


periods("Slice")(if_last_axis_is_kept(lambda op: not _cuts_of_last_axis(op)))


@norms("Slice", "Split", "Gather", "GatherElements")
def taken_norm(op: Asking) -> float | None:
    """At most that of the operand; of parts that may be cut otherwise, at most that of the whole vector."""
    asked, rank = norm_question(op), len(op.known_shape(0))
    if op.node.op_type == "Gather":
        axis = op.axis("axis", 0, rank)
        behind = rank - 1 - axis
        if -asked.axis > behind:  # along what is gathered, or before it
            add_norm = len(op.known_shape(1))
            if -asked.axis <= behind + add_norm:
                return None
            return norm_of(op, 0, axis=asked.axis + add_norm - 1)
        return norm_of(op, 0)
    if op.node.op_type == "GatherElements" or _cuts_parts(op, asked, rank):
        return norm_of(op, 0, part=None)
    return norm_of(op, 0)


def _cuts_parts(op: Asking, asked: NormOf, rank: int) -> bool:
    """Whether parts of the result may begin elsewhere than parts of the operand do."""
    if asked.part is None or size_along(op, 0) == result_size_along(op):
        return False
    if op.node.op_type != "Split" or op.axis("axis", 0, rank) != asked.axis + rank:
        return True
    shapes = [op.analysis.fact(value).shape for value in op.node.outputs]
    sizes = [None if shape is None else shape[asked.axis] for shape in shapes]
    return not all(isinstance(size, int) and size % asked.part == 0 for size in sizes)


transfer("ReverseSequence")(same_shape)
cost("TopK")(per_operand(1))
cost("ScatterElements", "ScatterND", "TensorScatter", "NonZero")(nothing)

describe("TopK", size_operands=(1,))
