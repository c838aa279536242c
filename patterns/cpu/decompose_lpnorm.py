"""Decompose LpNormalization over axes before the last one, where its CPU kernel is slow.

lpnormalization(x) = x / n, n = sqrt(sum(x x)) or sum(|x|), or 1 where that is 0

Rationale: over such axes LpNormalization takes 1.6 to 5.4 times as long. TopK of one number takes longer than ArgMax too, but
versions of the runtime differ in the index of NaN.
"""

from __future__ import annotations

import numpy as np

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, Pattern, attr, op, redundant, var

from .._rule_test_inputs import COST
from .._shared_guards import floating

PASS = "target_decompositions"

x = var("x")


@redundant(COST)
def others_follow(match: Match) -> Refusal | None:
    """The axis is not the last one, where the kernel is fast."""
    rank = match.rank("x")
    return match.unless_value("axis", rank is not None and match["axis"] not in (-1, rank - 1), "before the last one")


def _divided(match: Match) -> Pattern:
    """x divided by its lengths."""
    powers = op.Abs(x) if match["p"] == 1 else op.Mul(x, x)
    total = op.ReduceSum(powers, axes=(match["axis"],), keepdims=1)
    length = total if match["p"] == 1 else op.Sqrt(total)
    result: Pattern = op.Div(x, op.Where(op.Equal(length, 0.0), 1.0, length))
    return result


RULES = [
    Rule(
        name="lpnorm.decompose_lpnorm",
        formula="LpNormalization(x)",
        pattern=op.LpNormalization(x, axis=attr("axis"), p=attr("p")),
        replace=_divided,
        makes=("Abs", "Mul", "ReduceSum", "Sqrt", "Equal", "Where", "Div"),
        guards=(others_follow, floating("x")),
        exactness=Exactness.ROUNDING,
        source="ONNX operator LpNormalization",
        test=RuleTest(
            shapes=({"x": "b 3 4"}, {"x": "3 b"}),
            attributes=({"axis": [1, -2], "p": [1, 2]}, {"axis": [0], "p": [1, 2]}),
            counterexamples={
                "of zeros": Variation(sizes={"b": 1}, fixed={"x": np.zeros((1, 3, 4), np.float32)}),
            },
            typical=({"x": "1 64 56 56"}, {"x": "1 21 128 128"}, {"x": "8 128 64"}, {"x": "64 1000"}),
            typical_attributes=({"axis": 1, "p": 2}, {"axis": 1, "p": 2}, {"axis": 1, "p": 2}, {"axis": 0, "p": 2}),
        ),
    ),
]
