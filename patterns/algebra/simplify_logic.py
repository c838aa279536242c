"""Simplify And, Or, Xor, Not, and comparisons of booleans and integers.

x and not x = false        x or not x = true        not x and not y = not (x or y)
not(x < y) = x >= y        of integers: NaN is neither less than a number nor at least it
float(b) > 0 = b           of booleans
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx_ir as ir

from ortfuse.ir.remark import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, Pattern, attr, computed, op, scalar, var

from .._shared_guards import snake_case
from .algebraic_simplify import TRUTHS, keeps_shape, simplification

PASS = "target_decompositions"

x, y = var("x"), var("y")

EXACT = Exactness.EXACT


def _all(truth: bool) -> Pattern:
    made: Pattern = op.Expand(computed("truth", lambda match: np.asarray(truth)), op.Shape(x))
    return made


def is_integer(match: Match) -> Refusal | None:
    """x is of integers."""
    dtype = match.dtype("x")
    return None if dtype is not None and dtype.is_integer() else match.refuse("dtype", "x", "integers")


def _truths() -> Iterator[Rule]:
    negated = op.Not(x).kept()
    for name, truth in (("And", False), ("Or", True), ("Xor", True)):
        yield simplification(
            f"algebra.{name.lower()}_with_own_not", getattr(op, name)(x, negated), _all(truth), EXACT, TRUTHS
        )
    yield simplification("algebra.xor_of_same", op.Xor(x, x), _all(False), EXACT, TRUTHS)
    for name, other in (("And", "Or"), ("Or", "And")):
        pattern = getattr(op, name)(op.Not(x), op.Not(y))
        yield simplification(
            f"algebra.{name.lower()}_of_nots", pattern, op.Not(getattr(op, other)(x, y)), EXACT, TRUTHS
        )
    integers = RuleTest(
        shapes={"x": "b 3", "y": "3"},
        inputs={"x": "int64", "y": "int64"},
        opset=20,
        counterexamples={
            "of NaN": Variation(
                inputs={"x": "float32", "y": "float32"},
                sizes={"b": 2},
                fixed={"x": np.full((2, 3), np.nan, np.float32)},
            )
        },
    )
    for name, opposite in (
        ("Less", "GreaterOrEqual"),
        ("Greater", "LessOrEqual"),
        ("LessOrEqual", "Greater"),
        ("GreaterOrEqual", "Less"),
    ):
        yield simplification(
            f"algebra.not_of_{snake_case(name)}",
            op.Not(getattr(op, name)(x, y)),
            getattr(op, opposite)(x, y),
            EXACT,
            integers,
            is_integer,
        )


_COMPARED: dict[str, Callable[[float, float], bool]] = {
    "Greater": lambda one, other: one > other,
    "GreaterOrEqual": lambda one, other: one >= other,
    "Less": lambda one, other: one < other,
    "LessOrEqual": lambda one, other: one <= other,
    "Equal": lambda one, other: one == other,
}


def _outcomes(match: Match) -> tuple[bool, bool]:
    """The results of the comparison for false and for true."""
    compared, number = _COMPARED[match.root.producer().op_type], match["number"]  # type: ignore[union-attr]
    first = match.root.producer().inputs[0] is match["cast"]  # type: ignore[union-attr]
    return (compared(0, number), compared(1, number)) if first else (compared(number, 0), compared(number, 1))


def tells_them_apart(match: Match) -> Refusal | None:
    """x is boolean, and the comparison tells true from false."""
    if match.dtype("x") != ir.DataType.BOOL:
        return match.refuse("dtype", "x", ir.DataType.BOOL)
    one, other = _outcomes(match)
    return match.unless_value("number", one != other, "such that true and false differ")


def _compared() -> Iterator[Rule]:
    cast = op.Cast(x, to=attr("to")).kept().named("cast")
    for name in _COMPARED:
        build = getattr(op, name)
        pattern = build(cast, scalar("number"))
        yield simplification(
            f"algebra.{snake_case(name)}_of_cast_bool",
            pattern if name == "Equal" else pattern | build(scalar("number"), cast),
            lambda match: x if _outcomes(match)[1] else op.Not(x),
            EXACT,
            RuleTest(
                shapes={"x": "b 3"},
                inputs={"x": "bool"},
                attributes={"to": [ir.DataType.FLOAT.value]},
                scalars={"number": [0.0, 1.0] if name == "Equal" else [0.5]},
                opset=20,
                followed_by="Identity",
                counterexamples={
                    "of integers": Variation(inputs={"x": "int64"}),
                    "with 0": Variation(scalars={"number": 0.0}),
                    "with 1": Variation(scalars={"number": 1.0}),
                },
            ),
            tells_them_apart,
            keeps_shape,
            makes=("Not",),
        )


RULES = [*_truths(), *_compared()]
