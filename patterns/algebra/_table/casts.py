"""Identities of Cast, rounding operators, and comparisons with a Cast of booleans."""

from __future__ import annotations

import onnx_ir as ir

from .._identity import BUT_ZEROS, EXACT, FLOATS, INTEGERS, identity, named

FLOAT, DOUBLE = ir.DataType.FLOAT.value, ir.DataType.DOUBLE.value
SINGLE, LONG = {"t": [FLOAT]}, {"t": [ir.DataType.INT64.value]}
WIDER, WIDENED = {"t": [DOUBLE], "u": [FLOAT]}, {"t": [DOUBLE], "u": [DOUBLE]}
THERE_AND_BACK = "holds(t, x) and is_type_of(u, x)"
SAME = "holds(t, x) and one_type(x, y)"
COMPARED = ({"f": "less", "o": "<"}, {"f": "less_or_equal", "o": "<="}, {"f": "equal", "o": "=="})
ROUNDING, UNARY = named("floor", "ceil", "round"), named("neg", "abs", "floor", "ceil", "round", "sign")

CANONICAL = [
    *identity("{f}_of_integral", "{f}((w := floor(x) or ceil(x) or round(x) or sign(x))) -> w", EXACT, each=ROUNDING),
    *identity("{f}_of_cast_integer", "{f}(cast(x, t)) -> cast(x, t)", EXACT, INTEGERS, each=ROUNDING, examples=SINGLE),
    *identity("sign_of_sign", "sign(sign(x)) -> sign(x)", EXACT),
    *identity("cast.there_and_back", "cast(cast(x, t), u) -> x", EXACT, when=THERE_AND_BACK, examples=WIDER),
    *identity(
        "cast.cast_of_cast", "cast(cast(x, t), u) -> cast(x, u)", EXACT, when="converts_alike_by(t, u, x)", examples=WIDENED
    ),
    *identity(
        "cast.remove_around_{f}", "cast({f}(cast(x, t)), u) -> {f}(x)", EXACT, FLOATS, THERE_AND_BACK, each=UNARY, examples=WIDER
    ),
    *identity(
        "cast.remove_before_{f}", "cast(x, t) {o} cast(y, t) -> x {o} y", EXACT, when=SAME, each=COMPARED, examples=WIDER
    ),
    # Of two zeros, either may be picked.
    *identity(
        "cast.remove_around_relu", "cast(relu(cast(x, t)), u) -> relu(x)", BUT_ZEROS, FLOATS, THERE_AND_BACK, examples=WIDER
    ),
    *identity(
        "cast.remove_around_{f}", "cast({f}(cast(x, t), cast(y, t)), u) -> {f}(x, y)", BUT_ZEROS, FLOATS,
        f"{THERE_AND_BACK} and one_type(x, y)", each=named("max", "min"), examples=WIDER,
    ),
]  # fmt: skip

TRUE = (
    {"f": "greater", "o": ">", "c": "0 <= k < 1"},
    {"f": "greater_or_equal", "o": ">=", "c": "0 < k <= 1"},
    {"f": "equal", "o": "==", "c": "k == 1"},
)
FALSE = (
    {"f": "less", "o": "<", "c": "0 < k <= 1"},
    {"f": "less_or_equal", "o": "<=", "c": "0 <= k < 1"},
    {"f": "equal_zero", "o": "==", "c": "k == 0"},
)
TRUTH = "{c} and boolean(p)"
MASKS = (
    {"f": "mul", "o": "cast(p, t) * cast(q, t)", "g": "&"},
    {"f": "min", "o": "min(cast(p, t), cast(q, t))", "g": "&"},
    {"f": "max", "o": "max(cast(p, t), cast(q, t))", "g": "|"},
)
TRUTHS = "boolean(p) and boolean(q)"
UPWARDS = ({"f": "floor", "g": "ceil"}, {"f": "ceil", "g": "floor"})

SIMPLIFYING = [
    # As integers are divided upwards.
    *identity("neg_of_{f}_of_neg", "-{f}(-x) -> {g}(x)", BUT_ZEROS, each=UPWARDS),
    # A Cast cuts off what follows the point.
    *identity(
        "cast_of_floor", "cast(floor(x), t) -> cast(x, t)", EXACT, FLOATS, "x >= 0 and integer_type(t)", examples=LONG
    ),
    *identity("{f}_of_cast_bools", "{o} -> cast(p {g} q, t)", EXACT, when=TRUTHS, each=MASKS, examples=SINGLE),
    *identity("{f}_of_cast_bool", "cast(p, t) {o} k -> p", EXACT, when=TRUTH, each=TRUE, examples=SINGLE),
    *identity("{f}_of_cast_bool", "cast(p, t) {o} k -> ~p", EXACT, when=TRUTH, each=FALSE, examples=SINGLE),
]
