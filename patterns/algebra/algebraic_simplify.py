"""Simplify signs, quotients, Min, Max, Abs, Clip and Where in arithmetic, once all fusions are found.

x + -y = x - y        -(x - y) = y - x        (-x) (-y) = x y        0 - x = x (-1) = -x        x (1 / y) = x / y
1 / (x / y) = y / x        1 / (1 / x) = x        x / (1 / y) = x y        a / (b x) = (a / b) / x        max(x, -x) = |x|
where(x < a, a, x) = max(x, a)                  where(x > a, a, x) = min(x, a)
relu(x) = |x| = x, clip(x, a, b) = x            where the range of x is known to lie there
-max(-x, -y) = min(x, y)        relu(x) - relu(-x) = x        max(x, y) + min(x, y) = x + y        |x| |y| = |x y|
max(x, max(x, y)) = max(x, y)        where(not c, x, y) = where(c, y, x)        where(c, where(c, x, y), z) = where(c, x, z)
x and (x or y) = x        x and (x and y) = x and y
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.remark import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Guard, Match, Pattern, attr, computed, const, op, redundant, scalar, var

from .._rule_test_inputs import ADDS_NO_AXES, SHAPES, signed_zeros
from .._shared_guards import array_like, floating, same_shape

PASS = "target_decompositions"

SOURCE = "ONNX operator specification"

x, y, z, once = var("x"), var("y"), var("z"), var("once")
condition = var("condition")

EXACT, ROUNDING = Exactness.EXACT, Exactness.ROUNDING

NUMBERS = RuleTest(shapes=({"x": "b 3", "y": "b 3"}, {"x": "b 3", "y": "3"}), counterexamples=signed_zeros(x=(2, 3)))
TRUTHS = RuleTest(shapes={"x": "b 3", "y": "b 3"}, inputs={"x": "bool", "y": "bool"})
BRANCHES = RuleTest(
    shapes={"condition": "b 3", "x": "b 3", "y": "3", "z": "b 3"},
    inputs={"condition": "bool"},
    counterexamples=signed_zeros(x=(2, 3), y=(3,), z=(2, 3)),
)


def simplification(
    name: str, pattern: Pattern, replace: Any, exactness: Exactness, test: RuleTest, *guards: Guard, **more: Any
) -> Rule:
    """A rule of algebra, whose source is the specification of the operators."""
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


# It is its own negative, and the processor stops where -1 divides it.
_SMALLEST = Variation(
    inputs={"x": "int64", "y": "int64"},
    sizes={"b": 1},
    fixed={"x": np.full((1, 3), -(2**63)), "y": np.array([[2, 3, 5]])},
)

# Signs

keeps_shape = redundant(ADDS_NO_AXES)(same_shape("x", "root"))


is_number = redundant("integers would be right too")(floating("x"))


def _signs() -> Iterator[Rule]:
    yield simplification("algebra.add_of_neg", op.Add(x, op.Neg(y)), op.Sub(x, y), EXACT, NUMBERS)
    yield simplification("algebra.sub_of_neg", op.Sub(x, op.Neg(y)), op.Add(x, y), EXACT, NUMBERS)
    # Of equal numbers, the difference is 0 and its negative -0.
    yield simplification("algebra.neg_of_sub", op.Neg(op.Sub(x, y)), op.Sub(y, x), ROUNDING, NUMBERS)
    yield simplification("algebra.mul_of_negs", op.Mul(op.Neg(x), op.Neg(y)), op.Mul(x, y), EXACT, NUMBERS)
    yield simplification(
        "algebra.div_of_negs", op.Div(op.Neg(x), op.Neg(y)), op.Div(x, y), EXACT,
        RuleTest(shapes=NUMBERS.shapes, counterexamples={"of integers": _SMALLEST}), floating("x"),
    )  # fmt: skip
    yield simplification("algebra.neg_of_mul_of_neg", op.Neg(op.Mul(op.Neg(x), y)), op.Mul(x, y), EXACT, NUMBERS)
    quotient = op.Div(op.Neg(x), y) | op.Div(x, op.Neg(y))
    yield simplification("algebra.neg_of_div_of_neg", op.Neg(quotient), op.Div(x, y), EXACT, NUMBERS, floating("x"))
    plain = RuleTest(shapes={"x": "b 3"})
    yield simplification("algebra.sub_from_zero", op.Sub(0.0, x), op.Neg(x), ROUNDING, plain, keeps_shape)
    yield simplification(
        "algebra.mul_by_minus_one", op.Mul(x, -1.0) | op.Div(x, -1.0), op.Neg(x), EXACT, plain, keeps_shape
    )
    added = const("added")
    negated = computed("negated", lambda match: array_like(match, -match.const("added")))
    test = RuleTest(shapes={"x": "b 3", "added": "3"})
    yield simplification(
        "algebra.neg_of_add_constant", op.Neg(op.Add(x, added)), op.Sub(negated, x), ROUNDING, test, is_number
    )
    yield simplification(
        "algebra.sub_constant_from_neg", op.Sub(op.Neg(x), added), op.Sub(negated, x), EXACT, test, is_number
    )


def has_several_steps(match: Match) -> Refusal | None:
    """The quotient takes more than one node."""
    return None if len(match.nodes) > 1 else match.refuse("needless", "root", found="it is a single quotient")


def numbers_are_moderate(match: Match) -> Refusal | None:
    """The constants are moderate: no intermediate result overflows where the quotient does not."""
    constants = (match.facts.scalar(value) for node in match.nodes for value in node.inputs if value is not None)
    limit = 2.0**10 if match.dtype("root") == ir.DataType.FLOAT16 else 2.0**40
    numbers = [match["number"], *(number for number in constants if number is not None)]
    held = all(1 / limit <= abs(number) <= limit for number in numbers)
    return match.unless_value("number", held, f"of {1 / limit:.3g} to {limit:.3g} in size")


def _quotients() -> Iterator[Rule]:
    alike = RuleTest(shapes={"x": "b 3", "y": "b 3"})
    numbers = RuleTest(
        shapes={"x": "b 3"},
        scalars={"number": [0.5, -1.0, 2.0]},
        uncovered={"number of number / x: multiplied": "that is a single quotient already"},
    )
    # Neither quotient overflows where the other is a number.
    over = op.Div(x, y)
    yield simplification(
        "algebra.reciprocal_of_div",
        op.Reciprocal(over) | op.Div(1.0, over),
        op.Div(y, x),
        ROUNDING,
        alike,
        result_is_as_large,
    )
    inverse = op.Reciprocal(x) | op.Div(1.0, x)
    yield simplification(
        "algebra.reciprocal_of_reciprocal", op.Reciprocal(inverse) | op.Div(1.0, inverse), x, ROUNDING,
        RuleTest(shapes={"x": "b 3"}), is_number, keeps_shape,
    )  # fmt: skip
    yield simplification("algebra.div_by_reciprocal", op.Div(x, op.Reciprocal(y)), op.Mul(x, y), ROUNDING, NUMBERS)
    yield simplification(
        "algebra.constant_div_scaled", scalar("number") / x, op.Div(scalar("number"), x), ROUNDING, numbers, has_several_steps,
        redundant("numbers so large are not tried")(numbers_are_moderate),
    )  # fmt: skip
    yield simplification(
        "algebra.mul_by_reciprocal", op.Mul(x, op.Reciprocal(y)), op.Div(x, y), ROUNDING, alike, divisor_is_as_large
    )


@redundant(SHAPES)
def result_is_as_large(match: Match) -> Refusal | None:
    """1 adds no axes to the result."""
    return match.unless_same_shape("root", "x")


@redundant("a reciprocal of few numbers is cheaper than a quotient of many")
def divisor_is_as_large(match: Match) -> Refusal | None:
    """The divisor has the shape of the result."""
    return match.unless_same_shape("y", "root")


# Signs of extremes, and what both signs add up to


def _opposites() -> Iterator[Rule]:
    """The smallest integer is its own negative, so that these are of floating-point numbers."""
    plain, negatives = RuleTest(shapes={"x": "b 3"}), (op.Neg(x), op.Neg(y))
    added = const("added")
    opposite = computed("opposite", lambda match: array_like(match, -match.const("added")))
    with_constant = RuleTest(shapes={"x": "b 3", "added": "3"})
    smallest = RuleTest(shapes=NUMBERS.shapes, counterexamples={"of integers": _SMALLEST})
    for name, build, other in (("max", op.Max, op.Min), ("min", op.Min, op.Max)):
        pattern = op.Neg(build(*negatives))
        yield simplification(f"algebra.neg_of_{name}_of_negs", pattern, other(x, y), ROUNDING, smallest, floating("x"))
        pattern = op.Neg(build(op.Neg(x), added))
        yield simplification(
            f"algebra.neg_of_{name}_of_neg_and_constant",
            pattern,
            other(x, opposite),
            ROUNDING,
            with_constant,
            floating("x"),
        )
    yield simplification(
        "algebra.neg_of_relu_of_neg", op.Neg(op.Relu(op.Neg(x))), op.Min(x, 0.0), ROUNDING, plain, floating("x")
    )
    positive, negative = op.Relu(x), op.Relu(op.Neg(x))
    yield simplification(
        "algebra.relu_minus_relu_of_neg", op.Sub(positive, negative), x, ROUNDING, plain, floating("x")
    )
    yield simplification(
        "algebra.relu_plus_relu_of_neg", op.Add(positive, negative), op.Abs(x), ROUNDING, plain, floating("x")
    )
    smaller, larger = op.Min(x, y), op.Max(x, y)
    yield simplification("algebra.add_of_min_and_max", op.Add(smaller, larger), op.Add(x, y), ROUNDING, NUMBERS)
    yield simplification("algebra.mul_of_min_and_max", op.Mul(smaller, larger), op.Mul(x, y), ROUNDING, NUMBERS)


def _sizes() -> Iterator[Rule]:
    size = op.Abs(x).kept()
    yield simplification(
        "algebra.square_of_abs", op.Mul(size, size), op.Mul(x, x), EXACT, RuleTest(shapes={"x": "b 3"})
    )
    yield simplification(
        "algebra.mul_of_abs", op.Mul(op.Abs(x), op.Abs(y)), op.Abs(op.Mul(x, y)), EXACT, NUMBERS, floating("x")
    )
    yield simplification(
        "algebra.div_of_abs", op.Div(op.Abs(x), op.Abs(y)), op.Abs(op.Div(x, y)), EXACT, NUMBERS, floating("x")
    )


# Ranges


def _limits(match: Match) -> tuple[float, float]:
    """The numbers that the node leaves as they are."""
    node = match.root.producer()
    assert node is not None
    if node.op_type in ("Relu", "Abs"):
        return 0.0, math.inf
    low, high = match.get("low"), match.get("high")
    return -math.inf if low is None else float(low), math.inf if high is None else float(high)


def lies_there(match: Match) -> Refusal | None:
    """The range of x is known, and the node leaves every element in it unchanged."""
    values, (low, high) = match.facts.range(match["x"]), _limits(match)
    if values is None or not low <= values.low <= values.high <= high:
        return match.refuse("values_unknown", "x", f"between {low:g} and {high:g}")
    # Where a bound of Clip is absent, the runtime takes the largest finite number.
    finite = match.root.producer().op_type != "Clip" or -math.inf < values.low <= values.high < math.inf  # type: ignore[union-attr]
    return None if finite else match.refuse("values_unknown", "x", "finite")


def _positive(build: Any) -> ir.Value:
    """Numbers from 0.125 to 0.75, of which some are equal to these bounds."""
    numbers = build.input("numbers", build.dims("x"))
    made: ir.Value = build.node("Clip", [numbers, build.constant(0.125), build.constant(0.75)]).outputs[0]
    return made


def _bounded() -> Iterator[Rule]:
    test = RuleTest(
        shapes={"x": "b 3"},
        inputs={"x": _positive},
        scalars={"low": [0.0, 0.125], "high": [0.75, 1.0]},
        attributes={"low": [0.0, None], "high": [1.0, 0.75]},
        counterexamples={
            "of any number": Variation(inputs={"x": "float32"}),
            "that cuts": Variation(scalars={"low": 0.5, "high": 0.5}, attributes={"low": 0.5, "high": 0.6}),
        },
    )
    for name, pattern in (
        ("relu_of_nonnegative", op.Relu(x)),
        ("abs_of_nonnegative", op.Abs(x)),
        ("clip_within_range", op.Clip(x, min=attr("low"), max=attr("high"))),
        ("max_within_range", op.Max(x, scalar("low"))),
        ("min_within_range", op.Min(x, scalar("high"))),
    ):
        yield simplification(f"algebra.{name}", pattern, x, ROUNDING, test, lies_there, keeps_shape)


# Extremes and branches


def _repeated() -> Iterator[Rule]:
    for name in ("Max", "Min", "And", "Or"):
        build = getattr(op, name)
        # Of zeros, the larger and the smaller may be of either sign.
        exactness, test = (ROUNDING, NUMBERS) if name in ("Max", "Min") else (EXACT, TRUTHS)
        yield simplification(
            "algebra.{0}_of_{0}".format(name.lower()),
            build(x, build(x, y).kept().named("once")),
            once,
            exactness,
            test,
        )
    for name, other in (("And", "Or"), ("Or", "And")):
        build, inner = getattr(op, name), getattr(op, other)
        pattern = build(x, inner(x, y).kept())
        yield simplification(
            f"algebra.{name.lower()}_absorbs_{other.lower()}", pattern, x, EXACT, TRUTHS, same_shape("x", "root")
        )


def shapes_are_known(match: Match) -> Refusal | None:
    """The shapes of all operands are known, so that it can be seen whether the one left out makes the result larger."""
    found = match.shapes("condition", "x", "z", "root")
    return found if isinstance(found, Refusal) else None


def is_a_number(match: Match) -> Refusal | None:
    """The bound is not NaN."""
    return match.unless_value("bound", not math.isnan(match["bound"]), "a number")


def _chosen() -> Iterator[Rule]:
    """A NaN in x is neither below nor above the bound, and stays."""
    bound = scalar("bound")
    below = op.Less(x, bound) | op.LessOrEqual(x, bound) | op.Greater(bound, x) | op.GreaterOrEqual(bound, x)
    above = op.Greater(x, bound) | op.GreaterOrEqual(x, bound) | op.Less(bound, x) | op.LessOrEqual(bound, x)
    test = RuleTest(shapes={"x": "b 3"}, scalars={"bound": [0.25]})
    for name, outside, build in (("less_to_max", below, op.Max), ("greater_to_min", above, op.Min)):
        pattern = op.Where(outside, bound, x)
        yield simplification(
            f"algebra.where_{name}", pattern, build(x, bound), ROUNDING, test, is_number, is_a_number, keeps_shape
        )
    yield simplification(
        "algebra.max_of_x_and_neg_to_abs", op.Max(x, op.Neg(x)), op.Abs(x), ROUNDING, RuleTest(shapes={"x": "b 3"})
    )


def _branches() -> Iterator[Rule]:
    # The runtime's Where takes the sign of a zero from one of its branches only.
    yield simplification(
        "algebra.where_of_not", op.Where(op.Not(condition), x, y), op.Where(condition, y, x), ROUNDING, BRANCHES
    )
    inner = op.Where(condition, x, y).kept()
    yield simplification(
        "algebra.where_of_where_then",
        op.Where(condition, inner, z),
        op.Where(condition, x, z),
        EXACT,
        BRANCHES,
        shapes_are_known,
    )
    inner = op.Where(condition, y, x).kept()
    yield simplification(
        "algebra.where_of_where_else",
        op.Where(condition, z, inner),
        op.Where(condition, z, x),
        EXACT,
        BRANCHES,
        shapes_are_known,
    )


RULES = [
    *_signs(),
    *_quotients(),
    *_opposites(),
    *_sizes(),
    *_bounded(),
    *_chosen(),
    *_repeated(),
    *_branches(),
]
