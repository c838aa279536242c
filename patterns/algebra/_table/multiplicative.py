"""Identities of products, quotients and their signs: Mul, Div, Reciprocal."""

from __future__ import annotations

from .._identity import EXACT, FLOATS, ROUNDED, identity

PRODUCTS = ({"f": "mul", "o": "*"}, {"f": "div", "o": "/"})

CANONICAL = [
    *identity("noop.mul_one", "x * fill(1) or x / fill(1) -> x", EXACT),
]

SIMPLIFYING = [
    *identity("mul_by_minus_one", "x * -1 or x / -1 -> -x", EXACT),
    *identity("mul_of_negs", "-x * -y -> x * y", EXACT),
    *identity("neg_of_mul_of_neg", "-(-x * y) -> x * y", EXACT),
    *identity("square_of_abs", "abs(x) * abs(x) -> x * x", EXACT),
    # The smallest integer is its own negative, and the processor stops where -1 divides it.
    *identity("div_of_negs", "-x / -y -> x / y", EXACT, FLOATS),
    *identity("neg_of_div_of_neg", "-(-x / y or x / -y) -> x / y", EXACT, FLOATS),
    *identity("{f}_of_abs", "abs(x) {o} abs(y) -> abs(x {o} y)", EXACT, FLOATS, each=PRODUCTS),
    *identity("mul_of_min_and_max", "min(x, y) * max(x, y) -> x * y", ROUNDED),
    *identity("div_by_reciprocal", "x / reciprocal(y) -> x * y", ROUNDED),
    *identity("mul_by_reciprocal", "x * reciprocal(y) -> x / y", ROUNDED, when="shaped_like_result(y)"),
    # Neither quotient overflows where the other is a number.
    *identity("reciprocal_of_div", "reciprocal(x / y) or 1 / (x / y) -> y / x", ROUNDED, FLOATS, "shaped_like_result(x)"),
    *identity(
        "reciprocal_of_reciprocal", "reciprocal(reciprocal(x) or 1 / x) or 1 / (reciprocal(x) or 1 / x) -> x", ROUNDED, FLOATS
    ),
    # 2 / (3 x) and the like, in any number of nodes.
    *identity(
        "constant_div_scaled", "k / x -> k / x", ROUNDED, FLOATS, "moderate_constants(k) and several_nodes()", chain=True,
        examples={"k": [0.5, -1.0, 2.0]}, uncovered={"number of k / x: multiplied": "that is a single quotient already"},
    ),
]  # fmt: skip
