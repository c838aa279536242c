"""Identities of Max, Min, Abs, Relu and Clip."""

from __future__ import annotations

from .._identity import BUT_ZEROS, EXACT, FLOATS, INTEGERS, identity

EXTREMES = ({"f": "max", "g": "min"}, {"f": "min", "g": "max"})

CANONICAL = [
    *identity("abs_of_abs", "abs(abs(x)) -> abs(x)", EXACT),
    *identity("abs_of_neg", "abs(-x) -> abs(x)", EXACT),
    *identity("max_or_min_of_same", "max(x, x) or min(x, x) -> x", EXACT),
    *identity("noop.{f}_of_single_input", "{f}(x) -> x", EXACT, each=({"f": "max"}, {"f": "min"}, {"f": "mean"})),
]

SIMPLIFYING = [
    # A NaN in y would stay.
    *identity("{f}_absorbs_{g}", "{f}(x, {g}(x, y)) -> x", EXACT, INTEGERS, each=EXTREMES),
    # Of two zeros, either may be picked.
    *identity("{f}_of_{f}", "{f}(x, {f}(x, y)) -> {f}(x, y)", BUT_ZEROS, each=EXTREMES),
    *identity("max_of_x_and_neg_to_abs", "max(x, -x) -> abs(x)", BUT_ZEROS),
    # The smallest integer is its own negative, so that these are of floating-point numbers.
    *identity("neg_of_{f}_of_negs", "-{f}(-x, -y) -> {g}(x, y)", BUT_ZEROS, FLOATS, each=EXTREMES),
    *identity("neg_of_{f}_of_neg_and_constant", "-{f}(-x, a) -> {g}(x, -a)", BUT_ZEROS, FLOATS, each=EXTREMES),
    *identity("neg_of_relu_of_neg", "-relu(-x) -> min(x, 0)", BUT_ZEROS, FLOATS),
    *identity("relu_of_nonnegative", "relu(x) -> x", BUT_ZEROS, when="x >= 0"),
    *identity("abs_of_nonnegative", "abs(x) -> x", BUT_ZEROS, when="x >= 0"),
    *identity("max_within_range", "max(x, k) -> x", BUT_ZEROS, when="x >= k"),
    *identity("min_within_range", "min(x, k) -> x", BUT_ZEROS, when="x <= k"),
    *identity("clip_within_range", "clip(x, k, m) -> x", BUT_ZEROS, when="k <= x <= m and unclipped(x)"),
]
