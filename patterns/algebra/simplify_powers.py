"""Replace Pow by Mul, Sqrt and Reciprocal, and cancel Exp of Log, Log of Exp and squares of Sqrt.

x^2 = x x        x^4 = (x x) (x x)        x^-n = 1 / x^n        x^1.5 = x sqrt(x)        x^-0.5 = 1 / sqrt(x)
(x x x) x = (x x) (x x)        sqrt(x) sqrt(x) = x
exp(log(x)) = x, x at least 0          log(exp(x)) = x, x moderate

Rationale: Mul takes half the time of Pow for the exponents 2 and 3, which have loops of their own in its kernel. For others it
takes from a fifth to a two hundredth.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.remark import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Guard, Match, Pattern, op, redundant, scalar, var

from .._rule_test_inputs import COST
from .._shared_guards import floating

PASS = "target_decompositions"

SOURCE = "ONNX operators Pow, Exp and Log"

x = var("x")

LOWEST, HIGHEST = -4, 8
"""The powers that are multiplied out: four products at most."""

_LOWEST_EXPONENT = {ir.DataType.FLOAT: -80.0, ir.DataType.DOUBLE: -700.0, ir.DataType.FLOAT16: -9.0}
"""The smallest numbers of which the exponential keeps all its digits; the exponential of their opposites is finite."""

TYPICAL = ({"x": "1 128 768"}, {"x": "64 1000"}, {"x": "1 128 1"})


def _multiplied(exponent: int) -> Pattern:
    """x to a power from 1 on, by squaring."""
    if exponent == 1:
        return x
    half = _multiplied(exponent // 2)
    made = op.Mul(half, half)
    return op.Mul(made, x) if exponent % 2 else made


def _as_products(match: Match) -> Pattern:
    exponent = int(match["exponent"])
    made = _multiplied(abs(exponent))
    return made if exponent > 0 else op.Reciprocal(made)


def is_whole(match: Match) -> Refusal | None:
    """The exponent is a small integer."""
    exponent = float(match["exponent"])
    few = exponent.is_integer() and (LOWEST <= exponent < 0 or 2 <= exponent <= HIGHEST)
    return match.unless_value("exponent", few, f"a whole number from {LOWEST} to -1 or from 2 to {HIGHEST}")


@redundant(COST)
def is_not_averaged(match: Match) -> Refusal | None:
    """The result is no square in a variance, by which the runtime recognises normalizations."""
    averaged = match["exponent"] == 2 and any(user.op_type == "ReduceMean" for user in match.root.consumers())
    return match.refuse("use", "root", "more than an average", "ReduceMean") if averaged else None


def is_at_least(bound: float, *, above: bool = False) -> Guard:
    """x is provably at least this number, or above it."""

    def guard(match: Match) -> Refusal | None:
        values = match.facts.range(match["x"])
        held = values is not None and (values.low > bound if above else values.low >= bound)
        return None if held else match.refuse("values_unknown", "x", f"{'above' if above else 'at least'} {bound:g}")

    return guard


def keeps_its_digits(match: Match) -> Refusal | None:
    """The exponential of x is neither infinite nor so small that it loses digits."""
    values, low = match.facts.range(match["x"]), _LOWEST_EXPONENT.get(match.dtype("x"), 0.0)  # type: ignore[arg-type]
    held = values is not None and low <= values.low <= values.high <= -low
    return None if held else match.refuse("values_unknown", "x", f"between {low:g} and {-low:g}")


def _between(low: float, high: float) -> Any:
    """Numbers between two bounds, some of them equal to these."""

    def made(build: Any) -> ir.Value:
        numbers = build.input("numbers", build.dims("x"))
        clipped: ir.Value = build.node("Clip", [numbers, build.constant(low), build.constant(high)]).outputs[0]
        return clipped

    return made


def _power_rule(name: str, pattern: Pattern, replace: Any, test: RuleTest, *guards: Guard, **more: Any) -> Rule:
    return Rule(
        name=f"power.{name}",
        pattern=pattern,
        replace=replace,
        guards=guards,
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=test,
        **more,
    )


def _bounded(low: float, high: float, outside: float) -> RuleTest:
    """x lies between two bounds; `outside` is a number for which the rule would be wrong."""
    return RuleTest(
        shapes={"x": "b 3"},
        inputs={"x": _between(low, high)},
        counterexamples={
            "of any number": Variation(
                inputs={"x": "float32"}, sizes={"b": 2}, fixed={"x": np.full((2, 3), outside, np.float32)}
            )
        },
        typical=TYPICAL,
    )


_POSITIVE = _bounded(0.0, 4.0, -np.inf)
_ABOVE = _bounded(2.0**-20, 4.0, -np.inf)

root = op.Sqrt(x).kept()
cube = op.Mul(op.Mul(x, x), x)

RULES = [
    _power_rule(
        "integer_exponent_to_mul",
        op.Pow(x, scalar("exponent")),
        _as_products,
        RuleTest(
            shapes={"x": "b 3"},
            scalars={"exponent": [2.0, 7.0, 8.0, -3.0]},
            typical=TYPICAL,
        ),
        floating("x"),
        is_whole,
        is_not_averaged,
        makes=("Mul", "Reciprocal"),
    ),
    _power_rule(
        "minus_half_to_reciprocal_sqrt",
        op.Pow(x, -0.5),
        op.Reciprocal(op.Sqrt(x)),
        _ABOVE,
        is_at_least(0.0, above=True),
    ),
    _power_rule("three_halves_to_mul_sqrt", op.Pow(x, 1.5), op.Mul(x, op.Sqrt(x)), _POSITIVE, is_at_least(0.0)),
    _power_rule(
        "fourth_to_squares",
        op.Mul(cube | op.Pow(x, 3.0), x),
        _multiplied(4),
        RuleTest(shapes={"x": "b 3"}, typical=TYPICAL),
    ),
    _power_rule("square_of_sqrt", op.Mul(root, root) | op.Pow(root, 2.0), x, _POSITIVE, is_at_least(0.0)),
    _power_rule("exp_of_log", op.Exp(op.Log(x).kept()), x, _POSITIVE, is_at_least(0.0)),
    _power_rule("log_of_exp", op.Log(op.Exp(x).kept()), x, _bounded(-40.0, 40.0, 100.0), keeps_its_digits),
]
