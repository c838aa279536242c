"""Operators that select or place elements: Gather, Slice, Scatter, TopK, NonZero, ..."""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.analysis.transfer.fact import UNKNOWN, Elements, Fact, Shape
from ortfuse.analysis.transfer.op import Op, UnknownError, normalize_axes, transfer
from ortfuse.ir.dims import DimLike, ceil_div, is_nonnegative, maximum, minimum, product, uncut

_TO_THE_END = 10**9
"""Exporters write this number (TensorFlow's) or a larger one (up to INT64_MAX) for an open end; no dimension is that large."""
_LARGEST = frozenset({2**31 - 1, 2**63 - 1})
"""The end values that the runtime treats as open."""


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


def positions(dim: int, start: int, end: int, step: int) -> range | None:
    """The positions that Slice takes from an axis of size `dim`; None if the runtime and ONNX disagree.

    Unlike in Python, with a negative step a start before the first position means the first position. The largest integer
    as the end means the end of the axis; with a negative step the runtime then stops before the first position, ONNX at once.
    """
    if not step or (step < 0 and end in _LARGEST):
        return None
    if not dim:
        return range(0)
    start, end = (index + dim if index < 0 else index for index in (start, end))
    if step > 0:
        return range(min(max(start, 0), dim), min(max(end, 0), dim), step)
    return range(min(max(start, 0), dim - 1), min(max(end, -1), dim), step)


def slice_length(dim: DimLike, start: DimLike | None, end: DimLike | None, step: DimLike | None) -> DimLike:
    """The number of positions that ``start:end:step`` selects from an axis of size `dim`; `UNKNOWN` if not provable."""
    if not isinstance(step, int) or step == 0 or start is None or end is None:
        return UNKNOWN
    if step < 0:
        return _backward_length(dim, start, end, step)
    if isinstance(start, int) and isinstance(end, int) and start >= 0 and (end < 0 or end >= _TO_THE_END):
        # max(0, f)[1:] has max(0, f - 1) elements.
        return ceil_div(maximum(0, uncut(dim) - start + (end if end < 0 else 0)), step)
    first, last = _position(dim, start), _position(dim, end)
    if first is None or last is None:
        return UNKNOWN
    return ceil_div(maximum(0, last - first), step)


def _position(dim: DimLike, index: DimLike) -> DimLike | None:
    """The position meant by an index of a slice, clamped to the axis."""
    if isinstance(index, int) and index >= _TO_THE_END:
        return dim
    if is_nonnegative(index):
        return minimum(index, dim)
    if is_nonnegative(-1 - index):
        return maximum(0, dim + index)
    if is_nonnegative(-index) and is_nonnegative(-dim - index):
        return 0  # as an index of 0 means too
    return None


def _backward_length(dim: DimLike, start: DimLike, end: DimLike, step: int) -> DimLike:
    if not isinstance(start, int) or not isinstance(end, int):
        return UNKNOWN
    if isinstance(dim, int):
        found = positions(dim, start, end, step)
        return UNKNOWN if found is None else len(found)
    if (start == -1 or start >= _TO_THE_END) and end <= -_TO_THE_END:
        return ceil_div(dim, -step)
    return UNKNOWN
