"""Fuse GELU in its erf and tanh forms, GELU with a bias, and Swish.

gelu(x)      = x/2 (1 + erf(x / sqrt 2))                               Hendrycks & Gimpel, arXiv:1606.08415
swish(x)     = x sigmoid(alpha x); alpha = 1 is SiLU, 1.702 quick GELU            arXiv:1710.05941, arXiv:1606.08415
             = x/2 (1 + tanh(alpha/2 x))
gelu_tanh(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))           the same, section 2
"""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, attr, built, const, ms, op, redundant, scalar, var

from .._rule_test_inputs import COST, KERNEL

x = var("x")
biased = var("x", "... c") + const("bias", "c")
PAPER = "arXiv:1606.08415"
SHAPES = ({"x": "b s 8"}, {"x": "n"}, {"x": ""})
TYPICAL = tuple({"x": f"1 {length} {size}", "bias": f"{size}"} for length, size in ((16, 1536), (128, 3072)))
WITH_BIAS = ({"x": "b s 8", "bias": "8"}, {"x": "n 1", "bias": "1"})

REDUNDANT = {"dimension c": KERNEL, "demand that bias is constant": COST}

erf_gelu = x * 0.5 * (1 + op.Erf(x / math.sqrt(2)))

FACTOR = math.sqrt(2 / math.pi)


def cubic(coefficient: float) -> Pattern:
    """coefficient x^3, with the coefficient anywhere among the factors."""
    return coefficient * x * x * x | coefficient * op.Pow(x, 3.0)


def inner(factor: float) -> Pattern:
    """factor (x + 0.044715 x^3)."""
    return (
        factor * (x + cubic(0.044715))
        | factor * x * (1 + (0.044715 * x * x | 0.044715 * op.Pow(x, 2.0)))
        | factor * x + cubic(factor * 0.044715)
    )


tanh_gelu = x * 0.5 * (1 + op.Tanh(inner(FACTOR)))
sigmoid_gelu = x * op.Sigmoid(inner(2 * FACTOR))  # (1 + tanh u) / 2 = sigmoid(2 u)

halved = (x * 0.5).named("halved")


def _between_casts(operator: Pattern, gelu: Callable[[Pattern], Pattern]) -> Pattern:
    """Compute float16 in float32, as the runtime does without a kernel; it would inline this operator."""

    def made(match: Match) -> Pattern:
        half = ir.DataType.FLOAT16
        if match.dtype("x") != half:
            return operator
        return op.Cast(gelu(op.Cast(x, to=ir.DataType.FLOAT.value)), to=half.value)

    return built(made, makes=("Cast", "Gelu", "FastGelu"))


def _erf(value: Pattern) -> Pattern:
    made: Pattern = op.Gelu(value)
    return made


def _tanh(value: Pattern) -> Pattern:
    made: Pattern = op.Gelu(value, approximate="tanh")
    return made


erf_op = op.Gelu(biased) | ms.Gelu(biased)
tanh_op = op.Gelu(biased, approximate="tanh") | ms.FastGelu(biased)


def is_half(match: Match) -> Refusal | None:
    """The result has the type of x."""
    return match.unless_dtype("x", ir.DataType.FLOAT16)


swish_forms = (
    x * op.Sigmoid(scalar("alpha") * x)
    | x / (1 + op.Exp(scalar("negated") * x))
    | x * 0.5 * (1 + op.Tanh(scalar("half") * x))
    | halved * (1 + op.Tanh(halved))
)


def swish_alpha(match: Match) -> float:
    """The factor of x in the sigmoid: by its own name, that of the exponential or twice that of the tangent; else 1."""
    for name, factor in (("alpha", 1.0), ("negated", -1.0), ("half", 2.0)):
        if match[name] is not None:
            return factor * float(match[name])
    return 1.0


@redundant(COST)
def rises_with_x(match: Match) -> Refusal | None:
    """The exponent decreases with x, or the argument of tanh rises with it; of Sigmoid either may be."""
    captured = next((name for name in ("negated", "half") if match[name] is not None), None)
    return None if captured is None else match.unless_value(captured, swish_alpha(match) > 0, "of the other sign")


RULES = [
    Rule(
        # Where exp overflows to infinity, sigmoid is 0, and x / infinity is 0 as well.
        name="swish.x_times_sigmoid",
        formula="x sigmoid(alpha x), also by exp and tanh",
        pattern=swish_forms,
        replace=ms.QuickGelu(x, alpha=swish_alpha),
        guards=(rises_with_x,),
        exactness=Exactness.ROUNDING,
        source="arXiv:1710.05941",
        allow_extra_operands=True,
        test=RuleTest(
            shapes=SHAPES,
            scalars={"alpha": [1.0, 1.702], "negated": [-1.0, -1.702], "half": [0.5, 0.851]},
            typical=TYPICAL,
        ),
    ),
    Rule(
        # As its definition, the runtime executes four operators.
        name="swish.swish_op_to_quick_gelu",
        spells_out=True,
        pattern=op.Swish(x, alpha=attr("alpha")),
        replace=ms.QuickGelu(x, alpha=attr("alpha")),
        exactness=Exactness.ROUNDING,
        source="ONNX operator Swish",
        test=RuleTest(shapes=SHAPES, attributes={"alpha": [1.0, 1.702]}, opset=24),
    ),
    Rule(
        # The standard has it from opset 24 on; where there is no kernel, the runtime executes its definition.
        name="swish.from_quick_gelu",
        is_refinement=True,
        by_definition=True,
        on_request=True,
        pattern=ms.QuickGelu(x, alpha=attr("alpha", lambda alpha, facts: alpha is not None, "given")),
        replace=op.Swish(x, alpha=attr("alpha")),
        exactness=Exactness.ROUNDING,
        source="ONNX operator Swish",
        test=RuleTest(shapes=SHAPES[:2], attributes={"alpha": [1.0, 1.702]}),
    ),
    Rule(
        name="gelu.from_erf_form",
        formula="x/2 (1 + erf(x / sqrt 2))",
        pattern=erf_gelu,
        replace=(_erf(x), ms.Gelu(x), _between_casts(ms.Gelu(x), _erf), _between_casts(ms.Gelu(x), ms.Gelu)),
        exactness=Exactness.ROUNDING,
        source=PAPER,
        allow_extra_operands=True,
        test=RuleTest(shapes=SHAPES, typical=TYPICAL),
    ),
    Rule(
        name="gelu.from_tanh_form",
        formula="x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), also by sigmoid",
        pattern=tanh_gelu | sigmoid_gelu,
        replace=(
            _tanh(x),
            ms.FastGelu(x),
            _between_casts(ms.FastGelu(x), _tanh),
            _between_casts(ms.FastGelu(x), ms.FastGelu),
        ),
        exactness=Exactness.ROUNDING,
        source=PAPER,
        allow_extra_operands=True,
        test=RuleTest(shapes=SHAPES, typical=TYPICAL),
    ),
    Rule(
        name="gelu.add_bias_to_bias_gelu",
        is_refinement=True,
        pattern=erf_op,
        replace=ms.BiasGelu(x, var("bias")),
        exactness=Exactness.ROUNDING,
        source=PAPER,
        test=RuleTest(shapes=WITH_BIAS, typical=TYPICAL, redundant=REDUNDANT),
    ),
    Rule(
        # As other rules here write it for want of a kernel.
        name="gelu.add_bias_to_bias_gelu_between_casts",
        is_refinement=True,
        formula="float16(gelu(float32(x + bias)))",
        pattern=op.Cast(
            (lambda wide: op.Gelu(wide) | ms.Gelu(wide))(op.Cast(biased, to=ir.DataType.FLOAT.value)),
            to=ir.DataType.FLOAT16.value,
        ),
        replace=ms.BiasGelu(x, var("bias")),
        guards=(is_half,),
        exactness=Exactness.ROUNDING,
        source=PAPER,
        test=RuleTest(shapes=WITH_BIAS, dtypes=("float16",), redundant=REDUNDANT),
    ),
    Rule(
        name="gelu.add_bias_to_fast_gelu",
        is_refinement=True,
        pattern=tanh_op,
        replace=ms.FastGelu(x, var("bias")),
        exactness=Exactness.ROUNDING,
        source=PAPER,
        test=RuleTest(shapes=WITH_BIAS, typical=TYPICAL, redundant=REDUNDANT),
    ),
    Rule(
        # As its definition, the runtime executes up to eight operators.
        name="gelu.float16_in_float32",
        is_refinement=True,
        spells_out=True,
        formula="gelu(x), x of float16",
        pattern=(_erf(x) | ms.Gelu(x) | _tanh(x) | ms.FastGelu(x)).named("form"),
        replace=tuple(
            (first | first | second | second).named("form")
            for first, second in (
                (_between_casts(ms.Gelu(x), _erf), _between_casts(ms.FastGelu(x), _tanh)),
                (_between_casts(ms.Gelu(x), ms.Gelu), _between_casts(ms.FastGelu(x), ms.FastGelu)),
            )
        ),
        exactness=Exactness.ROUNDING,
        source=PAPER,
        test=RuleTest(shapes=SHAPES, dtypes=("float16",)),
    ),
]
