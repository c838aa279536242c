"""Transposes that move axes of size 1 alone.

transpose(x) = reshape(x)   if all other axes keep their order

A Reshape copies nothing. Steps of decoding, of length 1, have many of these. The rule runs after the fusions, in the pass of
the other spellings for the runtime: attention and rotary embeddings are found by their Transposes.
"""

from __future__ import annotations

from typing import Any

from ortfuse.dims import reshape_target
from ortfuse.pattern import Match, attr, computed, op, redundant, var
from ortfuse.refusal import Refusal
from ortfuse.rewrite import Exactness, Proof, Rule

from ._common import ints
from ._proofs import COST
from .normal_form.shapes import unless_constant_target

PASS = "fuse.runtime"

x = var("x")


def moves_only_ones(match: Match) -> Refusal | None:
    """The axes that may be longer than 1 keep their order, and a Reshape with a constant target has the same effect."""
    before, perm = match.shape("x"), match["perm"]
    if before is None or len(perm) != len(before):
        return match.refuse("shape", "x")
    longer = [axis for axis in perm if before[axis] != 1]
    if longer != sorted(longer):
        return match.refuse("needless", "root", found="the Transpose moves axes that may be longer than 1")
    return unless_constant_target(match, before, match.shape("root"))


@redundant(COST)
def is_executed(match: Match) -> Refusal | None:
    """The runtime does not merge the Transpose into products of matrices behind it."""
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


RULES = [
    Rule(
        name="runtime.unit_axes",
        formula="transpose(x) of axes of size 1",
        pattern=op.Transpose(x, perm=attr("perm", lambda perm, facts: isinstance(perm, tuple | list), "known")),
        replace=op.Reshape(x, computed("target", target)),
        is_refinement=True,
        guards=(moves_only_ones, is_executed),
        exactness=Exactness.EXACT,
        source="ONNX operators Transpose and Reshape",
        proof=Proof(
            shapes=({"x": "b 1 3 4"}, {"x": "b 3 1"}, {"x": "1 b 1 3"}),
            attributes=({"perm": [(0, 2, 1, 3), (1, 0, 2, 3)]}, {"perm": [(0, 2, 1)]}, {"perm": [(2, 1, 3, 0)]}),
        ),
    )
]
