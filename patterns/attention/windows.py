"""Attention within windows, which have an axis of their own between batch and heads.

attention(q, k, v) on [batch, windows, heads, length, size] = split(attention(merge(q), merge(k), merge(v)))

on [batch * windows, heads, length, size], to which the rules of `dot_product` apply. A mask that is not the same for all windows
is repeated and merged alike.
"""

from __future__ import annotations

from ortfuse.pattern import Match, Op, Pattern, built, computed, op, opt, rearrange, scalar, var
from ortfuse.rewrite import Exactness, Proof, Rule

from .._common import ints
from .dot_product import PAPER

query, value = var("query", "b c h s d"), var("value", "b c h u v")
key, transposed = var("key", "b c h t d"), var("transposed_key", "b c h d t")
turned = rearrange("b c h t d -> b c h d t", key) | transposed
of_windows, of_all = var("mask", "b|1 c|1 x y z"), var("shared_mask", "h? s? _")
scores = scalar("score_scale") * (query @ turned.named("turned", "b c h d t"))
softmax = op.Softmax(scores + opt(of_windows | of_all), axis=-1)


def _merged(operand: Pattern, rows: str, columns: str) -> Pattern:
    return rearrange(f"b c h {rows} {columns} -> (b c) h {rows} {columns}", operand)


def _merged_key(match: Match) -> Pattern:
    if match["key"] is None:
        return _merged(transposed, "d", "t")
    return rearrange("b c h t d -> (b c) h d t", key)


def _merged_mask(match: Match) -> Pattern | None:
    if match["mask"] is None:
        return None if match["shared_mask"] is None else of_all
    ones = computed("ones", lambda match: ints([1] * 3))
    repeated = op.Expand(of_windows, op.Concat(op.Shape(query, start=0, end=2), ones, axis=0))
    return rearrange("b c x y z -> (b c) x y z", repeated)


def _attention(match: Match) -> Op:
    mask = _merged_mask(match)
    product = scalar("score_scale") * (_merged(query, "s", "d") @ _merged_key(match))
    weights = op.Softmax(product if mask is None else product + mask, axis=-1)
    sizes = op.Concat(op.Shape(query, start=0, end=4), op.Shape(value, start=4, end=5), axis=0)
    result: Op = op.Reshape(weights @ _merged(value, "u", "v"), sizes, allowzero=1)
    return result


RULES = [
    Rule(
        name="attention.windows",
        formula="softmax(s q k^T + mask) v on [batch, windows, heads, length, size]",
        is_refinement=True,
        pattern=softmax.named("weights", "b c h s t") @ value,
        replace=built(
            _attention,
            makes=("Shape", "Concat", "Expand", "Reshape", "Transpose", "MatMul", "Mul", "Add", "Softmax"),
        ),
        may_raise_opset=True,
        exactness=Exactness.ROUNDING,
        source=PAPER,
        proof=Proof(
            shapes={
                "c": 3, "h": 2, "d": 4, "v": 4, "u": "t", "x": 2, "y": "s", "z": "t", "shared_mask": "2 s t",
            },
            scalars={"score_scale": [1.0, 0.5]},
            opset=17,
        ),
    )
]  # fmt: skip
