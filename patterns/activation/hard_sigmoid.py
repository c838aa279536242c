"""Fuse HardSigmoid from Clip, and hard swish as x times HardSigmoid.

hard_sigmoid(x) = max(0, min(1, alpha x + beta)) = clip(h alpha x + h beta, 0, h) / h     ONNX operator HardSigmoid
hard_swish(x)   = x hard_sigmoid(x; 1/6, 1/2) = x clip(x + 3, 0, 6) / 6                 Howard et al., arXiv:1905.02244

The CPU has no kernel for HardSwish: the runtime expands it to Mul and HardSigmoid. The rules produce that form directly.
"""

from __future__ import annotations

import math

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, attr, op, scalar, var

from .._shared_guards import nearly
from .clip import SHAPES, TYPICAL

x = var("x")
line = scalar("slope") * x + scalar("offset")


LARGEST = 3.4e38
"""The largest attribute: attributes are float32."""


def reaches_one(match: Match) -> Refusal | None:
    """The range of the Clip is scaled to [0, 1], and the result depends on x."""
    factor, height, slope = match["factor"], match["height"], match["slope"]
    if height is None or not math.isfinite(height) or height <= 0:
        return match.refuse("value", "height", "finite and above 0")
    if not nearly(factor * height, 1.0):
        return match.refuse("value", "factor", 1 / height)
    if slope == 0:
        return match.refuse("value", "slope", "other than 0")
    if max(abs(alpha(match)), abs(beta(match))) > LARGEST:
        return match.refuse("value", "factor", "so small that alpha and beta are numbers of float32")
    return (
        match.refuse("needless", "root", found="it is a Clip alone")
        if (factor, slope, match["offset"]) == (1, 1, 0)
        else None
    )


def alpha(match: Match) -> float:
    """The slope of the hard sigmoid."""
    return float(match["slope"] * match["factor"])


def beta(match: Match) -> float:
    """The value of the hard sigmoid at 0."""
    return float(match["offset"] * match["factor"])


RULES = [
    Rule(
        name="hard_sigmoid.from_clip",
        formula="clip(slope x + offset, 0, height) / height",
        pattern=scalar("factor") * op.Clip(line, min=0.0, max=attr("height")),
        replace=op.HardSigmoid(x, alpha=alpha, beta=beta),
        guards=(reaches_one,),
        exactness=Exactness.ROUNDING,
        source="arXiv:1905.02244",
        allow_extra_operands=True,
        test=RuleTest(
            shapes=SHAPES,
            attributes={"height": [2.0]},
            scalars={"factor": [0.5], "slope": [1.0, 0.4, -0.3], "offset": [1.0, 0.7]},
            typical=TYPICAL,
        ),
    ),
]
