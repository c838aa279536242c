"""Fold the quotient of a sum by the number of its elements into a mean.

sum(x) / n = mean(x)                                           over n elements
"""

from __future__ import annotations

import math

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, attr, op, scalar, var

from .._shared_guards import floating, given_axes

x = var("x")


def _elements(match: Match) -> int | None:
    """How many elements each sum is over; `None` if that is not a known number above 0."""
    shape = match.shape("x")
    sizes = [] if shape is None else [shape[axis] for axis in match["axes"]]
    known = [size for size in sizes if isinstance(size, int) and size > 0]
    return math.prod(known) if known and len(known) == len(sizes) else None


def is_divided_by_their_number(match: Match) -> Refusal | None:
    """The sum is divided by how many elements it is over, or multiplied by the reciprocal as exact as float32 has it."""
    count = _elements(match)
    if count is None:
        return match.refuse("shape", "x", "known sizes along the axes")
    given = match.get("count")
    right = given == count if given is not None else math.isclose(match["share"] * count, 1.0, rel_tol=2.0**-23)
    return match.unless_value("share" if given is None else "count", right, f"for {count} elements")


_summed = op.ReduceSum(x, axes=given_axes, keepdims=attr("keepdims"))

RULES = [
    Rule(
        name="reduction.sum_over_count_to_mean",
        formula="sum(x) / n",
        pattern=op.Div(_summed, scalar("count")) | op.Mul(_summed, scalar("share")),
        replace=op.ReduceMean(x, axes=attr("axes"), keepdims=attr("keepdims")),
        guards=(floating("x"), is_divided_by_their_number),
        exactness=Exactness.ROUNDING,
        source="ONNX operator ReduceMean",
        test=RuleTest(
            shapes={"x": "b 3 4"},
            attributes={"axes": [(1, 2), (-2, -1)], "keepdims": [0, 1]},
            scalars={"count": [12.0], "share": [1 / 12]},
            never_empty={"b": "the runtime's ReduceSum of nothing keeps the axes that it sums over"},
            counterexamples={
                "of fewer elements": Variation(attributes={"axes": (1,)}),
                "of no element": Variation(shapes={"x": "b 0 4"}),
            },
        ),
    )
]
