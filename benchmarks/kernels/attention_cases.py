"""Uses of the attention operators, each with its formula in numpy, for `measure.py` to try on the runtime."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.kernels.case import (
    BATCH,
    HEADS,
    HIDDEN,
    LENGTH,
    LOWEST,
    MS,
    SIZE,
    Array,
    Case,
    exact,
    merge_heads,
    random_array,
    split_heads,
)


def _softmax(x: Array) -> Array:
    peak = x.max(-1, keepdims=True)
    exponents = np.exp(x - np.where(np.isfinite(peak), peak, 0))
    with np.errstate(invalid="ignore"):  # a row that is hidden altogether
        return np.asarray(exponents / exponents.sum(-1, keepdims=True))


def _attention(q: Array, k: Array, v: Array, *more: Any, **options: Any) -> Array:
    return np.asarray(_weights(q, k, *more, **options) @ np.repeat(v, q.shape[1] // v.shape[1], 1))


def _weights(q: Array, k: Array, bias: Array | float = 0.0, causal: bool = False, scale: float = 0.0,
             cap: float = 0.0) -> Array:  # fmt: skip
    k = np.repeat(k, q.shape[1] // k.shape[1], 1)
    scores = q @ k.swapaxes(-1, -2) * (scale or 1 / math.sqrt(q.shape[-1]))
    scores = cap * np.tanh(scores / cap) if cap else scores
    scores = scores + bias
    if causal:
        length, total = scores.shape[-2:]
        scores = np.where(np.tri(length, total, total - length if total > length else 0, dtype=bool), scores, -np.inf)
    return _softmax(scores)


def _mask(*shape: int) -> Array:
    """True where a position is seen; the first always is."""
    mask = random_array(*shape) > -0.5
    mask[..., 0] = True
    return mask


def _as_bias(mask: Array) -> Array:
    return np.where(mask, 0.0, -np.inf) if mask.dtype == bool else mask


def attention() -> Iterator[Case]:
    """ai.onnx Attention 23 and 24."""
    q, k, v = (random_array(BATCH, LENGTH + more, HIDDEN, salt=more) for more in (0, 2, 2))
    v = np.roll(v, 3, axis=1)
    q4, k4, v4 = (split_heads(x, HEADS) for x in (q, k, v))
    total = LENGTH + 2
    heads = {"q_num_heads": HEADS, "kv_num_heads": HEADS}

    def case(what: str, inputs: tuple[Array | None, ...], y: Array, **attributes: Any) -> Iterator[Case]:
        for opset in (23, 24):
            outputs: tuple[Array | None, ...] = (y,)
            yield Case("Attention", f"{opset}: {what}", inputs, outputs, opset=opset, attributes=attributes)

    yield from case("3-D", (q, k, v), merge_heads(_attention(q4, k4, v4)), **heads)
    yield from case("4-D", (q4, k4, v4), _attention(q4, k4, v4))
    yield from case("scale below 0", (q, k, v), merge_heads(_attention(q4, k4, v4, scale=-0.5)), scale=-0.5, **heads)
    same = np.broadcast_to(v4.mean(2, keepdims=True), (BATCH, HEADS, LENGTH, SIZE))
    yield from case("scale 0", (q, k, v), merge_heads(same), scale=0.0, **heads)
    yield from case("no batch", (q[:0], k[:0], v[:0]), q[:0], **heads)
    yield from case("no keys", (q, k[:, :0], v[:, :0]), np.zeros_like(q), **heads)
    yield from case("no queries", (q[:, :0], k, v), q[:, :0], **heads)
    masks = [(LENGTH, total), (1, total), (LENGTH, 1), (HEADS, LENGTH, total), (1, LENGTH, total)]
    masks += [(b, h, s, total) for b in (BATCH, 1) for h in (HEADS, 1) for s in (LENGTH, 1)] + [(1, 1, LENGTH, 1)]
    for shape in masks:
        for kind, mask in (("bool", _mask(*shape)), ("float", 2 * random_array(*shape))):
            y = merge_heads(_attention(q4, k4, v4, _as_bias(mask)))
            names = "[" + ",".join(_dimension_names(shape, total)) + "]"
            yield from case(f"{kind} mask {names}", (q, k, v, mask), y, **heads)
    none = np.broadcast_to(np.arange(LENGTH)[:, None] != 1, (1, 1, LENGTH, total)).copy()
    hidden = _as_bias(none)
    zero, mean = np.nan_to_num(_attention(q4, k4, v4, hidden)), _attention(q4, k4, v4, np.where(none, 0.0, -1e30))
    for kind, mask in (("bool", none), ("float -inf", hidden), ("float lowest", np.maximum(hidden, LOWEST))):
        yield from case(
            f"{kind} mask that hides a whole row, which becomes 0", (q, k, v, mask), merge_heads(zero), **heads
        )
    yield Case("Attention", "23: float -1e30 mask that hides a whole row, which becomes the mean of the values",
               (q, k, v, np.maximum(hidden, -1e30)), (merge_heads(mean),), attributes=heads, dtypes=("float",))  # fmt: skip
    square, square4 = (k, v), (k4, v4)
    qs = random_array(BATCH, total, HIDDEN, salt=9)
    qs4 = split_heads(qs, HEADS)
    yield from case("causal", (qs, *square), merge_heads(_attention(qs4, *square4, causal=True)), is_causal=1, **heads)
    mask = _mask(BATCH, 1, total, total)
    y = merge_heads(_attention(qs4, *square4, _as_bias(mask), causal=True))
    yield from case("causal and bool mask", (qs, *square, mask), y, is_causal=1, **heads)
    yield from case("soft cap", (q, k, v), merge_heads(_attention(q4, k4, v4, cap=1.5)), softcap=1.5, **heads)
    yield from case("scale", (q, k, v), merge_heads(_attention(q4, k4, v4, scale=0.25)), scale=0.25, **heads)
    wide = random_array(BATCH, total, 2 * HIDDEN)
    yield from case(
        "values wider than keys", (q, k, wide), merge_heads(_attention(q4, k4, split_heads(wide, HEADS))), **heads
    )
    few = [random_array(BATCH, total, 2 * SIZE), random_array(BATCH, total, 2 * SIZE, salt=1)]
    few4 = [split_heads(x, 2) for x in few]
    grouped = {"q_num_heads": HEADS, "kv_num_heads": 2}
    yield from case("grouped heads", (q, *few), merge_heads(_attention(q4, *few4)), **grouped)
    yield from case("grouped heads, causal", (qs, *few), merge_heads(_attention(qs4, *few4, causal=True)), is_causal=1,
                    **grouped)  # fmt: skip
    yield from case("grouped heads, 4-D", (q4, *few4), _attention(q4, *few4))
    past = [random_array(BATCH, HEADS, 3, SIZE), random_array(BATCH, HEADS, 3, SIZE, salt=1)]
    joined = [np.concatenate(pair, 2) for pair in zip(past, (k4, v4), strict=True)]
    for opset in (23, 24):
        outputs = (merge_heads(_attention(q4, *joined)), *joined)
        yield Case(
            "Attention", f"{opset}: past and present", (q, k, v, None, *past), outputs, opset=opset, attributes=heads
        )
        mask = _mask(BATCH, 1, LENGTH, total + 3)
        outputs = (merge_heads(_attention(q4, *joined, _as_bias(mask))), *joined)
        yield Case("Attention", f"{opset}: past, present and bool mask", (q, k, v, mask, *past), outputs, opset=opset,
                   attributes=heads)  # fmt: skip


def attention_weights() -> Iterator[Case]:
    """ai.onnx Attention with the weights as fourth output."""
    q, k, v = (random_array(BATCH, LENGTH + more, HIDDEN, salt=more) for more in (0, 2, 2))
    q4, k4, v4 = (split_heads(x, HEADS) for x in (q, k, v))
    total = LENGTH + 2
    heads = {"q_num_heads": HEADS, "kv_num_heads": HEADS}
    mask, bias = _mask(BATCH, 1, LENGTH, total), 2 * random_array(1, HEADS, LENGTH, total)
    none = np.broadcast_to(np.arange(LENGTH)[:, None] != 1, (1, 1, LENGTH, total)).copy()
    few, few4 = k[..., : 2 * SIZE], split_heads(k[..., : 2 * SIZE], 2)
    qs = random_array(BATCH, total, HIDDEN, salt=9)
    qs4 = split_heads(qs, HEADS)

    def case(what: str, inputs: tuple[Array, ...], y: Array, weights: Array, **attributes: Any) -> Iterator[Case]:
        for opset in (23, 24):
            yield Case("Attention", f"{opset}: weights, {what}", inputs, (y, None, None, weights), opset=opset,
                       attributes={"qk_matmul_output_mode": 3, **attributes})  # fmt: skip

    def three(what: str, weights: Array, *masks: Array, **attributes: Any) -> Iterator[Case]:
        yield from case(what, (q, k, v, *masks), merge_heads(weights @ v4), weights, **heads, **attributes)

    yield from three("3-D", _weights(q4, k4))
    weights = _weights(q4, k4)
    yield from case("4-D", (q4, k4, v4), weights @ v4, weights)
    yield from three("bool mask [b,1,s,t]", _weights(q4, k4, _as_bias(mask)), mask)
    yield from three("float mask [1,h,s,t]", _weights(q4, k4, bias), bias)
    yield from three("soft cap and mask", _weights(q4, k4, bias, cap=1.5), bias, softcap=1.5)
    hidden = _as_bias(none)
    zero = np.nan_to_num(_weights(q4, k4, hidden))
    for kind, added in (("bool", none), ("float -inf", hidden), ("float lowest", np.maximum(hidden, LOWEST))):
        yield from three(f"{kind} mask that hides a whole row, which becomes 0", zero, added)
    weights = _weights(qs4, k4, causal=True)
    yield from case("causal", (qs, k, v), merge_heads(weights @ v4), weights, is_causal=1, **heads)
    weights = _weights(q4, few4, bias)
    y = merge_heads(weights @ np.repeat(few4, HEADS // 2, 1))
    yield from case("grouped heads and mask", (q, few, few, bias), y, weights, q_num_heads=HEADS, kv_num_heads=2)
    past = [random_array(BATCH, HEADS, 3, SIZE), random_array(BATCH, HEADS, 3, SIZE, salt=1)]
    joined = [np.concatenate(pair, 2) for pair in zip(past, (k4, v4), strict=True)]
    weights = _weights(q4, joined[0])
    outputs = (merge_heads(weights @ joined[1]), *joined, weights)
    yield Case("Attention", "23: weights, past and present", (q, k, v, None, *past), outputs,
               attributes={"qk_matmul_output_mode": 3, **heads})  # fmt: skip


def _dimension_names(shape: tuple[int, ...], total: int) -> list[str]:
    names = {BATCH: "b", HEADS: "h", LENGTH: "s", total: "t", 1: "1"}
    return [names[size] for size in shape]


def multi_head_attention() -> Iterator[Case]:
    """com.microsoft MultiHeadAttention and Attention."""
    q, k, v = (random_array(BATCH, LENGTH + more, HIDDEN, salt=more) for more in (0, 2, 2))
    v = np.roll(v, 3, axis=1)
    q4, k4, v4 = (split_heads(x, HEADS) for x in (q, k, v))
    total = LENGTH + 2
    plain = merge_heads(_attention(q4, k4, v4))

    def case(what: str, inputs: tuple[Array | None, ...], *outputs: Array | None, **attributes: Any) -> Case:
        return Case("MultiHeadAttention", what, inputs, outputs, MS, attributes={"num_heads": HEADS, **attributes})

    yield case("query, key, value 3-D", (q, k, v), plain)
    yield case("key, value 4-D [b,h,t,d]", (q, k4, v4), plain)
    yield case("query, key, value 4-D", (q4, k4, v4), _attention(q4, k4, v4))
    bias = random_array(3 * HIDDEN)
    biased = [split_heads(x + part, HEADS) for x, part in zip((q, k, v), np.split(bias, 3), strict=True)]
    yield case("bias", (q, k, v, bias), merge_heads(_attention(*biased)))
    for shape in [(b, h, s, total) for b in (BATCH, 1) for h in (HEADS, 1) for s in (LENGTH, 1)] + [(LENGTH, total)]:
        added = 2 * random_array(*shape)
        names = "[" + ",".join(_dimension_names(shape, total)) + "]"
        yield case(f"attention_bias {names}", (q, k, v, None, None, added), merge_heads(_attention(q4, k4, v4, added)))
    padding = _mask(BATCH, total)
    y = merge_heads(_attention(q4, k4, v4, _as_bias(padding)[:, None, None, :]))
    yield case("key_padding_mask [b,t]", (q, k, v, None, padding.astype(np.int32)), y)
    lengths = np.array([4, total], np.int32)
    seen = np.arange(total) < lengths[:, None]
    y = merge_heads(_attention(q4, k4, v4, _as_bias(seen)[:, None, None, :]))
    yield case("key_padding_mask [b]", (q, k, v, None, lengths), y)
    qs = random_array(BATCH, total, HIDDEN, salt=9)
    yield case(
        "unidirectional",
        (qs, k, v),
        merge_heads(_attention(split_heads(qs, HEADS), k4, v4, causal=True)),
        unidirectional=1,
    )
    yield case("scale", (q, k, v), merge_heads(_attention(q4, k4, v4, scale=0.25)), scale=0.25)
    wide = random_array(BATCH, total, 2 * HIDDEN)
    yield case("values wider than keys", (q, k, wide), merge_heads(_attention(q4, k4, split_heads(wide, HEADS))))
    past = [random_array(BATCH, HEADS, 3, SIZE), random_array(BATCH, HEADS, 3, SIZE, salt=1)]
    joined = [np.concatenate(pair, 2) for pair in zip(past, (k4, v4), strict=True)]
    yield case("past and present", (q, k, v, None, None, None, *past), merge_heads(_attention(q4, *joined)), *joined)
    x, weight = random_array(BATCH, LENGTH, HIDDEN), exact(random_array(HIDDEN, 3 * HIDDEN) / 8)
    parts = [split_heads(part, HEADS) for part in np.split(x @ weight + bias, 3, -1)]
    mask = _mask(BATCH, LENGTH)
    for what, extra, hidden in (("input, weights, bias", (), 0.0),
                                ("mask_index [b,s]", (mask.astype(np.int32),), _as_bias(mask)[:, None, None, :])):  # fmt: skip
        y = merge_heads(_attention(*parts, hidden))
        yield Case("Attention", what, (x, weight, bias, *extra), (y,), MS, attributes={"num_heads": HEADS})
    y = merge_heads(_attention(*parts, causal=True))
    yield Case("Attention", "unidirectional", (x, weight, bias), (y,), MS,
               attributes={"num_heads": HEADS, "unidirectional": 1})  # fmt: skip


def grouped_query_attention() -> Iterator[Case]:
    """com.microsoft GroupQueryAttention, which is causal and keeps its past."""
    past_length = 3

    def case(what: str, length: int, past_length: int, batch: int = BATCH, **attributes: Any) -> Case:
        q = random_array(batch, length, HIDDEN)
        k, v = random_array(batch, length, 2 * SIZE), random_array(batch, length, 2 * SIZE, salt=1)
        past = [random_array(batch, 2, past_length, SIZE), random_array(batch, 2, past_length, SIZE, salt=1)]
        joined = [np.concatenate(pair, 2) for pair in zip(past, (split_heads(k, 2), split_heads(v, 2)), strict=True)]
        total = past_length + length
        window = attributes.get("local_window_size")
        bias: Array | float = 0.0
        if window:
            near = np.arange(length)[:, None] + past_length - np.arange(total) < window
            bias = _as_bias(near)
        y = merge_heads(
            _attention(split_heads(q, HEADS), *joined, bias, causal=True, cap=attributes.get("softcap", 0.0))
        )
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
