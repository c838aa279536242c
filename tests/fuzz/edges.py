"""Operators at the edges of what they are defined for: no axes, axes of size 1 and 0, old spellings, indices, pools, resizing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .builder import Builder, RefusedError, Value
from .moving import squeeze, unsqueeze
from .operators import REDUCTIONS, numbers_like, reduce, scalar_like


def no_axes(b: Builder) -> Value:
    """An operator with an empty list of axes, which some take for all and some for none."""
    x = b.some()
    kind = b.choose.pick(["squeeze", "squeeze", "unsqueeze", "reduce", "reduce", "pad", "slice", "expand", "reshape"])
    nothing = b.const(np.zeros(0, np.int64)) if b.opset >= 13 else None
    if kind == "squeeze":
        return b.op("Squeeze", x, nothing) if nothing is not None else b.op("Squeeze", x, empty=("axes",))
    if kind == "unsqueeze":
        return b.op("Unsqueeze", x, nothing) if nothing is not None else b.op("Unsqueeze", x, empty=("axes",))
    if kind == "reduce":
        operator, keep = b.choose.pick(REDUCTIONS), b.choose.integer(0, 1)
        x = b.some_float()
        if 0 in x.shape:
            raise RefusedError("the runtime is at odds with ONNX over empty reductions")
        if b.opset >= (13 if operator == "ReduceSum" else 18):
            given = b.choose.pick([(), (nothing,), (nothing,)])
            return b.op(operator, x, *given, keepdims=keep, noop_with_empty_axes=b.choose.pick([None, 0, 1, 1]))
        return b.op(operator, x, keepdims=keep, empty=("axes",))
    if kind == "pad" and b.opset >= 18:
        return b.op("Pad", x, nothing, None, nothing, mode=b.choose.pick(["constant", "edge", "reflect", "wrap"]))
    if kind == "slice" and b.opset >= 10:
        empty = b.ints([])
        return b.op("Slice", x, *[empty] * b.choose.pick([2, 3, 4]))
    if kind == "expand":
        return b.op("Expand", x, b.ints([]))
    if kind == "reshape" and x.known.size == 1:
        return b.op("Reshape", x, b.ints([]))
    raise RefusedError(kind)


def unit_axes(b: Builder) -> Value:
    """Axes of size 1 added, moved about, and taken out again, perhaps with a reduction or a softmax over one of them."""
    x = b.some()
    for _ in range(b.choose.integer(1, 3)):
        kind = b.choose.pick(["add", "turn", "drop", "reduce", "softmax", "expand", "split", "concat"])
        ones = [axis for axis, size in enumerate(x.shape) if size == 1]
        if kind == "add" or not ones:
            x = unsqueeze(b, x, [b.choose.integer(-x.known.ndim - 1, x.known.ndim)])
        elif kind == "turn":
            x = b.op("Transpose", x, perm=b.choose.permutation(x.known.ndim))
        elif kind == "drop":
            x = squeeze(b, x, [b.choose.pick(ones)])
        elif kind == "reduce" and x.dtype.kind == "f":
            x = reduce(b, b.choose.pick(REDUCTIONS), x, [b.choose.pick(ones)], keep=b.choose.chance(60))
        elif kind == "softmax" and x.dtype.kind == "f":
            x = b.op(b.choose.pick(["Softmax", "LogSoftmax", "Hardmax"]), x, axis=b.choose.pick(ones))
        elif kind == "expand":
            target = [b.choose.pick([1, 2, 3]) if axis in ones else 1 for axis in range(x.known.ndim)]
            x = b.op("Expand", x, b.ints(target))
        elif kind == "split":
            x = b.op("Split", x, axis=b.choose.pick(ones), num_outputs=1 if b.opset >= 18 else None)
        elif kind == "concat":
            x = b.op("Concat", *[x] * b.choose.integer(1, 3), axis=b.choose.pick(ones))
    return x


def normalise(b: Builder) -> Value:
    """The mean and deviation over any axes, also of size 1, that are divided by a root, with tiny and large epsilons."""
    x = b.some_float()
    if not x.known.ndim or 0 in x.shape:
        raise RefusedError("nothing to normalise")
    axes = [axis for axis in range(x.known.ndim) if b.choose.chance(50)] or [b.choose.integer(0, x.known.ndim - 1)]
    middle = list(range(1, x.known.ndim - 1))
    axes = b.choose.pick([axes, middle or axes, list(range(2, x.known.ndim)) or axes, [x.known.ndim - 1]])
    center = b.choose.chance(70)
    deviation = b.op("Sub", x, reduce(b, "ReduceMean", x, axes)) if center else x
    kind = b.choose.pick(["ReduceMean", "ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL2"])
    squared = deviation if kind in ("ReduceSumSquare", "ReduceL2") else b.op("Mul", deviation, deviation)
    spread = reduce(b, kind, squared, axes)
    epsilon = b.choose.pick([1e-12, 1e-8, 1e-5, 1e-3, 1.0])
    if kind != "ReduceL2":
        spread = b.op("Sqrt", b.op("Add", spread, scalar_like(b, x, epsilon)))
    else:
        spread = b.op(b.choose.pick(["Max", "Add"]), spread, scalar_like(b, x, epsilon))
    found = (
        b.op("Div", deviation, spread) if b.choose.chance(70) else b.op("Mul", deviation, b.op("Reciprocal", spread))
    )
    if b.choose.chance(70):
        found = b.op("Mul", found, numbers_like(b, x))
    return b.op("Add", found, numbers_like(b, x)) if b.choose.chance(70) else found


def layer(b: Builder) -> Value:
    """A normalisation as an operator, also of one element or one channel."""
    x = b.some_float()
    rank = x.known.ndim
    if not rank or 0 in x.shape:
        raise RefusedError("nothing to normalise")
    kind = b.choose.pick(["instance", "batch", "group", "layer", "rms", "mvn", "lp", "lrn"])
    epsilon = b.choose.pick([1e-12, 1e-5, 1e-3])
    if kind == "layer":
        axis = b.choose.integer(-rank, rank - 1)
        vectors = [b.const(np.linspace(0.5, 1.5, int(np.prod(x.shape[axis:]))).reshape(x.shape[axis:]).astype(x.dtype))]
        return b.op("LayerNormalization", x, *vectors * b.choose.integer(1, 2), axis=axis, epsilon=epsilon)
    if kind == "rms":
        axis = b.choose.integer(-rank, rank - 1)
        return b.op("RMSNormalization", x, b.const(np.ones(x.shape[axis:], x.dtype)), axis=axis, epsilon=epsilon)
    if kind == "mvn":
        axes = [axis for axis in range(rank) if b.choose.chance(50)] or [0]
        return b.op("MeanVarianceNormalization", x, axes=axes)
    if kind == "lp":
        return b.op("LpNormalization", x, axis=b.choose.integer(-rank, rank - 1), p=b.choose.integer(1, 2))
    if rank < 2:
        raise RefusedError("no channels")
    channels = x.shape[1]
    gain, bias = (b.const(np.linspace(low, 1.5, channels).astype(x.dtype)) for low in (0.5, -1.5))
    if kind == "instance":
        return b.op("InstanceNormalization", x, gain, bias, epsilon=epsilon)
    if kind == "group":
        return b.op("GroupNormalization", x, gain, bias, num_groups=b.choose.pick([1, channels]), epsilon=epsilon)
    if kind == "batch":
        return b.op("BatchNormalization", x, gain, bias, bias, gain, epsilon=epsilon)
    return b.op("LRN", x, size=b.choose.pick([1, 3]))


def pool(b: Builder) -> Value:
    """A pool of any kind, of windows of one element too."""
    x = b.some_float()
    dims = x.known.ndim - 2
    if dims < 1 or 0 in x.shape:
        raise RefusedError("no image")
    kind = b.choose.pick(["MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool"])
    if kind.startswith("Global"):
        return b.op(kind, x)
    kernel = [min(b.choose.pick([1, 1, 2, 3]), size) for size in x.shape[2:]]
    strides = [b.choose.pick([1, 1, 2]) for _ in kernel] if b.choose.chance(70) else None
    pads = [b.choose.integer(0, size // 2) for size in kernel] * 2 if b.choose.chance(40) else None
    whole = list(x.shape[2:])
    more = {"count_include_pad": b.choose.integer(0, 1)} if kind == "AveragePool" else {}
    return b.op(kind, x, kernel_shape=b.choose.pick([kernel, kernel, whole]), strides=strides, pads=pads, **more)


def resize(b: Builder) -> Value:
    """A Resize by factors or to sizes, of which some are those that are there."""
    x = b.some_float()
    if not x.known.ndim or 0 in x.shape or b.opset < 11:
        raise RefusedError("no image")
    mode = b.choose.pick(["nearest", "nearest", "linear"])
    how = b.choose.pick(["asymmetric", "half_pixel", "align_corners", "pytorch_half_pixel"])
    rounding = b.choose.pick(["floor", "ceil", "round_prefer_floor"]) if mode == "nearest" else None
    more = {"mode": mode, "coordinate_transformation_mode": how, "nearest_mode": rounding}
    nothing = b.const(np.zeros(0, np.float32))
    factors = [1.0, 1.0, *(b.choose.pick([1.0, 2.0, 2.0, 3.0, 0.5]) for _ in x.shape[2:])][: x.known.ndim]
    if b.choose.chance(50):
        return b.op("Resize", x, nothing, b.const(np.array(factors, np.float32)), **more)
    sizes = [max(1, int(size * factor)) for size, factor in zip(x.shape, factors, strict=True)]
    return b.op("Resize", x, nothing, nothing if b.opset < 13 else None, b.ints(sizes), **more)


def indexed(b: Builder) -> Value:
    """Elements by index, there and back: negative, repeated, none at all."""
    x = b.some()
    if not x.known.ndim or x.dtype.kind in "OSU":
        raise RefusedError("a scalar")
    axis = b.choose.integer(0, x.known.ndim - 1)
    size = x.shape[axis]
    kind = b.choose.pick(["gather", "gather nd", "elements", "scatter nd", "scatter", "one hot", "compress"])
    places = [b.choose.integer(-size, size - 1) for _ in range(b.choose.integer(0, 3))] if size else []
    if kind == "gather":
        indices = np.array(places, np.int64)
        return b.op("Gather", x, b.const(indices.reshape(b.choose.pick([(-1,), (1, -1), (-1, 1)]))), axis=axis)
    if kind == "compress":
        return b.op("Compress", x, b.const(np.array([b.choose.chance(50) for _ in range(size)], bool)), axis=axis)
    if not places:
        raise RefusedError("nothing to take")
    if kind == "gather nd":
        return b.op("GatherND", x, b.ints([[b.choose.integer(-n, n - 1) for n in x.shape]] * len(places)))
    if kind == "elements":
        shape = list(x.shape)
        shape[axis] = len(places)
        column = np.array(places).reshape([-1 if n == axis else 1 for n in range(x.known.ndim)])
        return b.op("GatherElements", x, b.const(np.broadcast_to(column, shape).astype(np.int64).copy()), axis=axis)
    if kind == "scatter nd":
        rows = b.ints([[b.choose.integer(0, x.shape[0] - 1)]])
        return b.op("ScatterND", x, rows, b.op("Unsqueeze", b.const(x.known[0]), b.ints([0])))
    if kind == "scatter":
        shape = list(x.shape)
        shape[axis] = 1
        return b.op(
            "ScatterElements",
            x,
            b.const(np.full(shape, places[0], np.int64)),
            b.const(np.ones(shape).astype(x.dtype)),
            axis=axis,
        )
    return b.op("OneHot", b.ints(places), b.ints([size]), b.const(np.array([0, 1], x.dtype)), axis=-1)


def numbers_of_sizes(b: Builder) -> Value:
    """Integer arithmetic: quotients and remainders of negative numbers, shifts, bits, powers."""
    x = b.some(b.choose.pick([np.int64, np.int32]))
    kind = b.choose.pick(["Div", "Mod", "Mul", "Sub", "BitwiseAnd", "BitwiseOr", "Max", "Min", "Abs", "Neg", "Sign"])
    if kind in ("Abs", "Neg", "Sign"):
        return b.op(kind, x)
    return b.op(kind, x, scalar_like(b, x, b.choose.pick([1, 2, 3, -2, 7])))


def extreme(b: Builder) -> Value:
    """ArgMax, ArgMin and TopK of numbers that are not rounded, also over axes of size 1."""
    x = b.some(exact=True)
    if not x.known.ndim or x.dtype.kind not in "fiu" or 0 in x.shape:
        raise RefusedError("nothing to compare")
    axis = b.choose.integer(-x.known.ndim, x.known.ndim - 1)
    kind = b.choose.pick(["ArgMax", "ArgMin", "TopK"])
    if kind == "TopK":
        count = b.ints([b.choose.integer(0, x.shape[axis])])
        return b.ops(kind, x, count, outputs=2, axis=axis, largest=b.choose.integer(0, 1))[b.choose.integer(0, 1)]
    last = b.choose.integer(0, 1) if b.opset >= 12 else None
    return b.op(kind, x, axis=axis, keepdims=b.choose.integer(0, 1), select_last_index=last)


def scaled(b: Builder) -> Value:
    """Factors and terms in a row, of which some overflow or vanish in half precision."""
    x = b.some_float()
    numbers = [1e-8, 1e-4, 1 / 3, 3.0, 7.0, 300.0, 1e4, 65504.0, 6e-5, 6e-8, -1 / 7]
    for _ in range(b.choose.integer(2, 4)):
        x = b.op(b.choose.pick(["Mul", "Div", "Add", "Sub", "Mul"]), x, scalar_like(b, x, b.choose.pick(numbers)))
        if b.choose.chance(20):
            x = b.op(b.choose.pick(["Neg", "Reciprocal", "Sqrt", "Abs"]), x)
    return x


def averaged(b: Builder) -> Value:
    """Means: as an operator, as a sum divided by a count, as a product with equal numbers, as a pool."""
    x = b.some_float()
    if not x.known.ndim or 0 in x.shape:
        raise RefusedError("nothing to average")
    axes = sorted({b.choose.integer(0, x.known.ndim - 1) for _ in range(b.choose.integer(1, 3))})
    keep, count = b.choose.chance(60), int(np.prod([x.shape[axis] for axis in axes]))
    kind = b.choose.pick(["mean", "mean", "sum", "share", "of squares"])
    if kind == "mean":
        return reduce(b, "ReduceMean", x, axes, keep)
    if kind == "of squares":
        return reduce(b, "ReduceMean", b.op("Pow", x, scalar_like(b, x, b.choose.pick([2.0, 3.0]))), axes, keep)
    total = reduce(b, "ReduceSum", x, axes, keep)
    return (
        b.op("Div", total, scalar_like(b, x, count))
        if kind == "sum"
        else b.op("Mul", total, scalar_like(b, x, 1 / count))
    )


EDGES: tuple[Callable[[Builder], Value], ...] = (
    no_axes, no_axes, unit_axes, unit_axes, normalise, normalise, layer, layer, pool, resize, indexed, numbers_of_sizes, extreme,
    scaled, scaled, averaged,
)  # fmt: skip
