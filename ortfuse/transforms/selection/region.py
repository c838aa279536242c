"""The nodes above a selection that compute nothing else than rows of which some are selected."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.parallel_axes import ParallelAxis, parallel_axis
from ortfuse.ir.traits import CONTRACTS, LAYER, QUANTISES, WEIGHS, has
from ortfuse.transforms.selection.find_selections import Selection
from ortfuse.transforms.selection.rows import Place, may_be_taken

VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"})
"""Operators that cost nothing."""


class Along(NamedTuple):
    """Axes of a value: of the rows, and of the batch if rows are selected by batch."""

    rows: int
    batch: int | None


@dataclass
class Region:
    """Nodes that can compute the selected rows alone.

    Attributes:
        selection: The selection.
        facts: What is known about values.
        nodes: The nodes, each with the places of rows in its operands, `None` for operands that are needed as a whole. Each
            stands before those that it reads.
        along: The axes of the values whose rows are selected.
        axes: The parallel axis of each node.
    """

    selection: Selection
    facts: Facts
    nodes: dict[ir.Node, tuple[Place | None, ...]] = field(default_factory=dict)
    along: dict[ir.Value, Along] = field(default_factory=dict)
    axes: dict[ir.Node, ParallelAxis] = field(default_factory=dict)

    @property
    def saves_work(self) -> bool:
        """Whether one of the nodes computes more than single elements."""
        return any(
            has(node, CONTRACTS | LAYER | QUANTISES | WEIGHS) and node.op_type != "Gather" for node in self.nodes
        )

    @classmethod
    def above(cls, selection: Selection, facts: Facts) -> Region:
        """Return the largest region above a selection, without views at its top, which cost nothing."""
        region = cls(selection, facts)
        region.along[selection.value] = Along(selection.place.axis, selection.place.batch)
        covered = {(use.nodes[0], 0) for use in selection.uses}
        waiting = [selection.value]
        while waiting:
            value = waiting.pop()
            node = value.producer()
            if node is None or node in region.nodes or not region._is_covered(node, covered):
                continue
            places = region._places(node)
            if places is None:
                continue
            region.nodes[node] = places
            for index, (operand, place) in enumerate(zip(node.inputs, places, strict=True)):
                if operand is None or place is None or not region._goes_on(operand, place):
                    continue
                covered.add((node, index))
                waiting.append(operand)
        region._drop_views()
        return region

    def _is_covered(self, node: ir.Node, covered: set[tuple[ir.Node, int]]) -> bool:
        """Whether all that reads the results of a node reads rows of it in the region, or the selection."""
        value = self.selection.value.producer()
        if value is None or node.graph is not value.graph or not node.inputs:
            return False
        read = [output for output in node.outputs if output in self.along]
        for output in node.outputs:
            if output.is_graph_output() and output in self.along:
                return False
            if output in self.along and any((use.node, use.idx) not in covered for use in output.uses()):
                return False
        return bool(read) and self.facts.ints(read[0]) is None

    def _places(self, node: ir.Node) -> tuple[Place | None, ...] | None:
        """The places of rows in the operands of a node; `None` if it cannot compute the rows alone."""
        first = next(index for index, output in enumerate(node.outputs) if output in self.along)
        along = self.along[node.outputs[first]]
        rows = parallel_axis(node, first, along.rows, self.facts)
        batch = None if along.batch is None else parallel_axis(node, first, along.batch, self.facts)
        if rows is None or (along.batch is not None and batch is None):
            return None
        for index, output in enumerate(node.outputs):
            axis, known = rows.results[index], self.along.get(output)
            if axis is None and output.uses():
                return None  # what reads it may stand before the selection
            if axis is not None and (output.uses() or output.is_graph_output()):
                wanted = Along(axis, None if batch is None else batch.results[index])
                if known != wanted or output.is_graph_output():
                    return None
        places: list[Place | None] = []
        for index, operand in enumerate(node.inputs):
            axis = rows.operands[index]
            if operand is None or axis is None:
                places.append(None)
                continue
            lacking = rows.lacking[index] if rows.lacking else 0
            place = Place(axis, None if batch is None else batch.operands[index], lacking)
            if not may_be_taken(self.selection.rows, operand, place, self.facts):
                return None
            places.append(place)
        if all(place is None for place in places) and not rows.is_written:
            return None
        self.axes[node] = rows
        return tuple(places)

    def _goes_on(self, operand: ir.Value, place: Place) -> bool:
        """Whether what computes an operand may belong to the region: it has the same rows wherever it is read there."""
        along = Along(place.axis, place.batch)
        if (self.selection.place.batch is None) != (place.batch is None):
            return False  # its rows are the same for the whole batch
        return self.along.setdefault(operand, along) == along

    def _drop_views(self) -> None:
        """Leave out the views that no other node of the region stands above."""
        for node in list(reversed(self.nodes)):
            above = [value.producer() for value in node.inputs if value is not None]
            if node.op_type in VIEWS and not node.domain and not any(one in self.nodes for one in above):
                del self.nodes[node]
