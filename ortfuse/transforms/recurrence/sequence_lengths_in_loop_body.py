"""Rows that end before others: bodies that take one value before the end of a row, and another one from there on.

    h' = where(t < lengths, cell(x[t], h), h)     or     m cell(x[t], h) + (1 - m) h   with  m = t < lengths

The comparison may be made in the body, of the number of the run or an element of a range, or before the loop for all runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import DimLike
from ortfuse.ir.traits import RESHAPES
from ortfuse.transforms.node_builder import Builder
from ortfuse.transforms.recurrence.compact_masked_iterations import Mask
from ortfuse.transforms.recurrence.describe_loop import Iteration
from ortfuse.transforms.recurrence.match_masked_selects import (
    COMPARISONS,
    MIRRORED,
    added,
    axis_above,
    chosen,
    first_in_range,
    is_row,
    opposite,
    row_lengths,
)

OLDEST = 12
"""The opset from which on Max and Min compare integers."""


@dataclass(frozen=True)
class Lengths:
    """Run t is before the end of a row if t < length + offset, with a length for each row."""

    value: ir.Value
    offset: int

    def is_positive(self, facts: Facts) -> bool:
        """Whether no row is empty."""
        known = facts.range(self.value)
        return known is not None and known.low + self.offset >= 1

    def vector(self, runs: ir.Value, build: Builder) -> ir.Value:
        """The lengths as a vector of int64, from 0 to the number of runs, which is a vector of one element."""
        found = build.node("Cast", [build.reshape(self.value, [-1])], {"to": ir.DataType.INT64})[0]
        if self.offset:
            found = build.node("Add", [found, build.ints([self.offset])])[0]
        return build.node("Min", [build.node("Max", [found, build.ints([0])])[0], runs])[0]

    def finals(
        self,
        states: Sequence[ir.Value],
        initial: Sequence[ir.Value | None],
        ends: ir.Value,
        build: Builder,
        facts: Facts,
    ) -> list[ir.Value]:
        """The final states of an operator, [1, batch, size]; of rows that are empty (by their `ends`) the initial ones, not 0."""
        return final_states(states, initial, None if self.is_positive(facts) else ends, build)


def final_states(
    states: Sequence[ir.Value], initial: Sequence[ir.Value | None], ends: ir.Value | None, build: Builder
) -> list[ir.Value]:
    """The final states of an operator, [1, batch, size]; of rows that are empty the initial ones, not 0.

    `ends` are the lengths of the rows; `None` if none is empty.
    """
    if ends is None or all(first is None for first in initial):
        return [*states]
    has_any = build.unsqueeze(build.node("Greater", [ends, build.ints([0])])[0], 0, 2)
    return [
        state if first is None else build.node("Where", [has_any, state, first])[0]
        for state, first in zip(states, initial, strict=True)
    ]


@dataclass(frozen=True)
class Choice:
    """A value that is one value before the end of a row, and another one from there on (`None`: 0).

    With a mask instead of lengths, it is the first where the mask is true.
    """

    lengths: Lengths | Mask
    before: ir.Value
    behind: ir.Value | None


class Choices:
    """Finds the values of a body that are chosen by the lengths of rows."""

    def __init__(self, iteration: Iteration, facts: Facts) -> None:
        self._iteration, self._facts = iteration, facts
        self._known: dict[ir.Value, Choice | None] = {}

    def choice(self, value: ir.Value) -> Choice | None:
        """How a value, [batch, size], is chosen; `None` if it is not."""
        if value not in self._known:
            self._known[value] = self._found(value)
        return self._known[value]

    def _found(self, value: ir.Value) -> Choice | None:
        node = value.producer()
        if node is None or node.domain or node.graph is not self._iteration.body:
            return None
        found = chosen(node, self._facts, self._said)
        return None if found is None else Choice(*found)

    def _said(self, condition: ir.Value, batch: DimLike) -> tuple[Lengths | Mask, bool] | None:
        """The lengths of the rows, or a mask of all runs, and whether a condition holds before rows end, or from there on."""
        masks: list[Mask] = []
        found = self._lengths_of(condition, batch, masks)
        if found is not None or not masks or self._iteration.is_reverse:
            return found
        return masks[-1], True

    def _lengths_of(self, condition: ir.Value, batch: DimLike, masks: list[Mask]) -> tuple[Lengths, bool] | None:
        """The lengths that a condition compares; on the way there, masks of all runs that say the same are added."""
        axis, is_negated = None, False
        while True:
            if condition in self._iteration.elements:
                element = self._iteration.elements[condition]
                condition, axis = element.value, element.axis
            if axis is not None and self._facts.dtype(condition) == ir.DataType.BOOL:
                masks.append(Mask(condition, axis, is_negated))
            node = condition.producer()
            if node is None or node.domain or not node.inputs or node.inputs[0] is None:
                return None
            if node.op_type in COMPARISONS:
                found = self._compared(node, axis, batch)
                return None if found is None else (found[0], found[1] is not is_negated)
            if (other := opposite(node, self._facts)) is not None:
                is_negated, condition = not is_negated, other
                continue
            if axis is not None:
                axis = axis_above(node, axis, self._facts)
                if axis is None:
                    return None
            elif node.op_type not in RESHAPES | {"Cast"}:
                return None
            condition = node.inputs[0]

    def _compared(self, node: ir.Node, axis: int | None, batch: DimLike) -> tuple[Lengths, bool] | None:
        """The lengths with which a comparison compares runs, and whether it is true before the end."""
        left, right = node.inputs
        rank = self._facts.rank(node.outputs[0])
        if left is None or right is None or rank is None:
            return None
        for name, run, length in ((node.op_type, left, right), (MIRRORED[node.op_type], right, left)):
            start = self._first(run) if axis is None else self._first_of_range(run, axis - rank)
            place = None if axis is None else axis - rank
            ends = row_lengths(length, batch, place, self._facts, self._iteration.body)
            if start is not None and ends is not None:
                is_before, more = COMPARISONS[name]
                return Lengths(ends, more - start), is_before
        return None

    def _first(self, value: ir.Value) -> int | None:
        """Return the value in the first iteration, if the value is the iteration number plus that."""
        total = 0
        while True:
            if self._iteration.node.op_type == "Loop" and value is self._iteration.body.inputs[0]:
                return total
            if value in self._iteration.elements:
                element = self._iteration.elements[value]
                rank = self._facts.rank(element.value)
                first = None if rank is None else self._first_of_range(element.value, (element.axis or 0) - rank)
                return None if first is None else total + first
            node = value.producer()
            if (
                node is None
                or node.domain
                or node.graph is not self._iteration.body
                or not node.inputs
                or node.inputs[0] is None
            ):
                return None
            more = added(node, self._facts)
            if more is None:
                return None
            total, value = total + more, node.inputs[0]

    def _first_of_range(self, value: ir.Value, axis: int) -> int | None:
        """The first of the numbers in a row along an axis, counted from the back, that are all of a value before the loop."""
        shape = self._facts.shape(value)
        if shape is None or self._iteration.runs == 1 or not is_row(value, axis, self._facts):
            return None
        return first_in_range(value, self._facts) if shape[axis] == self._iteration.runs else None
