"""Rows that end before others: bodies that take one value before the end of a row, and another one from there on.

    h' = where(t < lengths, cell(x[t], h), h)     or     m cell(x[t], h) + (1 - m) h   with  m = t < lengths

The comparison may be made in the body, of the number of the run or an element of a range, or before the loop for all runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

import onnx_ir as ir

from ortfuse.dims import DimLike
from ortfuse.facts.facts import Facts
from ortfuse.graph.traits import RESHAPES
from ortfuse.passes.building import Builder
from ortfuse.passes.recurrence.iteration import Iteration
from ortfuse.pattern.operators import parameter

OLDEST = 12
"""The opset from which on Max and Min compare integers."""

_COMPARISONS = {"Less": (True, 0), "LessOrEqual": (True, 1), "GreaterOrEqual": (False, 0), "Greater": (False, 1)}
"""Whether run ? length is true before the end, and what is to be added to a length for the end."""

_MIRRORED = {"Less": "Greater", "LessOrEqual": "GreaterOrEqual", "Greater": "Less", "GreaterOrEqual": "LessOrEqual"}
_INTEGERS = (ir.DataType.INT32, ir.DataType.INT64)


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


@dataclass(frozen=True)
class Choice:
    """A value that is one value before the end of a row, and another one from there on."""

    lengths: Lengths
    before: ir.Value
    behind: ir.Value


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
        node, shape = value.producer(), self._facts.shape(value)
        if node is None or node.domain or node.graph is not self._iteration.body or shape is None or len(shape) != 2:
            return None
        for condition, yes, no in self._conditions(node):
            said = self._said(condition, shape[0])
            if said is not None:
                return Choice(said[0], *((yes, no) if said[1] else (no, yes)))
        return None

    def _conditions(self, node: ir.Node) -> Iterator[tuple[ir.Value, ir.Value, ir.Value]]:
        """Conditions by which a node may choose, with what it takes if they are true and if they are not."""
        operands = [value for value in node.inputs if value is not None]
        if node.op_type == "Where":
            yield operands[0], operands[1], operands[2]
        products = [value.producer() for value in operands] if node.op_type == "Add" else []
        if len([one for one in products if one is not None and one.op_type == "Mul" and not one.domain]) != 2:
            return
        for first, second in permutations(one for one in products if one is not None):
            for mask, yes in permutations(value for value in first.inputs if value is not None):
                for rest, no in permutations(value for value in second.inputs if value is not None):
                    if self._is_rest(rest, mask):
                        yield mask, yes, no

    def _is_rest(self, value: ir.Value, mask: ir.Value) -> bool:
        """Whether a value is 1 - mask."""
        node = value.producer()
        if node is None or node.op_type != "Sub" or node.domain or node.inputs[0] is None:
            return False
        return node.inputs[1] is mask and self._facts.fill(node.inputs[0]) == 1

    def _said(self, condition: ir.Value, batch: DimLike) -> tuple[Lengths, bool] | None:
        """The lengths of the rows, and whether a condition holds before they end, or from there on."""
        node = condition.producer()
        if node is not None and node.op_type == "Expand" and not node.domain and node.inputs[0] is not None:
            condition = node.inputs[0]
        if self._facts.shape(condition) != (batch, 1):
            return None
        axis, is_negated = None, False
        while True:
            if condition in self._iteration.elements:
                element = self._iteration.elements[condition]
                condition, axis = element.value, element.axis
            node = condition.producer()
            if node is None or node.domain or not node.inputs or node.inputs[0] is None:
                return None
            if node.op_type in _COMPARISONS:
                found = self._compared(node, axis, batch)
                return None if found is None else (found[0], found[1] is not is_negated)
            if axis is not None:
                axis = self._axis_above(node, axis)
                if axis is None:
                    return None
            elif node.op_type not in RESHAPES | {"Cast", "Not"}:
                return None
            is_negated ^= node.op_type == "Not"
            condition = node.inputs[0]

    def _axis_above(self, node: ir.Node, axis: int) -> int | None:
        """Where an axis is in the operand of a node that moves axes or treats elements alike."""
        before, after = self._facts.shape(node.inputs[0]), self._facts.shape(node.outputs[0])
        if before is None or after is None or after[axis] == 1:
            return None
        if node.op_type in ("Cast", "Not"):
            return axis
        if node.op_type == "Transpose":
            found = parameter(node, "perm", self._facts)[axis]
            return found if isinstance(found, int) else None
        places = [place for place, size in enumerate(before) if size != 1]
        if node.op_type not in RESHAPES or [before[place] for place in places] != [size for size in after if size != 1]:
            return None
        return places[sum(size != 1 for size in after[:axis])]

    def _compared(self, node: ir.Node, axis: int | None, batch: DimLike) -> tuple[Lengths, bool] | None:
        """The lengths with which a comparison compares runs, and whether it is true before the end."""
        left, right = node.inputs
        rank = self._facts.rank(node.outputs[0])
        if left is None or right is None or rank is None:
            return None
        for name, run, length in ((node.op_type, left, right), (_MIRRORED[node.op_type], right, left)):
            start = self._first(run) if axis is None else self._first_of_range(run, axis - rank)
            ends = self._row_lengths(length, batch, None if axis is None else axis - rank)
            if start is not None and ends is not None:
                is_before, more = _COMPARISONS[name]
                return Lengths(ends, more - start), is_before
        return None

    def _first(self, value: ir.Value) -> int | None:
        """What a value in the body is in the first run, if it is the number of the run plus that."""
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
            more = self._step(node)
            if more is None:
                return None
            total, value = total + more, node.inputs[0]

    def _first_of_range(self, value: ir.Value, axis: int) -> int | None:
        """The first of the numbers in a row along an axis, counted from the back, that are all of a value before the loop."""
        shape = self._facts.shape(value)
        if shape is None or -axis > len(shape) or self._iteration.runs == 1:
            return None
        if any(size != 1 for place, size in enumerate(shape) if place != len(shape) + axis):
            return None
        if shape[axis] != self._iteration.runs:
            return None
        known, total = self._facts.ints(value), 0
        if known is not None and known.elements:
            first = known.elements[0]
            is_row = isinstance(first, int) and list(known.elements) == list(range(first, first + len(known.elements)))
            return first if is_row and isinstance(first, int) else None
        while (node := value.producer()) is not None and not node.domain and node.op_type != "Range":
            more = self._step(node)
            if more is None or node.inputs[0] is None:
                return None
            total, value = total + more, node.inputs[0]
        if node is None or node.domain or self._facts.scalar(node.inputs[2]) != 1:
            return None
        begin = self._facts.scalar(node.inputs[0])
        return begin + total if isinstance(begin, int) else None

    def _step(self, node: ir.Node) -> int | None:
        """What a node adds to integers, without changing anything else about them but axes of size 1."""
        if node.op_type in ("Add", "Sub"):
            number = self._facts.scalar(node.inputs[1])
            return None if not isinstance(number, int) else number if node.op_type == "Add" else -number
        is_moved = node.op_type in RESHAPES | {"Cast"} and self._facts.dtype(node.outputs[0]) in _INTEGERS
        return 0 if is_moved else None

    def _row_lengths(self, value: ir.Value, batch: DimLike, axis: int | None) -> ir.Value | None:
        """A value before the loop that has one element for each row, and none of its own for the runs along an axis."""
        while value.graph is self._iteration.body and (node := value.producer()) is not None and not node.domain:
            if node.op_type not in RESHAPES or node.inputs[0] is None:
                return None
            value = node.inputs[0]
        shape = self._facts.shape(value)
        if shape is None or value.graph is self._iteration.body or self._facts.dtype(value) not in _INTEGERS:
            return None
        if axis is not None and -axis <= len(shape) and shape[axis] != 1:
            return None
        rows = [size for size in shape if size != 1]
        return value if rows == ([] if batch == 1 else [batch]) else None
