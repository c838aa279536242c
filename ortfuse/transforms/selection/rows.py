"""Rows that a selection takes along an axis: at indices, in a slice, or one of each sequence of a batch.

The same rows can be taken of any value that has the axis, which keeps it with the size `count`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import DimLike
from ortfuse.transforms.node_builder import Builder

RANGES_SINCE = 11
"""The opset from which on Range is an operator; indices of Gather may be negative from then on, too."""

BATCHES_SINCE = 12
"""The opset from which on GatherND has batches."""


class Rows(Protocol):
    """Rows along an axis."""

    @property
    def count(self) -> int:
        """How many there are, at most."""

    @property
    def is_by_batch(self) -> bool:
        """Whether each sequence of the batch, which is the first axis, has a row of its own."""

    def take(self, build: Builder, facts: Facts, value: ir.Value, place: Place) -> ir.Value:
        """Take the rows of a value; the axis stays.

        Args:
            build: Builds the nodes.
            facts: What is known about values.
            value: The value.
            place: Where the axis is.
        """

    def is_last(self, size: DimLike) -> bool:
        """Return whether it is the last row alone, of so many."""


@dataclass(frozen=True)
class Place:
    """Where rows are in a value.

    Attributes:
        axis: The axis of the rows.
        batch: The axis of the batch, before it; `None` if the rows are the same for the whole batch, or need not tell.
        lacking: By how many axes the value has fewer than what it is broadcast to.
    """

    axis: int
    batch: int | None = None
    lacking: int = 0


def may_be_taken(rows: Rows, value: ir.Value, place: Place, facts: Facts) -> bool:
    """Return whether rows can be taken of a value: by batch only behind the axis of the batch, or of one that has none."""
    shape = facts.shape(value)
    if shape is None or not rows.is_by_batch:
        return shape is not None
    if place.batch is not None:
        return place.batch < place.axis
    return all(size == 1 for size in shape[: place.axis]) and place.axis + place.lacking > 0


@dataclass(frozen=True)
class Indexed:
    """Rows at indices, which may be negative.

    Attributes:
        indices: The indices if they are constant.
        value: The value that holds them otherwise: one number, or a vector.
    """

    indices: tuple[int, ...]
    value: ir.Value | None = None

    is_by_batch = False

    @property
    def count(self) -> int:
        """See `Rows`."""
        return len(self.indices) if self.value is None else 1

    def take(self, build: Builder, facts: Facts, value: ir.Value, place: Place) -> ir.Value:
        """See `Rows`."""
        if self.value is None:
            return build.gather(value, place.axis, self.indices)
        index = build.unsqueeze(self.value, 0) if facts.rank(self.value) == 0 else self.value
        return build.node("Gather", [value, index], {"axis": place.axis})[0]

    def is_last(self, size: DimLike) -> bool:
        """See `Rows`."""
        return self.value is None and (self.indices == (-1,) or self.indices == (size - 1,))


@dataclass(frozen=True)
class Sliced:
    """Rows from one to before another; fewer if there are not so many.

    Attributes:
        start: The first, from the end if negative.
        end: The one behind the last, alike.
        count: How many there are, at most.
    """

    start: int
    end: int
    count: int

    is_by_batch = False

    def take(self, build: Builder, facts: Facts, value: ir.Value, place: Place) -> ir.Value:
        """See `Rows`."""
        return build.slice(value, place.axis, self.start, self.end)

    def is_last(self, size: DimLike) -> bool:
        """See `Rows`: the last row of no rows is none, which sees no keys either."""
        return self.count == 1 and (self.start == -1 or (isinstance(size, int) and self.start == size - 1))


@dataclass(frozen=True)
class ByBatch:
    """A row of each sequence of a batch.

    Attributes:
        index: The index of the row for each, [batch].
        may_be_negative: Whether an index may count from the end.
    """

    index: ir.Value
    may_be_negative: bool = True

    count = 1
    is_by_batch = True

    def take(self, build: Builder, facts: Facts, value: ir.Value, place: Place) -> ir.Value:
        """See `Rows`. A value that is the same for the whole batch gets the axis of the batch."""
        index = self.wide(build, facts)
        if place.batch is None:
            index = build.unsqueeze(index, *range(1, 1 + place.lacking + place.axis))
            return build.node("Gather", [build.squeeze(value, *range(place.axis)), index], {"axis": 0})[0]
        shape = facts.shape(value) or ()
        index = build.unsqueeze(index, *range(place.batch), *range(place.batch + 1, place.axis + 2))
        if any(size != 1 for axis, size in enumerate(shape[: place.axis]) if axis != place.batch):
            before = build.slice(build.node("Shape", [value])[0], 0, 0, place.axis)
            index = build.node("Expand", [index, build.concat([before, build.ints([1, 1])], 0)])[0]
        return build.node("GatherND", [value, index], {"batch_dims": place.axis})[0]

    def wide(self, build: Builder, facts: Facts) -> ir.Value:
        """Return the indices as int64."""
        if facts.dtype(self.index) == ir.DataType.INT64:
            return self.index
        return build.node("Cast", [self.index], {"to": ir.DataType.INT64.value})[0]

    def is_last(self, size: DimLike) -> bool:
        """See `Rows`."""
        return False


def positions(rows: Rows, build: Builder, facts: Facts, whole: ir.Value, axis: int, lacking: int) -> ir.Value:
    """Return the numbers of rows from the front, as integers: [count], or [batch, 1, ...] with `lacking` + 1 axes by batch.

    Args:
        rows: The rows.
        build: Builds the nodes.
        facts: What is known about values.
        whole: A value that has all rows.
        axis: Their axis.
        lacking: The axes before that of the rows.
    """
    if isinstance(rows, Indexed) and rows.value is None and min(rows.indices) >= 0:
        return build.ints(rows.indices)
    if isinstance(rows, Indexed) and rows.value is None and max(rows.indices) < 0:
        size = build.gather(build.node("Shape", [whole])[0], 0, [axis])
        return build.node("Add", [size, build.ints(rows.indices)])[0]
    if isinstance(rows, ByBatch) and not rows.may_be_negative:
        return build.unsqueeze(rows.wide(build, facts), *range(1, 1 + lacking))
    return rows.take(build, facts, all_positions(build, facts, whole, axis), Place(0, None, lacking))


def all_positions(build: Builder, facts: Facts, whole: ir.Value, axis: int) -> ir.Value:
    """Return the integers from 0 to before the size of a value along an axis."""
    size = (facts.shape(whole) or ())[axis]
    if isinstance(size, int):
        return build.constant(ir.Tensor(np.arange(size, dtype=np.int64)))
    count = build.gather(build.node("Shape", [whole])[0], 0, axis)
    return build.node("Range", [build.ints(0), count, build.ints(1)])[0]


def joined(parts: Sequence[Rows], size: DimLike) -> Indexed | None:
    """Return the rows of several selections of constant indices together; `None` if they are not such, or not few of so many."""
    indices = [index for part in parts if isinstance(part, Indexed) and part.value is None for index in part.indices]
    whole = sum(part.count for part in parts)
    if len(indices) < whole or not isinstance(size, int) or 2 * whole > size:
        return None
    return Indexed(tuple(indices))
