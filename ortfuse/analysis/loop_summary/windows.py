"""Windows: states that keep the last elements of a sequence, as causal convolutions do from step to step.

W' = concat(W, x)[1:]     in whatever order of Slice and Concat; the index map of W' says so
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.index_maps import IndexMap, Read, Select, axes, axis
from ortfuse.analysis.loop_summary.loop_structure import State


@dataclass(frozen=True)
class Window:
    """A state that keeps the last `size` elements along an axis; `entry` is the next one, of size 1 along the axis."""

    state: State
    axis: int
    size: int
    entry: ir.Value


def window_of(state: State, facts: Facts) -> Window | None:
    """The window that a state is; `None` if it is none."""
    last, shape = state.after.producer(), facts.shape(state.before)
    joined = last if last is None or last.op_type == "Concat" or not last.inputs else _producer(last.inputs[0])
    if joined is None or joined.op_type != "Concat" or joined.domain or len(joined.inputs) != 2 or shape is None:
        return None
    entry = joined.inputs[1]
    newest, found = facts.shape(entry), None if entry is None else facts.index_map(state.after, [state.before, entry])
    if entry is None or newest is None or found is None or len(newest) != len(shape):
        return None
    if found.shape != shape or facts.shape(state.initial) != shape:
        return None
    for place, size in enumerate(shape):
        if isinstance(size, int) and size and newest == (*shape[:place], 1, *shape[place + 1 :]):
            index = axes(len(shape))
            older = Read(state.before, (*index[:place], axis(place) + 1, *index[place + 1 :]))
            newer = Read(entry, (*index[:place], 0, *index[place + 1 :]))
            if found == IndexMap.of(shape, Select(size - 2 - axis(place), older, newer)):
                return Window(state, place, size, entry)
    return None


def _producer(value: ir.Value | None) -> ir.Node | None:
    return None if value is None else value.producer()
