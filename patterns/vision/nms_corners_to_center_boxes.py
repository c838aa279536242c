"""Convert the boxes of NonMaxSuppression from corners to the center format, `center_point_box=1`.

nms([c - k s, c + k s]) = nms([c, 2 k s], center_point_box=1)        sizes s and factors k at least 0, k mostly a half

Detectors predict centres and sizes and turn them into corners. The order of x and y makes no difference to the overlaps.
A box of negative size is empty in the center format, but not by its corners, in whatever order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.refusal import Refusal
from ortfuse.ir.traits import FILLS, JOINS, MOVES
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Guard, Match, Op, Pattern, attr, built, computed, op, opt, scalar, var

from .._shared_guards import constant, ints

FACTORS = {"size": "half", "width": "across", "height": "down"}
"""The factors of sizes."""

centre, size = var("centre"), var("size")
x, y, width, height = var("x"), var("y"), var("width"), var("height")


def sizes_are_at_least_0(match: Match) -> Refusal | None:
    """Widths and heights, and their factors, are provably at least 0."""
    for name in _sizes(match):
        factor = FACTORS[name]
        if not is_at_least_0(match[name], match.facts):
            return match.refuse("values_unknown", name, "at least 0")
        if not match[factor] > 0:
            return match.unless_value(factor, False, "above 0")
    return None


def is_at_least_0(value: ir.Value, facts: Facts) -> bool:
    """Whether a value is at least 0, but for the rounding of functions that are: a product or sum of such numbers, say."""
    pending, seen = [value], set()
    while pending:
        found = pending.pop()
        known, node = facts.range(found), found.producer()
        if found in seen or (known is not None and known.low >= 0):
            continue
        seen.add(found)
        inputs = [] if node is None or node.domain else [one for one in node.inputs if one is not None]
        if not inputs or node is None:
            return False
        if node.op_type in MOVES - JOINS - FILLS:
            pending.append(inputs[0])
        elif node.op_type in ("Add", "Mul", "Div", "Sum", "Concat", "Max"):
            squares = node.op_type == "Mul" and inputs[0] is inputs[1]
            pending += [] if squares else inputs
        elif node.op_type == "Pow":
            pending += [] if facts.scalar(inputs[1]) == 2 else inputs[:1]
        elif node.op_type not in ("Sigmoid", "HardSigmoid", "Softmax", "Softplus", "Exp", "Abs", "Relu", "Sqrt"):
            return False
    return True


def _sizes(match: Match) -> list[str]:
    return [name for name in FACTORS if name in match.matcher.names]


def _whole(name: str) -> Pattern:
    """A size times twice its factor."""

    def product(match: Match) -> Pattern:
        twice = 2 * match[FACTORS[name]]
        return (
            var(name)
            if twice == 1
            else op.Mul(var(name), computed("twice", lambda match: np.asarray(twice, np.float32)))
        )

    return built(product, makes=("Mul",))


def _alike(match: Match, *names: str) -> Refusal | None:
    """A refusal unless all of them provably have the same shape."""
    return next((no for name in names[1:] if (no := match.unless_same_shape(name, names[0])) is not None), None)


def _joined_last(match: Match, name: str, added: int = 0) -> Refusal | None:
    """A refusal unless the parts are joined along the last axis."""
    return match.unless_value("axis", match["axis"] in (-1, (match.rank(name) or 0) - 1 + added), "the last one")


def are_pairs(match: Match) -> Refusal | None:
    """Centres and sizes have two numbers of each box, and are joined along their axis."""
    shape = match.shape("centre")
    if not shape or shape[-1] != 2:
        return match.refuse_dimension("centre", -1, 2)
    return _alike(match, "centre", "size") or _joined_last(match, "centre")


def are_columns(match: Match) -> Refusal | None:
    """There is one number of each box in each tensor, and they are joined along its axis."""
    shape = match.shape("x")
    if not shape or shape[-1] != 1:
        return match.refuse_dimension("x", -1, 1)
    return _alike(match, "x", "y", "width", "height") or _joined_last(match, "x")


def are_stacked_last(match: Match) -> Refusal | None:
    """The numbers of a box are joined along the axis that Unsqueeze adds, the last one."""
    rank = match.rank("x")
    last = rank is not None and tuple(match["new"]) in ((-1,), (rank,))
    added = match.unless_value("new", last, "the last one")
    return added or _alike(match, "x", "y", "width", "height") or _joined_last(match, "x", added=1)


def _kept(boxes: Pattern, **more: Any) -> Op:
    made: Op = op.NonMaxSuppression(
        boxes, var("scores"), opt(var("most")), opt(var("overlap")), opt(var("least")), **more
    )
    return made


def _rule(name: str, formula: str, corners: Pattern, centres: Pattern, parts: Sequence[str], last: str,
          guard: Guard) -> Rule:  # fmt: skip
    """One spelling of the corners: of a batch, or of one image, which gets an axis of its own."""
    sizes = [part for part in parts if part in FACTORS]
    number = {"most": "", "overlap": "", "least": ""}
    return Rule(
        name=f"boxes.{name}", formula=formula, pattern=_kept((corners | op.Unsqueeze(corners, axes=(0,))).named("images")),
        replace=_kept((centres | op.Unsqueeze(centres, constant(0))).named("images"), center_point_box=1),
        guards=(sizes_are_at_least_0, guard), exactness=Exactness.ROUNDING, source="ONNX operator NonMaxSuppression",
        test=RuleTest(
            shapes=tuple(
                {**number, "scores": f"{images or 1} 2 n", **dict.fromkeys(parts, f"{images} n {last}")} for images in ("b", "")
            ),
            attributes=tuple({"axis": [axis, -1], "new": [(-1,), (axis,)]} for axis in (2, 1)),
            alternatives=[{"images": option} for option in (0, 1)], scalars={FACTORS[size]: [0.5, 0.25] for size in sizes},
            constants={"most": 3, "overlap": 0.3, "least": -0.5}, inputs={size: _at_least_0(size) for size in sizes},
            counterexamples={"of any size": Variation(inputs=dict.fromkeys(sizes, "float32"))},
            opset=None if len(parts) == 2 else 17,
        ),
    )  # fmt: skip


def _at_least_0(name: str) -> Any:
    return lambda build: build.node("Abs", [build.input(f"any_{name}", build.dims(name))]).outputs[0]


def _joined(*parts: Pattern) -> Op:
    made: Op = op.Concat(*parts, axis=attr("axis"))
    return made


def _stacked(*parts: Pattern) -> Op:
    return _joined(*(op.Unsqueeze(part, axes=attr("new")) for part in parts))


def _stacked_again(*parts: Pattern) -> Op:
    return _joined(*(op.Unsqueeze(part, computed("last", lambda match: ints(match["new"]))) for part in parts))


half, across, down = (scalar(factor) for factor in FACTORS.values())
CORNERS = (x - across * width, y - down * height, x + across * width, y + down * height)
CENTRES = (x, y, _whole("width"), _whole("height"))
FORMULA = "nms([x - k w, y - k h, x + k w, y + k h])"

NUMBERS = ("x", "y", "width", "height")

RULES = [
    _rule("corner_pairs_to_center_format", "nms([c - k s, c + k s])", _joined(centre - half * size, centre + half * size),
            _joined(centre, _whole("size")), ("centre", "size"), "2", are_pairs),
    _rule("corner_columns_to_center_format", FORMULA, _joined(*CORNERS), _joined(*CENTRES), NUMBERS, "1", are_columns),
    _rule("stacked_corners_to_center_format", FORMULA, _stacked(*CORNERS), _stacked_again(*CENTRES), NUMBERS, "",
            are_stacked_last),
]  # fmt: skip
