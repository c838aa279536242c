"""Decompose LogSoftmax, for which WebGPU has no kernel.

log_softmax(x) = (x - max(x)) - log(sum(exp(x - max(x))))
"""

from __future__ import annotations

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, Pattern, attr, built, op, var

x = var("x")


def is_over_one_axis(match: Match) -> Refusal | None:
    """The operator is of opset 13 or later, where it is over one axis."""
    node = match.root.producer()
    old = node is None or match.facts.version(node) < 13
    return match.refuse("attribute", "axis", "of opset 13 on, where it is the only one") if old else None


def _spelled(match: Match) -> Pattern:
    axes = (match["axis"],)
    below = op.Sub(x, op.ReduceMax(x, axes=axes, keepdims=1))
    found: Pattern = op.Sub(below, op.Log(op.ReduceSum(op.Exp(below), axes=axes, keepdims=1)))
    return found


RULES = [
    Rule(
        name="log_softmax.decompose",
        pattern=op.LogSoftmax(x, axis=attr("axis")),
        replace=built(_spelled, makes=("Sub", "ReduceMax", "Log", "ReduceSum", "Exp")),
        guards=(is_over_one_axis,),
        exactness=Exactness.ROUNDING,
        source="ONNX operator LogSoftmax",
        test=RuleTest(
            shapes={"x": "b s 8"},
            attributes={"axis": [-1, 1, 0]},
            counterexamples={"before opset 13": Variation(attributes={"axis": 1}, opset=11)},
            never_empty={"*": "a maximum of nothing has no value"},
        ),
    )
]
