"""Merge Reshape, Transpose, Squeeze and Unsqueeze chains, and make Reshape targets constant.

reshape(x, shape arithmetic) = reshape(x, constant)       where each dimension is a number, a copy, or the one -1
reshape(reshape(x)) = reshape(x)          transpose(transpose(x)) = transpose(x)        unsqueeze(unsqueeze(x)) = unsqueeze(x)
squeeze(unsqueeze(x)) = x          reshape(transpose(x)) = reshape(transpose(reshape(x)))   with fewer axes
"""

from __future__ import annotations

import sys
from typing import Any

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import DimLike, product, reshape_target, unit_axes
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Op, Pattern, all_attributes, attr, computed, op, redundant, var

from .._rule_test_inputs import COST, computed_shape
from .._shared_guards import ints, text

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


_reshaped = (
    op.Reshape(x, var("inner_shape"), allowzero=attr("inner_allowzero")).kept()
    | op.Flatten(x, axis=attr("inner_axis")).kept()
)
_units = op.Unsqueeze(x, axes=attr("inner")).kept() | op.Squeeze(x, axes=attr("inner")).kept()


def _reshape_of_both(match: Match) -> Pattern | None:
    """The operator with the effect of both, of the kind at the root; x itself if they undo each other."""
    before, after, last = match.shape("x"), match.shape("root"), match.root.producer()
    if before is None or after is None or last is None:
        return None
    if before == after:
        return x
    if last.op_type == "Reshape":
        found = reshape_target(before, after)
        return None if found is None else op.Reshape(x, computed("target", lambda match: ints(found)))
    axes = unit_axes(after, before) if last.op_type == "Unsqueeze" else unit_axes(before, after)
    return None if axes is None else Op(last.op_type, [x, computed("axes", lambda match: ints(axes))])


def _one_reshape(match: Match) -> Pattern:
    found = _reshape_of_both(match)
    assert found is not None
    return found


def is_one_reshape(match: Match) -> Refusal | None:
    """One operator of the kind at the root, of constant operands, has the effect of both."""
    if _reshape_of_both(match) is not None:
        return None
    return match.refuse("shape", "root", "one that a single operator with constant operands makes of x")


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
        pattern=op.Reshape(_reshaped | _units, var("shape"), allowzero=attr("allowzero")),
        replace=_one_reshape,
        makes=("Reshape",),
        guards=(is_one_reshape,),
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes=tuple({"x": dims, "inner_shape": "2", "shape": "3"} for dims in ("b 2 3", "2 1 6")),
            constants={"inner_shape": [0, 6], "shape": [0, 3, 2]},
            attributes={"allowzero": [0], "inner_allowzero": [0], "inner_axis": [1], "inner": [(1,)]},
        ),
    ),
    *(
        Rule(
            name=f"{kind.lower()}.merge_units",
            formula=f"{kind}(Unsqueeze | Squeeze(x))",
            pattern=getattr(op, kind)(_units, axes=attr("outer")),
            replace=_one_reshape,
            makes=(kind,),
            guards=(is_one_reshape,),
            exactness=Exactness.EXACT,
            source=SOURCE,
            test=RuleTest(
                shapes=({"x": "1 1 b"}, {"x": "1 1 3"}),
                attributes={"inner": [(0,)], "outer": [(0,), (1,)]},
                opset=13,
            ),
        )
        for kind in ("Unsqueeze", "Squeeze")
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
]
