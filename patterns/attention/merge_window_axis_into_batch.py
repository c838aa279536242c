"""Merge the window axis of attention into the batch axis.

attention(q, k, v) on [batch, windows, heads, length, size] = split(attention(merge(q), merge(k), merge(v)))

on [batch * windows, heads, length, size], to which the rules of `sdpa` apply. A mask that differs between windows is
repeated and merged alike. If the axis next to the scores has size 1, as a single window behind the heads, that axis is
merged instead, and the heads stay an axis of their own.
"""

from __future__ import annotations

from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, Op, Pattern, built, computed, op, opt, rearrange, scalar, var

from .._shared_guards import ints
from .sdpa import PAPER

query, value = var("query", "b c h s d"), var("value", "b c h u v")
key, transposed = var("key", "b c h t d"), var("transposed_key", "b c h d t")
turned = rearrange("b c h t d -> b c h d t", key) | transposed
of_windows, of_all = var("mask", "b|1 c|1 x y z"), var("shared_mask", "h? s? _")
product = (scalar("query_scale") * query) @ turned.named("turned", "b c h d t")
scores = scalar("score_scale") * product
softmax = op.Softmax(scores + opt(of_windows | of_all), axis=-1)


def _lead(match: Match) -> str:
    """How the leading axes are merged."""
    return "b (c h)" if match.size("h") == 1 else "(b c) h"


def _merged(match: Match, operand: Pattern, rows: str, columns: str) -> Pattern:
    return rearrange(f"b c h {rows} {columns} -> {_lead(match)} {rows} {columns}", operand)


def _merged_key(match: Match) -> Pattern:
    if match["key"] is None:
        return _merged(match, transposed, "d", "t")
    return rearrange(f"b c h t d -> {_lead(match)} d t", key)


def _merged_mask(match: Match) -> Pattern | None:
    if match["mask"] is None:
        return None if match["shared_mask"] is None else of_all
    if match.size("h") == 1:
        return op.Squeeze(of_windows, computed("axis", lambda match: ints([2])))
    ones = computed("ones", lambda match: ints([1] * 3))
    repeated = op.Expand(of_windows, op.Concat(op.Shape(query, start=0, end=2), ones, axis=0))
    return rearrange("b c x y z -> (b c) x y z", repeated)


def _attention(match: Match) -> Op:
    mask = _merged_mask(match)
    queries = scalar("query_scale") * _merged(match, query, "s", "d")
    product = scalar("score_scale") * (queries @ _merged_key(match))
    weights = op.Softmax(product if mask is None else product + mask, axis=-1)
    sizes = op.Concat(op.Shape(query, start=0, end=4), op.Shape(value, start=4, end=5), axis=0)
    result: Op = op.Reshape(weights @ _merged(match, value, "u", "v"), sizes, allowzero=1)
    return result


RULES = [
    Rule(
        name="attention.merge_window_axis_into_batch",
        formula="softmax(s q k^T + mask) v on [batch, windows, heads, length, size]",
        is_refinement=True,
        pattern=softmax.named("weights", "b c h s t") @ value,
        replace=built(
            _attention,
            makes=("Shape", "Concat", "Expand", "Squeeze", "Reshape", "Transpose", "MatMul", "Mul", "Add", "Softmax"),
        ),
        may_raise_opset=True,
        exactness=Exactness.ROUNDING,
        source=PAPER,
        test=RuleTest(
            shapes={
                "c": 3, "h": 2, "d": 4, "v": 4, "u": "t", "x": 2, "y": "s", "z": "t", "shared_mask": "2 s t",
            },
            scalars={"score_scale": [1.0, 0.5], "query_scale": [1.0, 0.5]},
            opset=17,
            counterexamples={
                "a single window behind the heads": Variation(
                    shapes={"h": 1, "x": 1, "shared_mask": "1 s t"}, sizes={"h": 1}
                ),
            },
        ),
    )
]  # fmt: skip
