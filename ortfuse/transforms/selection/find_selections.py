"""Find values of which only some rows are read, by Gather, Slice, GatherND, or Gather of flattened rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.index_maps import Number, axis
from ortfuse.analysis.node_parameters import parameter
from ortfuse.analysis.ranges.bounds_by_sizes import ENDS
from ortfuse.ir.dims import DimLike, at_most
from ortfuse.transforms.node_builder import Builder
from ortfuse.transforms.selection.rows import ByBatch, Indexed, Place, Rows, Sliced, joined

_ENDS_OF_AXES = 1 << 31
"""Ends of Slices from here on stand for the end of the axis."""

_FEW = 2
"""A selection is of few rows if there are so many times as many."""


@dataclass(frozen=True)
class Use:
    """Nodes that select rows of a value.

    Attributes:
        nodes: The nodes, the one that reads the value first.
        rows: The rows.
        place: Where they are in the value.
        drops: Whether the result lacks the axis of the rows.
    """

    nodes: Sequence[ir.Node]
    rows: Rows
    place: Place
    drops: bool

    @property
    def output(self) -> ir.Value:
        """The selected rows."""
        return self.nodes[-1].outputs[0]


@dataclass(frozen=True)
class Selection:
    """All uses of a value, which select rows along one axis.

    Attributes:
        value: The value.
        rows: The rows of all uses, one behind the other.
        place: Where they are in the value.
        uses: The uses.
    """

    value: ir.Value
    rows: Rows
    place: Place
    uses: Sequence[Use]

    def finish(self, build: Builder, taken: ir.Value) -> list[ir.Value]:
        """Return the result of each use, of the rows of all."""
        found, start, axis = [], 0, self.place.axis
        for use in self.uses:
            part = taken if len(self.uses) == 1 else build.slice(taken, axis, start, start + use.rows.count)
            found.append(build.squeeze(part, axis) if use.drops else part)
            start += use.rows.count
        return found


def selection_of(value: ir.Value, facts: Facts) -> Selection | None:
    """Return the selection that all uses of a value are; `None` if something reads it otherwise."""
    shape, readers = facts.shape(value), list(value.uses())
    if shape is None or value.is_graph_output() or not readers:
        return None
    uses: list[Use] = []
    for reader in readers:
        found = _use(value, reader.node, facts) if reader.idx == 0 else None
        if found is None or (uses and found.place != uses[0].place):
            return None
        uses.append(found)
    place = uses[0].place
    size = shape[place.axis]
    rows = uses[0].rows if len(uses) == 1 else joined([use.rows for use in uses], size)
    if rows is None or not _is_few(rows, size):
        return None
    return Selection(value, rows, place, uses)


def _is_few(rows: Rows, size: DimLike) -> bool:
    """Whether there are never fewer rows than are taken, and many more if that is known."""
    if isinstance(size, int):
        return _FEW * rows.count <= size
    return rows.count == 1 or isinstance(rows, Sliced)


def _use(value: ir.Value, node: ir.Node, facts: Facts) -> Use | None:
    """The node, and those behind it, as a selection of rows of the value."""
    producer = value.producer()
    if node.domain or producer is None or node.graph is not producer.graph:
        return None
    if node.op_type == "Gather":
        return _gather(node, facts)
    if node.op_type == "Slice":
        return _slice(node, facts)
    if node.op_type == "GatherND":
        return _gather_nd(node, facts)
    return _flattened(node, facts) if node.op_type in ("Reshape", "Flatten") else None


def _gather(node: ir.Node, facts: Facts) -> Use | None:
    along, shape = parameter(node, "axis", facts), facts.shape(node.inputs[1])
    if not isinstance(along, int) or shape is None or len(shape) > 1 or node.inputs[1] is None:
        return None
    known, place = facts.const(node.inputs[1]), Place(along)
    if known is not None and known.size:
        return Use([node], Indexed(tuple(map(int, known.reshape(-1)))), place, not shape)
    return Use([node], Indexed((), node.inputs[1]), place, not shape) if shape in ((), (1,)) else None


def _slice(node: ir.Node, facts: Facts) -> Use | None:
    """A Slice of few rows along one axis."""
    parts = [parameter(node, name, facts) for name in ("starts", "ends", "axes", "steps")]
    if not all(isinstance(part, tuple | list) and len(part) == 1 and isinstance(part[0], int) for part in parts[:3]):
        return None
    if parts[3] not in (None, (1,), [1]):
        return None
    start, end, along = (part[0] for part in parts[:3])
    if start < 0 and end >= _ENDS_OF_AXES:
        count = -start
    elif (start < 0) == (end < 0):
        count = end - start
    else:
        return None
    return Use([node], Sliced(start, end, count), Place(along), drops=False) if 0 < count < _ENDS_OF_AXES else None


def _gather_nd(node: ir.Node, facts: Facts) -> Use | None:
    """A row of each sequence of a batch by pairs of numbers: that of the sequence, and that of the row."""
    data, indices = facts.shape(node.inputs[0]), facts.shape(node.inputs[1])
    batches = node.attributes.get_int("batch_dims", 0)
    if data is None or indices is None or len(data) < 2 or len(indices) != 2 or indices[0] != data[0]:
        return None
    found = None
    if batches == 1 and indices[1] == 1:
        found = _without_last_axis(node.inputs[1], facts)
    elif batches == 0 and indices[1] == 2:
        found = _second_column(node.inputs[1], facts)
    return None if found is None else Use([node], _by_batch(found, facts), Place(1, 0), drops=True)


def _by_batch(index: ir.Value, facts: Facts) -> ByBatch:
    bounds = facts.answering(ENDS)(index)
    return ByBatch(index, may_be_negative=bounds is None or not at_most(0, bounds.low))


def _second_column(value: ir.Value | None, facts: Facts) -> ir.Value | None:
    """The numbers of rows, [batch], of pairs of numbers, [batch, 2], of which the first are those of sequences."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != "Concat" or node.domain or len(node.inputs) != 2:
        return None
    first, second = node.inputs
    if (
        first is None
        or parameter(node, "axis", facts) not in (1, -1)
        or facts.shape(second) != (*(facts.shape(first) or ()),)
    ):
        return None
    found = facts.index_map(first)
    if found is None or found.element != Number(axis(0)):
        return None
    return _without_last_axis(second, facts)


def _without_last_axis(value: ir.Value | None, facts: Facts) -> ir.Value | None:
    """A value that is [batch] of one that is [batch, 1]."""
    node = None if value is None else value.producer()
    if node is None or node.domain or node.op_type not in ("Unsqueeze", "Reshape") or facts.rank(node.inputs[0]) != 1:
        return None
    return node.inputs[0]


def _flattened(node: ir.Node, facts: Facts) -> Use | None:
    """A row of each sequence of a batch by its number among the rows of all, in [0, batch * rows)."""
    before, after = facts.shape(node.inputs[0]), facts.shape(node.outputs[0])
    readers = node.outputs[0].uses()
    if before is None or after is None or len(readers) != 1 or node.outputs[0].is_graph_output():
        return None
    ((user, place),) = readers
    is_gather = user.op_type == "Gather" and not user.domain and place == 0 and user.graph is node.graph
    if not is_gather or parameter(user, "axis", facts) != 0 or len(before) < 3:
        return None
    if after != (before[0] * before[1], *before[2:]) or facts.shape(user.inputs[1]) != before[:1]:
        return None
    found = _row_of_sequence(user.inputs[1], before[1], facts)
    return None if found is None else Use([node, user], _by_batch(found, facts), Place(1, 0), drops=True)


def _row_of_sequence(value: ir.Value | None, size: DimLike, facts: Facts) -> ir.Value | None:
    """The number of a row in its sequence, if a value is that plus as many rows as all sequences before have."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != "Add" or node.domain:
        return None
    ends = facts.answering(ENDS)
    for first, second in (node.inputs, node.inputs[::-1]):
        found = None if first is None else facts.index_map(first)
        if found is None or found.element != Number(axis(0) * size) or second is None:
            continue
        bounds = ends(second)
        if bounds is not None and facts.shape(second) == facts.shape(value) and at_most(0, bounds.low):
            return second if at_most(bounds.high + 1, size) else None
    return None
