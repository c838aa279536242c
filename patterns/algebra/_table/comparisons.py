"""Identities of comparisons, and of Where with them as conditions."""

from __future__ import annotations

from .._identity import BUT_ZEROS, EXACT, FLOATS, INTEGERS, identity

CANONICAL = [
    *identity("where.false_condition", "where(fill(False), y, x) -> x", EXACT),
    # The runtime's Where takes the sign of a zero from one of its branches only.
    *identity("where.true_condition", "where(fill(True), x, y) -> x", BUT_ZEROS),
    *identity("where_of_same_branches", "where(p, x, x) -> x", BUT_ZEROS),
]

SIMPLIFYING = [
    # Of integers: NaN is neither less than a number nor at least as large.
    *identity("not_of_less", "~(x < y) -> x >= y", EXACT, INTEGERS),
    *identity("not_of_less_or_equal", "~(x <= y) -> x > y", EXACT, INTEGERS),
    *identity("where_of_where_then", "where(p, where(p, x, y), z) -> where(p, x, z)", EXACT),
    *identity("where_of_where_else", "where(p, z, where(p, y, x)) -> where(p, z, x)", EXACT),
    *identity("where_of_not", "where(~p, x, y) -> where(p, y, x)", BUT_ZEROS),
    # A NaN in x is neither below nor above the bound, and stays.
    *identity("where_less_to_max", "where(x < k or x <= k, k, x) -> max(x, k)", BUT_ZEROS, FLOATS, "number(k)"),
    *identity("where_greater_to_min", "where(x > k or x >= k, k, x) -> min(x, k)", BUT_ZEROS, FLOATS, "number(k)"),
]
