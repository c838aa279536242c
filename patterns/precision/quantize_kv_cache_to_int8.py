"""Quantise caches of keys and values to 8-bit integers, with one scale for each channel of a head.

attention(q, k, v, mask, past)  ~  attention(q, dq(q8(k)), dq(q8(v)), mask, dq(q8(past)))

q8(x) = clip(round(x / s), -128, 127), with constants s such that the observed maximum of a channel reaches 127. New keys and
values are rounded once, when they are appended; cached ones stay as they are. The operator takes and gives integers. The nodes
that convert them from and to float32 stand at the inputs and outputs of the model. `ortfuse convert --to int8-caches` removes
them there.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.quantization.quantization_parameters import SMALLEST_SCALE
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Op, Pattern, attr, computed, ms, op, var

from ._smooth_quant import COLUMNS
from ._static_activation_quantization import was_observed
from ._weight_quantization import Array

PASS = "precision.kv_cache"

SOURCE = "ONNX Runtime operator com.microsoft.GroupQueryAttention"

HEAD = 8
"""The size of a head is a multiple of this."""

INT32 = 6

UNOBSERVED = "constants are not observed, and in no cache"

query, key, value = var("query", "b s (h d)"), var("key", "b s (g d)"), var("value", "b s (g d)")
past_key, past_value = var("past_key", "b g p d"), var("past_value", "b g p d")
mask = var("mask", "... s _")


def is_in_float32(match: Match) -> Refusal | None:
    """All of it is in float32."""
    names = ("query", "key", "value", "past_key", "past_value")
    return next(filter(None, (match.unless_dtype(name, ir.DataType.FLOAT) for name in names)), None)


def heads_fit(match: Match) -> Refusal | None:
    """The size of a head is known, and one that the kernel takes."""
    size = match.size("d")
    if size is None or match.size("g") is None or size % HEAD:
        return match.refuse_dimension("past_key", -1, f"a known multiple of {HEAD}")
    return None


def mask_covers_all_keys(match: Match) -> Refusal | None:
    """The mask has a column for each key, as the kernel that computes in float32 wants it too."""
    shape, past, new = match.shape("mask"), match.shape("past_key"), match.shape("key")
    if shape is None or past is None or new is None or shape[-1] != past[2] + new[1]:
        return match.refuse_dimension("mask", -1, "that of past and new keys")
    return None


def says_nothing_of_the_scores(match: Match) -> Refusal | None:
    """The scores themselves are not a result."""
    return match.unless_value("mode", not match["mode"], "0: no scores are asked for")


def _head(match: Match) -> tuple[int, int]:
    """The size of a head of keys and values, and how many there are."""
    return match.size("d") or 1, match.size("g") or 1


def _scales(match: Match, new: str, past: str) -> Array:
    """The scale of each channel of a head: what was seen of it, of all heads, becomes 127. There may be no past."""
    size, heads = _head(match)
    new_sizes, past_sizes = match.observed_sizes(new, heads * size), match.observed_sizes(past, size)
    seen = [new_sizes.reshape(heads, size).max(axis=0), *([] if past_sizes is None else [past_sizes])]
    found: Array = np.maximum(np.max(seen, axis=0) / 127, SMALLEST_SCALE).astype(np.float32)
    return found


def _constants(new: str, past: str) -> tuple[Pattern, Pattern, Pattern, Pattern]:
    """The scales and zero points of the channels of one head, and those of the channels of all."""

    def repeated(match: Match) -> Array:
        return np.tile(_scales(match, new, past), _head(match)[1])

    return (
        computed(f"{new}_scale", lambda match: _scales(match, new, past)),
        computed(f"{new}_zero", lambda match: np.zeros(_head(match)[0], np.int8)),
        computed(f"{new}_scales", repeated),
        computed(f"{new}_zeros", lambda match: np.zeros(repeated(match).shape, np.int8)),
    )


def _rounded(given: Pattern, scale: Pattern, zero: Pattern, axis: int) -> Pattern:
    made: Pattern = op.DequantizeLinear(op.QuantizeLinear(given, scale, zero, axis=axis), scale, zero, axis=axis)
    return made


def _length(given: Pattern, axis: int) -> Op:
    made: Op = op.Shape(given, start=axis, end=axis + 1)
    return made


def _scale(match: Match) -> float:
    return float(match["scale"] or 1 / math.sqrt(_head(match)[0]))


HOW: dict[str, Any] = {
    "scale": attr("scale"),
    "softcap": attr("softcap"),
    "qk_matmul_output_mode": attr("mode"),
    "is_causal": attr("is_causal"),
    "q_num_heads": attr("query_heads"),
    "kv_num_heads": attr("key_heads"),
}


def _rule(name: str, *, masked: bool) -> Rule:
    given = (mask,) if masked else (None,)
    k_scale, k_zero, k_scales, k_zeros = _constants("key", "past_key")
    v_scale, v_zero, v_scales, v_zeros = _constants("value", "past_value")
    batch, total = _length(query, 0), op.Add(_length(past_key, 2), _length(key, 1))
    one, of_four_axes = computed("one", lambda match: np.int64(1)), computed("ones", lambda match: np.ones(4, np.int64))
    made = ms.GroupQueryAttention(
        query, key, value,
        op.QuantizeLinear(past_key, k_scale, k_zero, axis=3),
        op.QuantizeLinear(past_value, v_scale, v_zero, axis=3),
        op.Cast(op.Expand(op.Sub(total, one), batch), to=INT32),
        # A sum of known sizes that is only cast makes the runtime's shape inference fail: it takes it for 64 bits.
        op.Cast(op.ReduceMax(total, keepdims=0), to=INT32),
        None, None, None,
        op.Expand(mask, of_four_axes) if masked else None,
        None, k_scales, v_scales,
        num_heads=attr("query_heads"), kv_num_heads=attr("key_heads"), scale=_scale, softcap=attr("softcap"),
        causal=attr("is_causal"), k_quant_type="PER_CHANNEL", v_quant_type="PER_CHANNEL", kv_cache_bit_width=8,
        outputs=3,
    )  # fmt: skip
    meant = op.Attention(
        query, _rounded(key, k_scales, k_zeros, 2), _rounded(value, v_scales, v_zeros, 2), *given,
        _rounded(past_key, k_scale, k_zero, 3), _rounded(past_value, v_scale, v_zero, 3), **HOW, outputs=4,
    )  # fmt: skip
    caches = {"past_key": "b 2 3 8", "past_value": "b 2 3 8"}
    steps = {"query": "b 1 32", "key": "b 1 16", "value": "b 1 16", **caches, **({"mask": "b 1 1 4"} if masked else {})}
    several = {
        **{name: shape.replace("b", "1", 1) for name, shape in caches.items()},
        "query": "1 5 32", "key": "1 5 16", "value": "1 5 16", **({"mask": "5 8"} if masked else {}),
    }  # fmt: skip
    return Rule(
        name=f"cache_int8.{name}",
        pattern=op.Attention(query, key, value, *given, past_key, past_value, **HOW, outputs=4).naming(
            present_key=1, present_value=2, weights=3
        ),
        replace=made[0],
        definition=meant[0],
        intermediates={
            "present_key": op.DequantizeLinear(made[1], k_scale, k_zero, axis=3),
            "present_value": op.DequantizeLinear(made[2], v_scale, v_zero, axis=3),
        },
        guards=(
            is_in_float32,
            heads_fit,
            says_nothing_of_the_scores,
            *([mask_covers_all_keys] if masked else []),
            was_observed(COLUMNS, "key", "value"),
        ),
        exactness=Exactness.LOSSY,
        source=SOURCE,
        test=RuleTest(
            shapes=(steps, several),
            attributes={
                "scale": [None, 0.5],
                "softcap": [0.0, 2.0],
                "mode": [0],
                "is_causal": [0, 1],
                "query_heads": [4],
                "key_heads": [2],
            },
            ranges=dict.fromkeys(("key", "value", "past_key", "past_value"), (-5.0, 4.5)),
            assumes={
                f"input {index} of Attention is 1e5 times as large": "a cache holds what keys and values were before"
                for index in (4, 5)
            },
            uncovered={
                "constants: Constant nodes": UNOBSERVED,
                **{f"{name} is: a constant": UNOBSERVED for name in ("key", "value")},
            },
            opset=23,
        ),
    )


RULES = [_rule("attention_with_mask", masked=True), _rule("attention_without_mask", masked=False)]
