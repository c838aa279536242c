"""Operators that move elements without computing: Reshape, Transpose, Expand, Concat, ..."""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.analysis.transfer.broadcasting import broadcast_shapes, map_elements
from ortfuse.analysis.transfer.fact import MAX_ELEMENTS, UNKNOWN, Element, Elements, Fact, Shape, static_size
from ortfuse.analysis.transfer.op import Op, UnknownError, normalize_axes, normalize_axis, transfer
from ortfuse.ir.dims import (
    Dim,
    DimLike,
    ceil_div,
    exact_div,
    floor_div,
    is_broadcast_of,
    is_nonnegative,
    is_nonzero,
    is_positive,
    product,
    total,
)


def moved(source: Fact, shape: Shape | None) -> Fact:
    """The same elements in the same order, with another shape."""
    return Fact(source.dtype, shape, source.elements())


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

    It is if it can be 0 only where the size in its place is. Where it is 0 because it divides the number of elements, the result
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


@transfer("Expand")
def expand(op: Op) -> Fact:
    """Broadcast the input with a shape."""
    data = op.fact(0)
    target = op.integers(1)
    if target is None:
        shape = rank_of_target(op.shape(1))
        known = shape is not None and data.shape is not None and len(data.shape) <= len(shape)
        return Fact(data.dtype, shape if known else None)
    shape = broadcast_shapes(data.shape, tuple([UNKNOWN if element is None else element for element in target]))
    if shape is not None and None in target:
        shape = _with_unknown_targets(data.shape, target, shape)
    return Fact(data.dtype, shape, map_elements(lambda element: element, [data], shape))


def _with_unknown_targets(data: Shape | None, target: tuple[DimLike | None, ...], shape: Shape) -> Shape:
    """With an unknown target element, a dimension of the input is kept only if it can never be 1."""
    dims = list(shape)
    for back in range(1, len(target) + 1):
        if target[-back] is None:
            kept = data[-back] if data is not None and back <= len(data) else 1
            dims[-back] = kept if is_nonzero(kept - 1) else UNKNOWN
    return tuple(dims)


@transfer("Tile")
def tile(op: Op) -> Fact:
    """Repeat along each axis."""
    data = op.fact(0)
    shape = op.known_shape()
    repeats = op.integers(1)
    if repeats is None or len(repeats) != len(shape):
        return Fact(data.dtype, (UNKNOWN,) * len(shape))
    dims = [UNKNOWN if n is None else dim * n for dim, n in zip(shape, repeats, strict=True)]
    return Fact(data.dtype, tuple(dims))


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


def _joined(facts: list[Fact], size: DimLike) -> Elements | None:
    """The concatenated elements of vectors; those of an untracked vector are unknown."""
    if not isinstance(size, int) or size > MAX_ELEMENTS:
        return None
    joined: list[Element] = []
    for fact in facts:
        elements = fact.elements()
        joined += elements if elements is not None else (None,) * (static_size(fact.shape) or 0)
    return tuple(joined)


def best_dim(dims: list[DimLike]) -> DimLike:
    """The most informative of several equal dimensions: a number, else a formula, else an unknown."""
    for dim in dims:
        if isinstance(dim, int):
            return dim
    return min(dims, key=lambda dim: (dim.fresh, dim.size) if isinstance(dim, Dim) else (False, 0))


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


@transfer("Pad")
def pad(op: Op) -> Fact:
    """Add (or with negative numbers remove) elements at both ends of axes."""
    shape = op.known_shape()
    pads = op.attr_ints("pads" if op.version >= 2 else "paddings") if op.version < 11 else op.integers(1)
    axes = tuple(range(len(shape)))
    if op.has(3):
        axes = normalize_axes(op.constants(3), len(shape))
    dims = list(shape)
    for position, axis in enumerate(axes):
        before = None if pads is None else pads[position]
        after = None if pads is None else pads[position + len(axes)]
        dims[axis] = UNKNOWN if before is None or after is None else shape[axis] + before + after
    return Fact(op.dtype(), tuple(dims))


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
