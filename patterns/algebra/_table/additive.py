"""Identities of sums, differences and signs: Add, Sub, Neg."""

from __future__ import annotations

from .._identity import BUT_ZEROS, EXACT, FLOATS, INTEGERS, ROUNDED, identity

CANONICAL = [
    *identity("neg_of_neg", "-(-x) -> x", EXACT),
    *identity("sub_of_same", "x - x -> 0", EXACT, when="finite(x)"),
    # -0 + 0 is +0
    *identity("noop.add_zero", "x + fill(0) or x - fill(0) -> x", BUT_ZEROS),
]

SIMPLIFYING = [
    # Integers wrap around, and back again.
    *identity("sub_of_add", "(x + y) - x -> y", EXACT, INTEGERS),
    *identity("add_of_sub", "(x - y) + y -> x", EXACT, INTEGERS),
    *identity("sub_of_own_difference", "x - (x - y) -> y", EXACT, INTEGERS),
    *identity("add_of_neg", "x + -y -> x - y", EXACT),
    *identity("sub_of_neg", "x - -y -> x + y", EXACT),
    *identity("sub_constant_from_neg", "-x - a -> -a - x", EXACT, FLOATS),
    # Of equal numbers, the difference is 0 and its negative -0.
    *identity("neg_of_sub", "-(x - y) -> y - x", BUT_ZEROS),
    *identity("neg_of_add_constant", "-(x + a) -> -a - x", BUT_ZEROS, FLOATS),
    *identity("sub_from_zero", "0 - x -> -x", BUT_ZEROS),
    *identity("relu_minus_relu_of_neg", "relu(x) - relu(-x) -> x", BUT_ZEROS, FLOATS),
    *identity("relu_plus_relu_of_neg", "relu(x) + relu(-x) -> abs(x)", BUT_ZEROS, FLOATS),
    *identity("add_of_min_and_max", "min(x, y) + max(x, y) -> x + y", BUT_ZEROS),
    *identity("max_minus_min", "max(x, y) - min(x, y) -> abs(x - y)", ROUNDED, FLOATS),
]
