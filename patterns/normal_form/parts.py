"""Parts of parts, parts of joined tensors, and parts joined again.

slice(slice(x)) = slice(x)        gather(gather(x)) = gather(x)        pad(pad(x)) = pad(x)
slice(concat(x, y)) = slice(x) or slice(y)        split(concat(x, y)) = x, y        concat(split(x)) = x

Sizes need not be numbers: `concat(past, x)[past length:]` is x.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.dims import DimLike, at_most, is_nonnegative
from ortfuse.facts.facts import Facts
from ortfuse.pattern import Guard, Match, Op, Pattern, attr, computed, const, op, rest, var
from ortfuse.pattern.operators import UNKNOWN, parameter
from ortfuse.refusal import Refusal
from ortfuse.rewrite import Exactness, Proof, Rule, Variation

from .._common import array_like, ints

SOURCE = "ONNX operator specification"

TO_THE_END = 10**9
"""Ends of Slices from this number on stand for the end of any axis."""

MOST_OUTPUTS = 4
"""The most outputs of a Split that are looked for in a Concat."""

x = var("x")

Window = tuple[DimLike, DimLike]
"""The elements of an axis from the first number on, up to the second (exclusive)."""

Cut = tuple[int, int, int]
"""Start, end and step of a Slice along one axis."""


# Slices of Slices


def _cuts(match: Match, prefix: str) -> dict[int, Cut] | None:
    """For each axis its start, end and step, all numbers; `None` if not all are known."""
    starts, ends, axes, steps = (match[f"{prefix}_{name}"] for name in ("starts", "ends", "axes", "steps"))
    rank = match.rank("x")
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = (1,) * len(starts) if steps is None else steps
    numbers = [*starts, *ends, *axes, *steps]
    if rank is None or not all(isinstance(number, int) for number in numbers) or 0 in steps:
        return None
    if len({len(starts), len(ends), len(axes), len(steps)}) > 1 or len(set(axes)) < len(axes):
        return None
    return {axis: cut for axis, *cut in zip(axes, starts, ends, steps, strict=True)}  # type: ignore[misc]


def _composed(dim: DimLike, first: Cut, second: Cut) -> Cut | None:
    """One cut along an axis of this size with the effect of two; `None` if that depends on a size that is no number."""
    if not isinstance(dim, int):
        return _composed_forwards(first, second) or _reversed_twice(first, second)
    kept = range(dim)[slice(*first)][slice(*second)]
    if not kept:
        return 0, 0, 1
    return kept.start, kept.stop if kept.step > 0 or kept.stop >= 0 else -dim - 1, kept.step


def _composed_forwards(first: Cut, second: Cut) -> Cut | None:
    """The same along an axis of any size, for cuts that count their starts from the front."""
    (start, end, step), (skipped, last, stride) = first, second
    if min(start, skipped) < 0 or min(step, stride) < 0:
        return None
    begin, taken = start + skipped * step, step * stride
    if last >= TO_THE_END:
        return begin, end, taken
    if last >= 0:
        return None if end < 0 else (begin, min(end, start + last * step), taken)
    if step > 1 or 0 <= end < TO_THE_END:
        return None
    return begin, last if end >= TO_THE_END else end + last, taken


def _reversed_twice(first: Cut, second: Cut) -> Cut | None:
    """The whole axis, if both cuts turn it round."""
    turned = all(
        (start == -1 or start >= TO_THE_END) and end <= -TO_THE_END and step == -1
        for start, end, step in (first, second)
    )
    return (0, TO_THE_END, 1) if turned else None


def _merged_cuts(match: Match) -> dict[int, Cut] | None:
    inner, outer, shape = _cuts(match, "inner"), _cuts(match, "outer"), match.shape("x")
    if inner is None or outer is None or shape is None:
        return None
    merged = {**inner, **outer}
    for axis in inner.keys() & outer.keys():
        found = _composed(shape[axis], inner[axis], outer[axis])
        if found is None:
            return None
        merged[axis] = found
    cutting = {axis: cut for axis, cut in merged.items() if not _keeps_all(shape[axis], cut)}
    return dict(sorted((cutting or merged).items()))


def _keeps_all(dim: DimLike, cut: Cut) -> bool:
    """Whether a cut takes a whole axis of this size: exporters write such cuts along all other axes."""
    start, end, step = cut
    return (start, step) == (0, 1) and (end >= TO_THE_END or (isinstance(dim, int) and end >= dim))


def is_one_slice(match: Match) -> Refusal | None:
    """All numbers are known, and one Slice has the effect of both."""
    if _merged_cuts(match) is not None:
        return None
    return match.refuse("values_unknown", "root", "a part of x between known numbers")


def is_only_sliced(match: Match) -> Refusal | None:
    """Nothing but Slices reads what is between, so that no node is left over: rows taken for two sets of columns, say."""
    between = match["between"]
    readers = [(use.node.op_type, use.node.domain, use.idx) for use in between.uses()]
    if between.is_graph_output() or any(reader != ("Slice", "", 0) for reader in readers):
        return match.refuse("condition", "between", "a part of which only parts are read")
    return None


def _cut_numbers(number: int) -> Any:
    """The starts, ends, axes or steps of the merged Slice."""

    def values(match: Match) -> Any:
        merged = _merged_cuts(match) or {}
        return ints([(cut[0], cut[1], axis, cut[2])[number] for axis, cut in merged.items()])

    return computed(("starts", "ends", "axes", "steps")[number], values)


def _sliced(operand: Pattern, prefix: str) -> Op:
    made: Op = op.Slice(operand, **{name: attr(f"{prefix}_{name}") for name in ("starts", "ends", "axes", "steps")})
    return made


# Parts of what was joined


def _split_window(value: ir.Value, node: ir.Node, axis: int, facts: Facts) -> Window | None:
    """What part of its input an output of a Split is."""
    shapes = [facts.shape(output) for output in node.outputs[: (value.index() or 0) + 1]]
    if parameter(node, "axis", facts) != axis or any(shape is None or axis >= len(shape) for shape in shapes):
        return None
    sizes = [shape[axis] for shape in shapes if shape is not None]
    start = sum(sizes[:-1], start=0)
    return start, start + sizes[-1]


def _slice_window(node: ir.Node, axis: int, facts: Facts) -> Window | None:
    """What part of its input a Slice along one axis is; `None` if it does more, or may reach over an end."""
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


def _window(value: ir.Value, axis: int, facts: Facts) -> tuple[ir.Value, Window] | None:
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
    facts, axis, window = match.facts, match["axis"], _window(match.root, match["axis"], match.facts)
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
    """What is taken is provably part of one operand: all of it, or between known numbers."""
    place = _place(match)
    if place is not None and (_is_whole(match, *place) or all(isinstance(bound, int) for bound in place[1])):
        return None
    return match.refuse("values_unknown", "root", "within one operand of the Concat")


def _is_whole(match: Match, part: ir.Value, window: Window) -> bool:
    shape = match.facts.shape(part)
    return shape is not None and window == (0, shape[match["axis"]])


# Joining what was taken apart


def _joined(match: Match) -> tuple[ir.Value, Window] | None:
    """The tensor of which the operands of the Concat are neighbouring parts, and which part they make up."""
    axis = match["axis"]
    found = [_window(part, axis, match.facts) for part in match["parts"]]
    if len(found) < 2 or found[0] is None:
        return None
    whole, (start, end) = found[0]
    for following in found[1:]:
        if following is None or following[0] is not whole or following[1][0] != end:
            return None
        end = following[1][1]
    return whole, (start, end)


def are_neighbours(match: Match) -> Refusal | None:
    """The operands are all parts of one tensor, one next to the other: all of it, or between known numbers."""
    found = _joined(match)
    if found is not None and (_is_whole(match, *found) or all(isinstance(bound, int) for bound in found[1])):
        return None
    return match.refuse("value", "root", "made of neighbouring parts of one tensor", "joined of other parts")


def _constant(numbers: list[Any]) -> Pattern:
    return computed(str(numbers), lambda match: ints(numbers))


def _taken(match: Match, place: tuple[ir.Value, Window] | None) -> Pattern:
    """A tensor, or a part of it."""
    assert place is not None
    part = match.capture("part", place[0])
    if _is_whole(match, *place):
        return part
    start, end = place[1]
    numbers = ([start], [end], [match["axis"]])
    return op.Slice(part, *(_constant(values) for values in numbers))


# Gather and Pad


def indices_compose(match: Match) -> Refusal | None:
    """The inner indices keep the axis, and the outer ones are within it."""
    inner, outer = match.const("inner"), match.const("outer")
    if not inner.ndim:
        return match.refuse("rank", "inner", "at least 1")
    within = bool(np.all((-len(inner) <= outer) & (outer < len(inner))))
    return match.unless_value("outer", within, "within the number of inner indices")


def _is_known(numbers: Any, facts: Facts) -> bool:
    return isinstance(numbers, tuple | list) and all(isinstance(number, int) and number >= 0 for number in numbers)


def _is_constant(mode: Any, facts: Facts) -> bool:
    return mode in (None, "constant")


def pads_alike(match: Match) -> Refusal | None:
    """Both pad with the same number, of a known type."""
    if match.dtype("root") is None:
        return match.refuse("dtype", "root")
    inner, outer = (match[f"{name}_filling"] or 0 for name in ("inner", "outer"))
    return match.unless_value("outer_filling", inner == outer, inner)


def _all_pads(match: Match) -> list[int]:
    return [one + other for one, other in zip(match["inner_pads"], match["outer_pads"], strict=True)]


def _filling(match: Match) -> Any:
    number = match["outer_filling"] or 0
    return array_like(match, number) if number else None


def _padded(operand: Pattern, prefix: str) -> Op:
    pads = attr(f"{prefix}_pads", _is_known, "at least 0")
    mode = attr(f"{prefix}_mode", _is_constant, "constant")
    made: Op = op.Pad(operand, pads=pads, constant_value=attr(f"{prefix}_filling"), mode=mode)
    return made


def _rule(
    name: str, formula: str, pattern: Pattern, replace: Any, proof: Proof, *guards: Guard, makes: Sequence[str] = ()
) -> Rule:
    return Rule(
        name=f"parts.{name}",
        formula=formula,
        pattern=pattern,
        replace=replace,
        makes=makes,
        guards=guards,
        exactness=Exactness.EXACT,
        source=SOURCE,
        proof=proof,
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


def _outer_indices(build: Any) -> ir.Value:
    """One index or two."""
    made: ir.Value = build.constant(np.array([-1, 2] if build.dims("outer") else 2))
    return made


_PARTS: dict[str, list[Any]] = {"axis": [1], "axes": [(1,)], "steps": [(1,)], "number": [None]}

RULES = [
    _rule(
        "of_slice",
        "slice(slice(x))",
        _sliced(_sliced(x, "inner").kept().named("between"), "outer"),
        op.Slice(x, *(_cut_numbers(number) for number in range(4))),
        Proof(
            shapes=({"x": "7 b"}, {"x": "b 6"}),
            attributes=(
                {
                    "inner_starts": [(1,), (5,)],
                    "inner_ends": [(6,), (-20,)],
                    "inner_axes": [(0,)],
                    "inner_steps": [(1,), (-2,)],
                    "outer_starts": [(1,), (-1,)],
                    "outer_ends": [(3,), (-9,)],
                    "outer_axes": [(0,)],
                    "outer_steps": [(1,), (-1,)],
                },
                {
                    "inner_starts": [(1,)],
                    "inner_ends": [(TO_THE_END,)],
                    "inner_axes": [(0,), None],
                    "inner_steps": [(1,), None],
                    "outer_starts": [(1,)],
                    "outer_ends": [(-1,)],
                    "outer_axes": [(1,)],
                    "outer_steps": [(1,)],
                },
            ),
        ),
        is_one_slice,
        is_only_sliced,
    ),
    _rule(
        "of_joined",
        "slice or split(concat(x, y))",
        sliced | split[0] | split[1] | split[2] | split[3],
        lambda match: _taken(match, _place(match)),
        Proof(
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
    _rule(
        "joined",
        "concat(split(x)), of Slices or elements",
        op.Concat(rest("parts"), axis=attr("axis")),
        lambda match: _taken(match, _joined(match)),
        Proof(
            shapes={"whole": "b 5"},
            inputs={"parts": _neighbours},
            attributes={"axis": [1, -1]},
            followed_by="Identity",
        ),
        are_neighbours,
        makes=("Slice",),
    ),
    _rule(
        "of_gather",
        "gather(gather(x)), constant indices",
        op.Gather(op.Gather(x, const("inner"), axis=attr("axis")).kept(), const("outer"), axis=attr("axis")),
        op.Gather(x, computed("indices", lambda match: match.const("inner")[match.const("outer")]), axis=attr("axis")),
        Proof(
            shapes=({"x": "b 5", "inner": "4", "outer": "2"}, {"x": "b 5", "inner": "4", "outer": ""}),
            constants={"inner": np.array([4, 0, -2, 1])},
            inputs={"outer": _outer_indices},
            attributes={"axis": [1]},
            counterexamples={
                "of another axis": Variation(shapes={"x": "b 5 6", "inner": ""}, constants={"inner": np.array(2)}),
                "of rows of indices": Variation(shapes={"inner": "3 2"}, constants={"inner": np.arange(6) - 2}),
            },
        ),
        indices_compose,
    ),
    _rule(
        "of_pad",
        "pad(pad(x))",
        _padded(_padded(x, "inner"), "outer"),
        (
            op.Pad(x, computed("pads", lambda match: ints(_all_pads(match))), computed("filling", _filling)),
            op.Pad(x, pads=_all_pads),
        ),
        Proof(
            shapes={"x": "b 3"},
            attributes={
                "inner_pads": [(0, 1, 0, 2)],
                "outer_pads": [(0, 0, 1, 3)],
                "inner_filling": [None, 0.5],
                "outer_filling": [None, 0.5],
                "inner_mode": ["constant"],
                "outer_mode": ["constant"],
            },
            counterexamples={
                "of different numbers": Variation(attributes={"inner_filling": 0.5, "outer_filling": 0.25}),
                "one cuts off": Variation(attributes={"inner_pads": (0, -1, 0, 0), "outer_pads": (0, 2, 0, 0)}),
                "the other cuts off all": Variation(
                    attributes={"inner_pads": (0, 0, 0, 5), "outer_pads": (0, -4, 0, 0)}
                ),
                "one reflects": Variation(attributes={"inner_mode": "reflect"}),
            },
            redundant={"check of attribute outer_pads": "what cuts off no more than was there adds up as well"},
        ),
        pads_alike,
    ),
]
