"""Uses of the operators that rules emit, each with its formula in numpy, for `measure.py` to try on the runtime.

Arrays are float64 here, with numbers that float16 holds exactly; they are cast to the type under test. The formulas follow
the operators' specifications.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.kernels.attention_cases import (
    attention,
    attention_weights,
    grouped_query_attention,
    multi_head_attention,
)
from benchmarks.kernels.case import (
    BATCH,
    HEADS,
    LENGTH,
    MS,
    SIZE,
    Array,
    Case,
    exact,
    merge_heads,
    random_array,
    weights,
)


def _normalised(x: Array, axis: int, epsilon: float, mean: bool = True) -> Array:
    axes = tuple(range(axis % x.ndim, x.ndim))
    centred = x - x.mean(axes, keepdims=True) if mean else x
    return centred / np.sqrt((centred**2).mean(axes, keepdims=True) + epsilon)


def normalization() -> Iterator[Case]:
    """LayerNormalization, RMSNormalization, the runtime's own SimplifiedLayerNormalization, and those with a sum."""
    x, epsilon = random_array(2, 5, 8), 2.0**-17
    for op_type, mean in (
        ("LayerNormalization", True),
        ("RMSNormalization", False),
        ("SimplifiedLayerNormalization", False),
    ):
        for axis, shape in ((-1, (8,)), (2, (8,)), (1, (5, 8)), (-2, (5, 8)), (0, (2, 5, 8)), (-1, (1,)), (-1, (1, 1, 8)),
                            (-1, (5, 8)), (-2, (8,))):  # fmt: skip
            scale, bias = weights(*shape), random_array(*shape, salt=1)
            y = _normalised(x, axis, epsilon, mean) * scale
            attributes = {"axis": axis, "epsilon": epsilon}
            what = f"axis {axis} of [2,5,8], scale {list(shape)}"
            yield Case(op_type, what, (x, scale), (y,), attributes=attributes)
            if mean:
                yield Case(op_type, what + " and bias", (x, scale, bias), (y + bias,), attributes=attributes)
    scale = weights(8)
    large = exact(1000 + x)
    for stash in (1, 11):
        yield Case("LayerNormalization", f"stash_type {stash}", (x, scale), (_normalised(x, -1, epsilon) * scale,),
                   attributes={"stash_type": stash, "epsilon": epsilon})  # fmt: skip
    y = _normalised(large, -1, epsilon) * scale
    yield Case("LayerNormalization", "mean 1000, deviation 1", (large, scale), (y,),
               attributes={"epsilon": epsilon}, dtypes=("float", "float16"))  # fmt: skip
    mean = x.mean(-1, keepdims=True)
    outputs = (
        _normalised(x, -1, epsilon) * scale,
        mean,
        1 / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + epsilon),
    )
    yield Case("LayerNormalization", "outputs Mean and InvStdDev", (x, scale), outputs,
               attributes={"epsilon": epsilon}, dtypes=("float",))  # fmt: skip
    yield from _skip_normalization(epsilon)


def _skip_normalization(epsilon: float) -> Iterator[Case]:
    gamma, beta, bias = weights(8), random_array(8, salt=1), random_array(8, salt=2)
    attributes = {"epsilon": epsilon}
    for shape, skip_shape in (((2, 5, 8), (2, 5, 8)), ((5, 8), (5, 8)), ((2, 5, 8), (1, 5, 8)), ((2, 5, 8), (5, 8)),
                              ((2, 5, 8), (2, 1, 8)), ((2, 3, 5, 8), (2, 3, 5, 8))):  # fmt: skip
        x, skip = random_array(*shape), random_array(*skip_shape, salt=1)
        for names, extra in (("gamma", ()), ("gamma, beta", (beta,)), ("gamma, beta, bias", (beta, bias))):
            total = x + skip + (bias if len(extra) == 2 else 0.0)
            y = _normalised(total, -1, epsilon) * gamma + (beta if extra else 0.0)
            what = f"input {list(shape)}, skip {list(skip_shape)}, {names}"
            yield Case("SkipLayerNormalization", what, (x, skip, gamma, *extra), (y, None, None, total), MS,
                       attributes=attributes)  # fmt: skip
        total = x + skip
        yield Case("SkipSimplifiedLayerNormalization", f"input {list(shape)}, skip {list(skip_shape)}", (x, skip, gamma),
                   (_normalised(total, -1, epsilon, False) * gamma, None, None, total), MS, attributes=attributes)  # fmt: skip
    x, skip = random_array(2, 5, 8), random_array(2, 5, 8, salt=1)
    y = _normalised(x + skip, -1, epsilon) * gamma
    yield Case("SkipLayerNormalization", "gamma [1,8]", (x, skip, gamma[None]), (y,), MS, attributes=attributes)


_erf: Callable[[Array], Array] = np.vectorize(math.erf, otypes=[float])


def _gelu(x: Array) -> Array:
    return x / 2 * (1 + _erf(x / math.sqrt(2)))


def _tanh_gelu(x: Array) -> Array:
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def activation() -> Iterator[Case]:
    """GELU and its relatives."""
    for shape in ((), (8,), (5, 8), (2, 5, 8), (2, 3, 5, 8), (2, 0, 8)):
        x = np.asarray(2 * random_array(*shape))
        rank = f"rank {len(shape)}" if 0 not in shape else "empty"
        yield Case("Gelu", rank, (x,), (_gelu(x),))
        yield Case("Gelu", f"{rank}, tanh", (x,), (_tanh_gelu(x),), attributes={"approximate": "tanh"})
        yield Case("Gelu", rank, (x,), (_gelu(x),), MS)
        yield Case("FastGelu", rank, (x,), (_tanh_gelu(x),), MS)
        yield Case("QuickGelu", f"{rank}, alpha 1.702", (x,), (x / (1 + np.exp(-1.702 * x)),), MS,
                   attributes={"alpha": 1.702})  # fmt: skip
        if shape:
            bias = random_array(8)
            yield Case("BiasGelu", rank, (x, bias), (_gelu(x + bias),), MS)
            yield Case("FastGelu", f"{rank}, bias", (x, bias), (_tanh_gelu(x + bias),), MS)
    x = 2 * random_array(5, 8)
    yield Case("BiasGelu", "bias [1]", (x, random_array(1)), (_gelu(x + random_array(1)),), MS)
    yield Case("BiasGelu", "bias [1,8]", (x, random_array(1, 8)), (_gelu(x + random_array(1, 8)),), MS)
    yield Case("Swish", "24", (x,), (x / (1 + np.exp(-x)),), opset=24)
    yield Case("Swish", "24, alpha 1.702", (x,), (x / (1 + np.exp(-1.702 * x)),), opset=24, attributes={"alpha": 1.702})
    hard = x * np.clip(x / 6 + 0.5, 0, 1)
    yield from (Case("HardSwish", str(opset), (x,), (hard,), opset=opset) for opset in (14, 22))
    mish = x * np.tanh(np.log1p(np.exp(x)))
    yield from (Case("Mish", str(opset), (x,), (mish,), opset=opset) for opset in (18, 22))


def convolution() -> Iterator[Case]:
    """com.microsoft FusedConv: an activation, and a tensor that is added before it."""
    x, w, b = random_array(1, 3, 6, 6), exact(random_array(4, 3, 3, 3) / 4), random_array(4)
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
    conv = np.einsum("nchwij,ocij->nohw", windows, w) + b[:, None, None]
    z = random_array(*conv.shape)
    activations: dict[str, tuple[tuple[float, ...], Callable[[Array], Array]]] = {
        "Relu": ((), lambda y: np.maximum(y, 0)),
        "Tanh": ((), np.tanh),
        "Sigmoid": ((), lambda y: 1 / (1 + np.exp(-y))),
        "LeakyRelu": ((0.1,), lambda y: np.where(y > 0, y, 0.1 * y)),
        "Clip": ((-0.5, 0.5), lambda y: np.clip(y, -0.5, 0.5)),
        "HardSigmoid": ((0.2, 0.5), lambda y: np.clip(0.2 * y + 0.5, 0, 1)),
        "HardSwish": ((), lambda y: y * np.clip(y / 6 + 0.5, 0, 1)),
        "Gelu": ((), _gelu),
    }
    for name, (parameters, function) in activations.items():
        attributes: dict[str, Any] = {"activation": name}
        if parameters:
            attributes["activation_params"] = list(parameters)
        yield Case("FusedConv", name, (x, w, b), (function(conv),), MS, attributes=attributes)
        yield Case("FusedConv", f"{name}, added tensor", (x, w, b, z), (function(conv + z),), MS, attributes=attributes)
    yield Case("FusedConv", "added tensor, no activation", (x, w, b, z), (conv + z,), MS)
    without = conv - b[:, None, None] + z
    yield Case("FusedConv", "Relu, added tensor, no bias", (x, w, None, z), (np.maximum(without, 0),), MS,
               attributes={"activation": "Relu"})  # fmt: skip
    yield Case("FusedConv", "added tensor [1,4,1,1]", (x, w, b, z[:, :, :1, :1]), (conv + z[:, :, :1, :1],), MS)


def product() -> Iterator[Case]:
    """com.microsoft FusedMatMul."""
    a, b = random_array(2, 3, 4, 5), random_array(2, 3, 5, 6)

    def swap(x: Array) -> Array:
        return x.swapaxes(-1, -2)

    yield Case("FusedMatMul", "alpha", (a, b), (0.25 * (a @ b),), MS, attributes={"alpha": 0.25})
    yield Case("FusedMatMul", "transA", (swap(a), b), (a @ b,), MS, attributes={"transA": 1})
    yield Case("FusedMatMul", "transB", (a, swap(b)), (a @ b,), MS, attributes={"transB": 1})
    yield Case(
        "FusedMatMul", "transB, alpha", (a, swap(b)), (0.25 * (a @ b),), MS, attributes={"transB": 1, "alpha": 0.25}
    )
    yield Case(
        "FusedMatMul", "transB, 2-D", (a[0, 0], swap(b[0, 0])), (a[0, 0] @ b[0, 0],), MS, attributes={"transB": 1}
    )
    yield Case(
        "FusedMatMul", "transB, weight of rank 2", (a, swap(b[0, 0])), (a @ b[0, 0],), MS, attributes={"transB": 1}
    )
    moved = np.moveaxis(a, -2, 0)
    yield Case("FusedMatMul", "transBatchA", (moved.copy(), b), (a @ b,), MS, attributes={"transBatchA": 1})
    moved = np.moveaxis(b, -2, 0)
    yield Case("FusedMatMul", "transBatchB", (a, moved.copy()), (a @ b,), MS, attributes={"transBatchB": 1})


def _rotated(x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """Rotate [b, h, s, d]; cos and sin are [b, s, r/2], and of each head r elements are rotated."""
    size = 2 * cos.shape[-1]
    turned, rest = x[..., :size], x[..., size:]
    cos, sin = cos[:, None], sin[:, None]
    one, two = (turned[..., ::2], turned[..., 1::2]) if interleaved else np.split(turned, 2, -1)
    real, imaginary = one * cos - two * sin, one * sin + two * cos
    joined = (
        np.stack([real, imaginary], -1).reshape(turned.shape) if interleaved else np.concatenate([real, imaginary], -1)
    )
    return np.concatenate([joined, rest], -1)


def rotary() -> Iterator[Case]:
    """RotaryEmbedding of ai.onnx 23 and of com.microsoft."""
    x4 = random_array(BATCH, HEADS, LENGTH, SIZE)
    positions = np.array([[3, 0, 7, 1, 2], [5, 6, 0, 4, 9]])
    for interleaved in (False, True):
        for part in (SIZE, SIZE // 2):
            angles = random_array(10, part // 2)
            cos, sin = exact(np.cos(angles)), exact(np.sin(angles))
            y = _rotated(x4, cos[positions], sin[positions], interleaved)
            attributes: dict[str, Any] = {"interleaved": int(interleaved)}
            if part != SIZE:
                attributes["rotary_embedding_dim"] = part
            heads = {**attributes, "num_heads": HEADS}
            how = f"{'interleaved' if interleaved else 'halves'}{', part of the head' if part != SIZE else ''}"
            op = "RotaryEmbedding"
            yield Case(op, f"{how}, 4-D, positions", (x4, cos, sin, positions), (y,), attributes=attributes)
            yield Case(
                op,
                f"{how}, 3-D, positions",
                (merge_heads(x4), cos, sin, positions),
                (merge_heads(y),),
                attributes=heads,
            )
            yield Case(
                op, f"{how}, 4-D, no positions", (x4, cos[positions], sin[positions]), (y,), attributes=attributes
            )
            one = (cos[None, :LENGTH], sin[None, :LENGTH])
            yield Case(op, f"{how}, 4-D, no positions, cache [1,s,r/2]", (x4, *one), (_rotated(x4, *one, interleaved),),
                       attributes=attributes)  # fmt: skip
            theirs = heads if part != SIZE else attributes
            yield Case(op, f"{how}, 4-D, positions [b,s]", (x4, positions, cos, sin), (y,), MS, attributes=theirs)
            yield Case(op, f"{how}, 3-D, positions [b,s]", (merge_heads(x4), positions, cos, sin), (merge_heads(y),), MS,
                       attributes=theirs)  # fmt: skip
            offset = np.tile(np.arange(2, 2 + LENGTH), (BATCH, 1))
            y = _rotated(x4, cos[offset], sin[offset], interleaved)
            yield Case(
                op, f"{how}, 4-D, first position [1]", (x4, np.array([2]), cos, sin), (y,), MS, attributes=theirs
            )


def cases() -> list[Case]:
    """All of them."""
    groups = (attention, attention_weights, multi_head_attention, grouped_query_attention, normalization, activation,
              convolution, product, rotary)  # fmt: skip
    return [case for group in groups for case in group()]
