"""Windows: states that keep the last elements of a sequence, as causal convolutions do from step to step.

    W' = concat(W, x)[1:]          in run t: elements t, t + 1, ... of  concat(W before the loop, x of all runs)

A slice of a window is a window, and so is a convolution along it: both are computed on the whole sequence at once.
Whatever else a body does with windows is done with the windows of all runs side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.loop_summary.windows import Window
from ortfuse.analysis.node_parameters import parameter
from ortfuse.transforms.canonicalize.slices_to_split import part_of
from ortfuse.transforms.node_builder import Builder
from ortfuse.transforms.recurrence.sequence_operands import from_front, to_front

_ALL = 2**31
"""An end of a Slice that is behind every element."""

_WIDEST = 16
"""The widest windows that are put side by side for all runs."""

_PLAIN: tuple[tuple[Any, ...], ...] = ((None, (1,)), (None, (0, 0)), (None, "NOTSET", "VALID"))
"""The strides, pads and automatic pads of a convolution that begins at each position and takes nothing from outside."""


@dataclass(frozen=True)
class View:
    """In run t, the elements from `start + t` on, `size` of them, of a sequence that has `more` elements than there are runs."""

    sequence: ir.Value
    axis: int
    more: int
    start: int
    size: int

    @property
    def end(self) -> int:
        """Return the end of a Slice that covers the windows of all iterations."""
        behind = self.more - (self.start + self.size - 1)
        return -behind if behind else _ALL


class Views:
    """Return the windows that values of a body read, over all iterations.

    `whole` gives any value of the body along a new first axis.
    """

    def __init__(
        self,
        windows: Sequence[Window],
        whole: Callable[[ir.Value], ir.Value],
        constant: Callable[[ir.Value], ir.Value],
        build: Builder,
        facts: Facts,
    ) -> None:
        self._whole, self._constant = whole, constant
        self._build, self._facts = build, facts
        self._kept = {window.state.before: window for window in windows}
        self._sequences: dict[Window, ir.Value] = {}
        self._open: set[Window] = set()
        self._views: dict[ir.Value, View | None] = {}

    def of(self, value: ir.Value) -> ir.Value | None:
        """Return the windows of all iterations, stacked along a new first axis; `None` if the value is no part of a window."""
        view = self._view(value)
        if view is None or view.size > _WIDEST:
            return None
        rank = self._facts.rank(value)
        assert rank is not None
        sequence = to_front(view.sequence, view.axis, rank, self._build)
        places = (replace(view, start=view.start + place, size=1) for place in range(view.size))
        seen = [self._part(place, sequence, 0) for place in places]
        return self._build.concat([self._build.unsqueeze(one, view.axis + 1) for one in seen], view.axis + 1)

    def final(self, window: Window) -> ir.Value | None:
        """A window after the last iteration; `None` while that is computed."""
        sequence = self._sequence(window)
        return None if sequence is None else self._build.slice(sequence, window.axis, -window.size, _ALL)

    def _part(self, view: View, sequence: ir.Value, axis: int) -> ir.Value:
        """Return the part of a sequence that all iterations read, from the first element to the last."""
        if (view.start, view.end) == (0, _ALL):
            return sequence
        return self._build.slice(sequence, axis, view.start, view.end)

    def _sequence(self, window: Window) -> ir.Value | None:
        """The window before the loop, followed by the entries of all runs; `None` while these are computed from it."""
        if window not in self._sequences and window not in self._open:
            self._open.add(window)
            rank = self._facts.rank(window.entry)
            assert rank is not None
            entries = self._build.squeeze(self._whole(window.entry), window.axis + 1)
            entries = from_front(entries, window.axis, rank, self._build)
            self._sequences[window] = self._build.concat([window.state.initial, entries], window.axis)
        return self._sequences.get(window)

    def _view(self, value: ir.Value) -> View | None:
        if value not in self._views:
            self._views[value] = self._found(value)
        return self._views[value]

    def _found(self, value: ir.Value) -> View | None:
        window, node = self._kept.get(value), value.producer()
        if window is not None:
            sequence = self._sequence(window)
            return None if sequence is None else View(sequence, window.axis, window.size, 0, window.size)
        if node is None or node.domain:
            return None
        if node.op_type in ("Concat", "Conv"):
            return self._joined(node) if node.op_type == "Concat" else self._convolved(node)
        part = part_of(node, self._facts)
        view = None if part is None or node.inputs[0] is None else self._view(node.inputs[0])
        if view is None or part is None or part.axis != view.axis:
            return None
        return replace(view, start=view.start + part.start, size=part.end - part.start)

    def _joined(self, node: ir.Node) -> View | None:
        """The end of a window with the entry behind it."""
        if len(node.inputs) != 2 or node.inputs[0] is None:
            return None
        view, entry = self._view(node.inputs[0]), node.inputs[1]
        if view is None or parameter(node, "axis", self._facts) != view.axis:
            return None
        for window, sequence in self._sequences.items():
            if entry is window.entry and view.sequence is sequence and view.start + view.size == window.size:
                return replace(view, size=view.size + 1)
        return None

    def _convolved(self, node: ir.Node) -> View | None:
        """A convolution along a window, which is one along the sequence."""
        data, weight = node.inputs[0], node.inputs[1]
        shape = self._facts.shape(weight)
        if data is None or shape is None or len(shape) != 3 or not isinstance(shape[2], int):
            return None
        view, moves = self._view(data), [parameter(node, name, self._facts) for name in ("strides", "pads", "auto_pad")]
        if view is None or view.axis != 2 or any(one not in usual for one, usual in zip(moves, _PLAIN, strict=True)):
            return None
        gaps = parameter(node, "dilations", self._facts)
        size = view.size - (shape[2] - 1) * (1 if gaps is None else gaps[0])
        if size < 1:
            return None
        operands = [None if operand is None else self._constant(operand) for operand in node.inputs[1:]]
        made = self._build.like(node, [self._part(view, view.sequence, 2), *operands])
        return View(made, 2, size - 1, 0, size)
