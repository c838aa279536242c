"""Masks with holes: runs that rows of a recurrence skip, wherever they are.

    h' = where(m[t], cell(x[t], h), h)      =      the cell over the runs of each row with m[t] alone, in their order

A row that keeps its states in an iteration is not changed by it. So the operator runs over the other iterations of each
row only, which are moved to its front. The state after iteration t is the result of the last iteration up to t
that is not skipped, or else the initial state.
"""

from __future__ import annotations

from functools import cached_property

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.loop_summary.masked_selects import Mask
from ortfuse.transforms.node_builder import Builder
from ortfuse.transforms.recurrence.sequence_operands import to_front

OLDEST = 13
"""The opset from which on TopK, CumSum and GatherElements are as they are written here, and axes of ReduceSum are an input."""


class Compacted:
    """The runs in which rows take part, moved to the front of each row.

    Args:
        mask: Which rows take part in which runs.
        build: Builds the nodes.
        facts: What is known of values.
        runs: The number of runs, a vector of one element.
    """

    def __init__(self, mask: Mask, build: Builder, facts: Facts, runs: ir.Value) -> None:
        self._build, self._runs = build, runs
        front = to_front(mask.value, mask.axis, facts.rank(mask.value) or 0, build)
        rows = build.reshape(front, [0, -1])
        self._mask = build.node("Not", [rows])[0] if mask.is_negated else rows

    @cached_property
    def counted(self) -> ir.Value:
        """1 where a row takes part, and 0 elsewhere, [runs, batch], as int64."""
        return self._build.node("Cast", [self._mask], {"to": ir.DataType.INT64})[0]

    @cached_property
    def counts(self) -> ir.Value:
        """In how many runs each row takes part, [batch]."""
        return self._build.reduce_sum(self.counted, 0)

    @cached_property
    def takes_part(self) -> ir.Value:
        """The mask of active rows, [iterations, batch, 1]."""
        return self._build.unsqueeze(self._mask, 2)

    @cached_property
    def _order(self) -> ir.Value:
        """The runs of each row: those that it takes part in, and then the others, [runs, batch, 1]."""
        build = self._build
        count = build.squeeze(self._runs, 0)
        numbers = build.unsqueeze(build.node("Range", [count, build.ints(0), build.ints(-1)])[0], 1)
        keys = build.node("Add", [build.node("Mul", [self.counted, count])[0], numbers])[0]
        return build.unsqueeze(build.node("TopK", [keys, self._runs], {"axis": 0}, 2)[1], 2)

    @cached_property
    def _last(self) -> ir.Value:
        """The place among its own runs of the last one up to each run, -1 where there is none, [runs, batch, 1]."""
        build = self._build
        total = build.node("CumSum", [self.counted, build.ints(0)])[0]
        return build.unsqueeze(build.node("Sub", [total, build.ints(1)])[0], 2)

    def sequence(self, value: ir.Value) -> ir.Value:
        """A sequence [runs, batch, size] with the runs of each row at its front."""
        return self._gathered(value, self._order)

    def spread(self, states: ir.Value, initial: ir.Value) -> ir.Value:
        """The states after all runs, [runs, batch, size], from those after the runs that rows take part in."""
        build = self._build
        found = self._gathered(states, build.node("Max", [self._last, build.ints(0)])[0])
        has_any = build.node("GreaterOrEqual", [self._last, build.ints(0)])[0]
        return build.node("Where", [has_any, found, initial])[0]

    def _gathered(self, value: ir.Value, places: ir.Value) -> ir.Value:
        build = self._build
        whole = build.node("Expand", [places, build.node("Shape", [value])[0]])[0]
        return build.node("GatherElements", [value, whole], {"axis": 0})[0]
