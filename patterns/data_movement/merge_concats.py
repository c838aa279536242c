"""Merge nested Concats along one axis.

concat(concat(x, y), z) = concat(x, y, z)
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, attr, op, rest

PASS = "target_decompositions"

_MANY_PARTS = 16
"""More operands than a Concat takes in one by one."""


def _is_nested(part: ir.Value, match: Match) -> bool:
    """Whether an operand of a Concat is one along the same axis, with no other user, of equal sizes along other axes.

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


def has_concat_operand(match: Match) -> Refusal | None:
    """An operand is a Concat along the same axis, with no other user.

    A Concat with many operands that is an operand of another one has to wait, so that a long chain becomes one at once.
    """
    is_joined = any(_is_nested(part, match) for part in match["parts"])
    if is_joined and not (len(_flattened(match, _MANY_PARTS)) > _MANY_PARTS and _is_operand_of_concat(match)):
        return None
    return match.refuse("value", "root", "a Concat of a Concat along the same axis")


def _is_operand_of_concat(match: Match) -> bool:
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


def _one_concat(match: Match) -> Pattern:
    parts = [match.capture(f"part_{number}", part) for number, part in enumerate(_flattened(match))]
    return op.Concat(*parts, axis=match["axis"])


def _flattened(match: Match, most: int | None = None) -> list[ir.Value]:
    """The operands of a Concat and of those that are joined before, at any depth; only some if there are more than `most`."""
    found: list[ir.Value] = []
    waiting = list(reversed(match["parts"]))
    while waiting and (most is None or len(found) + len(waiting) <= most):
        part = waiting.pop()
        node = part.producer()
        if node is not None and _is_nested(part, match):
            waiting += [operand for operand in reversed(node.inputs) if operand is not None]
        else:
            found.append(part)
    return [*found, *reversed(waiting)]


def _nested(build: Any) -> list[ir.Value]:
    """Something joined before, between or behind others, along an axis that is counted from either end."""
    x, y = (build.input(name, build.dims("whole")) for name in "xy")
    axis = (1, -1)[build.chooser.pick("axis of the inner one", ("from the front", "from the end"))]
    inner = build.node("Concat", [x, y, x], {"axis": axis}).outputs[0]
    places = {"first": [inner, y], "between": [x, inner, y], "last": [x, inner]}
    return [*places.values()][build.chooser.pick("what is joined before", tuple(places))]


RULES = [
    Rule(
        name="concat.concat_of_concat",
        formula="concat(concat(x, y), z)",
        pattern=op.Concat(rest("parts"), axis=attr("axis")),
        replace=_one_concat,
        makes=("Concat",),
        guards=(has_concat_operand,),
        exactness=Exactness.EXACT,
        source="ONNX operator Concat",
        test=RuleTest(
            shapes={"whole": "b 3"},
            inputs={"parts": _nested},
            attributes={"axis": [1, -1]},
            followed_by="Identity",
        ),
    ),
]
