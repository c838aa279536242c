"""Read sizes from the first value that has them, so that no value in between is kept for its shape alone.

A value whose shape is read is used by more than what computes with it, which keeps patterns from matching (the scores of
attention, whose mask asks for their sizes). The source of a size is an input of the model or, failing that, one of the
values it is computed from. These are followed as long as they have these sizes in a row. One size that scores of
attention have twice is read once.

A Where between sizes, as exporters write expand(batch, -1, -1), is read if its choice is known. A size that is computed is read
if an input of the model has it and fewer nodes are left, such as that of past and present keys together, which a mask has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import onnx_ir as ir

from ortfuse.ir.dims import Dim, DimLike
from ortfuse.transforms.canonicalize.sink_shape_ops import following
from ortfuse.transforms.context import Context
from ortfuse.transforms.node_builder import Builder

_MOST_NODES = 16
"""The most nodes above a Where among which Shapes are looked for."""

_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Div"})
"""Operators that compute sizes from others, such as that of past and present together, which a mask has."""

_SHAPE_HAS_ENDS = 15
"""The opset from which on Shape has `start` and `end`."""


@dataclass(frozen=True)
class _Row:
    """Sizes that a value has in a row, from an axis on, how often they are told, and the numbers before and behind them.

    `version` is the opset that the Shape is marked with that told them before, if that is another than the graph's.
    """

    value: ir.Value
    start: int
    count: int
    before: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()
    times: int = 1
    version: int | None = None


class ReadSizes:
    """Moves what tells sizes of values in between, in one graph, to values that come earlier.

    Args:
        context: Holds the facts and the editor.
        graph: The main graph of a model; in others nothing is moved.
        author: What changes are written down as.
    """

    def __init__(self, context: Context, graph: ir.Graph, author: str) -> None:
        self._context, self._graph, self._author = context, graph, author

    def read_earlier(self, node: ir.Node) -> ir.Node | None:
        """Put another node in the place of a Shape, of a Gather or Slice of one, or of a Where of sizes.

        Parts of a Shape are read elsewhere if all that reads it can be: otherwise it would stay, and be merged with others.

        Returns:
            The other node; `None` if the node stays.
        """
        if node.op_type == "Where" and not node.domain:
            row = self._chosen(node)
            return None if row is None else self._put(node, row)
        if node.op_type in _ARITHMETIC and not node.domain:
            row = self._computed(node)
            return None if row is None else self._put(node, row)
        shape = _shape_read_by(node)
        row = None if shape is None else self._row_of(node, shape)
        if shape is None or row is None:
            return None
        if node is not shape and not self._gives_way(shape):
            return None
        return self._put(node, row)

    def _gives_way(self, shape: ir.Node) -> bool:
        """Whether all that reads a Shape can be read elsewhere, and all that reads another one of these sizes."""
        known = self._context.facts.ints(shape.outputs[0])
        alike = {shape, *(one for one in self._shapes.get(known, ()) if known is not None and one.graph is not None)}
        return not any(one.outputs[0].is_graph_output() for one in alike) and all(
            self._row_of(use.node, one, shape.inputs[0]) is not None for one in alike for use in one.outputs[0].uses()
        )

    @cached_property
    def _shapes(self) -> Mapping[Hashable, Sequence[ir.Node]]:
        """The Shapes of the graph by the sizes that they tell."""
        found = defaultdict[Hashable, list[ir.Node]](list)
        for node in self._graph:
            if node.op_type == "Shape" and not node.domain:
                found[self._context.facts.ints(node.outputs[0])].append(node)
        return found

    def _put(self, node: ir.Node, row: _Row) -> ir.Node | None:
        found = self._context.facts.ints(node.outputs[0])
        editor = self._context.editor
        with editor.change(self._author, nodes=[node]) as change:
            build = Builder(editor.scope_of(self._graph), editor, node)
            made = self._read(build, row, is_number=found is not None and not found.shape)
            editor.replace(node.outputs[0], made)
            editor.remove(node)
        return made.producer() if change else None

    def _chosen(self, node: ir.Node) -> _Row | None:
        """Return the source of the sizes that a Where chooses, numbers before and behind them included."""
        found, result = self._context.facts.ints(node.outputs[0]), node.outputs[0]
        if found is None or len(found.shape) != 1 or None in found.elements or node.graph is not self._graph:
            return None
        if self._context.facts.dtype(result) is not ir.DataType.INT64:
            return None
        known = [index for index, size in enumerate(found.elements) if isinstance(size, Dim)]
        if not known or result.is_graph_output():
            return None
        first, end = known[0], known[-1] + 1
        row = self._among([*self._graph.inputs, *self._measured(node)], found.elements[first:end])
        before, behind = (
            tuple([size for size in part if isinstance(size, int)])
            for part in (found.elements[:first], found.elements[end:])
        )
        return None if row is None else _Row(row.value, row.start, row.count, before, behind)

    def _computed(self, node: ir.Node) -> _Row | None:
        """Return an input that has the sizes that a node computes, if nodes are saved by reading them there."""
        result = node.outputs[0]
        found = self._context.facts.ints(result)
        if found is None or len(found.shape) > 1 or node.graph is not self._graph or result.is_graph_output():
            return None
        sizes = found.elements
        if not sizes or not all(isinstance(size, Dim) for size in sizes):
            return None
        row = self._among(self._graph.inputs, sizes)
        if row is None or self._context.facts.dtype(result) is not ir.DataType.INT64:
            return None
        whole = any(use.node.op_type == "Shape" and not use.node.attributes for use in row.value.uses())
        made = (1 if whole else 2) if not found.shape or not self._is_one_node(row) else 1
        return row if made <= len(_needed_for(node, self._twins(node))) else None

    def _twins(self, node: ir.Node) -> set[ir.Node]:
        """The nodes that compute the same sizes from one of the operands, which are merged with the node."""
        found = self._context.facts.ints(node.outputs[0])
        beside = {use.node for value in node.inputs if value is not None for use in value.uses()}
        return {one for one in beside if self._context.facts.ints(one.outputs[0]) == found}

    def _measured(self, node: ir.Node) -> list[ir.Value]:
        """The values whose Shapes a node computes with."""
        found, left, seen = list[ir.Value](), [node], {node}
        while left and len(seen) < _MOST_NODES:
            one = left.pop()
            if one.op_type == "Shape" and not one.domain:
                found += [value for value in one.inputs if value is not None]
                continue
            above = [value.producer() for value in one.inputs if value is not None]
            left += [maker for maker in above if maker is not None and maker not in seen]
            seen.update(left)
        return found

    def _row_of(self, node: ir.Node, shape: ir.Node, source: ir.Value | None = None) -> _Row | None:
        """Return the source of the sizes that a node reads from a Shape, as if it were one of `source`; `None` if they stay."""
        source, result = source or shape.inputs[0], node.outputs[0]
        if (
            source is None
            or _shape_read_by(node) is not shape
            or node.graph is not self._graph
            or result.is_graph_output()
        ):
            return None
        found = self._context.facts.ints(result)
        sizes = () if found is None or None in found.elements else found.elements
        if not any(isinstance(size, Dim) for size in sizes):
            return None
        if source.is_graph_input():
            return None  # that another input has this size is only declared
        row = self._place(sizes, source) or self._place_of_each(sizes, source)
        if row is None and all(use.node.op_type == "Concat" for use in result.uses()):
            row = self._place_beside_numbers(sizes, source)
        row = row if row is None else replace(row, version=shape.version)
        return row if row is None or node is not shape or self._is_one_node(row) else None

    def _place(self, sizes: Sequence[DimLike | None], source: ir.Value) -> _Row | None:
        """An input of the model that has these sizes in a row, or what comes first of the values that one is computed from."""
        place = self._among(self._graph.inputs, sizes)
        if place is not None:
            return place
        rows, value = list[_Row](), source
        while (node := value.producer()) is not None and node.graph is self._graph:
            before = self._among(node.inputs, sizes)
            if before is None:
                break
            value = before.value
            rows.append(before)
        behind = [source, *(row.value for row in rows)]
        while rows and (_is_quantised(rows[-1].value) or self._goes_on(rows[-1].value, behind[len(rows) - 1])):
            rows.pop()
        return rows[-1] if rows else None

    def _goes_on(self, value: ir.Value, to: ir.Value) -> bool:
        """Return whether a value is read only to compute the next one (`ortfuse.transforms.canonicalize.sink_shape_ops`)."""
        return following(value, self._context.facts) is to

    def _place_of_each(self, sizes: Sequence[DimLike | None], source: ir.Value) -> _Row | None:
        """The same for one size that a product of matrices has several times: scores of a sequence that attends to itself."""
        maker = source.producer()
        if len(sizes) < 2 or any(size != sizes[0] for size in sizes) or maker is None or maker.op_type != "MatMul":
            return None
        row = self._place(sizes[:1], source)
        return None if row is None else replace(row, times=len(sizes))

    def _place_beside_numbers(self, sizes: Sequence[DimLike | None], source: ir.Value) -> _Row | None:
        """The same for sizes with numbers before or behind them, which another Concat takes as well."""
        known = [index for index, size in enumerate(sizes) if isinstance(size, Dim)]
        first, end = known[0], known[-1] + 1
        row = self._place(sizes[first:end], source) if end - first < len(sizes) else None
        if row is None:
            return None
        before, behind = ([size for size in part if isinstance(size, int)] for part in (sizes[:first], sizes[end:]))
        return _Row(row.value, row.start, row.count, tuple(before), tuple(behind))

    def _among(self, values: Iterable[ir.Value | None], sizes: Sequence[DimLike | None]) -> _Row | None:
        """The first value that has these sizes in a row."""
        for value in values:
            shape = () if value is None else self._context.facts.shape(value) or ()
            for start in range(len(shape) - len(sizes) + 1):
                if value is not None and shape[start : start + len(sizes)] == tuple(sizes):
                    return _Row(value, start, len(sizes))
        return None

    def _is_whole(self, row: _Row) -> bool:
        return (row.start, row.count) == (0, self._context.facts.rank(row.value))

    def _is_one_node(self, row: _Row) -> bool:
        opset = row.version or self._graph.opset_imports.get("", 0)
        return self._is_whole(row) or opset >= _SHAPE_HAS_ENDS

    def _read(self, build: Builder, row: _Row, *, is_number: bool) -> ir.Value:
        """The sizes, as a vector or as a number."""
        if is_number:
            return build.gather(build.node("Shape", [row.value])[0], 0, row.start)
        end = row.start + row.count
        if self._is_whole(row):
            sizes = build.node("Shape", [row.value])[0]
        elif self._is_one_node(row):
            sizes = build.node("Shape", [row.value], {"start": row.start, "end": end}, version=row.version)[0]
        else:
            sizes = build.gather(build.node("Shape", [row.value])[0], 0, [*range(row.start, end)])
        numbers = [[build.ints(part)] * bool(part) for part in (row.before, row.behind)]
        parts = [*numbers[0], *[sizes] * row.times, *numbers[1]]
        return build.concat(parts, 0) if len(parts) > 1 else sizes


def _needed_for(node: ir.Node, twins: set[ir.Node]) -> list[ir.Node]:
    """The node, and the nodes above it that nothing else but its twins needs, the nearest ones."""
    found, left = [node], [node]
    while left and len(found) < _MOST_NODES:
        for value in left.pop().inputs:
            maker = None if value is None else value.producer()
            if value is None or maker is None or maker in found or maker.graph is not node.graph:
                continue
            if not value.is_graph_output() and all(
                use.node in found or use.node in twins or _is_dead(use.node) for use in value.uses()
            ):
                found.append(maker)
                left.append(maker)
    return found


def _is_dead(node: ir.Node) -> bool:
    """Whether nothing reads the results of a node, as of those that a rewrite left behind, nor what they are read for."""
    left, seen = [node], {node}
    while left and len(seen) < _MOST_NODES:
        for output in left.pop().outputs:
            if output.is_graph_output():
                return False
            users = dict.fromkeys(use.node for use in output.uses() if use.node not in seen)
            seen.update(users)
            left += users
    return not left


def _shape_read_by(node: ir.Node) -> ir.Node | None:
    """The Shape node of which a node tells sizes: itself, or that which it takes elements of."""
    if node.op_type in ("Gather", "Slice") and not node.domain and node.inputs[0] is not None:
        made = node.inputs[0].producer()
    else:
        made = node
    return made if made is not None and made.op_type == "Shape" and not made.domain else None


def _is_quantised(value: ir.Value) -> bool:
    """Whether a QuantizeLinear reads a value: the runtime computes it in integers if nothing else does."""
    return any(use.node.op_type == "QuantizeLinear" for use in value.uses())
