"""Rows that end before others, in steps that are written one after the other: states that are kept from the end of a row on.

    h[t] = where(t < lengths, cell(x[t], h[t - 1]), h[t - 1])          in any spelling that `masks` knows

The comparison is made with a number in each step, or with all numbers at once, of which each step takes its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import DimLike
from ortfuse.ir.traits import RESHAPES
from ortfuse.transforms.recurrence.linear_form import Forms, Source
from ortfuse.transforms.recurrence.match_masked_selects import (
    COMPARISONS,
    MIRRORED,
    axis_above,
    chosen,
    first_in_range,
    is_row,
    opposite,
    row_lengths,
)


@dataclass(frozen=True)
class Bound:
    """A step is before the end of a row if `number` < its length."""

    lengths: ir.Value
    number: int

    def further(self, steps: int) -> Bound:
        """The bound so many steps further along the rows."""
        return replace(self, number=self.number + steps)


@dataclass(frozen=True)
class Kept:
    """A value that is one value before the end of a row, and another one from there on (`None`: 0)."""

    bound: Bound
    before: ir.Value
    behind: ir.Value | None


class Bounds:
    """Finds the values that are chosen by the lengths of rows."""

    def __init__(self, facts: Facts) -> None:
        self._facts, self._forms = facts, Forms(facts)
        self._said: dict[tuple[ir.Value, DimLike], tuple[Bound, bool] | None] = {}

    def kept(self, node: ir.Node) -> Kept | None:
        """How the result of a node, [batch, size], is chosen; `None` if it is not."""
        found = chosen(node, self._facts, self._bound) if len(node.outputs) == 1 else None
        return None if found is None else Kept(*found)

    def _bound(self, condition: ir.Value, batch: DimLike) -> tuple[Bound, bool] | None:
        """The bound that a condition compares with, and whether it holds before the end of a row, or from there on."""
        key = condition, batch
        if key not in self._said:
            self._said[key] = self._found(condition, batch)
        return self._said[key]

    def _found(self, condition: ir.Value, batch: DimLike) -> tuple[Bound, bool] | None:
        at, is_negated = Source(condition), False
        while True:
            if at.axis is None:
                at = self._element(at.value)
            node = at.value.producer()
            if node is None or node.domain or not node.inputs or node.inputs[0] is None:
                return None
            if node.op_type in COMPARISONS:
                found = self._compared(node, at, batch)
                return None if found is None else (found[0], found[1] is not is_negated)
            if (other := opposite(node, self._facts)) is not None:
                at, is_negated = replace(at, value=other), not is_negated
                continue
            axis = None if at.axis is None else axis_above(node, at.axis, self._facts)
            if axis is None and (at.axis is not None or node.op_type not in RESHAPES | {"Cast"}):
                return None
            at = replace(at, value=node.inputs[0], axis=axis)

    def _element(self, value: ir.Value) -> Source:
        """The element that a value is of another one, as it is or with an axis of size 1 more; or the value."""
        found = self._forms.source(Source(value))
        part = self._forms.unit_part(value) if found.axis is None else None
        return found if part is None else part[0]

    def _compared(self, node: ir.Node, at: Source, batch: DimLike) -> tuple[Bound, bool] | None:
        """The bound of an element of a comparison, and whether the comparison is true before the end of a row."""
        left, right = node.inputs
        rank = self._facts.rank(node.outputs[0])
        if left is None or right is None or rank is None:
            return None
        axis = None if at.axis is None else at.axis - rank
        for name, run, length in ((node.op_type, left, right), (MIRRORED[node.op_type], right, left)):
            number = self._number(run, axis, at.index)
            lengths = row_lengths(length, batch, axis, self._facts)
            if number is not None and lengths is not None:
                is_before, more = COMPARISONS[name]
                return Bound(lengths, number - more), is_before
        return None

    def _number(self, value: ir.Value, axis: int | None, index: int | ir.Value) -> int | None:
        """The number that a value is, or that stands at an index of a row along an axis, counted from the back."""
        if axis is None:
            number = self._facts.scalar(value)
            return int(number) if isinstance(number, int) else None
        if not is_row(value, axis, self._facts) or not isinstance(index, int):
            return None
        known = self._facts.ints(value)
        if known is not None and index < len(known.elements):
            found = known.elements[index]
            return found if isinstance(found, int) else None
        first = first_in_range(value, self._facts)
        return None if first is None else first + index
