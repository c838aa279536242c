"""Sums, products, extremes and truth values in fewer nodes, once all fusions are found.

x + -y = x - y        -(x - y) = y - x        (-x) (-y) = x y        0 - x = x (-1) = -x        x (1 / y) = x / y
1 / (x / y) = y / x        1 / (1 / x) = x        x / (1 / y) = x y        a / (b x) = (a / b) / x        max(x, -x) = |x|
where(x < a, a, x) = max(x, a)                  where(x > a, a, x) = min(x, a)
relu(x) = |x| = x, clip(x, a, b) = x            where x is known to lie there
-max(-x, -y) = min(x, y)        relu(x) - relu(-x) = x        max(x, y) + min(x, y) = x + y        |x| |y| = |x y|
max(x, max(x, y)) = max(x, y)        where(not c, x, y) = where(c, y, x)        where(c, where(c, x, y), z) = where(c, x, z)
x and (x or y) = x        x and not x = false        not x and not y = not (x or y)
not(x < y) = x >= y                             of integers: no number is at least NaN, or below it
float(b) > 0 = b                                of truth values
concat(concat(x, y), z) = concat(x, y, z)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.pattern import Guard, Match, Pattern, attr, computed, const, op, redundant, rest, scalar, var
from ortfuse.refusal import Refusal
from ortfuse.rewrite import Exactness, Proof, Rule, Variation

from ._common import array_like, floating, same_shape
from ._proofs import ADDS_NO_AXES, SHAPES, signed_zeros

PASS = "cpu_decompositions"

SOURCE = "ONNX operator specification"

x, y, z, once = var("x"), var("y"), var("z"), var("once")
condition = var("condition")

EXACT, ROUNDING = Exactness.EXACT, Exactness.ROUNDING

NUMBERS = Proof(shapes=({"x": "b 3", "y": "b 3"}, {"x": "b 3", "y": "3"}), counterexamples=signed_zeros(x=(2, 3)))
TRUTHS = Proof(shapes={"x": "b 3", "y": "b 3"}, inputs={"x": "bool", "y": "bool"})
BRANCHES = Proof(
    shapes={"condition": "b 3", "x": "b 3", "y": "3", "z": "b 3"},
    inputs={"condition": "bool"},
    counterexamples=signed_zeros(x=(2, 3), y=(3,), z=(2, 3)),
)


_MANY_PARTS = 16
"""More operands than a Concat takes in one by one."""


def _is_part_of(part: ir.Value, match: Match) -> bool:
    """Whether an operand of a Concat is joined along the same axis, for this alone, of what is as large elsewhere.

    The runtime leaves out operands without elements, whatever their sizes are.
    """
    node, whole = part.producer(), match.shape("root")
    if node is None or node.op_type != "Concat" or node.domain or len(part.uses()) > 1 or part.is_graph_output():
        return False
    shapes = [match.facts.shape(operand) or () for operand in node.inputs]
    if whole is None or any(len(shape) != len(whole) for shape in shapes):
        return False
    axis = match["axis"] % len(whole)
    alike = all((*shape[:axis], *shape[axis + 1 :]) == (*whole[:axis], *whole[axis + 1 :]) for shape in shapes)
    return alike and node.attributes.get_int("axis", 0) % len(whole) == axis


def something_is_joined_before(match: Match) -> Refusal | None:
    """An operand is joined along the same axis, for this alone.

    What has many operands and is joined further itself has to wait, so that a long chain becomes one Concat at once.
    """
    is_joined = any(_is_part_of(part, match) for part in match["parts"])
    if is_joined and not (len(_flattened(match, _MANY_PARTS)) > _MANY_PARTS and _is_joined_further(match)):
        return None
    return match.refuse("value", "root", "joined of what is joined along the same axis")


def _is_joined_further(match: Match) -> bool:
    """Whether the only user of the Concat joins it along the same axis, so that this rule matches there."""
    uses, shape = match.root.uses(), match.shape("root")
    if len(uses) != 1 or match.root.is_graph_output() or shape is None:
        return False
    user = next(iter(uses)).node
    whole, axis = match.facts.shape(user.outputs[0]), match["axis"] % len(shape)
    if user.op_type != "Concat" or user.domain or whole is None or len(whole) != len(shape):
        return False
    alike = (*shape[:axis], *shape[axis + 1 :]) == (*whole[:axis], *whole[axis + 1 :])
    return alike and user.attributes.get_int("axis", 0) % len(whole) == axis


def _joined_at_once(match: Match) -> Pattern:
    parts = [match.capture(f"part_{number}", part) for number, part in enumerate(_flattened(match))]
    return op.Concat(*parts, axis=match["axis"])


def _flattened(match: Match, most: int | None = None) -> list[ir.Value]:
    """The operands of a Concat and of those that are joined before, at any depth; only some if there are more than `most`."""
    found: list[ir.Value] = []
    waiting = list(reversed(match["parts"]))
    while waiting and (most is None or len(found) + len(waiting) <= most):
        part = waiting.pop()
        node = part.producer()
        if node is not None and _is_part_of(part, match):
            waiting += [operand for operand in reversed(node.inputs) if operand is not None]
        else:
            found.append(part)
    return [*found, *reversed(waiting)]


def _joined_before(build: Any) -> list[ir.Value]:
    """Something joined before, between or behind others, along an axis that is counted from either end."""
    x, y = (build.input(name, build.dims("whole")) for name in "xy")
    axis = (1, -1)[build.chooser.pick("axis of the inner one", ("from the front", "from the end"))]
    inner = build.node("Concat", [x, y, x], {"axis": axis}).outputs[0]
    places = {"first": [inner, y], "between": [x, inner, y], "last": [x, inner]}
    return [*places.values()][build.chooser.pick("what is joined before", tuple(places))]


def _rule(
    name: str, pattern: Pattern, replace: Any, exactness: Exactness, proof: Proof, *guards: Guard, **more: Any
) -> Rule:
    return Rule(
        name=f"tidy.{name}",
        pattern=pattern,
        replace=replace,
        guards=guards,
        exactness=exactness,
        source=SOURCE,
        proof=proof,
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
    yield _rule("add_negative", op.Add(x, op.Neg(y)), op.Sub(x, y), EXACT, NUMBERS)
    yield _rule("subtract_negative", op.Sub(x, op.Neg(y)), op.Add(x, y), EXACT, NUMBERS)
    # Of equal numbers, the difference is 0 and its negative -0.
    yield _rule("negative_difference", op.Neg(op.Sub(x, y)), op.Sub(y, x), ROUNDING, NUMBERS)
    yield _rule("two_negatives", op.Mul(op.Neg(x), op.Neg(y)), op.Mul(x, y), EXACT, NUMBERS)
    yield _rule(
        "quotient_of_negatives", op.Div(op.Neg(x), op.Neg(y)), op.Div(x, y), EXACT,
        Proof(shapes=NUMBERS.shapes, counterexamples={"of integers": _SMALLEST}), floating("x"),
    )  # fmt: skip
    yield _rule("negative_product", op.Neg(op.Mul(op.Neg(x), y)), op.Mul(x, y), EXACT, NUMBERS)
    quotient = op.Div(op.Neg(x), y) | op.Div(x, op.Neg(y))
    yield _rule("negative_quotient", op.Neg(quotient), op.Div(x, y), EXACT, NUMBERS, floating("x"))
    plain = Proof(shapes={"x": "b 3"})
    yield _rule("from_zero", op.Sub(0.0, x), op.Neg(x), ROUNDING, plain, keeps_shape)
    yield _rule("times_minus_one", op.Mul(x, -1.0) | op.Div(x, -1.0), op.Neg(x), EXACT, plain, keeps_shape)
    added = const("added")
    negated = computed("negated", lambda match: array_like(match, -match.const("added")))
    proof = Proof(shapes={"x": "b 3", "added": "3"})
    yield _rule("negative_sum", op.Neg(op.Add(x, added)), op.Sub(negated, x), ROUNDING, proof, is_number)
    yield _rule("negative_less", op.Sub(op.Neg(x), added), op.Sub(negated, x), EXACT, proof, is_number)


def has_several_steps(match: Match) -> Refusal | None:
    """More than one node computes the quotient."""
    return None if len(match.nodes) > 1 else match.refuse("needless", "root", found="it is a single quotient")


def numbers_are_moderate(match: Match) -> Refusal | None:
    """No number is so large or so small that a step between overflows where the quotient does not."""
    constants = (match.facts.scalar(value) for node in match.nodes for value in node.inputs if value is not None)
    limit = 2.0**10 if match.dtype("root") == ir.DataType.FLOAT16 else 2.0**40
    numbers = [match["number"], *(number for number in constants if number is not None)]
    held = all(1 / limit <= abs(number) <= limit for number in numbers)
    return match.unless_value("number", held, f"of {1 / limit:.3g} to {limit:.3g} in size")


def _quotients() -> Iterator[Rule]:
    alike = Proof(shapes={"x": "b 3", "y": "b 3"})
    numbers = Proof(
        shapes={"x": "b 3"},
        scalars={"number": [0.5, -1.0, 2.0]},
        uncovered={"number of number / x: multiplied": "that is a single quotient already"},
    )
    # Neither quotient overflows where the other is a number.
    over = op.Div(x, y)
    yield _rule(
        "of_quotient", op.Reciprocal(over) | op.Div(1.0, over), op.Div(y, x), ROUNDING, alike, result_is_as_large
    )
    inverse = op.Reciprocal(x) | op.Div(1.0, x)
    yield _rule(
        "reciprocal_again", op.Reciprocal(inverse) | op.Div(1.0, inverse), x, ROUNDING, Proof(shapes={"x": "b 3"}),
        is_number, keeps_shape,
    )  # fmt: skip
    yield _rule("by_reciprocal", op.Div(x, op.Reciprocal(y)), op.Mul(x, y), ROUNDING, NUMBERS)
    yield _rule(
        "of_numbers", scalar("number") / x, op.Div(scalar("number"), x), ROUNDING, numbers, has_several_steps,
        redundant("numbers so large are not tried")(numbers_are_moderate),
    )  # fmt: skip
    yield _rule("times_reciprocal", op.Mul(x, op.Reciprocal(y)), op.Div(x, y), ROUNDING, alike, divisor_is_as_large)


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
    plain, negatives = Proof(shapes={"x": "b 3"}), (op.Neg(x), op.Neg(y))
    added = const("added")
    opposite = computed("opposite", lambda match: array_like(match, -match.const("added")))
    with_constant = Proof(shapes={"x": "b 3", "added": "3"})
    smallest = Proof(shapes=NUMBERS.shapes, counterexamples={"of integers": _SMALLEST})
    for name, build, other in (("max", op.Max, op.Min), ("min", op.Min, op.Max)):
        pattern = op.Neg(build(*negatives))
        yield _rule(f"opposite_{name}", pattern, other(x, y), ROUNDING, smallest, floating("x"))
        pattern = op.Neg(build(op.Neg(x), added))
        yield _rule(f"opposite_{name}_with", pattern, other(x, opposite), ROUNDING, with_constant, floating("x"))
    yield _rule("opposite_relu", op.Neg(op.Relu(op.Neg(x))), op.Min(x, 0.0), ROUNDING, plain, floating("x"))
    positive, negative = op.Relu(x), op.Relu(op.Neg(x))
    yield _rule("both_signs", op.Sub(positive, negative), x, ROUNDING, plain, floating("x"))
    yield _rule("both_sizes", op.Add(positive, negative), op.Abs(x), ROUNDING, plain, floating("x"))
    smaller, larger = op.Min(x, y), op.Max(x, y)
    yield _rule("both_extremes", op.Add(smaller, larger), op.Add(x, y), ROUNDING, NUMBERS)
    yield _rule("product_of_extremes", op.Mul(smaller, larger), op.Mul(x, y), ROUNDING, NUMBERS)


def _sizes() -> Iterator[Rule]:
    size = op.Abs(x).kept()
    yield _rule("square_of_size", op.Mul(size, size), op.Mul(x, x), EXACT, Proof(shapes={"x": "b 3"}))
    yield _rule("product_of_sizes", op.Mul(op.Abs(x), op.Abs(y)), op.Abs(op.Mul(x, y)), EXACT, NUMBERS, floating("x"))
    yield _rule("quotient_of_sizes", op.Div(op.Abs(x), op.Abs(y)), op.Abs(op.Div(x, y)), EXACT, NUMBERS, floating("x"))


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
    """Every element of x is one that the node leaves as it is."""
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
    proof = Proof(
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
        ("relu", op.Relu(x)),
        ("abs", op.Abs(x)),
        ("clip", op.Clip(x, min=attr("low"), max=attr("high"))),
        ("max", op.Max(x, scalar("low"))),
        ("min", op.Min(x, scalar("high"))),
    ):
        yield _rule(f"bounded_{name}", pattern, x, ROUNDING, proof, lies_there, keeps_shape)


# Extremes and branches


def _repeated() -> Iterator[Rule]:
    for name in ("Max", "Min", "And", "Or"):
        build = getattr(op, name)
        # Of zeros, the larger and the smaller may be of either sign.
        exactness, proof = (ROUNDING, NUMBERS) if name in ("Max", "Min") else (EXACT, TRUTHS)
        yield _rule(f"{name.lower()}_again", build(x, build(x, y).kept().named("once")), once, exactness, proof)
    for name, other in (("And", "Or"), ("Or", "And")):
        build, inner = getattr(op, name), getattr(op, other)
        pattern = build(x, inner(x, y).kept())
        yield _rule(f"{name.lower()}_absorbs", pattern, x, EXACT, TRUTHS, same_shape("x", "root"))


def shapes_are_known(match: Match) -> Refusal | None:
    """The shapes of all operands are known, so that it can be seen whether the one left out makes the result larger."""
    found = match.shapes("condition", "x", "z", "root")
    return found if isinstance(found, Refusal) else None


def is_a_number(match: Match) -> Refusal | None:
    """The bound is not NaN."""
    return match.unless_value("bound", not math.isnan(match["bound"]), "a number")


def _chosen() -> Iterator[Rule]:
    """Where x is NaN, it is neither below nor above the bound, and stays."""
    bound = scalar("bound")
    below = op.Less(x, bound) | op.LessOrEqual(x, bound) | op.Greater(bound, x) | op.GreaterOrEqual(bound, x)
    above = op.Greater(x, bound) | op.GreaterOrEqual(x, bound) | op.Less(bound, x) | op.LessOrEqual(bound, x)
    proof = Proof(shapes={"x": "b 3"}, scalars={"bound": [0.25]})
    for name, outside, build in (("max", below, op.Max), ("min", above, op.Min)):
        pattern = op.Where(outside, bound, x)
        yield _rule(f"where_{name}", pattern, build(x, bound), ROUNDING, proof, is_number, is_a_number, keeps_shape)
    yield _rule("max_of_opposites", op.Max(x, op.Neg(x)), op.Abs(x), ROUNDING, Proof(shapes={"x": "b 3"}))


def _branches() -> Iterator[Rule]:
    # The runtime's Where takes the sign of a zero from one of its branches only.
    yield _rule("where_not", op.Where(op.Not(condition), x, y), op.Where(condition, y, x), ROUNDING, BRANCHES)
    inner = op.Where(condition, x, y).kept()
    yield _rule(
        "where_again", op.Where(condition, inner, z), op.Where(condition, x, z), EXACT, BRANCHES, shapes_are_known
    )
    inner = op.Where(condition, y, x).kept()
    yield _rule(
        "where_otherwise", op.Where(condition, z, inner), op.Where(condition, z, x), EXACT, BRANCHES, shapes_are_known
    )


# Truth values


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
        yield _rule(f"{name.lower()}_of_opposites", getattr(op, name)(x, negated), _all(truth), EXACT, TRUTHS)
    yield _rule("xor_of_itself", op.Xor(x, x), _all(False), EXACT, TRUTHS)
    for name, other in (("And", "Or"), ("Or", "And")):
        pattern = getattr(op, name)(op.Not(x), op.Not(y))
        yield _rule(f"neither_{name.lower()}", pattern, op.Not(getattr(op, other)(x, y)), EXACT, TRUTHS)
    integers = Proof(
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
        yield _rule(
            f"not_{name.lower()}",
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
    """What the comparison says of false and of true."""
    compared, number = _COMPARED[match.root.producer().op_type], match["number"]  # type: ignore[union-attr]
    first = match.root.producer().inputs[0] is match["cast"]  # type: ignore[union-attr]
    return (compared(0, number), compared(1, number)) if first else (compared(number, 0), compared(number, 1))


def tells_them_apart(match: Match) -> Refusal | None:
    """x is of truth values, and the comparison holds for one of them."""
    if match.dtype("x") != ir.DataType.BOOL:
        return match.refuse("dtype", "x", ir.DataType.BOOL)
    one, other = _outcomes(match)
    return match.unless_value("number", one != other, "such that true and false differ")


def _compared() -> Iterator[Rule]:
    cast = op.Cast(x, to=attr("to")).kept().named("cast")
    for name in _COMPARED:
        build = getattr(op, name)
        pattern = build(cast, scalar("number"))
        yield _rule(
            f"{name.lower()}_of_truth",
            pattern if name == "Equal" else pattern | build(scalar("number"), cast),
            lambda match: x if _outcomes(match)[1] else op.Not(x),
            EXACT,
            Proof(
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


RULES = [
    *_signs(),
    *_quotients(),
    *_opposites(),
    *_sizes(),
    *_bounded(),
    *_chosen(),
    *_repeated(),
    *_branches(),
    *_truths(),
    *_compared(),
    _rule(
        "joined_at_once",
        op.Concat(rest("parts"), axis=attr("axis")),
        _joined_at_once,
        EXACT,
        Proof(
            shapes={"whole": "b 3"},
            inputs={"parts": _joined_before},
            attributes={"axis": [1, -1]},
            followed_by="Identity",
        ),
        something_is_joined_before,
        makes=("Concat",),
        formula="concat(concat(x, y), z)",
    ),
]
