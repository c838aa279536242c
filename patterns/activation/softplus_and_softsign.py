"""Fuse Softplus of a branch above a threshold, and Softsign.

softplus(x) = log(1 + exp(x))
softsign(x) = x / (1 + |x|)

log(1 + exp(x)) is infinite if exp(x) overflows (above 88 in float32), but Softplus is not, so that it is not equivalent. Other
spellings of Softplus stand in `patterns.contrib.fuse_softplus_and_mish`.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, op, redundant, scalar, var

from .._rule_test_inputs import ADDS_NO_AXES
from .._shared_guards import nearly, same_shape
from .clip import SHAPES, TYPICAL

SOURCE = "ONNX operator Softplus"

x = var("x")
log_exp = op.Log(1 + op.Exp(x))
steep = scalar("beta") * x

_ROUNDING = {ir.DataType.FLOAT: 2.0**-25, ir.DataType.DOUBLE: 2.0**-54}


def threshold_is_high(match: Match) -> Refusal | None:
    """Above the threshold, softplus(beta x) / beta is x: exp(-beta x) is lost in rounding."""
    beta, threshold, rounding = match["beta"], match["threshold"], _ROUNDING.get(match.dtype("x"))  # type: ignore[arg-type]
    if rounding is None:
        return match.unless_dtype("x", *_ROUNDING)
    # A larger beta could overflow where x does not.
    if not 0 < beta <= 1:
        return match.refuse("value", "beta", "above 0 and at most 1")
    if not nearly(beta * match["inverse"], 1.0):
        return match.refuse("value", "inverse", 1 / beta)
    lost = threshold > 0 and math.exp(-threshold) <= rounding * threshold
    return match.unless_value("threshold", lost, "so high that softplus is its argument there")


RULES = [
    Rule(
        name="softplus.where_above_threshold",
        formula="where(beta x > threshold, x, softplus(beta x) / beta)",
        pattern=op.Where(op.Greater(steep, scalar("threshold")), x, scalar("inverse") * op.Softplus(steep)),
        replace=scalar("inverse") * op.Softplus(scalar("beta") * x),
        guards=(threshold_is_high, redundant(ADDS_NO_AXES)(same_shape("x", "root"))),
        exactness=Exactness.ROUNDING,
        source="torch.nn.Softplus",
        test=RuleTest(
            shapes=SHAPES,
            scalars={"beta": [0.5], "inverse": [2.0], "threshold": [20.0]},
            typical=TYPICAL,
        ),
    ),
    Rule(
        name="softplus.log_of_one_plus_exp",
        pattern=log_exp,
        replace=op.Softplus(x),
        exactness=Exactness.APPROXIMATE,
        source=SOURCE,
        test=RuleTest(shapes=SHAPES, typical=TYPICAL),
    ),
    Rule(
        name="softsign.x_over_one_plus_abs",
        pattern=x / (1 + op.Abs(x)),
        replace=op.Softsign(x),
        exactness=Exactness.ROUNDING,
        source="ONNX operator Softsign",
        allow_extra_operands=True,
        test=RuleTest(shapes=SHAPES, typical=TYPICAL),
    ),
]
