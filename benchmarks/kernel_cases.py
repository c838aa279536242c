"""Uses of the operators that rules emit, each with its formula in numpy: what `kernels.py` tries on the runtime.

Arrays are float64 here, with numbers that float16 holds exactly; they are cast to the type under test. The formulas follow
the operators' specifications.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
MS = "com.microsoft"

BATCH, HEADS, LENGTH, SIZE = 2, 4, 5, 8
HIDDEN = HEADS * SIZE
LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Case:
    """One use of an operator: inputs by position (None: left out) and the outputs it should have (None: not compared)."""

    op_type: str
    what: str
    inputs: tuple[Array | None, ...]
    expected: tuple[Array | None, ...]
    domain: str = ""
    opset: int = 23
    attributes: Mapping[str, Any] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ("float", "float16", "double")


def _exact(x: Array) -> Array:
    return np.asarray(x, np.float16).astype(np.float64)


def _random(*shape: int, salt: int = 0) -> Array:
    return _exact(np.random.default_rng([salt, *shape]).standard_normal(shape))


def _weights(*shape: int) -> Array:
    return _exact(1 + _random(*shape) / 4)


def _softmax(x: Array) -> Array:
    peak = x.max(-1, keepdims=True)
    exponents = np.exp(x - np.where(np.isfinite(peak), peak, 0))
    with np.errstate(invalid="ignore"):  # a row that is hidden altogether
        return np.asarray(exponents / exponents.sum(-1, keepdims=True))


def _split(x: Array, heads: int) -> Array:
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def _merge(x: Array) -> Array:
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def _attention(q: Array, k: Array, v: Array, bias: Array | float = 0.0, causal: bool = False, scale: float = 0.0,
               cap: float = 0.0) -> Array:  # fmt: skip
    groups = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, groups, 1), np.repeat(v, groups, 1)
    scores = q @ k.swapaxes(-1, -2) * (scale or 1 / math.sqrt(q.shape[-1]))
    scores = cap * np.tanh(scores / cap) if cap else scores
    scores = scores + bias
    if causal:
        length, total = scores.shape[-2:]
        scores = np.where(np.tri(length, total, total - length if total > length else 0, dtype=bool), scores, -np.inf)
    return _softmax(scores) @ v


def _mask(*shape: int) -> Array:
    """True where a position is seen; the first always is."""
    mask = _random(*shape) > -0.5
    mask[..., 0] = True
    return mask


def _as_bias(mask: Array) -> Array:
    return np.where(mask, 0.0, -np.inf) if mask.dtype == bool else mask


def attention() -> Iterator[Case]:
    """ai.onnx Attention 23 and 24."""
    q, k, v = (_random(BATCH, LENGTH + more, HIDDEN, salt=more) for more in (0, 2, 2))
    v = np.roll(v, 3, axis=1)
    q4, k4, v4 = (_split(x, HEADS) for x in (q, k, v))
    total = LENGTH + 2
    heads = {"q_num_heads": HEADS, "kv_num_heads": HEADS}

    def case(what: str, inputs: tuple[Array | None, ...], y: Array, **attributes: Any) -> Iterator[Case]:
        for opset in (23, 24):
            outputs: tuple[Array | None, ...] = (y,)
            yield Case("Attention", f"{opset}: {what}", inputs, outputs, opset=opset, attributes=attributes)

    yield from case("3-D", (q, k, v), _merge(_attention(q4, k4, v4)), **heads)
    yield from case("4-D", (q4, k4, v4), _attention(q4, k4, v4))
    masks = [(LENGTH, total), (1, total), (LENGTH, 1), (HEADS, LENGTH, total), (1, LENGTH, total)]
    masks += [(b, h, s, total) for b in (BATCH, 1) for h in (HEADS, 1) for s in (LENGTH, 1)] + [(1, 1, LENGTH, 1)]
    for shape in masks:
        for kind, mask in (("bool", _mask(*shape)), ("float", 2 * _random(*shape))):
            y = _merge(_attention(q4, k4, v4, _as_bias(mask)))
            names = "[" + ",".join(_dimension_names(shape, total)) + "]"
            yield from case(f"{kind} mask {names}", (q, k, v, mask), y, **heads)
    none = np.broadcast_to(np.arange(LENGTH)[:, None] != 1, (1, 1, LENGTH, total)).copy()
    hidden = _as_bias(none)
    zero, mean = np.nan_to_num(_attention(q4, k4, v4, hidden)), _attention(q4, k4, v4, np.where(none, 0.0, -1e30))
    for kind, mask in (("bool", none), ("float -inf", hidden), ("float lowest", np.maximum(hidden, LOWEST))):
        yield from case(f"{kind} mask that hides a whole row, which becomes 0", (q, k, v, mask), _merge(zero), **heads)
    yield Case("Attention", "23: float -1e30 mask that hides a whole row, which becomes the mean of the values",
               (q, k, v, np.maximum(hidden, -1e30)), (_merge(mean),), attributes=heads, dtypes=("float",))  # fmt: skip
    square, square4 = (k, v), (k4, v4)
    qs = _random(BATCH, total, HIDDEN, salt=9)
    qs4 = _split(qs, HEADS)
    yield from case("causal", (qs, *square), _merge(_attention(qs4, *square4, causal=True)), is_causal=1, **heads)
    mask = _mask(BATCH, 1, total, total)
    y = _merge(_attention(qs4, *square4, _as_bias(mask), causal=True))
    yield from case("causal and bool mask", (qs, *square, mask), y, is_causal=1, **heads)
    yield from case("soft cap", (q, k, v), _merge(_attention(q4, k4, v4, cap=1.5)), softcap=1.5, **heads)
    yield from case("scale", (q, k, v), _merge(_attention(q4, k4, v4, scale=0.25)), scale=0.25, **heads)
    wide = _random(BATCH, total, 2 * HIDDEN)
    yield from case("values wider than keys", (q, k, wide), _merge(_attention(q4, k4, _split(wide, HEADS))), **heads)
    few = [_random(BATCH, total, 2 * SIZE), _random(BATCH, total, 2 * SIZE, salt=1)]
    few4 = [_split(x, 2) for x in few]
    grouped = {"q_num_heads": HEADS, "kv_num_heads": 2}
    yield from case("grouped heads", (q, *few), _merge(_attention(q4, *few4)), **grouped)
    yield from case("grouped heads, causal", (qs, *few), _merge(_attention(qs4, *few4, causal=True)), is_causal=1,
                    **grouped)  # fmt: skip
    yield from case("grouped heads, 4-D", (q4, *few4), _attention(q4, *few4))
    past = [_random(BATCH, HEADS, 3, SIZE), _random(BATCH, HEADS, 3, SIZE, salt=1)]
    joined = [np.concatenate(pair, 2) for pair in zip(past, (k4, v4), strict=True)]
    for opset in (23, 24):
        outputs = (_merge(_attention(q4, *joined)), *joined)
        yield Case(
            "Attention", f"{opset}: past and present", (q, k, v, None, *past), outputs, opset=opset, attributes=heads
        )
        mask = _mask(BATCH, 1, LENGTH, total + 3)
        outputs = (_merge(_attention(q4, *joined, _as_bias(mask))), *joined)
        yield Case("Attention", f"{opset}: past, present and bool mask", (q, k, v, mask, *past), outputs, opset=opset,
                   attributes=heads)  # fmt: skip


def _dimension_names(shape: tuple[int, ...], total: int) -> list[str]:
    names = {BATCH: "b", HEADS: "h", LENGTH: "s", total: "t", 1: "1"}
    return [names[size] for size in shape]


def multi_head_attention() -> Iterator[Case]:
    """com.microsoft MultiHeadAttention and Attention."""
    q, k, v = (_random(BATCH, LENGTH + more, HIDDEN, salt=more) for more in (0, 2, 2))
    v = np.roll(v, 3, axis=1)
    q4, k4, v4 = (_split(x, HEADS) for x in (q, k, v))
    total = LENGTH + 2
    plain = _merge(_attention(q4, k4, v4))

    def case(what: str, inputs: tuple[Array | None, ...], *outputs: Array | None, **attributes: Any) -> Case:
        return Case("MultiHeadAttention", what, inputs, outputs, MS, attributes={"num_heads": HEADS, **attributes})

    yield case("query, key, value 3-D", (q, k, v), plain)
    yield case("key, value 4-D [b,h,t,d]", (q, k4, v4), plain)
    yield case("query, key, value 4-D", (q4, k4, v4), _attention(q4, k4, v4))
    bias = _random(3 * HIDDEN)
    biased = [_split(x + part, HEADS) for x, part in zip((q, k, v), np.split(bias, 3), strict=True)]
    yield case("bias", (q, k, v, bias), _merge(_attention(*biased)))
    for shape in [(b, h, s, total) for b in (BATCH, 1) for h in (HEADS, 1) for s in (LENGTH, 1)] + [(LENGTH, total)]:
        added = 2 * _random(*shape)
        names = "[" + ",".join(_dimension_names(shape, total)) + "]"
        yield case(f"attention_bias {names}", (q, k, v, None, None, added), _merge(_attention(q4, k4, v4, added)))
    padding = _mask(BATCH, total)
    y = _merge(_attention(q4, k4, v4, _as_bias(padding)[:, None, None, :]))
    yield case("key_padding_mask [b,t]", (q, k, v, None, padding.astype(np.int32)), y)
    lengths = np.array([4, total], np.int32)
    seen = np.arange(total) < lengths[:, None]
    y = _merge(_attention(q4, k4, v4, _as_bias(seen)[:, None, None, :]))
    yield case("key_padding_mask [b]", (q, k, v, None, lengths), y)
    qs = _random(BATCH, total, HIDDEN, salt=9)
    yield case(
        "unidirectional", (qs, k, v), _merge(_attention(_split(qs, HEADS), k4, v4, causal=True)), unidirectional=1
    )
    yield case("scale", (q, k, v), _merge(_attention(q4, k4, v4, scale=0.25)), scale=0.25)
    wide = _random(BATCH, total, 2 * HIDDEN)
    yield case("values wider than keys", (q, k, wide), _merge(_attention(q4, k4, _split(wide, HEADS))))
    past = [_random(BATCH, HEADS, 3, SIZE), _random(BATCH, HEADS, 3, SIZE, salt=1)]
    joined = [np.concatenate(pair, 2) for pair in zip(past, (k4, v4), strict=True)]
    yield case("past and present", (q, k, v, None, None, None, *past), _merge(_attention(q4, *joined)), *joined)
    x, weight = _random(BATCH, LENGTH, HIDDEN), _exact(_random(HIDDEN, 3 * HIDDEN) / 8)
    parts = [_split(part, HEADS) for part in np.split(x @ weight + bias, 3, -1)]
    mask = _mask(BATCH, LENGTH)
    for what, extra, hidden in (("input, weights, bias", (), 0.0),
                                ("mask_index [b,s]", (mask.astype(np.int32),), _as_bias(mask)[:, None, None, :])):  # fmt: skip
        y = _merge(_attention(*parts, hidden))
        yield Case("Attention", what, (x, weight, bias, *extra), (y,), MS, attributes={"num_heads": HEADS})
    y = _merge(_attention(*parts, causal=True))
    yield Case("Attention", "unidirectional", (x, weight, bias), (y,), MS,
               attributes={"num_heads": HEADS, "unidirectional": 1})  # fmt: skip


def grouped_query_attention() -> Iterator[Case]:
    """com.microsoft GroupQueryAttention, which is causal and keeps its past."""
    past_length = 3

    def case(what: str, length: int, past_length: int, batch: int = BATCH, **attributes: Any) -> Case:
        q = _random(batch, length, HIDDEN)
        k, v = _random(batch, length, 2 * SIZE), _random(batch, length, 2 * SIZE, salt=1)
        past = [_random(batch, 2, past_length, SIZE), _random(batch, 2, past_length, SIZE, salt=1)]
        joined = [np.concatenate(pair, 2) for pair in zip(past, (_split(k, 2), _split(v, 2)), strict=True)]
        total = past_length + length
        window = attributes.get("local_window_size")
        bias: Array | float = 0.0
        if window:
            near = np.arange(length)[:, None] + past_length - np.arange(total) < window
            bias = _as_bias(near)
        y = _merge(_attention(_split(q, HEADS), *joined, bias, causal=True, cap=attributes.get("softcap", 0.0)))
        last = np.full(batch, total - 1, np.int32)
        inputs = (q, k, v, *past, last, np.array(total, np.int32))
        return Case("GroupQueryAttention", what, inputs, (y, *joined), MS,
                    attributes={"num_heads": HEADS, "kv_num_heads": 2, **attributes})  # fmt: skip

    yield case("prompt, empty past", LENGTH, 0)
    yield case("one token and a past", 1, past_length)
    yield case("several tokens and a past", 2, past_length)
    yield case("several tokens and a past, batch 1", 2, past_length, batch=1)
    yield case("local window", LENGTH, 0, local_window_size=2)
    yield case("soft cap", LENGTH, 0, softcap=1.5)


def _normalised(x: Array, axis: int, epsilon: float, mean: bool = True) -> Array:
    axes = tuple(range(axis % x.ndim, x.ndim))
    centred = x - x.mean(axes, keepdims=True) if mean else x
    return centred / np.sqrt((centred**2).mean(axes, keepdims=True) + epsilon)


def normalization() -> Iterator[Case]:
    """LayerNormalization, RMSNormalization, the runtime's own SimplifiedLayerNormalization, and those with a sum."""
    x, epsilon = _random(2, 5, 8), 2.0**-17
    for op_type, mean in (
        ("LayerNormalization", True),
        ("RMSNormalization", False),
        ("SimplifiedLayerNormalization", False),
    ):
        for axis, shape in ((-1, (8,)), (2, (8,)), (1, (5, 8)), (-2, (5, 8)), (0, (2, 5, 8)), (-1, (1,)), (-1, (1, 1, 8)),
                            (-1, (5, 8)), (-2, (8,))):  # fmt: skip
            scale, bias = _weights(*shape), _random(*shape, salt=1)
            y = _normalised(x, axis, epsilon, mean) * scale
            attributes = {"axis": axis, "epsilon": epsilon}
            what = f"axis {axis} of [2,5,8], scale {list(shape)}"
            yield Case(op_type, what, (x, scale), (y,), attributes=attributes)
            if mean:
                yield Case(op_type, what + " and bias", (x, scale, bias), (y + bias,), attributes=attributes)
    scale = _weights(8)
    large = _exact(1000 + x)
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
    gamma, beta, bias = _weights(8), _random(8, salt=1), _random(8, salt=2)
    attributes = {"epsilon": epsilon}
    for shape, skip_shape in (((2, 5, 8), (2, 5, 8)), ((5, 8), (5, 8)), ((2, 5, 8), (1, 5, 8)), ((2, 5, 8), (5, 8)),
                              ((2, 5, 8), (2, 1, 8)), ((2, 3, 5, 8), (2, 3, 5, 8))):  # fmt: skip
        x, skip = _random(*shape), _random(*skip_shape, salt=1)
        for names, extra in (("gamma", ()), ("gamma, beta", (beta,)), ("gamma, beta, bias", (beta, bias))):
            total = x + skip + (bias if len(extra) == 2 else 0.0)
            y = _normalised(total, -1, epsilon) * gamma + (beta if extra else 0.0)
            what = f"input {list(shape)}, skip {list(skip_shape)}, {names}"
            yield Case("SkipLayerNormalization", what, (x, skip, gamma, *extra), (y, None, None, total), MS,
                       attributes=attributes)  # fmt: skip
        total = x + skip
        yield Case("SkipSimplifiedLayerNormalization", f"input {list(shape)}, skip {list(skip_shape)}", (x, skip, gamma),
                   (_normalised(total, -1, epsilon, False) * gamma, None, None, total), MS, attributes=attributes)  # fmt: skip
    x, skip = _random(2, 5, 8), _random(2, 5, 8, salt=1)
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
        x = np.asarray(2 * _random(*shape))
        rank = f"rank {len(shape)}" if 0 not in shape else "empty"
        yield Case("Gelu", rank, (x,), (_gelu(x),))
        yield Case("Gelu", f"{rank}, tanh", (x,), (_tanh_gelu(x),), attributes={"approximate": "tanh"})
        yield Case("Gelu", rank, (x,), (_gelu(x),), MS)
        yield Case("FastGelu", rank, (x,), (_tanh_gelu(x),), MS)
        yield Case("QuickGelu", f"{rank}, alpha 1.702", (x,), (x / (1 + np.exp(-1.702 * x)),), MS,
                   attributes={"alpha": 1.702})  # fmt: skip
        if shape:
            bias = _random(8)
            yield Case("BiasGelu", rank, (x, bias), (_gelu(x + bias),), MS)
            yield Case("FastGelu", f"{rank}, bias", (x, bias), (_tanh_gelu(x + bias),), MS)
    x = 2 * _random(5, 8)
    yield Case("BiasGelu", "bias [1]", (x, _random(1)), (_gelu(x + _random(1)),), MS)
    yield Case("BiasGelu", "bias [1,8]", (x, _random(1, 8)), (_gelu(x + _random(1, 8)),), MS)
    yield Case("Swish", "24", (x,), (x / (1 + np.exp(-x)),), opset=24)
    yield Case("Swish", "24, alpha 1.702", (x,), (x / (1 + np.exp(-1.702 * x)),), opset=24, attributes={"alpha": 1.702})
    hard = x * np.clip(x / 6 + 0.5, 0, 1)
    yield from (Case("HardSwish", str(opset), (x,), (hard,), opset=opset) for opset in (14, 22))
    mish = x * np.tanh(np.log1p(np.exp(x)))
    yield from (Case("Mish", str(opset), (x,), (mish,), opset=opset) for opset in (18, 22))


def convolution() -> Iterator[Case]:
    """com.microsoft FusedConv: an activation, and a tensor that is added before it."""
    x, w, b = _random(1, 3, 6, 6), _exact(_random(4, 3, 3, 3) / 4), _random(4)
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
    conv = np.einsum("nchwij,ocij->nohw", windows, w) + b[:, None, None]
    z = _random(*conv.shape)
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
    a, b = _random(2, 3, 4, 5), _random(2, 3, 5, 6)

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
    x4 = _random(BATCH, HEADS, LENGTH, SIZE)
    positions = np.array([[3, 0, 7, 1, 2], [5, 6, 0, 4, 9]])
    for interleaved in (False, True):
        for part in (SIZE, SIZE // 2):
            angles = _random(10, part // 2)
            cos, sin = _exact(np.cos(angles)), _exact(np.sin(angles))
            y = _rotated(x4, cos[positions], sin[positions], interleaved)
            attributes: dict[str, Any] = {"interleaved": int(interleaved)}
            if part != SIZE:
                attributes["rotary_embedding_dim"] = part
            heads = {**attributes, "num_heads": HEADS}
            how = f"{'interleaved' if interleaved else 'halves'}{', part of the head' if part != SIZE else ''}"
            op = "RotaryEmbedding"
            yield Case(op, f"{how}, 4-D, positions", (x4, cos, sin, positions), (y,), attributes=attributes)
            yield Case(op, f"{how}, 3-D, positions", (_merge(x4), cos, sin, positions), (_merge(y),), attributes=heads)
            yield Case(
                op, f"{how}, 4-D, no positions", (x4, cos[positions], sin[positions]), (y,), attributes=attributes
            )
            one = (cos[None, :LENGTH], sin[None, :LENGTH])
            yield Case(op, f"{how}, 4-D, no positions, cache [1,s,r/2]", (x4, *one), (_rotated(x4, *one, interleaved),),
                       attributes=attributes)  # fmt: skip
            theirs = heads if part != SIZE else attributes
            yield Case(op, f"{how}, 4-D, positions [b,s]", (x4, positions, cos, sin), (y,), MS, attributes=theirs)
            yield Case(op, f"{how}, 3-D, positions [b,s]", (_merge(x4), positions, cos, sin), (_merge(y),), MS,
                       attributes=theirs)  # fmt: skip
            offset = np.tile(np.arange(2, 2 + LENGTH), (BATCH, 1))
            y = _rotated(x4, cos[offset], sin[offset], interleaved)
            yield Case(
                op, f"{how}, 4-D, first position [1]", (x4, np.array([2]), cos, sin), (y,), MS, attributes=theirs
            )


def cases() -> list[Case]:
    """All of them."""
    groups = (attention, multi_head_attention, grouped_query_attention, normalization, activation, convolution, product,
              rotary)  # fmt: skip
    return [case for group in groups for case in group()]
