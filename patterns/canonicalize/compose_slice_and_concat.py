"""Compose Slice and Split with Concat.

slice(concat(x, y)) = slice(x) or slice(y)        split(concat(x, y)) = x, y        concat(split(x)) = x

Sizes need not be numbers: `concat(past, x)[past length:]` is x.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import UNKNOWN, parameter
from ortfuse.ir.dims import DimLike, at_most, is_nonnegative, total
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Guard, Match, Pattern, attr, computed, op, rest, var

from .._shared_guards import ints

SOURCE = "ONNX operator specification"

TO_THE_END = 10**9
"""Ends of Slices from this number on stand for the end of any axis."""

MOST_OUTPUTS = 4
"""The most outputs of a Split that are looked for in a Concat."""

x = var("x")

Window = tuple[DimLike, DimLike]
"""The elements of an axis from the first number on, up to the second (exclusive)."""


# Parts of what was joined


def _split_window(value: ir.Value, node: ir.Node, axis: int, facts: Facts) -> Window | None:
    """The part of the input that an output of a Split is."""
    shapes = [facts.shape(output) for output in node.outputs[: (value.index() or 0) + 1]]
    if parameter(node, "axis", facts) != axis or any(shape is None or axis >= len(shape) for shape in shapes):
        return None
    sizes = [shape[axis] for shape in shapes if shape is not None]
    start = total(sizes[:-1])
    return start, start + sizes[-1]


def _slice_window(node: ir.Node, axis: int, facts: Facts) -> Window | None:
    """The part of its input that a Slice along one axis is; `None` if it does more, or may reach over an end."""
    starts, ends, axes, steps = (parameter(node, name, facts) for name in ("starts", "ends", "axes", "steps"))
    shape = facts.shape(node.inputs[0])
    if UNKNOWN in (starts, ends, axes, steps) or shape is None or len(starts) != 1 or len(ends) != 1:
        return None
    if (axes or (0,)) != (axis,) or (steps or (1,)) != (1,):
        return None
    size = shape[axis]
    start, end = _counted(starts[0], size), _counted(ends[0], size)
    within = start is not None and end is not None and at_most(start, end) and at_most(end, size)
    return (start, end) if within and start is not None and end is not None else None


def _counted(index: DimLike, size: DimLike) -> DimLike | None:
    """An index of a Slice counted from the front, and at most the size if that is known."""
    if isinstance(index, int):
        if index >= TO_THE_END:
            return size
        if index < 0:
            return size + index if is_nonnegative(size + index) else None
        return min(index, size) if isinstance(size, int) else index
    return index if is_nonnegative(index) else None


def _element_window(node: ir.Node, axis: int, facts: Facts) -> tuple[ir.Value, Window] | None:
    """The one element that a Gather takes, whose axis an Unsqueeze gives back, and of what."""
    taken = node.inputs[0].producer() if node.inputs[0] is not None else None
    axes = parameter(node, "axes", facts)
    if taken is None or taken.op_type != "Gather" or taken.domain or axes is UNKNOWN or len(axes) != 1:
        return None
    data, index = taken.inputs[0], facts.const(taken.inputs[1])
    shape = facts.shape(data)
    if data is None or index is None or index.ndim or shape is None:
        return None
    rank = len(shape)
    if axis >= rank or any(place % rank != axis % rank for place in (parameter(taken, "axis", facts), axes[0])):
        return None
    start = _counted(int(index), shape[axis])
    return None if start is None or not at_most(start + 1, shape[axis]) else (data, (start, start + 1))


def window_of(value: ir.Value, axis: int, facts: Facts) -> tuple[ir.Value, Window] | None:
    """The tensor that a value is a part of along one axis, and which part."""
    node = value.producer()
    if node is not None and not node.domain and node.op_type == "Unsqueeze":
        return _element_window(node, axis, facts)
    if node is None or node.domain or node.op_type not in ("Slice", "Split") or node.inputs[0] is None:
        return None
    found = _slice_window(node, axis, facts) if node.op_type == "Slice" else _split_window(value, node, axis, facts)
    return None if found is None else (node.inputs[0], found)


def _place(match: Match) -> tuple[ir.Value, Window] | None:
    """The operand of the Concat that the root is a part of, and which part."""
    facts, axis, window = match.facts, match["axis"], window_of(match.root, match["axis"], match.facts)
    shapes = [facts.shape(part) for part in match["parts"]]
    if window is None:
        return None
    start, end = window[1]
    offset: DimLike = 0
    for part, shape in zip(match["parts"], shapes, strict=True):
        if shape is None or shapes[0] is None or not axis < len(shape):
            return None
        if (shape[:axis], shape[axis + 1 :]) != (shapes[0][:axis], shapes[0][axis + 1 :]):
            return None  # empty operands of other sizes are passed over by the runtime
        after = offset + shape[axis]
        if at_most(offset, start) and at_most(offset, end) and at_most(end, after):
            return part, (start - offset, end - offset)
        offset = after
    return None


def is_within_one_part(match: Match) -> Refusal | None:
    """The window is provably within one operand: all of it, or between known bounds."""
    place = _place(match)
    if place is not None and (_is_whole(match, *place) or all(isinstance(bound, int) for bound in place[1])):
        return None
    return match.refuse("values_unknown", "root", "within one operand of the Concat")


def _is_whole(match: Match, part: ir.Value, window: Window) -> bool:
    shape = match.facts.shape(part)
    return shape is not None and window == (0, shape[match["axis"]])


# Joining what was taken apart


def _neighbouring_window(match: Match) -> tuple[ir.Value, Window] | None:
    """The tensor of which the operands of the Concat are neighbouring parts, and which part they make up."""
    axis, parts = match["axis"], match["parts"]
    if len(parts) < 2:
        return None
    whole, start, end = None, None, None
    for before, part, after in zip((None, *parts), parts, (*parts[1:], None), strict=False):
        if _follows(part, before) and _follows(after, part):
            continue  # within a Split: only its ends say where it is
        found = window_of(part, axis, match.facts)
        if found is None or (whole is not None and found[0] is not whole):
            return None
        if whole is None:
            whole, start = found[0], found[1][0]
        elif found[1][0] != end and not _follows(part, before):
            return None
        end = found[1][1]
    return None if whole is None or start is None or end is None else (whole, (start, end))


def _follows(part: ir.Value | None, before: ir.Value | None) -> bool:
    """Whether a value is the output of a Split that comes after another one."""
    if part is None or before is None:
        return False
    node = part.producer()
    is_split = node is not None and node is before.producer() and node.op_type == "Split" and not node.domain
    return is_split and part.index() == (before.index() or 0) + 1


def are_neighbours(match: Match) -> Refusal | None:
    """The operands are all parts of one tensor, one next to the other: all of it, or between known numbers."""
    found = _neighbouring_window(match)
    if found is not None and (_is_whole(match, *found) or all(isinstance(bound, int) for bound in found[1])):
        return None
    return match.refuse("value", "root", "made of neighbouring parts of one tensor", "joined of other parts")


def _int64_vector(numbers: list[Any]) -> Pattern:
    return computed(str(numbers), lambda match: ints(numbers))


def _taken(match: Match, place: tuple[ir.Value, Window] | None) -> Pattern:
    """A tensor, or a part of it."""
    assert place is not None
    part = match.capture("part", place[0])
    if _is_whole(match, *place):
        return part
    start, end = place[1]
    numbers = ([start], [end], [match["axis"]])
    return op.Slice(part, *(_int64_vector(values) for values in numbers))


def exact_rule(
    name: str, formula: str, pattern: Pattern, replace: Any, test: RuleTest, *guards: Guard, makes: Sequence[str] = ()
) -> Rule:
    """A rule of this family that keeps the bits."""
    return Rule(
        name=name,
        formula=formula,
        pattern=pattern,
        replace=replace,
        makes=makes,
        guards=guards,
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=test,
    )


joined = op.Concat(rest("parts"), axis=attr("axis")).kept()
sliced = op.Slice(joined, **{name: attr(name) for name in ("starts", "ends", "axes", "steps")})
split = op.Split(
    joined, axis=attr("axis"), split=attr("sizes"), num_outputs=attr("number"), outputs=MOST_OUTPUTS
).kept()


def _neighbours(build: Any) -> list[ir.Value]:
    """The parts of a Split, of three Slices, or single elements."""
    whole = build.input("whole", build.dims("whole"))
    kind = build.chooser.pick("parts", ("of a Split", "Slices", "elements"))
    if kind == 2:
        taken = [build.node("Gather", [whole, build.constant(index)], {"axis": 1}) for index in (0, 1, 2, -2, 4)]
        return [build.node("Unsqueeze", [node.outputs[0], build.constant([1])]).outputs[0] for node in taken]
    if kind:
        bounds = ((0, 2), (2, -1), (-1, TO_THE_END))
        axis = build.constant([1])
        return [
            build.node("Slice", [whole, build.constant([start]), build.constant([end]), axis]).outputs[0]
            for start, end in bounds
        ]
    made: Any = build.node("Split", [whole, build.constant([2, 2, 1])], {"axis": 1}, outputs=3).outputs
    return list(made)


_PARTS: dict[str, list[Any]] = {"axis": [1], "axes": [(1,)], "steps": [(1,)], "number": [None]}

RULES = [
    exact_rule(
        "slice.slice_of_concat",
        "slice or split(concat(x, y))",
        sliced | split[0] | split[1] | split[2] | split[3],
        lambda match: _taken(match, _place(match)),
        RuleTest(
            shapes=({"parts": "b 2 | b 3 | b 1"}, {"parts": "b 2 | b 3"}, {"parts": "2 b | 2 b"}),
            attributes=(
                {**_PARTS, "starts": [(3,), (-4,)], "ends": [(5,), (4,), (-1,)], "sizes": [(1, 1, 3, 1)]},
                {**_PARTS, "starts": [(2,)], "ends": [(TO_THE_END,), (5,)], "sizes": [(2, 1, 1, 1)], "steps": [None]},
                {
                    **_PARTS,
                    "starts": [(0,)],
                    "ends": [(2,)],
                    "sizes": [(2, 2, 0, 0)],
                    "axis": [0],
                    "axes": [(0,), None],
                },
            ),
            followed_by="Identity",
            counterexamples={
                "over a border": Variation(attributes={"starts": (1,), "ends": (3,)}),
                "backwards": Variation(attributes={"starts": (4,), "ends": (1,), "steps": (-1,)}),
                "along another axis": Variation(attributes={"starts": (0,), "ends": (1,), "axes": (0,)}),
            },
        ),
        is_within_one_part,
        makes=("Slice",),
    ),
    exact_rule(
        "concat.concat_of_slices",
        "concat(split(x)), also of Slices or Gathers of x",
        op.Concat(rest("parts"), axis=attr("axis")),
        lambda match: _taken(match, _neighbouring_window(match)),
        RuleTest(
            shapes={"whole": "b 5"},
            inputs={"parts": _neighbours},
            attributes={"axis": [1, -1]},
            followed_by="Identity",
        ),
        are_neighbours,
        makes=("Slice",),
    ),
]
