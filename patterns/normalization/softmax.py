"""Fuse Softmax, LogSoftmax and ReduceLogSumExp.

softmax(x)     = exp(x - max(x)) / sum(exp(x - max(x)))
log_softmax(x) = x - max(x) - log(sum(exp(x - max(x)))) = log(softmax(x)) = x - logsumexp(x)
softmax(a (b x - max(b x))) = softmax(a b x)
exp(log_softmax(x)) = softmax(x)
logsumexp(x)   = m + log(sum(exp(x - m))), m = max(x), or 0 where that is infinite

With the maximum subtracted, a row with an infinity gives NaN on both sides. The last two forms of log_softmax differ: the
logarithm of a softmax that underflows is infinite. The logsumexp of a row with an infinity is infinite too, not NaN. So is
the last line without the 0.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, Pattern, attr, computed, op, scalar, var

from .._shared_guards import array_like, given_axes

SOURCE = "ONNX operator LogSoftmax"

x = var("x")
maximum = op.ReduceMax(x, axes=given_axes, keepdims=1)
shifted = (x - maximum).named("shifted")
powers = op.Exp(shifted)
scaled = scalar("inner") * x
total = op.ReduceSum(powers, axes=given_axes, keepdims=1)


def last_axis_alone(match: Match) -> Refusal | None:
    """There is one axis, the last: before opset 13 Softmax means this only for the last axis, and it is the fastest."""
    rank = match.rank("x")
    if rank is None:
        return match.refuse("rank", "x")
    return match.unless_value("axes", match["axes"] == (rank - 1,), "the last one alone")


def axis_is_last(match: Match) -> Refusal | None:
    """The axis of the Softmax is the last one."""
    rank = match.rank("x")
    return match.unless_value("axis", rank is not None and match["axis"] in (-1, rank - 1), "the last one")


def axes_are_last(match: Match) -> Refusal | None:
    """The maximum is taken over the axis of the Softmax, which is the last one."""
    return last_axis_alone(match) or axis_is_last(match)


def coefficient(match: Match) -> float:
    """The product of both factors."""
    return float(match["factor"] * match["inner"])


both = computed("both", lambda match: array_like(match, coefficient(match)))


def nothing_overflows(match: Match) -> Refusal | None:
    """Neither the inner factor nor the product of both is above 1, so that finite numbers stay finite."""
    inner = match["inner"]
    is_small = 0 < inner <= 1 and 0 < coefficient(match) <= 1
    return match.unless_value(
        "factor", is_small, f"above 0 and, times the inner factor {inner:g}, at most 1, as that is"
    )


def last_axis(match: Match) -> int:
    """The last axis, counted from the front as the oldest opsets require."""
    return (match.rank("x") or 0) - 1


_PROOF = RuleTest(
    shapes=({"x": "b s 8"}, {"x": "b 5"}),
    attributes=({"axes": [(-1,), (2,)]}, {"axes": [(1,)]}),
    dtypes=("float32", "float64"),
    counterexamples={"all axes, not given": Variation(shapes={"x": "8"}, attributes={"axes": None})},
    typical=({"x": "1 12 128 128"}, {"x": "1 1000"}, {"x": "16 50257"}),
)
_PROOF_OF_ONE_AXIS = RuleTest(
    shapes=({"x": "b s 8"}, {"x": "b 5"}),
    attributes={"axis": [-1]},
    dtypes=("float32", "float64"),
    typical=_PROOF.typical,
)


# The logarithm of a sum of exponentials


def limit_is_infinite(match: Match) -> Refusal | None:
    """Require that the absolute maximum is compared with infinity, if it is compared."""
    limit = match.get("limit")
    return match.unless_value("limit", limit is None or limit == math.inf, "infinity")


_shift = op.Where(op.IsInf(maximum) | op.Equal(op.Abs(maximum), scalar("limit")), 0.0, maximum)


def _sum_of_powers(keepdims: int) -> Pattern:
    made: Pattern = op.Log(op.ReduceSum(op.Exp(x - _shift), axes=given_axes, keepdims=keepdims))
    return made


RULES = [
    Rule(
        name="logsumexp.from_infinity_guarded_form",
        pattern=(_sum_of_powers(1) + _shift | _sum_of_powers(0) + op.Squeeze(_shift, axes=given_axes)).named("sum"),
        replace=op.ReduceLogSumExp(x, axes=attr("axes"), keepdims=lambda match: 1 - match.choice("sum")),
        guards=(limit_is_infinite,),
        exactness=Exactness.ROUNDING,
        source="ONNX operator ReduceLogSumExp",
        test=RuleTest(
            shapes={"x": "2 3 4"},
            attributes={"axes": [(1,)]},
            scalars={"limit": [math.inf]},
            opset=20,
            redundant={"check of attribute axes": "the maximum has to be subtracted from x, and so to keep the axes"},
            counterexamples={
                "infinity, and another limit": Variation(
                    options={"(IsInf*": "Equal"},
                    scalars={"limit": 2.0},
                    fixed={"x": np.full((2, 3, 4), np.inf, np.float32)},
                )
            },
        ),
    ),
    Rule(
        name="softmax.from_decomposed_form",
        formula="exp(x - max(x)) / sum(exp(x - max(x)))",
        pattern=powers / total,
        replace=op.Softmax(x, axis=last_axis),
        guards=(last_axis_alone,),
        exactness=Exactness.ROUNDING,
        source="ONNX operator Softmax",
        allow_extra_operands=True,
        test=_PROOF,
    ),
    Rule(
        name="softmax.drop_max_subtraction",
        formula="softmax(a (b x - max(b x)))",
        is_refinement=True,
        pattern=op.Softmax(
            scalar("factor") * (scaled - op.ReduceMax(scaled, axes=given_axes, keepdims=1)), axis=attr("axis")
        ),
        replace=lambda match: op.Softmax(x if coefficient(match) == 1 else op.Mul(x, both), axis=last_axis),
        makes=("Softmax", "Mul"),
        guards=(axes_are_last, nothing_overflows),
        exactness=Exactness.ROUNDING,
        source="softmax is invariant to a shift of the whole row",
        test=replace(
            _PROOF,
            attributes=({"axes": [(-1,), (2,)], "axis": [-1, 2]}, {"axes": [(1,)], "axis": [-1, 1]}),
            scalars={"factor": [1.0, 2.0], "inner": [1.0, 0.5]},
        ),
    ),
    Rule(
        name="softmax.exp_of_log_softmax",
        pattern=op.Exp(op.LogSoftmax(x, axis=attr("axis"))),
        replace=op.Softmax(x, axis=last_axis),
        guards=(axis_is_last,),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=_PROOF_OF_ONE_AXIS,
    ),
    Rule(
        name="log_softmax.from_decomposed_form",
        formula="x - max(x) - log(sum(exp(x - max(x))))",
        pattern=shifted - op.Log(total) | x - maximum - op.Log(total),
        replace=op.LogSoftmax(x, axis=last_axis),
        guards=(last_axis_alone,),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=_PROOF,
    ),
    Rule(
        name="log_softmax.log_of_softmax",
        pattern=op.Log(op.Softmax(x, axis=attr("axis"))),
        replace=op.LogSoftmax(x, axis=last_axis),
        guards=(axis_is_last,),
        exactness=Exactness.APPROXIMATE,
        source=SOURCE,
        test=_PROOF_OF_ONE_AXIS,
    ),
    Rule(
        name="log_softmax.x_minus_logsumexp",
        pattern=x - op.ReduceLogSumExp(x, axes=given_axes, keepdims=1),
        replace=op.LogSoftmax(x, axis=last_axis),
        guards=(last_axis_alone,),
        exactness=Exactness.APPROXIMATE,
        source=SOURCE,
        test=_PROOF,
    ),
]
