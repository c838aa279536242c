"""Uses of operators that only GPUs have kernels of, and of masks that hide whole rows, each with its formula in numpy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import benchmarks.kernels.case as sizes
from benchmarks.kernels.attention_cases import _attention
from benchmarks.kernels.case import MS, Array, Case, exact, merge_heads, random_array, split_heads, weights

LOWEST = {"lowest of float32": float(np.finfo(np.float32).min), "lowest of float16": -65504.0, "-inf": -np.inf}


def cases() -> Iterator[Case]:
    """All of them."""
    yield from hidden_rows()
    yield from long_masks()
    yield from group_normalization()
    yield from gated()
    yield from packed_attention()


def hidden_rows() -> Iterator[Case]:
    """MultiHeadAttention with a bias that hides all keys of a query, by several numbers; that row is to become the mean."""
    batch, heads, length, hidden = sizes.BATCH, sizes.HEADS, sizes.LENGTH, sizes.HIDDEN
    q, k, v = (random_array(batch, length, hidden, salt=more) for more in (0, 1, 2))
    parts = [split_heads(x, heads) for x in (q, k, v)]
    seen = np.tri(length, length, dtype=bool)[None, None].copy()
    some = seen.copy()
    some[..., 1, :] = False
    attributes = {"num_heads": heads}
    plain = merge_heads(_attention(*parts, np.where(seen, 0.0, -np.inf)))
    uniform = parts[2].mean(2, keepdims=True)
    for name, number in LOWEST.items():
        for what, mask in (("keeps a key in each row", seen), ("hides a whole row, which becomes the mean", some)):
            rows = _attention(*parts, np.where(seen, 0.0, -np.inf))
            expected = merge_heads(np.where(mask.any(-1, keepdims=True), rows, uniform))
            bias = np.broadcast_to(np.where(mask, 0.0, number), (1, 1, length, length)).copy()
            kinds = ("float", "float16") if name != "lowest of float32" else ("float",)
            yield Case("MultiHeadAttention", f"bias of {name} {what}", (q, k, v, None, None, bias), (expected,), MS,
                       attributes=attributes, dtypes=kinds)  # fmt: skip
    bias = np.where(seen, 0.0, -np.inf) + random_array(1, heads, length, length) / 4
    yield Case("MultiHeadAttention", "bias and unidirectional", (q, k, v, None, None, bias),
               (merge_heads(_attention(*parts, bias)),), MS, attributes={**attributes, "unidirectional": 1})  # fmt: skip
    yield Case("MultiHeadAttention", "unidirectional alone", (q, k, v), (plain,), MS,
               attributes={**attributes, "unidirectional": 1})  # fmt: skip
    zeroed = q.reshape(batch, length, hidden).copy()
    zeroed[:, 1] = 0
    rows = _attention(split_heads(zeroed, heads), *parts[1:], np.where(seen, 0.0, -np.inf))
    expected = merge_heads(np.where(some.any(-1, keepdims=True), rows, uniform))
    bias = np.where(some, 0.0, -65504.0)
    yield Case("MultiHeadAttention", "bias of lowest of float16 hides a whole row, whose query is 0",
               (zeroed, k, v, None, None, bias), (expected,), MS, attributes=attributes)  # fmt: skip


def long_masks() -> Iterator[Case]:
    """MultiHeadAttention whose bias hides the first keys or the last, more than a kernel takes at a time; and keys by head."""
    heads, size, length = sizes.HEADS, sizes.SIZE, 200
    q, k, v = (random_array(2, length, heads * size, salt=more) for more in (0, 1, 2))
    parts = [split_heads(x, heads) for x in (q, k, v)]
    attributes = {"num_heads": heads}
    for what, number in (("-inf", -np.inf), ("-1e4", -1e4)):
        for end, seen in (("first", np.arange(length) >= 150), ("last", np.arange(length) < 40)):
            bias = np.broadcast_to(np.where(seen, 0.0, number), (2, 1, length, length)).copy()
            y = merge_heads(_attention(*parts, bias))
            yield Case("MultiHeadAttention", f"bias of {what} hides the {end} keys of 200", (q, k, v, None, None, bias), (y,),
                       MS, attributes=attributes)  # fmt: skip
    bias = random_array(2, 1, length, length) / 4
    y = merge_heads(_attention(*parts, bias))
    yield Case("MultiHeadAttention", "keys and values by head, and a bias", (q, *parts[1:], None, None, bias), (y,), MS,
               attributes=attributes)  # fmt: skip
    past = [random_array(2, heads, 9, size, salt=more) for more in (3, 4)]
    joined = [np.concatenate(pair, 2) for pair in zip(past, parts[1:], strict=True)]
    bias = random_array(2, 1, length, length + 9) / 4
    outputs = (merge_heads(_attention(parts[0], *joined, bias)), *joined)
    yield Case("MultiHeadAttention", "past, present and bias", (q, k, v, None, None, bias, *past), outputs, MS,
               attributes=attributes)  # fmt: skip
    yield Case("MultiHeadAttention", "past and no present", (q, k, v, None, None, bias, *past), outputs[:1], MS,
               attributes=attributes)  # fmt: skip


GROUPED: tuple[tuple[int, int, int, int], ...] = (
    *((64, 32, 8, 8), (320, 32, 16, 16), (640, 32, 8, 8), (960, 32, 8, 8), (1280, 32, 4, 4), (2560, 32, 4, 4)),
    *((128, 32, 33, 31), (512, 32, 1, 1), (8, 4, 5, 7), (16, 1, 3, 3), (512, 1, 2, 2), (36, 3, 4, 4)),
)
"""Channels, groups, height and width: those of diffusion models, and others that the kernel takes by its checks."""


PLAIN_HEAD = 64
"""The size of heads with which operators that have none are tried."""


def group_normalization() -> Iterator[Case]:
    """com.microsoft GroupNorm and SkipGroupNorm, channels last."""
    if sizes.SIZE != PLAIN_HEAD:
        return
    for number, (channels, groups, height, width) in enumerate(GROUPED):
        image, what = random_array(2, height, width, channels), f"of {height}x{width}x{channels}"
        yield from _group_norms(image, groups, what, skips=number % 3 == 0)
        if number % 4 == 0:
            yield from _group_norms(exact(image + 3), groups, f"{what} around 3")
            for level in (7.3125, 300.5):
                yield from _group_norms(np.full_like(image, level), groups, f"{what} that is {level} everywhere")


def _group_norms(x: Array, groups: int, what: str, *, skips: bool = False) -> Iterator[Case]:
    batch, channels, epsilon = x.shape[0], x.shape[-1], 1e-5
    gamma, beta = weights(channels), random_array(channels, salt=1)
    constants = (gamma.astype(np.float32), beta.astype(np.float32))

    def normalised(y: Array) -> Array:
        grouped = y.reshape(batch, -1, groups, channels // groups)
        mean, deviation = grouped.mean((1, 3), keepdims=True), grouped.var((1, 3), keepdims=True)
        return np.asarray(((grouped - mean) / np.sqrt(deviation + epsilon)).reshape(y.shape) * gamma + beta)

    plain = normalised(x)
    attributes = {"groups": groups, "epsilon": epsilon, "channels_last": 1}
    for activation, y in ((0, plain), (1, plain / (1 + np.exp(-plain)))):
        yield Case("GroupNorm", f"{what}, activation {activation}", (x, *constants), (y,), MS,
                   attributes={**attributes, "activation": activation})  # fmt: skip
    bias = random_array(channels, salt=2)
    terms = {
        "an image": random_array(*x.shape, salt=1),
        "[batch, channels]": random_array(batch, channels, salt=1),
        "[batch, 1, 1, channels]": random_array(batch, 1, 1, channels, salt=1),
    }
    for kind, skip in terms.items() if skips else ():
        wide = skip[:, None, None] if skip.ndim == 2 else skip
        for more, term in (("", None), (" and a bias", bias)):
            total = x + wide + (0.0 if term is None else term)
            yield Case("SkipGroupNorm", f"{what}, skip {kind}{more}", (x, *constants, skip, term), (normalised(total), total),
                       MS, attributes={**attributes, "activation": 0})  # fmt: skip


def gated() -> Iterator[Case]:
    """com.microsoft BiasSplitGelu, and BiasAdd."""
    for wide in (256, 2560, 5120):
        x, bias = random_array(2, 5, wide), exact(random_array(wide) / 4)
        left, right = np.split(x + bias, 2, -1)
        gelu = right * 0.5 * (1 + np.vectorize(math.erf)(right / math.sqrt(2)))
        yield Case("BiasSplitGelu", f"of {wide}", (x, bias), (left * gelu,), MS)
    for wide in (320, 256):
        x, bias, skip = random_array(2, 5, wide), random_array(wide, salt=1), random_array(2, 5, wide, salt=2)
        yield Case("BiasAdd", f"of {wide}", (x, bias, skip), (x + bias + skip,), MS)


LENGTHS: Mapping[str, tuple[int, ...]] = {
    "one sequence": (5,),
    "full": (4, 4, 4),
    "several lengths": (5, 1, 3),
    "lengths beyond a warp": (200, 3, 130),
    "lengths of fused kernels": (512, 384, 7),
}
"""Numbers of visible tokens of the sequences of a batch."""


def packed_attention() -> Iterator[Case]:
    """com.microsoft PackedMultiHeadAttention: the tokens of several sequences, one behind the other."""
    heads, hidden = sizes.HEADS, sizes.HIDDEN
    for what, lengths in LENGTHS.items():
        tokens, slots, ends = sum(lengths), slots_of(lengths), np.cumsum([0, *lengths]).astype(np.int32)
        q, k, v = (random_array(tokens, hidden, salt=more) for more in (0, 1, 2))
        wide, bias = random_array(tokens, 2 * hidden, salt=3), exact(random_array(3 * hidden, salt=4) / 4)
        plain = {"num_heads": heads}
        uses: dict[str, tuple[tuple[Array | None, ...], dict[str, Any]]] = {
            "": ((q, k, v, None), plain),
            "with a scale": ((q, k, v, None), {**plain, "scale": 0.3}),
            "with biases": ((q, k, v, bias), plain),
            "with wide values": ((q, k, wide, None), plain),
        }
        for use, (operands, attributes) in uses.items():
            expected = _of_sequences(operands, lengths, attributes)
            yield Case("PackedMultiHeadAttention", f"{what} {use}".strip(), (*operands, slots, ends), (expected,), MS,
                       attributes=attributes)  # fmt: skip


def slots_of(lengths: Sequence[int]) -> Array:
    """The places of tokens in a batch without holes, then those that are left: int32 of shape [sequences, longest]."""
    taken = np.arange(max(lengths)) < np.array(lengths)[:, None]
    order = np.concatenate([np.flatnonzero(taken), np.flatnonzero(~taken)])
    return order.reshape(taken.shape).astype(np.int32)


def _of_sequences(operands: Sequence[Array | None], lengths: Sequence[int], attributes: Mapping[str, Any]) -> Array:
    """Attention of each sequence by itself."""
    q, k, v, bias = operands
    assert q is not None and k is not None and v is not None
    if bias is not None:
        q, k, v = (x + part for x, part in zip((q, k, v), np.split(bias, 3), strict=True))
    ends = np.cumsum(lengths)[:-1]
    heads, scale = attributes["num_heads"], attributes.get("scale", 0.0)
    rows = []
    for parts in zip(*(np.split(x, ends) for x in (q, k, v)), strict=True):
        own = [split_heads(part[None], heads) for part in parts]
        rows.append(merge_heads(_attention(*own, scale=scale))[0])
    return np.concatenate(rows)
