"""Replace Gather with consecutive indices by Slice, and fold an offset into the bounds of its Range.

x + table[range(0, end)] = x + table[0 : end]                  table[positions[a : b]] = table[a : b], positions 0, 1, ...
range(0, n) + past = range(past, past + n)

The rules run in the last pass: patterns of masks and rotary embeddings have the spellings of exporters. The runtime itself makes
a Slice of such a Gather, with a node for each of its numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import is_nonnegative
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, Pattern, attr, built, computed, const, op, redundant, var

from .._rule_test_inputs import COST
from .._shared_guards import ints, is_filled_with, same_shape

PASS = "target_decompositions"

SOURCE = "ONNX operators Gather, Range and Slice"

_SHAPE_HAS_ENDS = 15
"""The opset from which on Shape has `start` and `end`."""

table, start, end, length, past = var("table"), var("start"), var("end"), var("length"), var("past")
one = var("one", is_filled_with(1), "1")


def _is_of_rows(axis: Any, facts: Facts) -> bool:
    return axis in (None, 0)


rows = attr("axis", _is_of_rows, "the first")
x = var("x")
counted = op.Range(start, end, one).kept()
positions = op.Range(var("zero", is_filled_with(0), "0"), length, one).kept().named("counted")


def starts_at_the_first_row(match: Match) -> Refusal | None:
    """The Range starts at 0: from another row on, a Slice may be clamped to one row and broadcast, where the Gather fails."""
    known = match.facts.ints(match["start"])
    first = None if known is None or len(known.elements) != 1 else known.elements[0]
    return match.unless_value("start", first == 0, "0") or match.unless_dtype("start", ir.DataType.INT64)


def axes_are_leading(match: Match) -> Refusal | None:
    """The Unsqueeze adds leading axes, which broadcasting adds too."""
    axes = match.get("axes")
    leading = axes is None or sorted(axis % (len(axes) + 1) for axis in axes) == list(range(len(axes)))
    return match.unless_value("axes", leading, "before the others")


def ends_at_a_size(match: Match) -> Refusal | None:
    """The Range ends at a nonnegative number: a Slice counts negative ones from the end."""
    known = match.facts.ints(match["end"])
    last = None if known is None or len(known.elements) != 1 else known.elements[0]
    return None if last is not None and is_nonnegative(last) else match.refuse("values_unknown", "end", "a size")


@redundant("a run in which it matters fails, as the Gather then looks for rows that are not there")
def there_are_several_rows(match: Match) -> Refusal | None:
    """The table has more than one row: beyond the end of others a Slice would be broadcast, where the Gather fails."""
    shape = match.shape("table")
    known = shape is not None and isinstance(shape[0], int) and shape[0] > 1
    return None if known else match.refuse_dimension("table", 0, "a number above 1")


def _vector(match: Match, name: str) -> Pattern:
    """A number as a vector: that which it was taken from, if there is one."""
    if match.facts.is_const(match[name]):
        return computed(f"{name}_scalar", lambda match: np.reshape(match.const(name), (1,)))
    node = match[name].producer()
    before = node.inputs[0] if node is not None and not node.domain and node.inputs else None
    if node is not None and before is not None and match.rank(name) == 0:
        known = match.facts.shape(before)
        if node.op_type in ("Squeeze", "Reshape") and known == (1,):
            return match.capture(f"{name}_vector", before)
        place, shape = match.facts.scalar(node.inputs[1]) if node.op_type == "Gather" else None, before.producer()
        if isinstance(place, int) and place >= 0 and shape is not None and _tells_all(shape, match.facts):
            sizes = match.capture(f"{name}_source", shape.inputs[0])
            made: Pattern = op.Shape(sizes, start=place, end=place + 1)
            return made
    single: Pattern = op.Reshape(var(name), computed("single", lambda match: ints([1])))
    return single


def _tells_all(node: ir.Node, facts: Facts) -> bool:
    """Whether a node is a Shape of all axes, of an opset in which one of some axes can be had."""
    whole = node.op_type == "Shape" and not node.domain and not node.attributes.get_int("start", 0)
    return whole and facts.version(node) >= _SHAPE_HAS_ENDS


def _cut(match: Match) -> Pattern:
    first = computed("first_axis", lambda match: ints([0]))
    made: Pattern = op.Add(x, op.Slice(table, _vector(match, "start"), _vector(match, "end"), first))
    return made


def _row_of(name: str, axis: int) -> Any:
    """The same as a vector."""
    return lambda build: build.node("Reshape", [_size_of(name, axis)(build), build.constant([1])]).outputs[0]


def _size_of(name: str, axis: int) -> Any:
    """The number of an input's elements along an axis."""

    def make(build: Any) -> ir.Value:
        sizes = build.node("Shape", [build.input(name, ["s", "t"])]).outputs[0]
        made: ir.Value = build.node("Gather", [sizes, build.constant(np.int64(axis))]).outputs[0]
        return made

    return make


def _scalar(number: int) -> Any:
    return lambda build: build.constant(np.int64(number))


def counts_all_rows(match: Match) -> Refusal | None:
    """The positions are 0, 1, ... along the last axis, the only one, as many as the table has rows."""
    shape, positions = match.shape("table"), match.const("positions")
    if shape is None or positions.shape != (*(1,) * (positions.ndim - 1), shape[0]) or not positions.ndim:
        return match.refuse("shape", "positions", "as many as the table has rows, along the last axis")
    row = bool(np.array_equal(positions.reshape(-1), np.arange(positions.size)))
    return match.unless_value("positions", row, "one after the other, from 0 on")


def cuts_the_last_axis(match: Match) -> Refusal | None:
    """The Slice is along the last axis of the positions, with step 1."""
    rank, steps = match.const("positions").ndim, match["steps"]
    known = match["along"] is not None and tuple(match["along"]) in ((-1,), (rank - 1,))
    if not known and not (match["along"] is None and rank == 1):
        return match.refuse("attribute", "along", "the last axis")
    return match.unless_value("steps", steps is None or tuple(steps) == (1,), "1")


def _cut_alike(match: Match) -> Pattern:
    first = computed("first_axis", lambda match: ints([0]))
    made: Pattern = op.Slice(table, start, end, first)
    rank = match.const("positions").ndim
    if rank == 1:
        return made
    wide: Pattern = op.Unsqueeze(made, computed("axes_of_rows", lambda match: ints(range(rank - 1))))
    return wide


@redundant(COST)
def counts_for_this(match: Match) -> Refusal | None:
    """The Range has no users but such sums."""
    left: list[ir.Value] = [match["counted"]]
    while left:
        value = left.pop()
        for user in value.consumers():
            if user.op_type == "Unsqueeze" and not user.domain:
                left.append(user.outputs[0])
            elif user.op_type != "Add" or user.domain or match["past"] not in user.inputs:
                return match.refuse("use", "counted", "such sums alone")
    return None


def _counted_on(match: Match) -> Pattern:
    made: Pattern = op.Range(past, op.Add(past, length), one)
    if match.get("axes") is None:
        return made
    wide: Pattern = op.Unsqueeze(made, computed("axes_of_it", lambda match: ints(match["axes"])))
    return wide


def are_sizes(match: Match) -> Refusal | None:
    """Both are scalars computed from sizes, whose sum fits 64 bits."""
    for name in ("length", "past"):
        known = match.facts.ints(match[name])
        if known is None or known.shape or known.elements[0] is None or not is_nonnegative(known.elements[0]):
            return match.refuse("values_unknown", name, "a size")
    return match.unless_dtype("past", ir.DataType.INT64)


RULES = [
    Rule(
        name="gather_of_range.range_indices_to_slice",
        formula="x + Gather(table, range(0, end))",
        pattern=op.Add(x, op.Gather(table, op.Unsqueeze(counted, axes=attr("axes")) | counted, axis=rows)),
        replace=built(_cut, makes=("Add", "Slice", "Reshape", "Shape")),
        guards=(starts_at_the_first_row, ends_at_a_size, axes_are_leading, there_are_several_rows, same_shape("x", "root")),
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes={"table": "30 4", "start": "", "end": "", "one": "", "x": "b t 4"},
            attributes={"axis": [0], "axes": [(0,)]},
            inputs={"start": _scalar(0), "end": _size_of("like", 1), "one": _scalar(1)},
            opset=18,
            counterexamples={
                "from the second row on": Variation(
                    inputs={"start": _scalar(1), "end": _scalar(6), "one": _scalar(1)}, shapes={"x": "b 5 4"}
                ),
                "from the end on": Variation(
                    inputs={"start": _scalar(-2), "end": _scalar(3), "one": _scalar(1)}, shapes={"x": "b 5 4"}
                ),
            },
        ),
    ),
    Rule(
        name="gather_of_range.sliced_positions_to_slice",
        formula="Gather(table, positions[start : end])",
        pattern=op.Gather(
            table, op.Slice(const("positions"), start, end, axes=attr("along"), steps=attr("steps")).kept(), axis=rows
        ),
        replace=built(_cut_alike, makes=("Slice", "Unsqueeze")),
        guards=(counts_all_rows, cuts_the_last_axis),
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes=(
                {"table": "6 4", "positions": "1 6", "start": "1", "end": "1"},
                {"table": "6 4", "positions": "6", "start": "1", "end": "1"},
            ),
            constants={"positions": np.arange(6)},
            attributes=(
                {"axis": [0], "along": [(1,), (-1,)], "steps": [(1,), None]},
                {"axis": [0], "along": [(0,), None], "steps": [(1,), None]},
            ),
            inputs={"start": lambda build: build.constant([0]), "end": _row_of("like", 1)},
            opset=18,
            counterexamples={
                "fewer positions": Variation(shapes={"table": "9 4"}),
                "of every second": Variation(attributes={"steps": (2,)}),
            },
        ),
    ),
    Rule(
        name="gather_of_range.fold_add_into_range",
        formula="range(0, length) + past",
        pattern=op.Add(op.Unsqueeze(positions, axes=attr("axes")).kept() | positions, past),
        replace=built(_counted_on, makes=("Range", "Add", "Unsqueeze")),
        guards=(are_sizes, counts_for_this),
        exactness=Exactness.EXACT,
        source="ONNX operator Range",
        test=RuleTest(
            shapes={"zero": "", "one": "", "length": "", "past": ""},
            attributes={"axes": [(1,), (0, 2)]},
            inputs={"zero": _scalar(0), "one": _scalar(1), "length": _size_of("like", 0), "past": _size_of("cache", 1)},
            opset=17,
            counterexamples={
                "from below 0": Variation(
                    inputs={
                        "zero": _scalar(0), "one": _scalar(1), "length": _size_of("like", 0), "past": _scalar(-2)
                    }
                ),
            },
        ),
    ),
]  # fmt: skip
