"""Read each size in one way and from one value, whatever order the nodes come in that tell it.

    unsqueeze(gather(shape(x), 1)) = shape(x, start=1, end=2)
    gather(shape(x), 1)            = squeeze(shape(x, start=1, end=2))        if x has no other size that is read

A size that several inputs of a model are declared to have is read of one of them: of one that has to be read anyway, because it
alone has some other size; among those, of the first.

Sizes in a row are a Shape of their own. A number is one of these without its axis, or, if the whole shape is read or several
numbers are, an element of the whole shape: so the fewest nodes are left.

Transforms: Shape, and Gather, Slice, Squeeze, Unsqueeze and Reshape of one by constants, in one graph, with Casts to other
integers in between.

Does not handle: sizes that are computed from others, results of the graph, and opsets whose Shape has no `start` and `end`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.transfer.value_fact import Shape
from ortfuse.ir.dims import DimLike
from ortfuse.transforms.context import Context
from ortfuse.transforms.node_builder import Builder

_READS = frozenset({"Gather", "Slice", "Squeeze", "Unsqueeze", "Reshape"})
_DEEPEST = 6
"""The most nodes of a reader, its Shape included."""

_SHAPE_HAS_ENDS = 15
"""The opset from which on Shape has `start` and `end`."""


@dataclass(frozen=True, order=True)
class _Row:
    """The sizes of a value from an axis to before another, as a vector, or the first one as a number."""

    start: int
    end: int
    is_number: bool = False

    @property
    def vector(self) -> _Row:
        """The row as a vector."""
        return _Row(self.start, self.end)


class _Readers:
    """The nodes that tell sizes of a value, and which of them are used otherwise than to tell others.

    Attributes:
        nodes: For each row of sizes, the nodes that tell it.
        wanted: The rows that are used.
        every: All the nodes, each behind those that it reads.
    """

    def __init__(self, value: ir.Value, shape: Shape, graph: ir.Graph, facts: Facts) -> None:
        self.value, self.shape = value, shape
        self.nodes: dict[_Row, list[ir.Node]] = defaultdict(list)
        self.wanted: set[_Row] = set()
        self.every: list[ir.Node] = []
        self._graph, self._facts = graph, facts
        left = [(use.node, 1, _Row(0, 0)) for use in value.uses() if use.node.op_type == "Shape"]
        while left:
            node, depth, told = left.pop()
            if (row := self._row(node)) is None:
                continue
            self.every.append(node)
            if facts.dtype(node.outputs[0]) is ir.DataType.INT64:
                told = row
                self.nodes[row].append(node)
            for use in node.outputs[0].uses():
                if depth < _DEEPEST and use.idx == 0 and self._reads_on(use.node):
                    left.append((use.node, depth + 1, told))
                else:
                    self.wanted.add(told)

    def sizes(self, row: _Row) -> tuple[DimLike | None, ...]:
        """The sizes in a row."""
        return self.shape[row.start : row.end]

    def is_shape(self, node: ir.Node) -> bool:
        """Whether a node is a Shape of the value, and still there."""
        return node.graph is not None and node.op_type == "Shape" and node.inputs[0] is self.value

    def give(self, row: _Row) -> list[ir.Node]:
        """Tell a row no more; returns the nodes that told it."""
        self.wanted.discard(row)
        return self.nodes.pop(row)

    def take(self, row: _Row, nodes: Sequence[ir.Node]) -> None:
        """Tell a row in the place of nodes of others, too."""
        self.wanted.add(row)
        self.nodes[row] += nodes

    def shape_of(self, row: _Row, build: Builder) -> ir.Node:
        """A new Shape that tells a row."""
        is_whole = row == _Row(0, len(self.shape))
        return _producer(build.node("Shape", [self.value], {} if is_whole else {"start": row.start, "end": row.end})[0])

    def _reads_on(self, node: ir.Node) -> bool:
        is_known = all(self._facts.is_const(value) for value in node.inputs[1:] if value is not None)
        return (node.op_type in _READS or node.op_type == "Cast") and is_known and self._row(node) is not None

    def _row(self, node: ir.Node) -> _Row | None:
        """The first row of the sizes that a node tells; `None` if it tells others too, or is a result."""
        result = node.outputs[0]
        if node.domain or node.graph is not self._graph or result.is_graph_output():
            return None
        found = self._facts.ints(result)
        if found is None or len(found.shape) > 1 or not found.elements or None in found.elements:
            return None
        for start in range(len(self.shape) - len(found.elements) + 1):
            row = _Row(start, start + len(found.elements), not found.shape)
            if self.sizes(row) == found.elements:
                return row
        return None


def merge_size_reads(context: Context, graph: ir.Graph, author: str) -> list[ir.Node]:
    """Read the sizes of each value of a graph in one way; returns the nodes that were replaced."""
    if graph.opset_imports.get("", 0) < _SHAPE_HAS_ENDS:
        return []
    read = dict.fromkeys(
        node.inputs[0] for node in graph if node.op_type == "Shape" and not node.domain and node.inputs[0] is not None
    )
    shapes = {value: context.facts.shape(value) for value in read}
    found = {value: _Readers(value, shape, graph, context.facts) for value, shape in shapes.items() if shape}
    _read_from_one([found[value] for value in graph.inputs if value in found])
    merger = _Merger(context, graph, author)
    for readers in found.values():
        merger.read_once(readers)
    for readers in found.values():
        merger.remove_dead(readers)
    if merger.merged:
        with context.editor.change(author):
            context.editor.sort(graph)
    return merger.merged


def _read_from_one(found: Sequence[_Readers]) -> None:
    """Let one of several inputs tell the sizes that all of them have."""
    told = defaultdict[object, dict[int, list[_Row]]](lambda: defaultdict(list))
    for number, readers in enumerate(found):
        for row in sorted(readers.wanted):
            told[readers.sizes(row)][number].append(row)
    needed = {next(iter(rows)) for rows in told.values() if len(rows) == 1}
    for rows in told.values():
        chosen = min(rows, key=lambda number: (number not in needed, number))
        start = rows[chosen][0].start
        for number in rows.keys() - {chosen}:
            for row in rows[number]:
                found[chosen].take(replace(row, start=start, end=start + row.end - row.start), found[number].give(row))


class _Merger:
    def __init__(self, context: Context, graph: ir.Graph, author: str) -> None:
        self.merged: list[ir.Node] = []
        self._context, self._graph, self._author = context, graph, author

    def read_once(self, readers: _Readers) -> None:
        """Read each row of sizes of a value by one node."""
        whole, vectors = _Row(0, len(readers.shape)), {row for row in readers.wanted if not row.is_number}
        alone = {row for row in readers.wanted if row.is_number and row.vector not in vectors}
        of_whole = alone if len(alone) > 1 or whole in vectors else set[_Row]()
        shapes = dict[_Row, ir.Node]()
        for row in sorted(readers.wanted):
            if not row.is_number:
                self._tell(readers, row, shapes)
            else:
                self._tell_number(readers, row, whole if row in of_whole else row.vector, shapes)

    def _tell(self, readers: _Readers, row: _Row, shapes: dict[_Row, ir.Node]) -> None:
        """Tell a vector of sizes by one Shape, which is kept in `shapes`."""
        nodes = readers.nodes[row]
        shape = next((node for node in nodes if readers.is_shape(node)), None)
        others = [node for node in nodes if node is not shape]

        def told(build: Builder) -> ir.Node:
            shapes[row] = shape or readers.shape_of(row, build)
            return shapes[row]

        if others:
            self._replace(others, told)
        elif shape is not None:
            shapes[row] = shape

    def _tell_number(self, readers: _Readers, row: _Row, vector: _Row, shapes: dict[_Row, ir.Node]) -> None:
        """Tell a size by one node, as an element of a vector of sizes."""
        known = shapes.get(vector)
        above = next((node for node in readers.nodes[vector] if readers.is_shape(node)), known)
        operator = "Squeeze" if vector == row.vector else "Gather"
        alike = [
            node for node in readers.nodes[row]
            if node.op_type == operator and above is not None and node.inputs[0] is above.outputs[0]
        ]  # fmt: skip
        others = [node for node in readers.nodes[row] if node not in alike[:1]]

        def told(build: Builder) -> ir.Node:
            sizes = (above or readers.shape_of(vector, build)).outputs[0]
            made = build.squeeze(sizes, 0) if operator == "Squeeze" else build.gather(sizes, 0, row.start)
            return _producer(made)

        if others:
            self._replace(others, (lambda build: alike[0]) if alike else told)

    def _replace(self, nodes: Sequence[ir.Node], told: Callable[[Builder], ir.Node]) -> None:
        """Replace nodes by one that tells the same, which may be made; the graph is not sorted."""
        editor = self._context.editor
        with editor.change(self._author, nodes=nodes) as change:
            made = told(Builder(editor.scope_of(self._graph), editor, nodes[0]))
            for node in nodes:
                editor.replace(node.outputs[0], made.outputs[0])
                editor.remove(node)
        if change:
            self.merged += nodes

    def remove_dead(self, readers: _Readers) -> None:
        """Remove nodes that tell sizes for none, which others would be merged into."""
        for node in reversed(readers.every):
            if node.graph is not None and not node.outputs[0].uses():
                with self._context.editor.change(self._author, nodes=[node]) as change:
                    self._context.editor.remove(node)
                if change:
                    self.merged.append(node)


def _producer(value: ir.Value) -> ir.Node:
    node = value.producer()
    assert node is not None
    return node
