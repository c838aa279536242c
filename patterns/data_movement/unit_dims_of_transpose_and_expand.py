"""Fold axes of size 1: Transposes that move nothing else, and a Squeeze behind an Expand.

transpose(x) = reshape(x)   if all other axes keep their order
reshape(transpose(x), shape) = squeeze(x, axes)   if shape is that of x without some of these
squeeze(expand(x, concat(sizes)), axis) = expand(squeeze(x, axis), concat(sizes but that of axis))

Rationale: a Reshape copies nothing, and a Squeeze next to x merges with what moves x. Decoding steps of length 1 have many. The
rules run after the fusions, whose patterns for attention and rotary embeddings have the Transposes.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ortfuse.ir.dims import reshape_target
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Guard, Match, Pattern, attr, built, computed, op, redundant, var

from .._rule_test_inputs import COST
from .._shared_guards import ints
from ..canonicalize.merge_reshapes_and_transposes import unless_constant_target

PASS = "fold_unit_dims"

x = var("x")


def keeps_longer_axes(match: Match) -> Refusal | None:
    """The axes that may be longer than 1 keep their order."""
    before, perm = match.shape("x"), match["perm"]
    if before is None or len(perm) != len(before):
        return match.refuse("shape", "x")
    longer = [axis for axis in perm if before[axis] != 1]
    if longer != sorted(longer):
        return match.refuse("needless", "x", found="the Transpose moves axes that may be longer than 1")
    return None


def has_reshape_target(match: Match) -> Refusal | None:
    """A Reshape with a constant target has the same effect."""
    return unless_constant_target(match, match.shape("x"), match.shape("root"))


def _dropped(match: Match) -> list[int] | None:
    """The axes of x, all of size 1, without which it has the shape of the root."""
    after, dropped = list(match.shape("root") or ()), []
    for axis, dim in enumerate(match.shape("x") or ()):
        if after and after[0] == dim:
            after.pop(0)
        elif dim == 1:
            dropped.append(axis)
        else:
            return None
    return dropped if dropped and not after else None


def drops_ones(match: Match) -> Refusal | None:
    """The result is x without some axes of size 1."""
    if match.shape("root") is None:
        return match.refuse("shape", "root")
    if _dropped(match) is None:
        return match.refuse("needless", "root", found="it is not x without axes of size 1")
    return None


@redundant(COST)
def is_executed(match: Match) -> Refusal | None:
    """The runtime does not fuse the Transpose into MatMuls behind it."""
    perm, users = list(match["perm"]), match.root.consumers()
    swapped = perm == [*range(len(perm) - 2), len(perm) - 1, len(perm) - 2]
    if swapped and users and all(user.op_type == "MatMul" for user in users):
        return match.refuse("needless", "root", found="MatMul reads it as it is")
    return None


def target(match: Match) -> Any:
    """The constant Reshape target from x to the root."""
    found = reshape_target(match.shape("x"), match.shape("root"))
    assert found is not None
    return ints(found)


def _sizes(count: int) -> list[Pattern]:
    return [var(f"size{number}", "1") for number in range(count)]


def takes_out_one_axis(count: int) -> Guard:
    """Guard: the expansion has so many axes, one of which is taken out; x has size 1 along it, or does not have it."""

    def guard(match: Match) -> Refusal | None:
        shapes = match.shapes("x", "expanded")
        if isinstance(shapes, Refusal):
            return shapes
        (shape, wide), axes = shapes, match["axes"]
        if len(wide) != count:
            return match.refuse("rank", "expanded", count)
        place = axes[0] % count if axes is not None and len(axes) == 1 else None
        own = None if place is None else place - (count - len(shape))
        known = place is not None and own is not None and wide[place] == 1 and (own < 0 or shape[own] == 1)
        return match.unless_value("axes", known, "one axis of size 1")

    return guard


def _size_vector(number: int, build: Any) -> Any:
    return build.constant([number])


def _taken_out(count: int) -> Rule:
    expanded = op.Expand(x, op.Concat(*_sizes(count), axis=0).kept()).named("expanded")

    def own_axis(match: Match) -> int:
        return int(match["axes"][0] % count - (count - (match.rank("x") or count)))

    def first(match: Match) -> Pattern:
        left = [size for number, size in enumerate(_sizes(count)) if number != match["axes"][0] % count]
        axis = computed("axis", lambda match: ints([own_axis(match)]))
        made: Pattern = op.Expand(op.Squeeze(x, axis) if own_axis(match) >= 0 else x, op.Concat(*left, axis=0))
        return made

    return Rule(
        name=f"unit_dims.squeeze_of_expand_rank{count}",
        formula="squeeze(expand(x, concat(sizes)), axis)",
        pattern=op.Squeeze(expanded, axes=attr("axes")),
        replace=built(first, makes=("Expand", "Squeeze", "Concat")),
        is_refinement=True,
        guards=(takes_out_one_axis(count),),
        exactness=Exactness.EXACT,
        source="ONNX operators Expand and Squeeze",
        test=RuleTest(
            shapes=tuple(
                {"x": " ".join(sizes), **{f"size{n}": "1" for n in range(count)}}
                for sizes in (["1", "1", "3", "4"][:count], ["3", "4"][: count - 2])
            ),
            inputs={f"size{n}": partial(_size_vector, number) for n, number in enumerate((2, 1, 3, 4)[:count])},
            attributes={"axes": [(1,)]},
        ),
    )


RULES = [
    Rule(
        name="unit_dims.transpose_to_reshape",
        formula="transpose(x) of axes of size 1",
        pattern=op.Transpose(x, perm=attr("perm", lambda perm, facts: isinstance(perm, tuple | list), "known")),
        replace=op.Reshape(x, computed("target", target)),
        is_refinement=True,
        guards=(keeps_longer_axes, has_reshape_target, is_executed),
        exactness=Exactness.EXACT,
        source="ONNX operators Transpose and Reshape",
        test=RuleTest(
            shapes=({"x": "b 1 3 4"}, {"x": "b 3 1"}, {"x": "1 b 1 3"}),
            attributes=({"perm": [(0, 2, 1, 3), (1, 0, 2, 3)]}, {"perm": [(0, 2, 1)]}, {"perm": [(2, 1, 3, 0)]}),
        ),
    ),
    Rule(
        name="unit_dims.reshape_of_transpose_to_squeeze",
        formula="reshape(transpose(x), shape), x with axes of size 1",
        pattern=op.Reshape(
            op.Transpose(x, perm=attr("perm", lambda perm, facts: isinstance(perm, tuple | list), "known")),
            var("shape"),
            allowzero=attr("allowzero"),
        ),
        replace=op.Squeeze(x, computed("axes", lambda match: ints(_dropped(match) or []))),
        guards=(keeps_longer_axes, drops_ones),
        exactness=Exactness.EXACT,
        source="ONNX operators Transpose, Reshape and Squeeze",
        test=RuleTest(
            shapes=({"x": "b 1 3 4", "shape": "3"}, {"x": "b 1 3 1", "shape": "3"}),
            constants={"shape": [0, 0, -1]},
            attributes=({"perm": [(0, 2, 1, 3)], "allowzero": [0]}, {"perm": [(0, 2, 3, 1)], "allowzero": [0]}),
            opset=13,
        ),
    ),
    _taken_out(3),
    _taken_out(4),
]
