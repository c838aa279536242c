"""Simplify an operator that is applied twice, or to the same operand twice.

-(-x) = x        not(not(x)) = x        |(|x|)| = |x|        floor(ceil(x)) = ceil(x)        sign(sign(x)) = sign(x)
cast(cast(x)) = cast(x)   where the type between holds every x
max(x, x) = x    x and x = x            where(c, x, x) = x        x - x = 0   where x is neither infinite nor NaN
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.remark import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Guard, Match, Pattern, attr, computed, op, redundant, var

from .._rule_test_inputs import SHAPES, signed_zeros
from .._shared_guards import array_like, same_shape

SOURCE = "ONNX operator specification"

x, once = var("x"), var("once")

_DIGITS = {
    ir.DataType.BFLOAT16: 8,
    ir.DataType.FLOAT16: 11,
    ir.DataType.FLOAT: 24,
    ir.DataType.DOUBLE: 53,
}
"""The binary digits of the numbers of each type, which therefore holds all integers of as many digits."""

_WIDER = {
    ir.DataType.BFLOAT16: {ir.DataType.FLOAT, ir.DataType.DOUBLE},
    ir.DataType.FLOAT16: {ir.DataType.FLOAT, ir.DataType.DOUBLE},
    ir.DataType.FLOAT: {ir.DataType.DOUBLE},
}
"""The types that hold all numbers of a floating-point type."""


def _is_integer(dtype: ir.DataType) -> bool:
    return dtype is ir.DataType.BOOL or bool(dtype.is_integer() and dtype.bitwidth >= 8)


def _limits(dtype: ir.DataType) -> tuple[int, int]:
    if dtype == ir.DataType.BOOL:
        return 0, 1
    found = np.iinfo(dtype.numpy())
    return int(found.min), int(found.max)


def holds_all(dtype: ir.DataType, other: ir.DataType) -> bool:
    """Whether every number of `other` is one of `dtype`."""
    if dtype == other:
        return True
    if not _is_integer(other):
        return dtype in _WIDER.get(other, ())
    low, high = _limits(other)
    if dtype in _DIGITS:
        return max(-low, high + 1) <= 1 << _DIGITS[dtype]
    lowest, highest = _limits(dtype) if _is_integer(dtype) else (0, 0)
    return lowest <= low and high <= highest


def _types(match: Match) -> tuple[ir.DataType | None, ir.DataType, ir.DataType]:
    return match.dtype("x"), ir.DataType(match["between"]), ir.DataType(match["to"])


def loses_nothing(match: Match) -> Refusal | None:
    """The type between holds every number of x, and the conversion from either to the last type is the same."""
    before, between, after = _types(match)
    if before is None:
        return match.refuse("dtype", "x")
    if not holds_all(between, before):
        return match.refuse("attribute", "between", f"a type that holds every number of {before.name.lower()}")
    if holds_all(after, before):
        return None
    # Between integers bits are cut off, from whatever type; the runtime rounds to float16 by way of float32.
    alike = _is_integer(before) and ((_is_integer(between) and _is_integer(after)) or after == ir.DataType.FLOAT)
    needed = f"a type that holds every number of {before.name.lower()}, or one to which both convert alike"
    return None if alike else match.refuse("attribute", "to", needed)


def _single_cast(match: Match) -> Pattern:
    before, _, after = _types(match)
    return x if before == after else op.Cast(x, to=attr("to"))


def is_finite(match: Match) -> Refusal | None:
    """x is of integers, or provably finite: infinity minus infinity is NaN."""
    dtype = match.dtype("x")
    if dtype is None:
        return match.refuse("dtype", "x")
    found = None if dtype.is_integer() else match.facts.range(match["x"])
    finite = dtype.is_integer() or (found is not None and found.is_finite)
    return None if finite else match.refuse("values_unknown", "x", "neither infinite nor NaN")


def _bounded(build: Any) -> ir.Value:
    """Cosines, of which none is infinite or NaN: of integers."""
    numbers = build.input("numbers", build.dims("x"), ir.DataType.INT64)
    single = build.node("Cast", [numbers], {"to": build.dtype.value}).outputs[0]
    made: ir.Value = build.node("Clip", [single, build.constant(-2.0), build.constant(2.0)]).outputs[0]
    return made


def _identity_rule(
    name: str,
    pattern: Pattern,
    replace: Any,
    test: RuleTest,
    *guards: Guard,
    exactness: Exactness = Exactness.EXACT,
    **more: Any,
) -> Rule:
    return Rule(
        name=name,
        pattern=pattern,
        replace=replace,
        guards=guards,
        exactness=exactness,
        source=SOURCE,
        test=test,
        **more,
    )


def _whole_again(name: str) -> Pattern:
    """A whole number that is rounded, or a sign whose sign is taken."""
    inner = ("Sign",) if name == "Sign" else ("Floor", "Ceil", "Round", "Sign")
    first, *others = (getattr(op, one)(x).kept() for one in inner)
    once = functools.reduce(operator.or_, others, first).named("once")
    return getattr(op, name)(once)  # type: ignore[no-any-return]


PLAIN = RuleTest(shapes={"x": "b 3"})
TRUTHS = RuleTest(shapes={"x": "b 3"}, inputs={"x": "bool"})
_CASTS = [("float16", "FLOAT", "FLOAT16"), ("float16", "FLOAT", "DOUBLE"), ("float32", "DOUBLE", "FLOAT"),
          ("int32", "INT64", "FLOAT"), ("int64", "INT64", "INT32"), ("bool", "FLOAT", "INT64"),
          ("uint8", "FLOAT16", "INT32"), ("int32", "DOUBLE", "INT32")]  # fmt: skip


def _cast_rule_test() -> RuleTest:
    def numbered(name: str) -> int:
        return ir.DataType[name].value

    return RuleTest(
        shapes={"x": "b 3"},
        inputs={"x": "float16"},
        attributes={"between": [numbered("FLOAT"), numbered("DOUBLE")], "to": [numbered("FLOAT16"), numbered("FLOAT")]},
        followed_by="Identity",
        counterexamples={
            **{
                f"{first} to {between} to {after}": Variation(
                    inputs={"x": first}, attributes={"between": numbered(between), "to": numbered(after)}
                )
                for first, between, after in _CASTS
            },
            "digits lost": Variation(
                inputs={"x": "float32"}, attributes={"between": numbered("FLOAT16"), "to": numbered("FLOAT")}
            ),
            "from the sign": Variation(
                inputs={"x": "int8"}, attributes={"between": numbered("UINT8"), "to": numbered("INT32")}
            ),
            "to fewer digits": Variation(
                inputs={"x": "int32"}, attributes={"between": numbered("FLOAT"), "to": numbered("INT32")}
            ),
        },
    )


RULES = [
    _identity_rule("algebra.neg_of_neg", op.Neg(op.Neg(x).kept()), x, PLAIN),
    _identity_rule("algebra.not_of_not", op.Not(op.Not(x).kept()), x, TRUTHS),
    _identity_rule("algebra.abs_of_abs", op.Abs(op.Abs(x).kept().named("once")), once, PLAIN),
    *(
        _identity_rule(f"algebra.{name.lower()}_of_integral", _whole_again(name), once, PLAIN)
        for name in ("Floor", "Ceil", "Round")
    ),
    _identity_rule("algebra.sign_of_sign", _whole_again("Sign"), once, PLAIN),
    _identity_rule("algebra.abs_of_neg", op.Abs(op.Neg(x).kept()), op.Abs(x), PLAIN),
    _identity_rule(
        "cast.cast_of_cast",
        op.Cast(op.Cast(x, to=attr("between")).kept(), to=attr("to")),
        _single_cast,
        _cast_rule_test(),
        loses_nothing,
        makes=("Cast",),
    ),
    _identity_rule("algebra.max_or_min_of_same", op.Max(x, x) | op.Min(x, x), x, PLAIN),
    _identity_rule("algebra.idempotent_and_or", op.And(x, x) | op.Or(x, x), x, TRUTHS),
    _identity_rule(
        "algebra.where_of_same_branches",
        op.Where(var("condition"), x, x),
        x,
        RuleTest(
            shapes={"x": "b 3", "condition": "b 3"},
            inputs={"condition": "bool"},
            counterexamples=signed_zeros(x=(2, 3)),
        ),
        redundant(SHAPES)(same_shape("x", "root")),
        # The runtime's Where takes the sign of a zero from one of its branches only.
        exactness=Exactness.ROUNDING,
    ),
    _identity_rule(
        "algebra.sub_of_same",
        op.Sub(x, x),
        op.Expand(computed("zero", lambda match: array_like(match, 0)), op.Shape(x)),
        RuleTest(
            shapes={"x": "b 3"},
            inputs={"x": "int64"},
            counterexamples={
                "of finite numbers": Variation(inputs={"x": _bounded}),
                "of numbers": Variation(inputs={"x": "float32"}),
            },
        ),
        is_finite,
    ),
]
