"""Identities of powers, roots, exponentials and logarithms: Pow, Sqrt, Exp, Log.

Mul takes half the time of Pow for the exponents 2 and 3, which have loops of their own in its kernel. For others it takes from a
fifth to a two hundredth.
"""

from __future__ import annotations

import functools

from ortfuse.rewrite.pattern import Match, Pattern, op, var

from .._identity import EXACT, FLOATS, ROUNDED, identity, named

TYPICAL = ({"x": "1 128 768"}, {"x": "64 1000"}, {"x": "1 128 1"})


def _by_squaring(match: Match) -> Pattern:
    exponent = int(match["k"])
    made = _multiplied(abs(exponent))
    return made if exponent > 0 else op.Reciprocal(made)


def _multiplied(exponent: int) -> Pattern:
    """x to a power from 1 on."""
    if exponent == 1:
        return var("x")
    half = _multiplied(exponent // 2)
    made = op.Mul(half, half)
    return op.Mul(made, var("x")) if exponent % 2 else made


SIGNS = ({"f": "abs", "o": "abs(x)"}, {"f": "neg", "o": "(-x)"})

CANONICAL = [
    *identity("noop.pow_one", "x ** 1 -> x", EXACT, FLOATS),
]

power = functools.partial(identity, typical=TYPICAL, source="ONNX operators Pow, Exp and Log")

SIMPLIFYING = [
    *power("power.square_of_{f}", "{o} ** 2 -> x ** 2", EXACT, FLOATS, each=SIGNS),
    *identity("cos_of_neg", "cos(-x) -> cos(x)", ROUNDED),
    *identity("neg_of_{f}_of_neg", "-{f}(-x) -> {f}(x)", ROUNDED, each=named("tanh", "erf", "sin")),
    *power(
        "power.integer_exponent_to_mul", "x ** k -> x * ... * x", ROUNDED, FLOATS, "few_products(k) and not_averaged()",
        written=_by_squaring, makes=("Mul", "Reciprocal"), examples={"k": (2.0, 7.0, 8.0, -3.0)},
    ),
    *power("power.fourth_to_squares", "(x * x * x or x ** 3) * x -> (x * x) * (x * x)", ROUNDED),
    # The root of -0 is -0, its power 0.
    *power("power.half_to_sqrt", "x ** 0.5 -> sqrt(x)", ROUNDED, FLOATS, "x >= 0"),
    *power("power.minus_half_to_reciprocal_sqrt", "x ** -0.5 -> reciprocal(sqrt(x))", ROUNDED, FLOATS, "x > 0"),
    *power("power.three_halves_to_mul_sqrt", "x ** 1.5 -> x * sqrt(x)", ROUNDED, FLOATS, "x >= 0"),
    *power("power.square_of_sqrt", "sqrt(x) * sqrt(x) or sqrt(x) ** 2 -> x", ROUNDED, when="x >= 0"),
    *power("algebra.exp_of_log", "exp(log(x)) -> x", ROUNDED, when="x >= 0"),
    *power("algebra.log_of_exp", "log(exp(x)) -> x", ROUNDED, when="moderate_exponent(x)"),
]  # fmt: skip
