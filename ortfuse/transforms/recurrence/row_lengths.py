"""The lengths of rows as operands of a recurrent operator, and the final states of rows that are empty."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.loop_summary.masked_selects import Bound
from ortfuse.transforms.node_builder import Builder

OLDEST = 12
"""The opset from which on Max and Min compare integers."""


def lengths_vector(bound: Bound, steps: ir.Value, build: Builder) -> ir.Value:
    """The lengths as a vector of int64, from 0 to the number of steps, which is a vector of one element."""
    found = build.node("Cast", [build.reshape(bound.lengths, [-1])], {"to": ir.DataType.INT64})[0]
    if bound.number:
        found = build.node("Add", [found, build.ints([-bound.number])])[0]
    return build.node("Min", [build.node("Max", [found, build.ints([0])])[0], steps])[0]


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


def ends_of_empty_rows(bound: object, ends: ir.Value, facts: Facts) -> ir.Value | None:
    """The lengths of rows, of which one may be 0; `None` if none is."""
    return None if isinstance(bound, Bound) and bound.is_positive(facts) else ends
