"""Sink the Reshape that merges batch and head axes below the operators between it and the Reshape that undoes it.

m(x) reshapes [a, b, m, n] to [a * b, m, n].

m(x) m(y) = m(x y)     m(x) + y = m(x + split(y))     m(x)^T = m(x^T)     softmax(m(x)) = m(softmax(x))     c m(x) = m(c x)
m(x) + z = m(x + z)     where z is the same along the merged axis
transpose(m(x)) = m(transpose(x))     for [length, batch * heads, size], too

Rationale: exporters write the batched MatMuls of attention in three dimensions, with a (batch * heads) axis. The attention rules
are written for four dimensions.
"""

from __future__ import annotations

from typing import Any

from ortfuse.ir.dims import DimLike, reshape_target
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Guard, Match, Op, Pattern, attr, built, computed, op, redundant, scalar, var

from .._rule_test_inputs import COST, SHAPES
from .._shared_guards import ints
from .merge_reshapes_and_transposes import unless_constant_target

SOURCE = "ONNX operator specification"


def _merged(name: str) -> Pattern:
    whole = var(name, "_ _ _ _")
    return op.Reshape(whole, var(f"{name}_target"), allowzero=attr(f"{name}_zero")).kept().named(f"{name}_merged")


def merges_leading_axes(*names: str) -> Guard:
    """Each Reshape merges the first two axes of its input, the same ones in all of them, and leaves the others."""

    def guard(match: Match) -> Refusal | None:
        first = match.shape(names[0])
        for name in names:
            shape = match.shape(name)
            if shape is None or first is None:
                return match.refuse("shape", name)
            wrong = match.unless_shape((shape[0] * shape[1], *shape[2:]), f"{name}_merged")
            wrong = wrong or match.unless_shape((*first[:2], *shape[2:]), name)
            if wrong is not None:
                return wrong
        return None

    return guard


def _merge(value: Op, of: Pattern, rows: Op, columns: Op) -> Op:
    """`value` with its first two axes merged, whose sizes are those of `of`; the others are `rows` and `columns`.

    The shape of `value` itself is not used, as a further use of it would keep later rules from absorbing it.
    """
    shape = op.Shape(of)
    merged = op.Mul(_between(shape, 0, 1), _between(shape, 1, 2))
    made: Op = op.Reshape(value, op.Concat(merged, rows, columns, axis=0), allowzero=1)
    return made


def _merge_as_before(value: Op) -> Op:
    """`value`, which has the shape of x, with its axes merged as those of x."""
    made: Op = op.Reshape(value, var("x_target"), allowzero=attr("x_zero"))
    return made


def _between(shape: Op, start: int, end: int) -> Op:
    return op.Slice(shape, _int64_vector(start), _int64_vector(end))


def _int64_vector(number: int) -> Pattern:
    return computed(str(number), lambda match: ints([number]))


x = var("x", "_ _ _ _")
y = var("y", "_ _ _ _")
MERGED = RuleTest(
    shapes={"x": "b 2 s 4", "x_target": "3"}, constants={"x_target": [-1, 5, 4]}, attributes={"x_zero": [0]}
)


def _targets(**targets: list[int]) -> dict[str, Any]:
    return {f"{name}_target": numbers for name, numbers in targets.items()}


def _sink_rule(name: str, pattern: Pattern, replace: Pattern, test: RuleTest, *guards: Guard) -> Rule:
    return Rule(
        name=f"sink_batch_reshape.{name}",
        pattern=pattern,
        replace=replace,
        guards=guards,
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=test,
    )


def other_is_merged_alike(match: Match) -> Refusal | None:
    """The other operand also has the merged axis."""
    other, merged = match.shape("other"), match.shape("x_merged")
    if other is None or merged is None or len(other) != 3:
        return match.unless_rank("other", 3) or match.refuse("shape", "x_merged")
    return None if other[0] == merged[0] else match.refuse_dimension("other", 0, merged[0])


def other_is_broadcast(match: Match) -> Refusal | None:
    """The other operand is the same along the merged axis."""
    other = match.shape("other")
    if other is None or len(other) != 3:
        return match.unless_rank("other", 3)
    return None if other[0] == 1 else match.refuse_dimension("other", 0, 1)


def _other_split(match: Match) -> tuple[DimLike, ...]:
    """The shape of the other operand with its merged axis split as x has it."""
    return (*(match.shape("x") or ())[:2], *(match.shape("other") or ())[1:])


def other_splits_alike(match: Match) -> Refusal | None:
    """The other operand has the merged axis too, which a constant Reshape target splits."""
    refused = other_is_merged_alike(match)
    return refused or unless_constant_target(match, match.shape("other"), _other_split(match))


def _other_target(match: Match) -> Any:
    found = reshape_target(match.shape("other"), _other_split(match))
    assert found is not None
    return ints(found)


def other_is_the_same_everywhere(match: Match) -> Refusal | None:
    """The other operand has no merged axis, or is the same along it, and the sum is no larger than x."""
    other = match.shape("other")
    if other is None or len(other) > 3:
        return match.unless_rank("other", 1, 2, 3)
    refused = other_is_broadcast(match) if len(other) == 3 else None
    return refused or match.unless_same_shape("root", "x_merged")


@redundant(COST)
def leads_to_softmax(match: Match) -> Refusal | None:
    """All users of the sum are Softmax nodes, as of attention scores."""
    users = match.root.consumers()
    if users and all(user.op_type == "Softmax" for user in users):
        return None
    return match.refuse("use", "root", "the scores of a Softmax", found="something else")


_IN_SCORES = frozenset({"Add", "Sub", "Mul", "Div", "Where", "Max", "Min", "Reshape", "Softmax"})
"""The operators that may use an Add on the way to a Softmax, and the Reshape that may split it before."""


@redundant(COST)
def is_no_residual(match: Match) -> Refusal | None:
    """The sum goes on as scores do: where it is normalised or multiplied by weights, the merged axis stays merged."""
    other = next((user.op_type for user in match.root.consumers() if user.op_type not in _IN_SCORES), None)
    return None if other is None else match.refuse("use", "root", "such as of scores", found=other)


def _summed_everywhere(match: Match) -> Pattern:
    other = var("other")
    return _merge_as_before(op.Add(x, op.Unsqueeze(other, _int64_vector(0)) if match.rank("other") == 3 else other))


def _split_shape(match: Match) -> tuple[DimLike, ...] | None:
    """The shape of the plain value after splitting its leading axis as in the root."""
    before, after = match.shape("plain"), match.facts.shape(match.root)
    return None if before is None or after is None or len(after) < 3 else (*after[:-2], *before[-2:])


def splits_first_axis(match: Match) -> Refusal | None:
    """The Reshape splits the first axis into two larger than 1, and leaves the last two, which the Transpose swaps.

    With more axes or one of size 1, layout would move the Transpose back to where it has fewer.
    """
    shapes, wanted = match.shapes("plain", "root"), _split_shape(match)
    if isinstance(shapes, Refusal):
        return shapes
    before, after = shapes
    if wanted is None or len(after) != 4 or 1 in after[:2] or after[-2:] != before[:0:-1]:
        return match.refuse("shape", "root", ("*", "*", *before[:0:-1]))
    return unless_constant_target(match, before, wanted)


def split_target(match: Match) -> Any:
    """The Reshape target that splits the leading axis."""
    found = reshape_target(match.shape("plain"), _split_shape(match))
    assert found is not None
    return ints(found)


def swap_last_two(match: Match) -> list[int]:
    """The permutation that swaps the last two axes of the root."""
    rank = match.facts.rank(match.root) or 0
    return [*range(rank - 2), rank - 1, rank - 2]


long = var("long", "_ _ _")


def _heads(match: Match) -> tuple[int, int, int] | None:
    """The number and the size of what the last axis is split into, the number being merged into the axis before.

    The third is the first size: 0 if it stays, or a number, which it must be in every run unless the second size is 0.
    """
    before, after = match.shape("long"), match.shape("long_merged")
    if before is None or after is None or len(after) != 3 or not isinstance(before[2], int):
        return None
    first, second, size = after
    if not isinstance(size, int) or not size or before[2] % size or second != before[1] * (before[2] // size):
        return None
    length = 0 if first == before[0] else first
    return (before[2] // size, size, length) if isinstance(length, int) else None


def splits_last_axis(match: Match) -> Refusal | None:
    """The Reshape splits a known number of heads off the last axis, and merges them into the axis before."""
    found = _heads(match)
    if found is not None and found[0] > 1:
        return None
    return match.refuse("shape", "long_merged", "one with parts of the last axis as part of the second")


def _parted(match: Match) -> Pattern:
    """The axes [length, batch, heads, size] apart, moved, and batch and heads merged."""
    number, size, fixed = _heads(match) or (1, 1, 0)
    last = list(match["perm"]) == [1, 0, 2]
    apart = op.Reshape(long, computed("apart", lambda match: ints([fixed, 0, number, size])))
    turned = op.Transpose(apart, perm=(1, 2, 0, 3) if last else (1, 2, 3, 0))
    shape = op.Shape(long)
    merged = op.Mul(_between(shape, 1, 2), computed("number", lambda match: ints([number])))
    length = computed("length", lambda match: ints([fixed])) if fixed else _between(shape, 0, 1)
    width = computed("size", lambda match: ints([size]))
    made: Pattern = op.Reshape(
        turned, op.Concat(merged, *((length, width) if last else (width, length)), axis=0), allowzero=1
    )
    return made


def _length_first() -> Op:
    """[length, batch * heads, size] of [batch, heads, length, size]."""
    shape = op.Shape(x)
    merged = op.Mul(_between(shape, 0, 1), _between(shape, 1, 2))
    target = op.Concat(_between(shape, 2, 3), merged, _between(shape, 3, 4), axis=0)
    made: Op = op.Reshape(op.Transpose(x, perm=(2, 0, 1, 3)), target, allowzero=1)
    return made


RULES = [
    Rule(
        name="sink_batch_reshape.hoist_head_split_above_transpose",
        formula="Transpose(Reshape(x)), parts of the last axis merged into the second one",
        pattern=op.Transpose(
            op.Reshape(long, var("long_target"), allowzero=attr("long_zero")).kept().named("long_merged"),
            perm=attr("perm", lambda perm, facts: list(perm or ()) in ([1, 0, 2], [1, 2, 0]), "(1, 0, 2) or (1, 2, 0)"),
        ),
        replace=_parted,
        makes=("Reshape", "Transpose", "Shape", "Slice", "Mul", "Concat"),
        guards=(splits_last_axis,),
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes={"long": "s 2 12", "long_target": "3"},
            constants={"long_target": [-1, 6, 4]},
            attributes={"long_zero": [0], "perm": [(1, 0, 2), (1, 2, 0)]},
            opset=17,
        ),
    ),
    _sink_rule(
        "through_length_first_transpose",
        op.Transpose(_merged("x"), perm=(1, 0, 2)),
        _length_first(),
        RuleTest(
            shapes={"x": "b 2 3 4", "x_target": "3"},
            constants=_targets(x=[-1, 3, 4]),
            attributes={"x_zero": [0]},
            opset=17,
        ),
        redundant(SHAPES)(merges_leading_axes("x")),
    ),
    _sink_rule(
        "split_before_transpose",
        op.Reshape(
            op.Transpose(var("plain", "_ _ _"), perm=(0, 2, 1)).kept(),
            var("target"),
            allowzero=attr("allowzero"),
        ),
        op.Transpose(op.Reshape(var("plain"), computed("split", split_target)), perm=swap_last_two),
        RuleTest(
            shapes={"plain": "6 3 4", "target": "4"},
            constants={"target": [-1, 2, 4, 3]},
            attributes={"allowzero": [0]},
            opset=17,
        ),
        splits_first_axis,
    ),
    _sink_rule(
        "through_matmul",
        op.MatMul(_merged("x"), _merged("y")),
        _merge(op.MatMul(x, y), x, _between(op.Shape(x), 2, 3), _between(op.Shape(y), 3, 4)),
        RuleTest(
            shapes={"x": "b 2 3 4", "y": "b 2 4 5", "x_target": "3", "y_target": "3"},
            constants=_targets(x=[-1, 3, 4], y=[-1, 4, 5]),
            attributes={"x_zero": [0], "y_zero": [0]},
            opset=17,
        ),
        redundant(SHAPES)(merges_leading_axes("x", "y")),
    ),
    _sink_rule(
        "through_transpose",
        op.Transpose(_merged("x"), perm=(0, 2, 1)),
        _merge(op.Transpose(x, perm=(0, 1, 3, 2)), x, _between(op.Shape(x), 3, 4), _between(op.Shape(x), 2, 3)),
        RuleTest(
            shapes={"x": "b 2 3 4", "x_target": "3"},
            constants=_targets(x=[-1, 3, 4]),
            attributes={"x_zero": [0]},
            opset=17,
        ),
        redundant(SHAPES)(merges_leading_axes("x")),
    ),
    _sink_rule(
        "through_add",
        op.Add(_merged("x"), var("other")),
        _merge_as_before(op.Add(x, op.Reshape(var("other"), computed("other_split", _other_target)))),
        RuleTest(
            shapes=(
                {"x": "3 2 3 4", "x_target": "3", "other": "6 3 4"},
                {"x": "3 2 3 4", "x_target": "3", "other": "6 1 4"},
            ),
            constants=_targets(x=[-1, 3, 4]),
            attributes={"x_zero": [0]},
            opset=17,
        ),
        redundant(SHAPES)(merges_leading_axes("x")),
        other_splits_alike,
        is_no_residual,
    ),
    _sink_rule(
        "through_add_broadcast",
        op.Add(_merged("x"), var("other")),
        built(_summed_everywhere, makes=("Add", "Unsqueeze", "Reshape")),
        RuleTest(
            shapes=(
                {"x": "b 2 3 4", "x_target": "3", "other": "1 3 4"},
                {"x": "b 2 3 4", "x_target": "3", "other": "3 4"},
                {"x": "b 2 3 4", "x_target": "3", "other": "1 1 4"},
            ),
            followed_by="Softmax",
            constants=_targets(x=[-1, 3, 4]),
            attributes={"x_zero": [0]},
            opset=17,
        ),
        redundant(SHAPES)(merges_leading_axes("x")),
        other_is_the_same_everywhere,
        leads_to_softmax,
    ),
    _sink_rule(
        "through_softmax",
        op.Softmax(_merged("x"), axis=-1),
        _merge_as_before(op.Softmax(x, axis=-1)),
        RuleTest(
            shapes={"x": "b 2 3 4", "x_target": "3"},
            constants=_targets(x=[-1, 3, 4]),
            attributes={"x_zero": [0]},
            opset=17,
        ),
        merges_leading_axes("x"),
    ),
    *(
        _sink_rule(
            name,
            made(_merged("x"), scalar("factor")),
            _merge_as_before(made(x, scalar("factor"))),
            RuleTest(
                shapes={"x": "b 2 3 4", "x_target": "3"},
                constants=_targets(x=[-1, 3, 4]),
                attributes={"x_zero": [0]},
                scalars={"factor": [0.5, -3.0]},
                opset=17,
            ),
            redundant(SHAPES)(merges_leading_axes("x")),
        )
        for name, made in (("through_mul_scalar", op.Mul), ("through_div_scalar", op.Div))
    ),
]
