"""Values of a body that follow from the iteration number alone: elements of sequences, and induction variables."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.loop_summary.induction_variables import Affine
from ortfuse.analysis.loop_summary.linear_form import Source
from ortfuse.analysis.loop_summary.loop_structure import Iteration
from ortfuse.transforms.node_builder import SLICES_HAVE_STEPS, Builder
from ortfuse.transforms.recurrence.sequence_operands import to_front

ALL = 2**31
"""An end of a Slice that is behind every element."""

_RANGES = 11
"""The opset from which on there is Range."""


class UnresolvedError(Exception):
    """Part of a body is nothing that can be computed for all iterations at once; says what."""


@dataclass(frozen=True)
class OverIterations:
    """Builds values over all iterations, along a new first axis. All raise `UnresolvedError` if that is not known how to do."""

    iteration: Iteration
    build: Builder
    facts: Facts

    def count(self) -> ir.Value:
        """The number of iterations as a vector of one element."""
        runs, element, limit = self.iteration.runs, self.iteration.sized, self.iteration.node.inputs[0]
        if isinstance(runs, int):
            return self.build.ints([runs])
        if element is not None:
            return self.build.gather(self.build.node("Shape", [element.value])[0], 0, [element.axis or 0])
        known = self.facts.ints(limit) if self.iteration.counter is not None else None
        if limit is None or known is None or known.elements != (runs,) or self.facts.dtype(limit) != ir.DataType.INT64:
            raise UnresolvedError("the number of its runs is not that of the elements of a value")
        return self.build.reshape(limit, [1])

    def numbers(self) -> ir.Value:
        """The numbers of the iterations."""
        if self.build.opset < _RANGES:
            raise UnresolvedError(f"the numbers of its runs are not known before opset {_RANGES}")
        count = self.build.squeeze(self.count(), 0)
        return self.build.node("Range", [self.build.ints(0), count, self.build.ints(1)])[0]

    def counted(self, value: ir.Value, counter: Affine, iterations: ir.Value) -> ir.Value:
        """The numbers that an induction variable is in iterations, a vector, with the axes of the variable behind them."""
        rank, dtype, found = self.facts.rank(value), self.facts.dtype(value), iterations
        if not isinstance(counter.start, int) or rank is None or dtype is None:
            raise UnresolvedError(f"the number with which '{value.name}' begins is not known")
        for op_type, number, neutral in (("Mul", counter.step, 1), ("Add", counter.start, 0)):
            if number != neutral:
                found = self.build.node(op_type, [found, self.build.ints([number])])[0]
        if dtype != ir.DataType.INT64:
            found = self.build.node("Cast", [found], {"to": dtype.value})[0]
        return self.build.unsqueeze(found, *range(1, rank + 1))

    def elements(self, source: Source, rank: int) -> ir.Value:
        """The elements of a sequence, each of a rank."""
        taken = self.iteration.taken(source)
        if taken is None:
            raise UnresolvedError(f"an element of '{source.value.name}' is the same in all runs")
        before, behind, step = taken
        if step > 1 and self.build.opset < SLICES_HAVE_STEPS:
            raise UnresolvedError("it takes some of the elements, which needs opset 10 to be written")
        found = to_front(source.value, source.axis or 0, rank + 1, self.build)
        if before or behind or step > 1:
            found = self.build.slice(found, 0, before, -behind or ALL, max(step, 1))
        return found if step > 0 else self.reversed(found)

    def reversed(self, value: ir.Value) -> ir.Value:
        """The elements along the first axis from the last to the first."""
        if self.build.opset < SLICES_HAVE_STEPS:
            raise UnresolvedError("elements are taken from the last to the first, which needs opset 10 to be written")
        return self.build.reverse(value)
