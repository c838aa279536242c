"""Fold a scalar factor of the queries into the scale of Attention.

attention(c q, k, v; scale) = attention(q, k, v; c scale)

`sdpa` takes such factors itself. These rules serve factors that reach the operator later, such as one sunk below a rotation.
"""

from __future__ import annotations

from typing import Any

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, attr, opt, redundant, scalar, var

from .._rule_test_inputs import COST, FINITE_SCORES, NEVER_EMPTY
from .absorb_heads_and_cache import attention
from .sdpa import PAPER


def _is_number(scale: Any, facts: Any) -> bool:
    return isinstance(scale, float)


def factor_is_positive(match: Match) -> Refusal | None:
    """The factor is positive and not 1; the operator takes roots of its scale."""
    factor = match["query_scale"]
    return match.unless_value("query_scale", factor > 0 and factor != 1, "above 0, and not 1")


@redundant(COST)
def is_scaled_for_this(match: Match) -> Refusal | None:
    """Nothing else uses the scaled queries."""
    used = match.is_used_elsewhere("scaled")
    return match.refuse("use", "scaled", "the operator alone", found="something else too") if used else None


def _scale(match: Match) -> float:
    return float(match["scale"] * match["query_scale"])


rest = (var("key"), var("value"), opt(var("mask")), opt(var("past_key")), opt(var("past_value")))
kept: dict[str, Any] = {
    "is_causal": attr("is_causal"),
    "q_num_heads": attr("query_heads"),
    "kv_num_heads": attr("key_heads"),
}
before = attention(
    (scalar("query_scale") * var("query")).named("scaled"),
    *rest,
    scale=attr("scale", _is_number, "a number"),
    **kept,
)
after = attention(var("query"), *rest, scale=_scale, outputs=4, **kept)

RULES = [
    Rule(
        name="attention.fold_query_scale",
        formula="attention(factor query, key, value, mask)",
        is_refinement=True,
        pattern=before.naming(present_key=1, present_value=2, weights=3),
        replace=after[0],
        intermediates={"present_key": after[1], "present_value": after[2], "weights": after[3]},
        guards=(factor_is_positive, is_scaled_for_this),
        may_raise_opset=True,
        exactness=Exactness.ROUNDING,
        source=PAPER,
        test=RuleTest(
            shapes=(
                {"query": "b 2 s 4", "key": "b 2 t 4", "value": "b 2 t 4", "mask": "b 1 s t"},
                {
                    "query": "b 2 s 4", "key": "b 2 5 4", "value": "b 2 5 4", "past_key": "b 2 3 4",
                    "past_value": "b 2 3 4", "mask": "b 1 s 8",
                },
            ),
            scalars={"query_scale": [0.5, 2.0]},
            attributes={
                "scale": [0.5], "is_causal": [0], "softcap": [0.0], "mode": [0, 3], "query_heads": [None], "key_heads": [None],
            },
            never_empty=NEVER_EMPTY,
            assumes=FINITE_SCORES,
            opset=23,
        ),
    )
]  # fmt: skip
