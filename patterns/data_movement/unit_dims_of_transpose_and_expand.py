"""Fold axes of size 1: Transposes that move nothing else, and a Squeeze behind an Expand.

transpose(x) = reshape(x)   if all other axes keep their order
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
from ortfuse.rewrite.pattern import Match, Pattern, attr, built, computed, op, redundant, var

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


_AXES = 4
_sizes: list[Pattern] = [var(f"size{number}", "1") for number in range(_AXES)]


def takes_out_one_axis(match: Match) -> Refusal | None:
    """x and the expansion have four axes, one of which, of size 1, is taken out."""
    shape, wide = match.shape("x"), match.rank("expanded")
    if shape is None or len(shape) != _AXES or wide != _AXES:
        return match.refuse("rank", "x", _AXES)
    axes = match["axes"]
    known = axes is not None and len(axes) == 1 and shape[axes[0] % _AXES] == 1
    return match.unless_value("axes", known, "one axis of size 1")


def _size_vector(number: int, build: Any) -> Any:
    return build.constant([number])


def _squeezed_first(match: Match) -> Pattern:
    axis = match["axes"][0] % _AXES
    left = [size for number, size in enumerate(_sizes) if number != axis]
    made: Pattern = op.Expand(op.Squeeze(x, computed("axis", lambda match: ints([axis]))), op.Concat(*left, axis=0))
    return made


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
        name="unit_dims.squeeze_of_expand",
        formula="squeeze(expand(x, concat(sizes)), axis)",
        pattern=op.Squeeze(op.Expand(x, op.Concat(*_sizes, axis=0).kept()).named("expanded"), axes=attr("axes")),
        replace=built(_squeezed_first, makes=("Expand", "Squeeze", "Concat")),
        is_refinement=True,
        guards=(takes_out_one_axis,),
        exactness=Exactness.EXACT,
        source="ONNX operators Expand and Squeeze",
        test=RuleTest(
            shapes={"x": "1 1 3 4", **{f"size{n}": "1" for n in range(_AXES)}},
            inputs={f"size{n}": partial(_size_vector, number) for n, number in enumerate((2, 1, 3, 4))},
            attributes={"axes": [(1,)]},
        ),
    ),
]
