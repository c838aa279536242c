"""Decompose Mish, Softplus, PRelu and others, whose elementwise CPU kernels are several times slower.

mish(x)     = x tanh(log(1 + e)) = x q / (q + 2), q = e (e + 2), e = exp(min(x, 20)); above 20 the quotient is 1
softplus(x) = max(x, 0) + log(1 + e), e = exp(-|x|), log(1 + e) = e log(u) / (u - 1), u = 1 + e rounded: the quotient makes up
              for what the sum loses, and is 1 where u is 1          Kahan; Higham, Accuracy and Stability of Numerical Algorithms
where(c, 1, 0) = cast(c)          (1 + tanh(x)) / 2 = sigmoid(2 x)          prelu(x, slope) = max(x, 0) + slope min(x, 0)

The rules run after all fusions, whose patterns have the plain operators.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Guard, Match, Pattern, op, redundant, scalar, var

from .._rule_test_inputs import ADDS_NO_AXES
from .._shared_guards import is_not_quantised, same_shape
from ..activation.relu_variants import slope, slope_is_finite
from ..activation.sigmoid_and_tanh import is_steep

PASS = "target_decompositions"

x, condition = var("x"), var("condition")

SATURATED = 20.0
"""From this number on, the hyperbolic tangent of its softplus is 1, and the square of its exponential is far from infinite."""

TINY = 1e-30
"""Less than any difference between 1 and a larger number."""

TYPICAL = ({"x": "1 128 3072"}, {"x": "1 64 112 112"}, {"x": "1 16 1536"}, {"x": "1 16"})
SHAPES = ({"x": "b 3 4"}, {"x": "n"})


@redundant("the runtime has no kernels of these operators for other types")
def is_single(match: Match) -> Refusal | None:
    """The numbers are float32: in float16, the exponential would be infinite and the smallest number 0."""
    return match.unless_dtype("x", ir.DataType.FLOAT)


def _quotient() -> Pattern:
    exponential = op.Exp(op.Min(x, SATURATED))
    product = op.Mul(exponential, op.Add(exponential, 2.0))
    return op.Mul(x, op.Div(product, op.Add(product, 2.0)))


def _softplus() -> Pattern:
    exponential = op.Exp(op.Neg(op.Abs(x)))
    above_one = op.Add(exponential, 1.0)
    quotient = op.Div(op.Max(op.Log(above_one), TINY), op.Max(op.Sub(above_one, 1.0), TINY))
    return op.Add(op.Relu(x), op.Mul(exponential, quotient))


def _activation_rule(name: str, pattern: Pattern, replace: Pattern, source: str, *guards: Guard) -> Rule:
    return Rule(
        name=name,
        pattern=pattern,
        replace=replace,
        guards=guards,
        exactness=Exactness.ROUNDING,
        source=source,
        test=RuleTest(shapes=SHAPES, typical=TYPICAL),
    )


def is_one_or_zero(match: Match) -> Refusal | None:
    """The numbers are 1 and 0, not -0, in either order."""
    numbers = (match["chosen"], match["other"])
    held = numbers in ((1, 0), (0, 1)) and not np.signbit(numbers).any()
    return match.unless_value("chosen", held, "1, and 0 for the other, or the opposite")


def _dtype(match: Match) -> int:
    dtype = match.dtype("root")
    assert dtype is not None
    return int(dtype)


def is_halved(match: Match) -> Refusal | None:
    """The scaled Tanh goes from 0 to 1."""
    halves = match["gain"] == 0.5 and match["offset"] in (None, 0.5)
    return match.unless_value("gain", halves, 0.5)


def _sigmoid(match: Match) -> Pattern:
    steepness = 2 * float(match["steepness"])
    return op.Sigmoid(x if steepness == 1 else op.Mul(x, steepness))


tanh = op.Tanh(scalar("steepness") * x)

RULES = [
    Rule(
        name="sigmoid.tanh_to_sigmoid",
        pattern=scalar("gain") * tanh + scalar("offset") | scalar("gain") * (tanh + 1),
        replace=_sigmoid,
        makes=("Sigmoid", "Mul"),
        guards=(is_halved, is_steep, is_not_quantised),
        exactness=Exactness.ROUNDING,
        source="ONNX operators Sigmoid and Tanh",
        test=RuleTest(
            shapes=SHAPES,
            scalars={"gain": [0.5], "steepness": [0.5, 1.0, -0.5], "offset": [0.5]},
            typical=TYPICAL,
        ),
    ),
    _activation_rule(
        "mish.mish_to_softplus_tanh_mul", op.Mish(x), _quotient(), "arXiv:1908.08681", is_single, is_not_quantised
    ),
    _activation_rule(
        "mish.decompose_tanh_of_softplus",
        x * op.Tanh(op.Softplus(x)),
        _quotient(),
        "arXiv:1908.08681",
        is_single,
        is_not_quantised,
    ),
    _activation_rule(
        "softplus.decompose_softplus",
        op.Softplus(x),
        _softplus(),
        "ONNX operator Softplus",
        is_single,
        is_not_quantised,
    ),
    Rule(
        name="prelu.decompose_prelu",
        is_refinement=True,
        formula="PRelu(x, slope), a slope for each channel",
        pattern=op.PRelu(x, slope),
        replace=op.Relu(x) + slope * op.Min(x, 0.0),
        guards=(is_single, slope_is_finite, is_not_quantised),
        exactness=Exactness.ROUNDING,
        source="ONNX operator PRelu",
        test=RuleTest(
            shapes=({"x": "b 3 4", "slope": "3 1"}, {"x": "b 5", "slope": "5"}),
            typical=(
                {"x": "1 64 112 112", "slope": "64 1 1"},
                {"x": "1 64 56 56", "slope": "64 1 1"},
                {"x": "1 512 7 7", "slope": "512 1 1"},
                {"x": "1 128 3072", "slope": "3072"},
                {"x": "1 256", "slope": "256"},
            ),
        ),
    ),
    Rule(
        name="where.one_zero_to_cast",
        formula="where(condition, 1, 0), also 0 and 1",
        pattern=op.Where(condition, scalar("chosen"), scalar("other")),
        replace=lambda match: op.Cast(condition if match["chosen"] else op.Not(condition), to=_dtype),
        makes=("Cast", "Not"),
        guards=(is_one_or_zero, redundant(ADDS_NO_AXES)(same_shape("condition", "root"))),
        exactness=Exactness.EXACT,
        source="ONNX operators Where and Cast",
        test=RuleTest(
            shapes={"condition": "b 3 4"},
            inputs={"condition": "bool"},
            scalars={"chosen": [1.0], "other": [0.0]},
            typical=({"condition": "1 128 128"}, {"condition": "1 1 512 512"}, {"condition": "1 128"}),
        ),
    ),
]
