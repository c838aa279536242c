"""What exporters write for the fusions of ortfuse, with constants, axes and operands a little off.

Most of what comes out must be rewritten exactly so, or be left alone; the judge cares only that it computes the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .builder import Builder, RefusedError, Value
from .moving import unsqueeze
from .operators import reduce, scalar_like


def off(b: Builder, number: float) -> float:
    """The number, or one near it, or quite another."""
    near = [number * (1 + 1e-6), number * 1.0001] if b.shared.nearly else []
    return b.choose.pick([number] * 8 + [*near, number * 1.01, -number, 0.0, 1.0])


def coefficient(b: Builder, x: Value, number: float) -> Value:
    """`x` times a number, in one of its spellings."""
    number = off(b, number)
    if number and b.choose.chance(40):
        return b.op("Div", x, scalar_like(b, x, 1 / number))
    factor = scalar_like(b, x, number)
    return b.op("Mul", *((x, factor) if b.choose.chance(50) else (factor, x)))


def commuted(b: Builder, kind: str, x: Value, y: Value) -> Value:
    """A sum or product in either order."""
    return b.op(kind, *((x, y) if b.choose.chance(50) else (y, x)))


def floating(b: Builder, *dims: int | str, dtype: type | None = None) -> Value:
    """A new floating-point input, mostly of float32."""
    return b.input(dtype or b.choose.pick([np.float32] * 5 + [np.float16, np.float64]), dims)


def weights(b: Builder, *shape: int, like: Value, positive: bool = False) -> Value:
    """Random constants."""
    array = np.random.default_rng(b.choose.integer(0, 9)).standard_normal(shape) / max(
        1, math.sqrt(shape[0] if shape else 1)
    )
    return b.const((np.abs(array) + 0.1 if positive else array).astype(like.dtype))


def gelu(b: Builder) -> Value:
    """GELU by erf or tanh, quick GELU, SiLU; with a bias before it or not."""
    x = b.some_float() if b.choose.chance(60) else floating(b, "b", "s", 4)
    if b.choose.chance(40) and x.known.ndim:
        bias = weights(b, x.shape[-1], like=x)
        x = commuted(b, "Add", x, bias)
    kind = b.choose.pick(["erf", "erf", "tanh", "quick", "silu"])
    if kind in ("quick", "silu"):
        inner = coefficient(b, x, 1.702) if kind == "quick" else x
        return commuted(b, "Mul", x, b.op("Sigmoid", inner))
    if kind == "erf":
        inside = b.op("Erf", coefficient(b, x, 1 / math.sqrt(2)))
    else:
        cube = (
            b.op("Pow", x, scalar_like(b, x, off(b, 3.0))) if b.choose.chance(50) else b.op("Mul", b.op("Mul", x, x), x)
        )
        inside = b.op(
            "Tanh", coefficient(b, commuted(b, "Add", x, coefficient(b, cube, 0.044715)), math.sqrt(2 / math.pi))
        )
    gate = commuted(b, "Add", inside, scalar_like(b, x, off(b, 1.0)))
    if b.choose.chance(50):
        return coefficient(b, commuted(b, "Mul", x, gate), 0.5)
    return commuted(b, "Mul", coefficient(b, x, 0.5), gate)


def normalisation(b: Builder) -> Value:
    """Layer or RMS normalisation, spelled out, of a sum or not."""
    x = (
        b.some_float()
        if b.choose.chance(50)
        else floating(b, *b.choose.pick([("b", "s", 8), ("b", 6), ("z", "s", 4), ("s", 3, 4)]))
    )
    rank = x.known.ndim
    if not rank or 0 in x.shape[-1:]:
        raise RefusedError("nothing to normalise")
    if b.choose.chance(30):
        x = commuted(b, "Add", x, b.op("Tanh", x))
    axes = b.choose.pick([[-1]] * 5 + [[rank - 1], [-2, -1], [0], [-1, -2], [rank - 2]])
    rms = b.choose.chance(45)
    deviation = x if rms else b.op("Sub", x, reduce(b, "ReduceMean", x, axes))
    square = (
        b.op("Pow", deviation, scalar_like(b, x, off(b, 2.0)))
        if b.choose.chance(60)
        else b.op("Mul", deviation, deviation)
    )
    variance = reduce(b, "ReduceMean", square, axes if b.choose.chance(90) else [0], keep=b.choose.chance(92))
    epsilon = b.choose.pick([1e-5, 1e-5, 1e-12, 0.0, 1e-3, 1.0, -1e-3])
    lifted = commuted(b, "Add", variance, scalar_like(b, x, epsilon))
    root = b.op("Sqrt", lifted) if b.choose.chance(70) else b.op("Pow", lifted, scalar_like(b, x, 0.5))
    found = (
        b.op("Div", deviation, root) if b.choose.chance(60) else commuted(b, "Mul", deviation, b.op("Reciprocal", root))
    )
    shape = b.choose.pick([x.shape[-1:]] * 6 + [(1,), (), (1, x.shape[-1]), x.shape])
    if b.choose.chance(80):
        found = commuted(b, "Mul", found, weights(b, *shape, like=x))
    if b.choose.chance(60):
        found = commuted(b, "Add", found, weights(b, *b.choose.pick([shape, x.shape[-1:]]), like=x))
    return found


def mask(b: Builder, scores: Value) -> Value | None:
    """What is added to attention scores: none, causal, padding, both; of any filler, with rows hidden altogether."""
    kind = b.choose.pick(["none", "none", "padding", "padding", "causal", "both", "input", "where", "constant"])
    if kind == "none":
        return None
    dtype = scores.dtype
    limits = np.finfo(dtype)
    filler = b.choose.pick(
        [-np.inf, float(limits.min), -1e4, -1e9, -65504.0, -3.4028234663852886e38, -10.0, 1e4, np.nan]
    )
    with np.errstate(all="ignore"):
        deep, zero = np.array(filler).astype(dtype), np.array(0, dtype)
    batch, _, queries, keys = scores.shape
    if kind == "input":
        return b.input(
            dtype,
            b.choose.pick([(batch, 1, queries, keys), (1, 1, queries, keys), (batch, 1, 1, keys), (queries, keys)]),
        )
    triangle = np.where(np.tril(np.ones((queries, keys))) > 0, zero, deep).astype(dtype)
    if kind == "causal":
        return b.const(triangle.reshape(b.choose.pick([(1, 1, queries, keys), (queries, keys)])))
    if kind == "constant":
        rows = np.zeros((1, 1, queries, keys), dtype)
        rows[..., b.choose.integer(0, queries) :, :] = deep
        return b.const(rows)
    kept = b.input(b.choose.pick([np.int64, bool, np.float32]), (batch, keys), "mask")
    wide = unsqueeze(b, unsqueeze(b, kept, [1]), [2]) if b.choose.chance(50) else unsqueeze(b, kept, [1, 2])
    onnx_type = {"float16": 10, "float32": 1, "float64": 11}[dtype.name]
    if kind == "where":
        hidden = b.op("Not", b.op("Cast", wide, to=9))
        return b.op("Where", hidden, b.const(deep), b.const(zero))
    numbers = b.op("Cast", wide, to=onnx_type)
    found = b.op(
        "Mul",
        b.op("Sub", b.const(np.array(1, dtype)), numbers),
        b.const(deep if np.isfinite(deep) else np.array(-1e4, dtype)),
    )
    return commuted(b, "Add", found, b.const(triangle.reshape(1, 1, queries, keys))) if kind == "both" else found


def attention(b: Builder) -> Value:
    """Scaled dot-product attention, with heads split off the last axis or there already, and repeated key heads or not."""
    batch, length, keys = b.choose.pick(["b", 1, 2, "n"]), b.choose.pick(["s", 3, 1]), b.choose.pick(["s", "t", 4])
    heads, size = b.choose.pick([1, 2, 2, 3]), b.choose.pick([4, 4, 1, 8])
    dtype = b.choose.pick([np.float32] * 6 + [np.float16, np.float64])
    split = b.choose.chance(50)
    shared = 1 if not split and heads > 1 and b.choose.chance(30) else heads
    first = floating(b, *((batch, length, heads * size) if split else (batch, heads, length, size)), dtype=dtype)
    q = _heads(b, first, heads, size) if split else first
    if b.choose.chance(25) and keys == length:
        k = v = q
    else:
        k, v = (
            floating(b, *((batch, keys, heads * size) if split else (batch, shared, keys, size)), dtype=dtype)
            for _ in range(2)
        )
        if split:
            k, v = _heads(b, k, heads, size), _heads(b, v, heads, size)
        if shared != heads:
            k, v = _repeated(b, k, heads), _repeated(b, v, heads)
    scale = b.choose.pick([1 / math.sqrt(size)] * 3 + [1.0, 2.0])
    where = b.choose.pick(["scores", "scores", "query", "key", "both", "none"])
    turned = b.op("Transpose", k, perm=b.choose.pick([[0, 1, 3, 2]] * 8 + [[0, 2, 3, 1]]))
    q = coefficient(b, q, scale if where == "query" else math.sqrt(scale)) if where in ("query", "both") else q
    turned = (
        coefficient(b, turned, scale if where == "key" else math.sqrt(scale)) if where in ("key", "both") else turned
    )
    scores = b.op("MatMul", q, turned)
    scores = coefficient(b, scores, scale) if where == "scores" else scores
    if b.choose.chance(10):
        scores = coefficient(b, b.op("Tanh", coefficient(b, scores, 1 / 30)), 30.0)
    hidden = mask(b, scores)
    scores = scores if hidden is None else commuted(b, "Add", scores, hidden)
    shares = b.op("Softmax", scores, axis=b.choose.pick([-1] * 8 + [3, 2]))
    if b.choose.chance(20):
        shares = b.op("Where", b.op("IsNaN", shares), b.const(np.array(0, dtype)), shares)
    if b.choose.chance(10):
        shares = b.op("Dropout", shares)
    found = b.op("MatMul", shares, v)
    if not split:
        return found
    merged = b.op("Transpose", found, perm=[0, 2, 1, 3])
    return b.op("Reshape", merged, b.ints(b.choose.pick([[0, 0, heads * size], [0, -1, heads * size], [0, 0, -1]])))


def _heads(b: Builder, x: Value, heads: int, size: int) -> Value:
    target = b.choose.pick([[0, 0, heads, size], [0, -1, heads, size], [0, 0, -1, size], [0, 0, heads, -1]])
    if b.choose.chance(30):
        sizes = b.op("Shape", x)
        parts = [b.op("Slice", sizes, b.ints([axis]), b.ints([axis + 1])) for axis in (0, 1)]
        split = b.op("Reshape", x, b.op("Concat", *parts, b.ints([heads]), b.ints([size]), axis=0))
    else:
        split = b.op("Reshape", x, b.ints(target))
    return b.op("Transpose", split, perm=[0, 2, 1, 3])


def _repeated(b: Builder, x: Value, heads: int) -> Value:
    batch, shared, length, size = x.shape
    wide = b.op(
        "Expand",
        unsqueeze(b, x, [2]),
        b.ints(b.choose.pick([[batch, shared, heads // shared, length, size], [1, 1, heads, 1, 1]])),
    )
    return b.op("Reshape", wide, b.ints([0, heads, -1, size]))


def rotary(b: Builder) -> Value:
    """Rotary position embedding of halves or pairs, of angles that repeat or do not."""
    size = b.choose.pick([4, 4, 2, 6])
    x = floating(b, "b", 2, "s", size, dtype=b.choose.pick([np.float32, np.float32, np.float16]))
    angles = floating(b, 1, 1, "s", size // 2, dtype=x.dtype.type)
    twice = b.op("Concat", angles, angles if b.choose.chance(80) else b.op("Neg", angles), axis=-1)
    cos, sin = b.op("Cos", twice), b.op("Sin", twice)
    half = size // 2 if b.choose.chance(90) else 1
    low = b.op("Slice", x, b.ints([0]), b.ints([half]), b.ints([3]))
    high = b.op("Slice", x, b.ints([half]), b.ints([2**63 - 1]), b.ints([b.choose.pick([3, -1])]))
    turned = b.op("Neg", high) if b.choose.chance(85) else high
    rotated = b.op("Concat", *((turned, low) if b.choose.chance(85) else (low, turned)), axis=-1)
    return commuted(b, "Add", commuted(b, "Mul", x, cos), commuted(b, "Mul", rotated, sin))


def convolution(b: Builder) -> Value:
    """Conv or ConvTranspose with a BatchNormalization, factors, a residual sum and an activation after it."""
    dims = b.choose.pick([1, 2, 2])
    groups = b.choose.pick([1, 1, 2])
    channels = 4
    x = floating(b, b.choose.pick(["b", "b", "z"]), channels, *[b.choose.pick([5, 4])] * dims, dtype=np.float32)
    side = b.choose.pick([1, 3])
    transposed = b.choose.chance(20)
    kernel = weights(b, channels, channels // groups, *[side] * dims, like=x)
    bias = weights(b, channels, like=x) if b.choose.chance(50) else None
    y = b.op("ConvTranspose" if transposed else "Conv", x, kernel, *([bias] if bias is not None else []), group=groups,
             pads=b.choose.pick([[side // 2] * 2 * dims, [0] * 2 * dims]))  # fmt: skip
    if b.choose.chance(50):
        vectors = [weights(b, channels, like=x, positive=number == 3) for number in range(4)]
        y = b.op("BatchNormalization", y, *vectors, epsilon=b.choose.pick([1e-5, 1e-3]))
    elif b.choose.chance(50):
        shape = b.choose.pick([(channels, *[1] * dims), (1, channels, *[1] * dims), (), (1,), (channels,)])
        y = b.op(b.choose.pick(["Mul", "Add", "Sub", "Div"]), y, weights(b, *shape, like=x, positive=True))
    if b.choose.chance(50):
        residual = x if x.shape == y.shape and b.choose.chance(70) else weights(b, channels, *[1] * dims, like=x)
        y = commuted(b, "Add", y, residual)
    return b.op("Relu", y) if b.choose.chance(60) else y


FRAGMENTS: tuple[Callable[[Builder], Value], ...] = (gelu, normalisation, attention, attention, rotary, convolution)
