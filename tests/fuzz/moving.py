"""Shape arithmetic, and chains of operators that only move data."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .builder import Builder, RefusedError, Value


def dims_of(b: Builder, x: Value) -> Value:
    """The sizes of `x` as they are computed from it, or some of them."""
    if b.opset >= 15 and b.choose.chance(30):
        start = b.choose.integer(-x.known.ndim, x.known.ndim)
        return b.op("Shape", x, start=start, end=b.choose.pick([None, start + 1, -1]))
    return b.op("Shape", x)


def one_dim(b: Builder, x: Value, axis: int) -> Value:
    """One size of `x`, as a vector of one element, in one of the ways exporters spell it."""
    shape = b.op("Shape", x)
    kind = b.choose.pick(["gather", "gather vector", "slice", "split"])
    if kind == "gather":
        return unsqueeze(b, b.op("Gather", shape, b.ints(axis), axis=0), [0])
    if kind == "gather vector":
        return b.op("Gather", shape, b.ints([axis - b.choose.pick([0, x.known.ndim])]))
    if kind == "slice":
        return b.op("Slice", shape, b.ints([axis]), b.ints([axis + 1]), *([b.ints([0])] if b.choose.chance(50) else []))
    return b.op("Gather", b.op("Cast", b.op("Cast", shape, to=1), to=7), b.ints([axis]))


def unsqueeze(b: Builder, x: Value, axes: list[int]) -> Value:
    """Unsqueeze as the opset has it."""
    return b.op("Unsqueeze", x, b.ints(axes)) if b.opset >= 13 else b.op("Unsqueeze", x, axes=axes)


def squeeze(b: Builder, x: Value, axes: list[int] | None) -> Value:
    """Squeeze as the opset has it; without axes of all that are 1."""
    if axes is None:
        return b.op("Squeeze", x)
    return b.op("Squeeze", x, b.ints(axes)) if b.opset >= 13 else b.op("Squeeze", x, axes=axes)


def factors(b: Builder, size: int) -> list[int]:
    """Some sizes whose product is `size`."""
    found: list[int] = []
    while len(found) < 4 and (size > 1 or b.choose.chance(20)):
        divisor = b.choose.pick([d for d in range(1, size + 1) if size % d == 0][:12] or [1])
        found.append(divisor)
        size //= divisor
        if b.choose.chance(30):
            break
    return [*found, size] if size != 1 or not found else found


def reshape(b: Builder) -> Value:
    """Reshape to a constant or computed target."""
    x = b.some()
    target = factors(b, x.known.size) if x.known.size else b.choose.pick([[0], [0, 3], [-1, 2]])
    style = b.choose.pick(["plain", "minus", "zero", "computed", "computed"])
    if style == "computed" and x.known.ndim and x.known.size:
        axes = b.choose.permutation(x.known.ndim)[: b.choose.integer(1, x.known.ndim)]
        parts = [one_dim(b, x, axis) for axis in axes]
        parts.insert(b.choose.integer(0, len(parts)), b.ints([-1]))
        return b.op("Reshape", x, b.op("Concat", *parts, axis=0))
    if style == "minus" and target:
        target[b.choose.integer(0, len(target) - 1)] = -1
    if style == "zero":
        target = [0 if axis < x.known.ndim and x.shape[axis] == size else size for axis, size in enumerate(target)]
    zero = 1 if b.opset >= 14 and b.choose.chance(15) and 0 not in target else None
    return b.op("Reshape", x, b.ints(target), allowzero=zero)


def transpose(b: Builder) -> Value:
    """A permutation of the axes, or the default one."""
    x = b.some()
    return b.op(
        "Transpose", x, perm=b.choose.permutation(x.known.ndim) if b.choose.chance(85) and x.known.ndim else None
    )


def reshape_chain(b: Builder) -> Value:
    """Reshape, Transpose, Reshape: heads split and merged, batches merged."""
    x = b.some()
    rank = x.known.ndim
    if rank < 3 or not x.known.size:
        raise RefusedError("too few axes")
    kind = b.choose.pick(["batch", "heads"])
    if kind == "batch":
        flat = b.op("Reshape", x, b.ints([-1, *x.shape[-2:]]))
        turned = b.op("Transpose", flat, perm=[0, 2, 1] if b.choose.chance(80) else [1, 0, 2])
        back = [*x.shape[:-2], x.shape[-1], x.shape[-2]]
        return b.op("Reshape", turned, b.ints([-1, *back[1:]] if b.choose.chance(50) else back))
    split = b.op("Reshape", x, b.ints([*x.shape[:-1], -1, b.choose.pick([1, x.shape[-1]])]))
    turned = b.op("Transpose", split, perm=[*range(rank - 2), rank - 1, rank - 2, rank])
    other = b.op(b.choose.pick(["Neg", "Identity", "Relu"]), turned)
    again = b.op("Transpose", other, perm=[*range(rank - 2), rank - 1, rank - 2, rank])
    return b.op("Reshape", again, b.op("Shape", x) if b.choose.chance(50) else b.ints([0, 0, -1]))


def slices(b: Builder) -> Value:
    """A Slice, of constant or computed bounds."""
    x = b.some()
    if not x.known.ndim:
        raise RefusedError("a scalar")
    axis = b.choose.integer(0, x.known.ndim - 1)
    size = x.shape[axis]
    bounds = [0, 0, 1, -1, size, 2**63 - 1, -(2**63), size // 2, 9, -size]
    start, end, step = b.choose.pick(bounds), b.choose.pick(bounds), b.choose.pick([1, 1, 1, 1, -1, 2, -2])
    if b.choose.chance(20):
        start, end, step = 0, 2**63 - 1, 1
    if step < 0 and end == 2**63 - 1:
        raise RefusedError("the runtime takes it for the beginning, and ONNX for the end")
    stop = one_dim(b, x, axis) if b.choose.chance(25) else b.ints([end])
    optional = b.choose.pick(
        [(b.ints([axis]),), (b.ints([axis - x.known.ndim]), b.ints([step])), (b.ints([axis]), b.ints([step]))]
    )
    return b.op("Slice", x, b.ints([start]), stop, *optional)


def squeezes(b: Builder) -> Value:
    """Squeeze, Unsqueeze, Flatten; single or in a row."""
    x = b.some()
    kind = b.choose.pick(["squeeze", "unsqueeze", "unsqueeze twice", "flatten"])
    if kind == "flatten":
        return b.op("Flatten", x, axis=b.choose.integer(0, x.known.ndim))
    if kind == "squeeze":
        ones = [axis for axis, size in enumerate(x.shape) if size == 1]
        return squeeze(b, x, None if b.choose.chance(20) else [b.choose.pick(ones)])
    found = unsqueeze(b, x, [b.choose.integer(-x.known.ndim - 1, x.known.ndim)])
    return (
        found
        if kind == "unsqueeze"
        else unsqueeze(b, found, [b.choose.integer(-found.known.ndim - 1, found.known.ndim)])
    )


def gather(b: Builder) -> Value:
    """Rows by index."""
    x = b.some()
    if not x.known.ndim:
        raise RefusedError("a scalar")
    axis = b.choose.integer(0, x.known.ndim - 1)
    index = b.choose.pick([0, -1, [0], [0, -1], [[0]], []])
    indices = b.const(index, b.choose.pick([np.int64, np.int32])) if b.choose.chance(80) else b.some(np.int64)
    return b.op("Gather", x, indices, axis=axis)


def concat_and_split(b: Builder) -> Value:
    """Concat of several or one, Split into parts; one after the other."""
    x = b.some()
    if not x.known.ndim:
        raise RefusedError("a scalar")
    axis = b.choose.integer(-x.known.ndim, x.known.ndim - 1)
    if b.choose.chance(50):
        found = b.op("Concat", *([x] * b.choose.integer(1, 3)), axis=axis)
    else:
        found = b.op("Concat", x, b.some(x.dtype), axis=axis)
    if b.choose.chance(40):
        return found
    size = found.shape[axis]
    cut = b.choose.integer(0, size)
    if b.opset >= 13:
        return b.ops("Split", found, b.ints([cut, size - cut]), axis=axis, outputs=2)[b.choose.integer(0, 1)]
    return b.ops("Split", found, axis=axis, split=[cut, size - cut], outputs=2)[b.choose.integer(0, 1)]


def expand(b: Builder) -> Value:
    """Expand, Tile, Pad and ConstantOfShape, that do something or nothing."""
    x = b.some()
    kind = b.choose.pick(["expand", "expand", "like", "tile", "pad", "constant", "range"])
    if kind == "expand":
        lead = b.choose.pick([[], [1], [2]])
        return b.op("Expand", x, b.ints([*lead, *(b.choose.pick([1, size]) for size in x.shape)]))
    if kind == "like":
        return b.op("Expand", x, b.op("Shape", b.some()))
    if kind == "tile":
        return b.op("Tile", x, b.ints([b.choose.pick([1, 1, 1, 2, 0]) for _ in x.shape]))
    if kind == "pad":
        amounts = [b.choose.pick([0, 0, 0, 1, -1]) for _ in range(2 * x.known.ndim)]
        mode = b.choose.pick(["constant", "constant", "edge", "reflect"])
        return b.op("Pad", x, b.ints(amounts), mode=mode)
    if kind == "constant":
        return b.op("ConstantOfShape", b.op("Shape", x))
    size = squeeze(b, one_dim(b, x, 0), [0]) if x.known.ndim else b.ints(3)
    return b.op("Range", b.ints(0), size, b.ints(1))


def sizes_as_numbers(b: Builder) -> Value:
    """Arithmetic with sizes: products, quotients, comparisons; what exporters compute and then reshape to."""
    x = b.some()
    if not x.known.ndim:
        return b.op("Size", x)
    size = one_dim(b, x, b.choose.integer(0, x.known.ndim - 1))
    kind = b.choose.pick(["mul", "div", "add", "sub", "size", "min", "float", "prod"])
    other = b.choose.pick([b.ints([1]), b.ints([2]), size])
    if kind == "float":
        return b.op("Cast", b.op("Sqrt", b.op("Cast", size, to=1)), to=1)
    if kind == "prod":
        return b.op("ReduceProd", dims_of(b, x), keepdims=0)
    if kind == "size":
        return b.op("Size", x)
    if kind == "div" and 0 in other.known:
        raise RefusedError("division by zero")
    return b.op({"mul": "Mul", "div": "Div", "add": "Add", "sub": "Sub", "min": "Min"}[kind], size, other)


MOVES: tuple[Callable[[Builder], Value], ...] = (
    reshape, reshape, reshape_chain, transpose, transpose, slices, squeezes, gather, concat_and_split, expand,
    sizes_as_numbers,
)  # fmt: skip
