"""Reassociate MatMul chains, factor out common operands, and drop Transpose and Expand around MatMul.

transpose(x transpose(y)) = y transpose(x)        transpose(transpose(x) y) = transpose(y) x
(x y) z = x (y z)                                               where that is provably much less work
x expand(y) = x y          x tile(y) = x y                      where whole matrices are repeated
x z +- x w = x (z +- w)          z x +- w x = (z +- w) x            where the sum is no larger than the product

`ortfuse.transforms.fold_linear.compose_linear_maps` is the pass for constant operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from ortfuse.ir.dims import DimLike, at_most
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Guard, Match, Pattern, op, redundant, var

from .._rule_test_inputs import COST, SHAPES, computed_shape

PASS = "fuse.simplify_matmul"

SOURCE = "matrix products are associative and distributive"

LEAST_GAIN = 2
"""How many times less work another order of products must be."""

# The order of products

FINITE: dict[str, Any] = {
    "assumes": {"input * is inf in its last element*": "factors are taken to be finite: infinity times 0 is NaN"}
}

a, b, c = var("a"), var("b"), var("c")


def _work(match: Match) -> tuple[DimLike, DimLike] | Refusal:
    """The multiplications of (a b) c and of a (b c)."""
    shapes = match.shapes("a", "b", "c")
    if isinstance(shapes, Refusal):
        return shapes
    if len({len(shape) for shape in shapes}) > 1 or len(shapes[0]) < 2 or len({shape[:-2] for shape in shapes}) > 1:
        return match.refuse("shape", "c", "the leading axes of the other factors")
    (rows, first_inner), second_inner, columns = shapes[0][-2:], shapes[1][-1], shapes[2][-1]
    left = rows * first_inner * second_inner + rows * second_inner * columns
    return left, first_inner * second_inner * columns + rows * first_inner * columns


@redundant(COST)
def is_less_work(match: Match) -> Refusal | None:
    """Another order of the products is provably much less work."""
    found = _work(match)
    if isinstance(found, Refusal):
        return found
    before, after = found if match.choice("order") == 0 else found[::-1]
    if before != 0 and at_most(LEAST_GAIN * after, before):
        return None
    return match.refuse("needless", "root", found="another order of the products is not provably much less work")


turned_a, turned_b = op.Transpose(a, perm=(1, 0)), op.Transpose(b, perm=(1, 0))


y = var("y")
repeated = (op.Expand(y, var("shape")).kept() | op.Tile(y, var("repeats")).kept()).named("repeated")


def matrices_are_whole(match: Match) -> Refusal | None:
    """Only batch axes of size 1 are expanded, which MatMul broadcasts."""
    shapes = match.shapes("y", "repeated")
    if isinstance(shapes, Refusal):
        return shapes
    before, after = shapes
    whole = len(before) >= 2 and before[-2:] == after[-2:]
    once = all(dim in (1, other) for dim, other in zip(before[-3::-1], after[-3::-1], strict=False))
    return match.unless_value("y", whole and once, "of whole matrices, one along each axis that is repeated")


def result_is_as_large(match: Match) -> Refusal | None:
    """The other factor has all the leading axes of the result."""
    shapes = match.shapes("c", "root")
    if isinstance(shapes, Refusal):
        return shapes
    return match.unless_value("c", shapes[0][:-2] == shapes[1][:-2], "of as many matrices as the result")


def _computed_batch(build: Any) -> Any:
    """The shape of y with its second axis 2."""
    rows, columns = build.dims("y")[-2:]
    return computed_shape("y", 1, [2, rows, columns])(build)


z, w = var("z"), var("w")


def terms_are_alike(match: Match) -> Refusal | None:
    """The factors that differ have the same shape, room for their sum in their type, and are not both constants."""
    if match.dtype("z") not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return match.refuse("dtype", "z", "float32 or float64")
    if match.facts.is_const(match["z"]) and match.facts.is_const(match["w"]):
        return match.refuse("needless", "z", found="both are constants")
    return match.unless_same_shape("z", "w")


@redundant(COST)
def sum_is_no_larger(match: Match) -> Refusal | None:
    """The sum of the factors has provably no more elements than a product."""
    shape = match.shape("c") or ()
    if len(shape) < 2:
        return match.refuse("rank", "c", "at least 2")
    inner, outer = shape[-2:] if match.choice("shared") > 1 else shape[-2:][::-1]
    if at_most(inner, outer):
        return None
    return match.refuse("needless", "c", found="the sum of the factors may be larger than a product")


def _matmul_rule(
    name: str, formula: str, pattern: Pattern, replace: Pattern, shapes: Sequence[Any], *guards: Guard, **more: Any
) -> Rule:
    return Rule(
        name=f"matmul.{name}",
        formula=formula,
        pattern=pattern,
        replace=replace,
        guards=guards,
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=RuleTest(
            shapes=tuple(shapes), redundant={"dimension *": "the product itself asks for it"}, **more.pop("test", {})
        ),
        **more,
    )


RULES = [
    _matmul_rule(
        "factor_out",
        "c z + c w, c z - c w, z c + w c or z c - w c",
        (c @ z + c @ w | c @ z - c @ w | z @ c + w @ c | z @ c - w @ c).named("shared"),
        (c @ (z + w) | c @ (z - w) | (z + w) @ c | (z - w) @ c).named("shared"),
        (
            {"c": "b 5 3", "z": "b 3 4", "w": "b 3 4"},
            {"c": "b 5 3", "z": "b 3 4", "w": "b 3 4"},
            {"c": "b 3 5", "z": "b 4 3", "w": "b 4 3"},
            {"c": "b 3 5", "z": "b 4 3", "w": "b 4 3"},
        ),
        terms_are_alike,
        sum_is_no_larger,
        test={**FINITE, "alternatives": [{"shared": number} for number in range(4)]},
    ),
    _matmul_rule(
        "transpose_of_matmul_with_transposed_factor",
        "transpose(a transpose(b)) or transpose(transpose(a) b)",
        op.Transpose((a @ turned_b | turned_a @ b).named("product"), perm=(1, 0)),
        (b @ turned_a | turned_b @ a).named("product"),
        ({"a": "4 3", "b": "5 3"}, {"a": "3 4", "b": "3 5"}),
        test={"alternatives": [{"product": number} for number in (0, 1)]},
    ),
    _matmul_rule(
        "reassociate",
        "(a b) c or a (b c)",
        ((a @ b) @ c | a @ (b @ c)).named("order"),
        (a @ (b @ c) | (a @ b) @ c).named("order"),
        (
            {"a": "16 2", "b": "2 16", "c": "16 2"},
            {"a": "b 16 2", "b": "b 2 16", "c": "b 16 2"},
            {"a": "2 16", "b": "16 2", "c": "2 16"},
            {"a": "b 2 16", "b": "b 16 2", "c": "b 2 16"},
        ),
        is_less_work,
        test={**FINITE, "alternatives": [{"order": number} for number in (0, 0, 1, 1)]},
    ),
    Rule(
        name="matmul.drop_expand_of_operand",
        formula="x expand(y), expand(y) x, and of tile(y)",
        pattern=(c @ repeated | repeated @ c).named("product"),
        replace=(c @ y | y @ c).named("product"),
        guards=(matrices_are_whole, redundant(SHAPES)(result_is_as_large)),
        # The runtime multiplies many matrices with one as one product.
        exactness=Exactness.ROUNDING,
        source="ONNX operator MatMul",
        test=RuleTest(
            shapes=tuple(
                {"shape": "4", "repeats": "4", **shapes}
                for shapes in ({"c": "b 2 3 4", "y": "b 1 4 3"}, {"c": "b 2 4 4", "y": "b 1 4 4"})
            ),
            inputs={"shape": _computed_batch},
            constants={"repeats": [1, 2, 1, 1]},
        ),
    ),
]
