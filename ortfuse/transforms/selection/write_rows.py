"""Write the nodes of a region for the selected rows alone."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.parallel_axes import parallel_axis
from ortfuse.analysis.parallel_axes.movement import same_axis
from ortfuse.analysis.transfer.value_fact import Shape
from ortfuse.ir.dims import DimLike, reshape_target
from ortfuse.ir.editor import Editor
from ortfuse.ir.walk import Scope
from ortfuse.transforms.index_maps.make import Make, Supply, build_plan
from ortfuse.transforms.index_maps.movement_above import values_above
from ortfuse.transforms.node_builder import Builder
from ortfuse.transforms.selection.region import VIEWS, Region
from ortfuse.transforms.selection.rows import Indexed, Place, all_positions, may_be_taken, positions

_MOST_VIEWS = 4
"""The most views of an Expand that are looked through."""


class RowWriter:
    """Writes nodes of a region anew, before a place.

    Args:
        region: The region.
        scope: Its graph.
        editor: The editor, with a change that is open.
        place: The node before which they are inserted.
    """

    def __init__(self, region: Region, scope: Scope, editor: Editor, facts: Facts, place: ir.Node) -> None:
        self._region, self._editor, self._facts, self._place = region, editor, facts, place
        self._rows = region.selection.rows
        self._build = Builder(scope, editor, place)
        self._taken: dict[tuple[ir.Value, Place], ir.Value] = {}
        self.results: dict[ir.Value, ir.Value] = {}
        """The results of the region by those of the original nodes."""

    def write(self) -> ir.Value | None:
        """Write all nodes; returns the selected rows of the value, `None` if that is not possible."""
        for node in reversed(self._region.nodes):
            places = self._region.nodes[node]
            operands = [
                value if value is None or place is None else self._rows_of(value, place)
                for value, place in zip(node.inputs, places, strict=True)
            ]
            if node.op_type == "Expand" and self._is_there(node, operands[0]):
                continue
            changes = self._written(node, operands) if self._region.axes[node].is_written else {}
            if changes is None or not self._like(node, operands, changes):
                return None
        return self.results[self._region.selection.value]

    def _is_there(self, node: ir.Node, data: ir.Value | None) -> bool:
        """Whether an Expand repeats nothing any more: then its result is its operand."""
        axis, shape = self._region.axes[node].results[0], self._facts.shape(data)
        if axis is None or data is None or shape is None or shape != self._shape_of_rows(node.outputs[0], axis):
            return False
        self.results[node.outputs[0]] = data
        return True

    def finish(self, taken: ir.Value) -> list[ir.Value]:
        """Return the result of each use of the selection."""
        return self._region.selection.finish(self._build, taken)

    def _rows_of(self, value: ir.Value, place: Place) -> ir.Value:
        found = self.results.get(value)
        if found is None:
            found = self._taken.get((value, place))
        if found is None:
            found = self._below_expand(value, place) or self._rows.take(self._build, self._facts, value, place)
            self._taken[value, place] = found
        return found

    def _below_expand(self, value: ir.Value, place: Place) -> ir.Value | None:
        """The rows of a value that an Expand repeats, repeated alike; `None` if the rows are taken of its result.

        Another node may read the result of the Expand, which stays for that one.
        """
        if not _is_expanded(value):
            return None
        found, after = self._unexpanded(value, place), self._shape_of_rows(value, place.axis)
        before = self._facts.shape(found)
        if found is None or before is None or after is None or before == after:
            return found
        sizes = self._sizes("Expand", before, after, value)
        return None if sizes is None else self._build.node("Expand", [found, sizes])[0]

    def _unexpanded(self, value: ir.Value, place: Place) -> ir.Value | None:
        """The rows of a value above its Expand: with as many axes, of which those have size 1 along which they are repeated."""
        node, facts = value.producer(), self._facts
        assert node is not None
        rows = parallel_axis(node, 0, place.axis, facts)
        batch = None if place.batch is None else parallel_axis(node, 0, place.batch, facts)
        data, after = node.inputs[0], self._shape_of_rows(value, place.axis)
        if rows is None or (batch is None) != (place.batch is None) or data is None or after is None:
            return None
        axis, lacking = rows.operands[0], place.lacking + (rows.lacking[0] if rows.lacking else 0)
        above = None if axis is None else Place(axis, None if batch is None else batch.operands[0], lacking)
        if above is not None and not may_be_taken(self._rows, data, above, facts):
            return None
        if node.op_type == "Expand":
            return self._with_axes(data if above is None else self._rows_of(data, above), after)
        inner = None if above is None else self._unexpanded(data, above)
        return None if inner is None or axis is None else self._viewed(inner, self._shape_of_rows(data, axis), after)

    def _with_axes(self, value: ir.Value, after: Shape) -> ir.Value | None:
        """A value with axes of size 1 before its own, up to the rank of a shape."""
        rank = self._facts.rank(value)
        return None if rank is None or rank > len(after) else self._build.unsqueeze(value, *range(len(after) - rank))

    def _viewed(self, inner: ir.Value, before: Shape | None, after: Shape) -> ir.Value | None:
        """What is repeated to a value of shape `before`, as what is repeated to a view of it of shape `after`."""
        own, wanted = self._facts.shape(inner), list(after)
        if own is None or before is None:
            return None
        for axis, (size, repeated) in enumerate(zip(own, before, strict=True)):
            if size != repeated:
                found = same_axis(after, before, axis)
                if found is None:
                    return None
                wanted[found] = 1
        target = reshape_target(own, wanted)
        return None if target is None else self._build.reshape(inner, target)

    def _like(self, node: ir.Node, operands: Sequence[ir.Value | None], changes: dict[str, int]) -> bool:
        """Insert a node like another one; returns whether its results have the shapes that they have to have."""
        changed = ir.convenience.convert_attributes(changes)
        kept = [attribute for attribute in node.attributes.values() if attribute.name not in changes]
        made = ir.Node(
            node.domain, node.op_type, operands, [*kept, *changed], num_outputs=len(node.outputs), version=node.version
        )
        self._editor.insert_before(self._place, made)
        for before, after, axis in zip(node.outputs, made.outputs, self._region.axes[node].results, strict=True):
            if before.name == "":
                self._editor.rename(after, "")
                continue
            wanted = self._shape_of_rows(before, axis) if axis is not None else self._facts.shape(before)
            if (before.uses() or before.is_graph_output()) and self._facts.shape(after) != wanted:
                return False
            self.results[before] = after
        return True

    def _shape_of_rows(self, value: ir.Value, axis: int) -> tuple[DimLike, ...] | None:
        """The shape of a value with the selected rows alone."""
        shape = self._facts.shape(value)
        count = self._count
        return None if shape is None or count is None else (*shape[:axis], count, *shape[axis + 1 :])

    @property
    def _count(self) -> DimLike | None:
        """How many rows are selected: that of a Slice may be fewer than it is asked for."""
        selection = self._region.selection
        if len(selection.uses) > 1 or selection.uses[0].drops:
            return self._rows.count
        shape = self._facts.shape(selection.uses[0].output)
        return None if shape is None else shape[selection.place.axis]

    def _written(self, node: ir.Node, operands: list[ir.Value | None]) -> dict[str, int] | None:
        """Change the operands that depend on the number of rows; returns attributes to change, `None` if that is impossible."""
        if node.op_type == "Attention":
            return self._write_causal_mask(node, operands)
        if node.op_type == "RotaryEmbedding":
            return self._write_positions(node, operands)
        return self._write_sizes(node, operands)

    def _write_causal_mask(self, node: ir.Node, operands: list[ir.Value | None]) -> dict[str, int] | None:
        """Put a mask of the keys up to each row in the place of `is_causal`; the last row sees all keys."""
        size = self._size_of_rows(node)
        if size is not None and self._rows.is_last(size):
            return {"is_causal": 0}
        whole = self._whole(size)
        if whole is None:
            return None
        by_batch, build, facts = self._rows.is_by_batch, self._build, self._facts
        row = positions(self._rows, build, facts, *whole, 2 if by_batch else 0)
        operands.extend([None] * (4 - len(operands)))
        row = build.unsqueeze(row, 3 if by_batch else 1)
        operands[3] = build.node("LessOrEqual", [all_positions(build, facts, *whole), row])[0]
        return {"is_causal": 0}

    def _size_of_rows(self, node: ir.Node) -> DimLike | None:
        """How many rows the first operand of a node has before some are selected."""
        place, shape = self._region.nodes[node][0], self._facts.shape(node.inputs[0])
        return None if place is None or shape is None else shape[place.axis]

    def _whole(self, size: DimLike | None) -> tuple[ir.Value, int] | None:
        """A value of which rows are taken, with their axis, that has so many; `None` if there is none."""
        for value, place in self._taken:
            shape = self._facts.shape(value)
            if shape is not None and size is not None and shape[place.axis] == size:
                return value, place.axis
        return None

    def _write_positions(self, node: ir.Node, operands: list[ir.Value | None]) -> dict[str, int] | None:
        """Tell RotaryEmbedding the positions of the rows instead of that of the first one, or give it their angles alone."""
        size, first, by_batch = self._size_of_rows(node), node.inputs[1], self._rows.is_by_batch
        whole = self._whole(size)
        if whole is None or first is None or (self._count != 1 and not by_batch):
            return None
        starts_at_zero = self._facts.scalar(first) == 0
        tables = [self._facts.shape(table) for table in node.inputs[2:4]]
        is_known = isinstance(self._rows, Indexed) and self._rows.value is None and self._rows.indices[0] >= 0
        if starts_at_zero and not (by_batch or is_known) and all(shape and shape[0] == size for shape in tables):
            operands[2:4] = [None if table is None else self._rows_of(table, Place(0)) for table in node.inputs[2:4]]
            return {}
        row = positions(self._rows, self._build, self._facts, *whole, 1 if by_batch else 0)
        operands[1] = row if starts_at_zero else self._build.node("Add", [row, first])[0]
        return {}

    def _write_sizes(self, node: ir.Node, operands: list[ir.Value | None]) -> dict[str, int] | None:
        """The shape that Reshape or Expand is told, with the number of rows."""
        axis, value = self._region.axes[node].results[0], node.outputs[0]
        after = None if axis is None else self._shape_of_rows(value, axis)
        before = self._facts.shape(operands[0])
        sizes = None if before is None or after is None else self._sizes(node.op_type, before, after, value)
        if sizes is None:
            return None
        operands[1] = sizes
        return {"allowzero": 0} if "allowzero" in node.attributes else {}

    def _sizes(self, op_type: str, before: Shape, after: Shape, value: ir.Value) -> ir.Value | None:
        """The shape that Reshape or Expand is told, of sizes that there are above the value; `None` if one is not there."""
        target = _expand_target(before, after) if op_type == "Expand" else reshape_target(before, after)
        if target is not None:
            return self._build.ints(target)
        supply = Supply(values_above(value, self._facts), self._facts, self._build.opset)
        found = supply.vector(after)
        if isinstance(found, ir.Value | Make):
            return build_plan(found, self._build, self._build.opset)
        return self._build.ints(found) if isinstance(found, tuple) else None


def _is_expanded(value: ir.Value) -> bool:
    """Whether an Expand makes a value, or a value that it is a view of."""
    node = value.producer()
    for _ in range(_MOST_VIEWS):
        if node is None or node.domain or node.op_type not in VIEWS:
            break
        node = None if node.inputs[0] is None else node.inputs[0].producer()
    return node is not None and node.op_type == "Expand" and not node.domain


def _expand_target(before: Sequence[DimLike], after: Sequence[DimLike]) -> list[int] | None:
    """A constant target of Expand: 1 along axes that stay as they are; `None` if another size is not a number."""
    if len(before) > len(after):
        return None
    grown = (*[1] * (len(after) - len(before)), *before)
    target = [1 if old == new else new for old, new in zip(grown, after, strict=True)]
    numbers = [size for size in target if isinstance(size, int)]
    return numbers if len(numbers) == len(target) else None
