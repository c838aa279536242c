"""The operands of a recurrent operator for a chain of cells: the sequences of their inputs, and the initial states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.loop_summary.linear_form import Source
from ortfuse.analysis.transfer.value_fact import Shape
from ortfuse.transforms.node_builder import Builder


@dataclass(frozen=True)
class Track:
    """One input over all steps: elements of one value in a row, the same for all steps, or values of any origin.

    Attributes:
        sources: The input of each step.
        start: The index at the first step, if the steps take one element after the other along an axis of one value.
        direction: 1 if the indices rise, -1 if they fall, 0 if there is no such axis.
    """

    sources: tuple[Source, ...]
    start: int
    direction: int

    @classmethod
    def of(cls, sources: Sequence[Source]) -> Track:
        """The track of the inputs of all steps."""
        first = sources[0]
        indices = [source.index for source in sources if isinstance(source.index, int)]
        is_one = all((one.value, one.axis) == (first.value, first.axis) for one in sources)
        if first.axis is not None and is_one and len(indices) == len(sources):
            for direction in (1, -1):
                if indices == list(range(indices[0], indices[0] + direction * len(indices), direction)):
                    return cls(tuple(sources), indices[0], direction)
        return cls(tuple(sources), 0, 0)

    @property
    def is_constant(self) -> bool:
        """Whether all steps have the same input."""
        return len(set(self.sources)) == 1

    @property
    def is_scattered(self) -> bool:
        """Whether the inputs of the steps have to be put together."""
        return not self.direction and not self.is_constant

    def sequence(self, build: Builder, facts: Facts, direction: int) -> ir.Value:
        """The inputs as one tensor [steps, batch, size], in the order of the steps, or for -1 in the reverse order."""
        first, count = self.sources[0], len(self.sources)
        if self.is_constant:
            repeats = build.ints([count, 1, 1])
            return build.node("Tile", [build.unsqueeze(value_of(first, build), 0), repeats])[0]
        if self.direction == direction and first.axis is not None:
            shape = facts.shape(first.value) or ()
            low, value = min(self.start, self.start + direction * (count - 1)), first.value
            if low or shape[first.axis] != count:
                value = build.slice(value, first.axis, low, low + count)
            return to_front(value, first.axis, len(shape), build)
        return build.concat([build.unsqueeze(value_of(one, build), 0) for one in self.sources[::direction]], 0)


def to_front(value: ir.Value, axis: int, rank: int, build: Builder) -> ir.Value:
    """The value with an axis moved before all others."""
    return build.transpose(value, [axis, *(other for other in range(rank) if other != axis)])


def from_front(value: ir.Value, axis: int, rank: int, build: Builder) -> ir.Value:
    """The value with its first axis moved to another place."""
    others = range(1, rank)
    return build.transpose(value, [*others[:axis], 0, *others[axis:]])


def value_of(source: Source, build: Builder) -> ir.Value:
    """The value that a source stands for."""
    assert isinstance(source.index, int)
    return source.value if source.axis is None else build.gather(source.value, source.axis, source.index)


def shape_of(source: Source, facts: Facts) -> Shape | None:
    """The shape of a source."""
    shape = facts.shape(source.value)
    if shape is None or source.axis is None:
        return shape
    return shape[: source.axis] + shape[source.axis + 1 :]


def is_zero(source: Source | None, facts: Facts) -> bool:
    """Whether a source is 0 everywhere."""
    return source is None or facts.fill(source.value) == 0


def initial_state(source: Source | None, build: Builder, facts: Facts) -> ir.Value | None:
    """An initial state as the operator takes it, [1, batch, size]; `None` if it is 0."""
    if source is None or is_zero(source, facts):
        return None
    if source.axis == 0 and isinstance(source.index, int):
        shape = facts.shape(source.value)
        is_whole = shape is not None and shape[0] == 1
        return source.value if is_whole else build.gather(source.value, 0, [source.index])
    return build.unsqueeze(value_of(source, build), 0)


def common_direction(tracks: Sequence[Track]) -> int:
    """The direction in which to run over the sequences, so that as few as possible have to be put together anew."""
    return -1 if any(track.direction < 0 for track in tracks) and all(track.direction <= 0 for track in tracks) else 1
