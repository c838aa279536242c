"""Drop the bias of keys; sink the bias of values below the attention.

attention(q, k + a, v) = attention(q, k, v)               every score of a query grows by q a, and softmax(s + c) = softmax(s)
attention(q, k, v + b) W = attention(q, k, v) W + b W     the weights of a query sum to 1

The term b W is a constant, and becomes part of the bias of that MatMul. The weights do not sum to 1 if all keys are hidden:
the runtime's ai.onnx Attention gives zeros there. com.microsoft MultiHeadAttention does not (see `_mask_values`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Guard, Match, Pattern, attr, computed, const, ms, op, opt, redundant, var

from .._rule_test_inputs import COST, NEVER_EMPTY, masked
from .._shared_guards import array_like
from ._mask_values import keeps_a_key, mask_range
from .sdpa import PAPER

LARGEST = 1 << 21
"""The most elements of a weight that a bias is multiplied with: larger ones stay unread in their file."""

LARGEST_BIAS = 1e3
"""The largest element of a bias that is left out."""

query, key, value, mask = var("query", "_ _ _"), var("key", "_ _ k"), var("value", "_ _ v"), var("mask")
key_bias, value_bias, weight = const("bias", "k"), const("bias", "v"), const("weight", "_ _")


def _attention(key: Pattern, value: Pattern) -> Pattern:
    """Either operator."""
    heads, scale, causal = attr("heads"), attr("scale"), attr("is_causal")
    standard = op.Attention(
        query, key, value, opt(mask), q_num_heads=heads, kv_num_heads=heads, scale=scale, is_causal=causal
    )
    contrib = ms.MultiHeadAttention(
        query, key, value, None, None, opt(mask), num_heads=heads, scale=scale, unidirectional=causal
    )
    return (standard | contrib).named("attention")


def no_row_is_hidden(match: Match) -> Refusal | None:
    """No query has all its keys hidden by the mask, for which ONNX's operator gives zeros."""
    if match["mask"] is None or match.choice("attention") == 1:
        return None
    dtype = match.dtype("mask")
    found = mask_range(match["mask"], match.facts) if dtype is not None and dtype.is_floating_point() else None
    if found is None:
        return match.refuse("values_unknown", "mask", "known not to hide all keys of a query")
    if not found.deep or keeps_a_key(match["mask"], match.facts):
        return None
    return match.refuse("value", "mask", "such that no query has all its keys hidden")


def bias_is_moderate(match: Match) -> Refusal | None:
    """The bias is not so large that the scores lose the digits behind it, which they keep without it."""
    small = bool(np.all(np.abs(match.const("bias")) <= LARGEST_BIAS))
    return match.unless_value("bias", small, f"at most {LARGEST_BIAS:g}")


@redundant(COST)
def weight_is_read(match: Match) -> Refusal | None:
    """The weight is small enough to be read for this."""
    few = match.const("weight").size <= LARGEST
    return None if few else match.refuse("needless", "weight", found="it is large: it stays as it is in its file")


def product_is_held(match: Match) -> Refusal | None:
    """The type holds the product of bias and weight."""
    dtype = match.dtype("root")
    if dtype is None or dtype.numpy().kind != "f":
        return match.refuse("dtype", "root", "float32, float16 or float64")
    finite = bool(np.all(np.abs(_product(match)) <= float(np.finfo(dtype.numpy()).max)))
    return match.unless_value("bias", finite, f"such that {dtype.name.lower()} holds its product with the weight")


def _product(match: Match) -> Any:
    with np.errstate(all="ignore"):
        return match.const("bias").astype(np.float64) @ match.const("weight").astype(np.float64)


_moved = computed("moved", lambda match: array_like(match, _product(match)))


def _rule(name: str, formula: str, pattern: Pattern, replace: Pattern, *guards: Guard, **more: Any) -> Rule:
    return Rule(
        name=f"attention.{name}",
        formula=formula,
        is_refinement=True,
        pattern=pattern,
        replace=replace,
        guards=guards,
        exactness=Exactness.ROUNDING,
        source=PAPER,
        test=RuleTest(
            shapes={
                "query": "b s 8",
                "key": "b t 8",
                "value": "b t 8",
                "mask": "b 1 s t",
                "bias": "8",
                "weight": "8 5",
            },
            attributes={"heads": [2], "scale": [0.5], "is_causal": [0]},
            opset=23,
            never_empty=NEVER_EMPTY,
            **more,
        ),
    )


RULES = [
    _rule(
        "drop_key_bias",
        "attention(query, key + bias, value, mask)",
        _attention(key + key_bias, value),
        _attention(key, value),
        bias_is_moderate,
    ),
    _rule(
        "sink_value_bias",
        "attention(query, key, value + bias, mask) weight",
        _attention(key, value + value_bias) @ weight,
        _attention(key, value) @ weight + _moved,
        no_row_is_hidden,
        weight_is_read,
        product_is_held,
        inputs={"mask": masked(-10000.0)},
    ),
]
