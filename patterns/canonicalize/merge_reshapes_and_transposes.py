"""Merge Reshape, Transpose, Squeeze and Unsqueeze chains, make Reshape targets constant, and fold conditions that always hold.

reshape(x, shape arithmetic) = reshape(x, constant)       where each dimension is a number, a copy, or the one -1
reshape(reshape(x)) = reshape(x)          transpose(transpose(x)) = transpose(x)        unsqueeze(unsqueeze(x)) = unsqueeze(x)
squeeze(unsqueeze(x)) = x          reshape(transpose(x)) = reshape(transpose(reshape(x)))   with fewer axes
and(true, x) = x           where(true, x, y) = x, or expand(x)           range(0, n) >= 0 is true
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import DimLike, product, reshape_target
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, Pattern, all_attributes, attr, computed, op, opt, redundant, var

from .._rule_test_inputs import COST, SHAPES, computed_shape
from .._shared_guards import ints, is_filled_with, text

SOURCE = "ONNX operator specification"

x = var("x")


Shape = tuple[DimLike, ...]


def unless_constant_target(match: Match, before: Shape | None, after: Shape | None) -> Refusal | None:
    """A refusal about the root unless a constant Reshape target reshapes `before` to `after`."""
    if reshape_target(before, after) is not None:
        return None
    return match.refuse(
        "shape", "root", f"one that a constant Reshape target makes of {text(before or ())}", found=after
    )


def _is_int_constant(value: ir.Value | None, facts: Facts) -> bool:
    return value is not None and facts.is_const(value)


def target_is_arithmetic(match: Match) -> Refusal | None:
    """The target is computed, and a constant one would have the same effect."""
    if _is_int_constant(match["shape"], match.facts):
        return match.refuse("needless", "shape", found="the target is constant already")
    return has_constant_target(match)


def target(match: Match) -> Any:
    """The constant Reshape target from x to the root."""
    found = reshape_target(match.shape("x"), match.facts.shape(match.root))
    assert found is not None
    return ints(found)


def has_constant_target(match: Match) -> Refusal | None:
    """One Reshape with a constant target has the effect of the whole chain."""
    return unless_constant_target(match, match.shape("x"), match.shape("root"))


inner_reshape = (
    op.Reshape(x, var("inner_shape"), allowzero=attr("inner_allowzero")).kept()
    | op.Flatten(x, axis=attr("inner_axis")).kept()
    | op.Squeeze(x, opt(var("inner_axes"))).kept()
    | op.Unsqueeze(x, opt(var("inner_axes"))).kept()
)


def composed(match: Match) -> list[int]:
    """The composed permutation: first `inner`, then `outer`."""
    return [match["inner"][axis] for axis in match["outer"]]


def fast_axes(match: Match) -> int:
    """How many axes the target transposes fast: several times as fast as more, even if these are of size 1."""
    known = match.target.fast_transpose_axes
    return sys.maxsize if known is None else known


def _together(match: Match) -> tuple[Shape, list[int]] | None:
    """The shape of x without axes of size 1, and how the others are permuted.

    Where that leaves too many axes, those that stay together are merged.
    """
    before, perm = match.shape("x"), match["perm"]
    if before is None or not isinstance(perm, tuple | list) or len(perm) != len(before):
        return None
    kept = [axis for axis in perm if before[axis] != 1]
    longer = sorted(kept)
    groups: list[list[int]] = []
    for axis in kept:
        if len(kept) > fast_axes(match) and groups and longer.index(axis) == longer.index(groups[-1][-1]) + 1:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    order = sorted(groups)
    return tuple(product(before[axis] for axis in group) for group in order), [order.index(group) for group in groups]


def has_needless_axes(match: Match) -> Refusal | None:
    """x has more axes than are transposed fast, some of size 1 or not moved apart."""
    found, before = _together(match), match.shape("x") or ()
    if found is None:
        return match.refuse("shape", "x")
    shape, perm = found
    if len(before) <= fast_axes(match) or len(shape) == len(before):
        return match.refuse("needless", "x", found="all of its axes are moved apart, or there are few")
    refused = unless_constant_target(match, before, shape)
    return refused or unless_constant_target(match, tuple(shape[axis] for axis in perm), match.shape("root"))


@redundant(COST)
def is_only_reshaped(match: Match) -> Refusal | None:
    """Nothing needs what is transposed with all its axes."""
    users = match["turned"].consumers()
    alone = all(user.op_type == "Reshape" and not user.domain for user in users)
    if alone and not match["turned"].is_graph_output():
        return None
    return match.refuse("needless", "turned", found="something else needs it with all its axes")


def _transpose_of_merged_dims(match: Match) -> Pattern:
    before, (shape, perm) = match.shape("x"), _together(match) or ((), [])
    there = reshape_target(before, shape)
    back = reshape_target(tuple(shape[axis] for axis in perm), match.shape("root"))
    assert there is not None and back is not None
    turned = op.Transpose(op.Reshape(x, computed("there", lambda match: ints(there))), perm=perm)
    made: Pattern = op.Reshape(turned, computed("back", lambda match: ints(back)))
    return made


def merges_and_splits_batch(match: Match) -> Refusal | None:
    """Reshape merges all axes but the last two, Transpose swaps those two, Reshape restores the others."""
    shapes = match.shapes("x", "merged")
    if isinstance(shapes, Refusal):
        return shapes
    shape, merged = shapes
    if len(shape) < 3:
        return match.refuse("rank", "x", "at least 3")
    if len(merged) != 3 or merged[1:] != shape[-2:]:
        return match.refuse("shape", "merged", ("*", *shape[-2:]))
    return match.unless_shape((*shape[:-2], shape[-1], shape[-2]), "root")


def swap_last_two(match: Match) -> list[int]:
    """The permutation that swaps the last two axes of x."""
    rank = match.rank("x") or 0
    return [*range(rank - 2), rank - 1, rank - 2]


def unsqueezed_axes(match: Match) -> Any:
    """The axes that both Unsqueezes insert, counted in the result."""
    outer = set(match["outer"])
    kept = [axis for axis in range(match.facts.rank(match.root) or 0) if axis not in outer]
    return ints(sorted(outer | {kept[axis] for axis in match["inner"]}))


def drops_what_was_inserted(match: Match) -> Refusal | None:
    """The Squeeze drops the axes that the Unsqueeze inserted."""
    if match.rank("x") is None:
        return match.refuse("rank", "x")
    return match.unless_value("outer", match["outer"] == match["inner"], "the axes that were inserted")


def _known_axes(axes: Any, facts: Facts) -> bool:
    return isinstance(axes, tuple) and all(isinstance(axis, int) and axis >= 0 for axis in axes)


def same_shape_as_root(match: Match) -> Refusal | None:
    """x alone has the shape of the result."""
    return match.unless_same_shape("x", "root")


@redundant(SHAPES)
def condition_has_shape_of_root(match: Match) -> Refusal | None:
    """The condition has the shape of the result, but x does not."""
    if same_shape_as_root(match) is None:
        return match.refuse("needless", "x", found="it has the shape of the result already")
    return match.unless_same_shape("false" if match.get("true") is None else "true", "root")


def _counted_truth(build: Any) -> ir.Value:
    """range(0, b) >= 0, in the shape of an input [b, 3]."""
    like = build.input("like", build.dims("true"))
    shape = build.node("Shape", [like]).outputs[0]
    rows = build.node("Gather", [shape, build.constant(np.int64(0))]).outputs[0]
    zero, one = build.constant(np.int64(0)), build.constant(np.int64(1))
    column = build.node("Unsqueeze", [build.node("Range", [zero, rows, one]).outputs[0], build.constant([1])]).outputs[
        0
    ]
    made: ir.Value = build.node("Expand", [build.node("GreaterOrEqual", [column, zero]).outputs[0], shape]).outputs[0]
    return made


def _expanded(name: str, *, truth: bool) -> Any:
    """True or false, repeated in the shape of an input [b, 3]."""

    def made(build: Any) -> ir.Value:
        shape = build.node("Shape", [build.input("like", build.dims(name))]).outputs[0]
        value: ir.Value = build.node("Expand", [build.constant([truth]), shape]).outputs[0]
        return value

    return made


true, false = var("true", is_filled_with(1), "all true"), var("false", is_filled_with(0), "all false")
y = var("y")

RULES = [
    Rule(
        name="reshape.fold_target_to_constant",
        pattern=op.Reshape(x, var("shape"), allowzero=attr("allowzero")),
        replace=op.Reshape(x, computed("target", target)),
        guards=(target_is_arithmetic,),
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes={"x": "b s 6", "shape": "4"},
            attributes={"allowzero": [0]},
            inputs={"shape": computed_shape("x", 2, (-1, 3))},
        ),
    ),
    Rule(
        name="reshape.reshape_of_reshape",
        formula="Reshape(Reshape | Flatten | Squeeze | Unsqueeze(x))",
        pattern=op.Reshape(inner_reshape, var("shape"), allowzero=attr("allowzero")),
        replace=op.Reshape(x, computed("target", target)),
        guards=(has_constant_target,),
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes=tuple(
                {"x": x_shape, "inner_shape": "2", "shape": "3", "inner_axes": "1"} for x_shape in ("b 2 3", "2 1 6")
            ),
            constants={"inner_shape": [0, 6], "shape": [0, 3, 2], "inner_axes": [1]},
            attributes={"allowzero": [0], "inner_allowzero": [0], "inner_axis": [1]},
        ),
    ),
    Rule(
        name="transpose.transpose_of_transpose",
        pattern=op.Transpose(op.Transpose(x, perm=attr("inner")).kept(), perm=attr("outer")),
        replace=op.Transpose(x, perm=composed),
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes={"x": "b 2 3"}, attributes={"inner": [(1, 0, 2), (2, 0, 1)], "outer": [(0, 2, 1), (2, 0, 1)]}
        ),
    ),
    Rule(
        name="transpose.merge_adjacent_dims",
        formula="Reshape(Transpose(x)), x with adjacent axes that stay together",
        pattern=op.Reshape(
            op.Transpose(x, perm=attr("perm")).kept().named("turned"), var("shape"), allowzero=attr("allowzero")
        ),
        replace=_transpose_of_merged_dims,
        makes=("Reshape", "Transpose"),
        guards=(has_needless_axes, is_only_reshaped),
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes=({"x": "b 5 1 4 3", "shape": "4"}, {"x": "b 4 5 3 1", "shape": "4"}),
            constants={"shape": [-1, 4, 5, 3]},
            attributes=({"perm": [(2, 0, 3, 1, 4)], "allowzero": [0]}, {"perm": [(0, 2, 3, 1, 4)], "allowzero": [0]}),
        ),
    ),
    Rule(
        name="transpose.cancel_reshapes_around",
        pattern=op.Reshape(
            op.Transpose(op.Reshape(x, var("inner_shape"), allowzero=attr("a")).named("merged"), perm=(0, 2, 1)),
            var("shape"),
            allowzero=attr("b"),
        ),
        replace=op.Transpose(x, perm=swap_last_two),
        guards=(merges_and_splits_batch,),
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes={"x": "b 2 3 4", "inner_shape": "3", "shape": "4"},
            constants={"inner_shape": [-1, 3, 4], "shape": [-1, 2, 4, 3]},
            attributes={"a": [0], "b": [0]},
        ),
    ),
    Rule(
        name="unsqueeze.unsqueeze_of_unsqueeze",
        pattern=op.Unsqueeze(
            op.Unsqueeze(x, axes=attr("inner", _known_axes, "known")).kept(), axes=attr("outer", _known_axes, "known")
        ),
        replace=op.Unsqueeze(x, computed("axes", unsqueezed_axes)),
        guards=(lambda match: match.refuse("rank", "x") if match.rank("x") is None else None,),
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes={"x": "b 3"},
            attributes={"inner": [(0,), (1, 2)], "outer": [(1,), (0, 3)]},
            opset=13,
            redundant={"check of attribute *": "the rank is known, so that all axes are counted from the front"},
        ),
    ),
    Rule(
        name="squeeze.squeeze_of_unsqueeze",
        pattern=op.Squeeze(
            op.Unsqueeze(x, axes=attr("inner", _known_axes, "known")).kept(), axes=attr("outer", _known_axes, "known")
        ),
        replace=x,
        guards=(drops_what_was_inserted,),
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes={"x": "b 3"},
            attributes=({"inner": [(0,)], "outer": [(0,)]}, {"inner": [(1, 2)], "outer": [(1, 2)]}),
            opset=13,
            redundant={"check of attribute *": "the rank is known, so that all axes are counted from the front"},
        ),
    ),
    Rule(
        name="unsqueeze.unsqueeze_of_squeeze",
        pattern=op.Unsqueeze(op.Squeeze(x, axes=attr("inner")).kept(), axes=attr("outer")),
        replace=x,
        guards=(lambda match: match.unless_same_shape("root", "x"),),
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes=({"x": "1 b 1 3"}, {"x": "1 b 1 3"}),
            attributes=({"inner": [(0,)], "outer": [(0,)]}, {"inner": [(0, 2)], "outer": [(0, 2)]}),
            opset=13,
        ),
    ),
    Rule(
        name="cast.cast_like_to_cast",
        pattern=op.CastLike(x, y, attributes=all_attributes("how")),
        replace=op.Cast(x, to=lambda match: int(match.dtype("y")), attributes=all_attributes("how")),
        guards=(lambda match: match.refuse("dtype", "y") if match.dtype("y") is None else None,),
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes={"x": "b 3", "y": "2"},
            attributes={"how": [{}]},
            inputs={"y": "int64"},
            opset=19,
        ),
    ),
    Rule(
        name="where.true_condition_to_expand",
        formula="where(true, x, y), x smaller than the result",
        pattern=op.Where(true, x, y),
        replace=op.Expand(x, op.Shape(true)),
        guards=(condition_has_shape_of_root,),
        # The runtime's Where takes the sign of a zero from one of its branches only.
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=RuleTest(
            shapes=({"x": "", "y": "", "true": "b 3"}, {"x": "3", "y": "b 1", "true": "b 3"}),
            inputs={"true": _expanded("true", truth=True)},
            counterexamples={"counted": Variation(inputs={"true": _counted_truth})},
        ),
    ),
    Rule(
        name="where.false_condition_to_expand",
        formula="where(false, y, x), x smaller than the result",
        pattern=op.Where(false, y, x),
        replace=op.Expand(x, op.Shape(false)),
        guards=(condition_has_shape_of_root,),
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes=({"x": "", "y": "", "false": "b 3"}, {"x": "3", "y": "b 1", "false": "b 3"}),
            inputs={"false": _expanded("false", truth=False)},
        ),
    ),
]
