"""Products of matrices with constants, and the order of several products.

x A B = x (A B)          (x A + a) B = x (A B) + a B          where the product A B is no larger than both
x W +- s x A B = x (W +- s A B)                                                 Hu et al., arXiv:2106.09685
x W +- s x V = x (W +- s V)
(s x) W = x (s W)          s (x W + b) = x (s W) + s b          s a number or a vector
transpose(x transpose(y)) = y transpose(x)        transpose(transpose(x) y) = transpose(y) x
(x y) z = x (y z)                                               where that is provably much less work
x expand(y) = x y                                               where whole matrices are repeated
x z +- x w = x (z +- w)          z x +- w x = (z +- w) x            where the sum is no larger than the product

Constants are computed in float64 and rounded once. Large weights that are used elsewhere too are not copied, and large ones
are not multiplied for the sake of a factor: they are streamed from their file as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.dims import DimLike, at_most
from ortfuse.pattern import Guard, Match, Pattern, computed, const, op, opt, redundant, scalar, var
from ortfuse.refusal import Refusal
from ortfuse.rewrite import Exactness, Proof, Rule

from ._common import array_like
from ._proofs import COST, SHAPES, computed_shape

SOURCE = "matrix products are associative and distributive"

LARGEST_SCALED = 1 << 20
"""The most elements of a weight that a factor is multiplied into."""

LARGEST_MERGED = 1 << 21
"""The most elements of weights that are multiplied with each other, which takes time and memory for larger ones."""

FEW = 1 << 12
"""The most elements of a constant that is copied although it is used elsewhere."""

LEAST_GAIN = 2
"""How many times less work another order of products must be."""

Array = np.ndarray[Any, Any]

x = var("x", "... k")
first, second = const("first", "k m"), const("second", "m n")
bias = const("bias", "m")


def _wide(match: Match, name: str) -> Array:
    found: Array = match.const(name).astype(np.float64)
    return found


def _merged(match: Match) -> Array:
    with np.errstate(all="ignore"):
        found: Array = _wide(match, "first") @ _wide(match, "second")
    return found


def _merged_bias(match: Match) -> Array | None:
    if match["bias"] is None:
        return None
    with np.errstate(all="ignore"):
        found: Array = _wide(match, "bias") @ _wide(match, "second")
    return found


def _other(match: Match) -> Array:
    return _wide(match, "other")


def _summed(other: Callable[[Match], Array], sign: int) -> Callable[[Match], Array]:
    """The weight plus or minus s times another."""

    def summed(match: Match) -> Array:
        with np.errstate(all="ignore"):
            found: Array = _wide(match, "weight") + sign * match["s"] * other(match)
        return found

    return summed


def _scale(match: Match) -> Array:
    """The factor as a vector or number: the constant or, if it is divided by, its inverse."""
    wide = _wide(match, "scale")
    found = wide.reshape(() if wide.size == 1 else -1)
    with np.errstate(divide="ignore"):
        return np.asarray(1 / found if match.choice("scaled") else found)


def _scaled_rows(match: Match) -> Array:
    with np.errstate(all="ignore"):
        return _wide(match, "weight") * (_scale(match).reshape(-1, 1))


def _scaled_columns(match: Match) -> Array:
    with np.errstate(all="ignore"):
        return _wide(match, "weight") * _scale(match)


def _scaled_bias(match: Match) -> Array | None:
    if match["bias"] is None:
        return None
    with np.errstate(all="ignore"):
        return _wide(match, "bias") * _scale(match)


def is_held(*made: Callable[[Match], Array | None]) -> Guard:
    """The new constants are numbers of the type: neither too large nor, next to the others of their column, too small."""

    def guard(match: Match) -> Refusal | None:
        dtype = match.dtype("root")
        if dtype is None or not dtype.is_floating_point() or dtype.numpy().kind != "f":
            return match.refuse("dtype", "root", "float32, float16 or float64")
        limits = np.finfo(dtype.numpy())
        for array in (found for build in made if (found := build(match)) is not None):
            size = np.abs(array)
            largest = size.max(axis=0, initial=0.0)
            if not np.all(size <= float(limits.max)) or np.any((largest > 0) & (largest < float(limits.tiny))):
                return match.refuse("value", "root", f"of constants that {dtype.name.lower()} holds")
        return None

    return guard


def _is_copied(match: Match, *names: str) -> Refusal | None:
    for name in names:
        if match[name].is_graph_output() or (match.const(name).size > FEW and len(match[name].uses()) > 1):
            return match.refuse("needless", name, found="it is large, and used elsewhere too")
    return None


@redundant(COST)
def product_is_no_larger(match: Match) -> Refusal | None:
    """The product of the weights has no more elements than both, so that there is less to multiply and to store."""
    (rows, inner), columns = match.const("first").shape, match.const("second").shape[1]
    if inner * max(rows, columns) > LARGEST_MERGED:
        return match.refuse("needless", "root", found="the weights are large: they stay as they are in their file")
    if rows * columns > inner * (rows + columns):
        return match.refuse("needless", "root", found="the product of the weights is larger than both")
    return _is_copied(match, "first", "second")


def is_not_copied(*names: str) -> Guard:
    """The weights that are added are used for nothing else."""

    def guard(match: Match) -> Refusal | None:
        return _is_copied(match, *names)

    return redundant(COST)(guard)


@redundant(COST)
def weight_is_small(match: Match) -> Refusal | None:
    """The weight is small, and used for nothing else if it is not tiny."""
    if match.const("weight").size > LARGEST_SCALED:
        return match.refuse("needless", "weight", found="it is large: it stays as it is in its file")
    return _is_copied(match, "weight")


def scale_is_along(name: str, axis: int) -> Guard:
    """The factor is finite and not 0: a number, or a vector along the last axis, which is this axis of the weight."""

    def guard(match: Match) -> Refusal | None:
        shape, scale = match.const("scale").shape, _scale(match)
        size = match.const("weight").shape[axis]
        rank = match.rank(name)
        if rank is None or len(shape) > rank:
            return match.refuse("rank", name, f"at least {len(shape)}")
        if shape and (any(dim != 1 for dim in shape[:-1]) or shape[-1] not in (1, size)):
            return match.refuse("shape", "scale", (size,))
        return match.unless_value("scale", bool(np.all(np.isfinite(scale) & (scale != 0))), "finite and not 0")

    return guard


def _made(name: str, function: Callable[[Match], Array | None]) -> Pattern:
    def value(match: Match) -> Any:
        found = function(match)
        return None if found is None else array_like(match, found)

    return computed(name, value)


# The order of products

FINITE = {"assumes": {"input * is inf in its last element*": "factors are taken to be finite: infinity times 0 is NaN"}}

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


def _is_less_work(left: bool) -> Guard:
    def guard(match: Match) -> Refusal | None:
        found = _work(match)
        if isinstance(found, Refusal):
            return found
        before, after = found if left else found[::-1]
        if before != 0 and at_most(LEAST_GAIN * after, before):
            return None
        return match.refuse("needless", "root", found="another order of the products is not provably much less work")

    return redundant(COST)(guard)


turned_a, turned_b = op.Transpose(a, perm=(1, 0)), op.Transpose(b, perm=(1, 0))


def _transposed(name: str, product: Pattern, replace: Pattern) -> Rule:
    """A product that is transposed, and so is one of its factors."""
    return Rule(
        name=f"products.{name}",
        pattern=op.Transpose(product, perm=(1, 0)),
        replace=replace,
        exactness=Exactness.ROUNDING,
        source="the transposed product is that of the transposed factors",
        proof=Proof(shapes={"a": "4 3", "b": "5 3"} if name.endswith("right") else {"a": "3 4", "b": "3 5"}),
    )


y = var("y")
repeated = op.Expand(y, var("shape")).kept().named("repeated")


def matrices_are_whole(match: Match) -> Refusal | None:
    """The Expand repeats matrices, not what is in them."""
    shapes = match.shapes("y", "repeated")
    if isinstance(shapes, Refusal):
        return shapes
    return match.unless_value("y", len(shapes[0]) >= 2 and shapes[0][-2:] == shapes[1][-2:], "of whole matrices")


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


def _sum_is_no_larger(left: bool) -> Guard:
    def sum_is_no_larger(match: Match) -> Refusal | None:
        """The sum of the factors has provably no more elements than a product."""
        shape = match.shape("c") or ()
        if len(shape) < 2:
            return match.refuse("rank", "c", "at least 2")
        inner, outer = shape[-2:][::-1] if left else shape[-2:]
        less = at_most(inner, outer)
        return (
            None if less else match.refuse("needless", "c", found="the sum of the factors may be larger than a product")
        )

    return redundant(COST)(sum_is_no_larger)


def _shared() -> Iterator[Rule]:
    """Products with a factor in common, added or subtracted."""
    for left, side in ((True, "left"), (False, "right")):
        products = [op.MatMul(c, other) if left else op.MatMul(other, c) for other in (z, w)]
        for made, sign in ((op.Add, "+"), (op.Sub, "-")):
            one = made(z, w)
            yield _rule(
                f"shared_{side}{'' if sign == '+' else '_subtracted'}",
                f"c z {sign} c w" if left else f"z c {sign} w c",
                made(*products),
                op.MatMul(c, one) if left else op.MatMul(one, c),
                ({"c": "b 5 3", "z": "b 3 4", "w": "b 3 4"} if left else {"c": "b 3 5", "z": "b 4 3", "w": "b 4 3"},),
                terms_are_alike,
                _sum_is_no_larger(left),
                proof=FINITE,
            )


def _rule(
    name: str, formula: str, pattern: Pattern, replace: Pattern, shapes: Sequence[Any], *guards: Guard, **more: Any
) -> Rule:
    return Rule(
        name=f"products.{name}",
        formula=formula,
        pattern=pattern,
        replace=replace,
        guards=guards,
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        proof=Proof(
            shapes=tuple(shapes), redundant={"dimension *": "the product itself asks for it"}, **more.pop("proof", {})
        ),
        **more,
    )


weight, plain = const("weight", "k n"), op.MatMul(x, const("weight", "k n"))
scale, added = const("scale"), const("bias", "n")
scaled_input = (op.Mul(x, scale) | op.Div(x, scale)).named("scaled")
linear = plain + opt(added)
scaled_output = (op.Mul(linear, scale) | op.Div(linear, scale)).named("scaled")
_SCALED = (
    {"x": "b s 4", "weight": "4 5", "scale": "", "bias": "5"},
    {"x": "b s 4", "weight": "4 4", "scale": "4", "bias": "4"},
    {"x": "b 4", "weight": "4 4", "scale": "1 4", "bias": "4"},
)


def _side_by_side() -> Iterator[Rule]:
    """A product and s times another of the same input: an adapter, or one with a second weight."""
    adapter, second_product = op.MatMul(op.MatMul(x, first), second), op.MatMul(x, const("other", "k n"))
    for names, words, product, other, shapes, guard in (
        (("adapter", "adapter_subtracted"), "first second", adapter, _merged, {"first": "6 2", "second": "2 5"},
         is_not_copied("weight")),
        (("sum", "difference"), "other", second_product, _other, {"other": "6 5"}, is_not_copied("weight", "other")),
    ):  # fmt: skip
        for name, sign in zip(names, (1, -1), strict=True):
            branch, summed = scalar("s") * product, _summed(other, sign)
            yield _rule(
                name,
                f"x weight {'+' if sign > 0 else '-'} s x {words}",
                plain + branch if sign > 0 else plain - branch,
                op.MatMul(x, _made("summed", summed)),
                ({"x": "b s 6", "weight": "6 5", **shapes},),
                guard,
                is_held(summed),
                allow_extra_operands=True,
                proof={"scalars": {"s": [0.5, 2.0]}},
            )


RULES = [
    _rule(
        "weights",
        "(x first + bias) second",
        op.MatMul(op.MatMul(x, first) + opt(bias), second),
        op.MatMul(x, _made("merged", _merged)) + opt(_made("merged_bias", _merged_bias)),
        (
            {"x": "b s 4", "first": "4 6", "second": "6 3", "bias": "6"},
            {"x": "b 4", "first": "4 6", "second": "6 3", "bias": "6"},
        ),
        product_is_no_larger,
        is_held(_merged, _merged_bias),
    ),
    *_side_by_side(),
    *_shared(),
    _rule(
        "scaled_input",
        "(x * scale) weight",
        op.MatMul(scaled_input, weight),
        op.MatMul(x, _made("scaled_rows", _scaled_rows)),
        _SCALED,
        weight_is_small,
        scale_is_along("x", 0),
        is_held(_scaled_rows),
    ),
    _rule(
        "scaled_output",
        "(x weight + bias) * scale",
        scaled_output,
        op.MatMul(x, _made("scaled_columns", _scaled_columns)) + opt(_made("scaled_bias", _scaled_bias)),
        _SCALED,
        weight_is_small,
        scale_is_along("root", 1),
        is_held(_scaled_columns, _scaled_bias),
    ),
    _transposed("transposed_right", op.MatMul(a, turned_b), op.MatMul(b, op.Transpose(a, perm=(1, 0)))),
    _transposed("transposed_left", op.MatMul(turned_a, b), op.MatMul(op.Transpose(b, perm=(1, 0)), a)),
    _rule(
        "last_two_first",
        "(a b) c",
        op.MatMul(op.MatMul(a, b), c),
        op.MatMul(a, op.MatMul(b, c)),
        ({"a": "16 2", "b": "2 16", "c": "16 2"}, {"a": "b 16 2", "b": "b 2 16", "c": "b 16 2"}),
        _is_less_work(True),
        proof=FINITE,
    ),
    _rule(
        "first_two_first",
        "a (b c)",
        op.MatMul(a, op.MatMul(b, c)),
        op.MatMul(op.MatMul(a, b), c),
        ({"a": "2 16", "b": "16 2", "c": "2 16"}, {"a": "b 2 16", "b": "b 16 2", "c": "b 2 16"}),
        _is_less_work(False),
        proof=FINITE,
    ),
    Rule(
        name="products.expanded",
        formula="x expand(y), expand(y) x",
        pattern=(op.MatMul(c, repeated) | op.MatMul(repeated, c)).named("product"),
        replace=lambda match: op.MatMul(c, y) if match.choice("product") == 0 else op.MatMul(y, c),
        makes=("MatMul",),
        guards=(matrices_are_whole, redundant(SHAPES)(result_is_as_large)),
        # The runtime multiplies many matrices with one as one product.
        exactness=Exactness.ROUNDING,
        source="ONNX operator MatMul",
        proof=Proof(
            shapes=({"c": "b 2 3 4", "y": "b 1 4 3", "shape": "4"}, {"c": "b 2 4 4", "y": "b 1 4 4", "shape": "4"}),
            inputs={"shape": _computed_batch},
        ),
    ),
]
