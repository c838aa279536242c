"""Fuse LeakyRelu, PRelu, Elu, Selu, Celu and ThresholdedRelu from Where, Max, Min and Relu.

leaky_relu(x) = x where x > 0, else alpha x                                      Maas et al., 2013
prelu(x)      = x where x > 0, else slope x, slope a tensor                      He et al., arXiv:1502.01852
elu(x)        = x where x > 0, else alpha (exp(x) - 1)                           Clevert et al., arXiv:1511.07289
selu(x)       = gamma elu(x; alpha)                                              Klambauer et al., arXiv:1706.02515
celu(x)       = x where x > 0, else alpha (exp(x / alpha) - 1)                   Barron, arXiv:1704.07483
thresholded_relu(x) = x where x > alpha, else 0

In the Where forms, the branch not chosen may be infinite or NaN. The other forms are refused if that can change the result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, attr, computed, const, op, redundant, scalar, var

from .._rule_test_inputs import ADDS_NO_AXES
from .._shared_guards import array_like, nearly, same_shape
from .clip import SHAPES, TYPICAL

x = var("x")
keeps_shape = redundant(ADDS_NO_AXES)(same_shape("x", "root"))

above = op.Greater(x, 0.0) | op.GreaterOrEqual(x, 0.0) | op.Less(0.0, x) | op.LessOrEqual(0.0, x)
below = op.Less(x, 0.0) | op.LessOrEqual(x, 0.0) | op.Greater(0.0, x) | op.GreaterOrEqual(0.0, x)
positive = above | op.Not(below)
negative = below | op.Not(above)
# Clip without a lower bound turns -inf into the lowest finite number, so it equals min(x, 0) only inside an exponential.
nonpositive = op.Min(x, 0.0) | op.Where(positive, 0.0, x)
clipped = nonpositive | op.Clip(x, max=0.0)


def split(right: Pattern, left: Pattern) -> Pattern:
    """`right` for positive x, otherwise `left`."""
    return op.Where(positive, right, left) | op.Where(negative, left, right)


def leaky_alpha(match: Match) -> float:
    """The slope below zero."""
    return float(match["alpha"] if match["alpha"] is not None else -match["negated"])


def maximum_is_leaky(match: Match) -> Refusal | None:
    """alpha is at most 1, so that max(x, alpha x) is x above zero, and above 0, since 0 times infinity is NaN."""
    holds = match["maximum"] is None or 0 < leaky_alpha(match) <= 1
    return match.unless_value("alpha", holds, "above 0 and at most 1")


leaky_forms = (
    split(x, scalar("alpha") * x)
    | op.Max(x, scalar("alpha") * x).named("maximum")
    | op.Relu(x) + scalar("alpha") * nonpositive
    | op.Relu(x) - scalar("alpha") * op.Relu(-x)
    | op.Relu(x) + scalar("negated") * op.Relu(-x)
)

slope, negated = const("slope"), const("negated_slope")
prelu_forms = (
    split(x, slope * x)
    | op.Relu(x) + slope * nonpositive
    | op.Relu(x) - slope * op.Relu(-x)
    | op.Relu(x) + negated * op.Relu(-x)
)


def prelu_slope(match: Match) -> Any:
    """The slope, in a spelling that has it negated."""
    return None if match["negated_slope"] is None else array_like(match, -match.const("negated_slope"))


def slope_is_finite(match: Match) -> Refusal | None:
    """The slope is finite: infinity times a zero of x would be NaN in one form only."""
    name = "slope" if match["slope"] is not None else "negated_slope"
    return match.unless_value(name, bool(np.all(np.isfinite(match.const(name)))), "finite")


def has_one_slope(match: Match) -> Refusal | None:
    """All channels have the same slope."""
    slopes = match.const("slope")
    one = slopes.size > 0 and bool(np.all(slopes == slopes.flat[0]))
    return match.unless_value("slope", one, "the same number throughout")


def exponential(inner: Pattern) -> Pattern:
    """weight (exp(steepness x) - 1), or outer (inside exp(steepness x) - inside)."""
    power = op.Exp(scalar("steepness") * inner)
    return scalar("weight") * (power - 1) | scalar("outer") * (scalar("inside") * power + scalar("lowered"))


exponential_forms = (
    split(scalar("gamma") * x, exponential(x | clipped))
    | scalar("gamma") * op.Relu(x) + op.Min(exponential(x | clipped), 0.0)
    | scalar("gamma") * op.Relu(x) + exponential(clipped)
)


def weight(match: Match) -> float:
    """The factor of what is below zero."""
    product: float = match["weight"] if match["weight"] is not None else match["outer"] * match["inside"]
    return product


def has_weight_above_zero(match: Match) -> Refusal | None:
    """The part below zero is exp(x) - 1, times a number above 0."""
    if match["weight"] is None and not nearly(match["lowered"], -match["inside"]):
        return match.refuse("value", "lowered", -match["inside"], match["lowered"])
    return match.unless_value("weight" if match["weight"] is not None else "inside", weight(match) > 0, "above 0")


def _is_positive(match: Match, name: str) -> Refusal | None:
    return match.unless_value(name, match[name] > 0, "above 0")


def _is_one(match: Match, name: str) -> Refusal | None:
    return match.unless_value(name, match[name] == 1, 1.0)


def is_elu(match: Match) -> Refusal | None:
    """The slope is 1 above zero, with a plain exponential below."""
    return _is_one(match, "gamma") or _is_one(match, "steepness") or has_weight_above_zero(match)


def is_celu(match: Match) -> Refusal | None:
    """The slope is 1 on both sides of zero."""
    return _is_one(match, "gamma") or has_weight_above_zero(match) or _is_inverse(match, "steepness", weight(match))


def is_selu(match: Match) -> Refusal | None:
    """There is a plain exponential below zero."""
    return _is_positive(match, "gamma") or has_weight_above_zero(match) or _is_one(match, "steepness")


def _is_inverse(match: Match, name: str, other: float) -> Refusal | None:
    return match.unless_value(name, nearly(match[name] * other, 1), 1 / other)


def _scales(match: Match, name: str) -> Refusal | None:
    return (
        match.refuse("needless", "root", found="nothing is scaled") if match[name] == 1 else _is_positive(match, name)
    )


def is_scaled_celu(match: Match) -> Refusal | None:
    """alpha elu(x / alpha): the factors outside and inside cancel."""
    return _scales(match, "outer") or _is_inverse(match, "inner", match["outer"])


def is_scaled(match: Match) -> Refusal | None:
    """There is a factor, and it is one for which all definitions of the operator agree."""
    return _scales(match, "gamma") or _is_positive(match, "alpha")


def _rule(name: str, pattern: Pattern, replace: Pattern, source: str, test: dict[str, Any], *guards: Any) -> Rule:
    return Rule(
        name=name,
        formula=_FORMULAS[name],
        pattern=pattern,
        replace=replace,
        guards=guards,
        exactness=Exactness.ROUNDING,
        source=source,
        test=RuleTest(**{"shapes": SHAPES, "typical": TYPICAL, **test}),
    )


_FORMULAS = {
    "leaky_relu.from_where_or_max_min": "x where x > 0, else alpha x",
    "prelu.from_where_or_max_min": "x where x > 0, else slope x",
    "prelu.uniform_slope_to_leaky_relu": "prelu(x), all slopes the same",
    "elu.from_where_or_max_min": "x where x > 0, else alpha (exp(x) - 1)",
    "celu.from_where_or_max_min": "x where x > 0, else alpha (exp(x / alpha) - 1)",
    "celu.from_scaled_elu": "alpha elu(x / alpha)",
    "selu.from_where_or_max_min": "gamma x where x > 0, else gamma alpha (exp(x) - 1)",
    "selu.from_scaled_elu": "gamma elu(x)",
    "thresholded_relu.from_where": "x where x > alpha, else 0",
}
_SLOPES = {
    "shapes": tuple(
        {"x": shape, "slope": slopes, "negated_slope": slopes}
        for shape, slopes in (("b 3 4", "3 1"), ("b 5", "5"), ("n", ""))
    ),
    "typical": ({"x": "1 64 56 56", "slope": "64 1 1"}, {"x": "1 128 3072", "slope": "3072"}),
}
_APART = {"outer": [1.5], "inside": [0.75], "lowered": [-0.75]}
_ELU = {"gamma": [1.0], "steepness": [1.0], "weight": [0.75, 1.0, 1.5], **_APART}
_CELU = {"gamma": [1.0], "steepness": [2.0], "weight": [0.5], "outer": [2.0], "inside": [0.25], "lowered": [-0.25]}
_SELU = {"gamma": [1.5], "steepness": [1.0], "weight": [0.75], **_APART}

RULES = [
    _rule(
        "leaky_relu.from_where_or_max_min",
        leaky_forms,
        op.LeakyRelu(x, alpha=leaky_alpha),
        "Maas, Hannun and Ng, 2013",
        {"scalars": {"alpha": [0.25, 0.01], "negated": [-0.25]}},
        keeps_shape,
        maximum_is_leaky,
    ),
    _rule(
        "prelu.from_where_or_max_min",
        prelu_forms,
        op.PRelu(x, slope | computed("slope", prelu_slope)),
        "arXiv:1502.01852",
        _SLOPES,
        keeps_shape,
        slope_is_finite,
    ),
    _rule(
        "prelu.uniform_slope_to_leaky_relu",
        op.PRelu(x, slope),
        op.LeakyRelu(x, alpha=lambda match: float(match.const("slope").flat[0])),
        "arXiv:1502.01852",
        {
            "shapes": {"x": "b 3 4", "slope": "1 1"},
            "constants": {"slope": np.array([0.25])},
            "typical": ({"x": "1 64 56 56", "slope": "1 1 1"}, {"x": "1 128 3072", "slope": "1"}),
        },
        has_one_slope,
        slope_is_finite,
        same_shape("x", "root"),
    ),
    _rule(
        "elu.from_where_or_max_min",
        exponential_forms,
        op.Elu(x, alpha=weight),
        "arXiv:1511.07289",
        {"scalars": _ELU},
        keeps_shape,
        is_elu,
    ),
    _rule(
        "celu.from_where_or_max_min",
        exponential_forms,
        op.Celu(x, alpha=weight),
        "arXiv:1704.07483",
        {"scalars": _CELU},
        keeps_shape,
        is_celu,
    ),
    _rule(
        "selu.from_where_or_max_min",
        exponential_forms,
        op.Selu(x, alpha=lambda match: weight(match) / match["gamma"], gamma=scalar("gamma")),
        "arXiv:1706.02515",
        {"scalars": _SELU},
        keeps_shape,
        is_selu,
    ),
    _rule(
        "celu.from_scaled_elu",
        scalar("outer") * op.Elu(scalar("inner") * x, alpha=1.0),
        op.Celu(x, alpha=scalar("outer")),
        "arXiv:1704.07483",
        {"scalars": {"outer": [0.5], "inner": [2.0]}},
        is_scaled_celu,
    ),
    _rule(
        "selu.from_scaled_elu",
        scalar("gamma") * op.Elu(x, alpha=attr("alpha")),
        op.Selu(x, alpha=attr("alpha"), gamma=scalar("gamma")),
        "arXiv:1706.02515",
        {"scalars": {"gamma": [1.0507]}, "attributes": {"alpha": [1.6733, 1.0]}},
        is_scaled,
    ),
    _rule(
        "thresholded_relu.from_where",
        op.Where(op.Greater(x, scalar("alpha")) | op.Less(scalar("alpha"), x), x, 0.0),
        op.ThresholdedRelu(x, alpha=scalar("alpha")),
        "ONNX operator ThresholdedRelu",
        {"scalars": {"alpha": [0.5, -0.5]}},
        keeps_shape,
    ),
]
