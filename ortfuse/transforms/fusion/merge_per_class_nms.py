"""Merge per-class NonMaxSuppression nodes on one set of boxes into one.

    nms(boxes, scores[0]), nms(boxes, scores[1])   =   nms(boxes, scores), the rows of class 0 before those of class 1

An unrolled loop over classes has one NonMaxSuppression for each class, and nodes that read its indices. These gather corners and
scores, make as many labels as boxes, and build rows of all of these. Concats join the results in the order of the classes. The
operator takes all classes at once, in their order. So the same nodes are applied once, to its indices for all classes.

Does not handle:

- boxes of more than one image, whose rows come first;
- NonMaxSuppression nodes with other thresholds or of other boxes;
- results that are concatenated in another order, or used otherwise too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import parameter
from ortfuse.ir import walk
from ortfuse.ir.refusal import refuse
from ortfuse.ir.traits import BROADCASTS, ELEMENTWISE, has
from ortfuse.ir.walk import Scope
from ortfuse.transforms.context import Context
from ortfuse.transforms.node_builder import Builder

_DEEPEST = 12
"""The most operators between a suppression and where its boxes are joined with those of other classes."""

_CLASS, _BOX = 1, 2
"""The columns of what is found."""

_PER_ROW = ELEMENTWISE | {"Identity", "Squeeze", "Unsqueeze", "Reshape"}

_GATHERS_BY_ROWS = 11
"""The opset from which on there is GatherND."""


@dataclass(frozen=True)
class BatchNonMaxSuppression:
    """Merge per-class NonMaxSuppression nodes to one for all classes."""

    name: ClassVar[str] = "batch_nms"

    def run(self, context: Context) -> int:
        """Replace suppressions; returns how many."""
        return sum(
            _merge(nodes, scope, context)
            for scope in context.scopes()
            for nodes in list(_siblings(scope.graph, context.facts))
        )


def _siblings(graph: ir.Graph, facts: Facts) -> Iterator[list[ir.Node]]:
    """Suppressions of the same boxes of one image by the same numbers, each of one class."""
    found: defaultdict[Hashable, list[ir.Node]] = defaultdict(list)
    for node in graph:
        if node.op_type == "NonMaxSuppression" and not node.domain:
            boxes, scores = (facts.shape(value) for value in node.inputs[:2])
            if boxes is not None and scores is not None and boxes[:1] == (1,) and scores[:2] == (1, 1):
                numbers = tuple(_number(value, facts) for value in node.inputs[2:])
                found[node.inputs[0], numbers, node.attributes.get_int("center_point_box", 0)].append(node)
    yield from (nodes for nodes in found.values() if len(nodes) > 1)


def _number(value: ir.Value | None, facts: Facts) -> Hashable:
    """Return the key of a parameter: its number if that is known."""
    known = facts.scalar(value)
    return value if known is None else known


def _merge(nodes: Sequence[ir.Node], scope: Scope, context: Context) -> int:
    """Replace these suppressions by one, if all that is made of them is joined; returns how many they were."""
    found = [node.outputs[0] for node in nodes]
    with context.editor.change(BatchNonMaxSuppression.name, nodes=nodes) as change:
        rows = _Rows(nodes, context)
        for join in _joins(found[0], scope.graph, context.facts):
            new = rows.before(join, scope)
            if new is not None:
                context.editor.replace(join.outputs[0], new)
        if any(_is_needed(value, _DEEPEST) for value in found):
            change.cancel(refuse("use", found[0], needed="all of it joined with that of other classes"))
    return len(nodes) if change else 0


def _joins(found: ir.Value, graph: ir.Graph, facts: Facts) -> list[ir.Node]:
    """Return the Concats of rows that depend on a NonMaxSuppression, in the order of the graph."""
    reached: dict[ir.Node, None] = {}
    values = [found]
    for _ in range(_DEEPEST):
        users = dict.fromkeys(user for value in values for user in value.consumers() if user not in reached)
        reached |= users
        values = [output for user in users for output in user.outputs]
    return [
        node for node in graph if node in reached and node.op_type == "Concat" and parameter(node, "axis", facts) == 0
    ]


def _is_needed(value: ir.Value, depth: int) -> bool:
    """Whether an output of the graph depends on a value, or may do so."""
    return value.is_graph_output() or any(
        depth == 0
        or not user.outputs
        or user.graph is not value.graph
        or any(_is_needed(output, depth - 1) for output in user.outputs)
        for user in value.consumers()
    )


class _Rows:
    """Build the values that are computed from the selected boxes, for all classes at once.

    Lists of values have one for each class, in their order; its first axis are the boxes of that class.
    """

    def __init__(self, nodes: Sequence[ir.Node], context: Context) -> None:
        self._nodes, self._context, self._facts = nodes, context, context.facts
        self._found = [node.outputs[0] for node in nodes]
        self._merged: ir.Value | None = None
        self._made: dict[tuple[ir.Value, ...], ir.Value | None] = {}

    def before(self, join: ir.Node, scope: Scope) -> ir.Value | None:
        """Return the replacement of concatenated values, built before the Concat; `None` if that is not known."""
        self._build = Builder(scope, self._context.editor, join)
        return self._of(join.inputs)

    def _of(self, given: Sequence[ir.Value | None]) -> ir.Value | None:
        values = tuple(value for value in given if value is not None)
        if len(values) != len(self._nodes):
            return None
        if values not in self._made:
            nodes = [node for node in map(ir.Value.producer, values) if node is not None]
            labels = self._labels(values)
            alike = labels is None and len(nodes) == len(values) and len({_kind(node) for node in nodes}) == 1
            self._made[values] = self._computed(nodes) if alike else labels
        return self._made[values]

    def _labels(self, values: Sequence[ir.Value]) -> ir.Value | None:
        """A number for each class, as often as it has boxes."""
        counts = [(self._facts.shape(found) or ())[:1] for found in self._found]
        numbers, dtype = [self._facts.fill(value) for value in values], self._facts.dtype(values[0])
        if None in numbers or dtype is None or [self._facts.shape(value) for value in values] != counts:
            return None
        table = self._build.constant(ir.Tensor(np.asarray(numbers, dtype.numpy())))
        return self._build.node("Gather", [table, self._build.gather(self._all(), 1, _CLASS)])[0]

    def _computed(self, nodes: Sequence[ir.Node]) -> ir.Value | None:
        first, (operands, *others) = nodes[0], list(zip(*(node.inputs for node in nodes), strict=True))
        axis = parameter(first, "axis", self._facts)
        if list(operands) == self._found:
            is_box = self._takes_numbers(first) and self._are_same(others)
            return self._build.like(first, [self._all(), *first.inputs[1:]]) if is_box else None
        if first.op_type == "Gather" and axis == 0:
            return self._gathered(first, operands, *others)
        if first.op_type == "Concat" and isinstance(axis, int) and axis > 0:
            parts = [self._of(column) for column in (operands, *others)]
            return None if None in parts else self._build.like(first, parts)
        if has(first, BROADCASTS):
            return self._combined(nodes, (operands, *others))
        if first.op_type in _PER_ROW and self._are_same(others) and self._keeps_rows(first):
            rows = self._of(operands)
            return None if rows is None else self._build.like(first, [rows, *first.inputs[1:]])
        return None

    def _combined(self, nodes: Sequence[ir.Node], columns: Sequence[Sequence[ir.Value | None]]) -> ir.Value | None:
        """Rows combined element by element with rows, and with what is the same for all of them."""
        rank = self._facts.rank(nodes[0].outputs[0])
        made: list[ir.Value | None] = []
        for column in columns:
            shapes = [self._facts.shape(value) for value in column]
            first = shapes[0]
            is_shared = first is not None and rank is not None and (len(first) < rank or first[:1] == (1,))
            if is_shared and len({_number(value, self._facts) for value in column}) == 1:
                made.append(column[0])
            elif any(shape is None or len(shape) != rank for shape in shapes) or (rows := self._of(column)) is None:
                return None
            else:
                made.append(rows)
        return self._build.like(nodes[0], made)

    def _takes_numbers(self, node: ir.Node) -> bool:
        """Whether a node takes the last column of what is found, which does not tell classes apart."""
        if node.op_type == "Gather":
            taken = self._facts.const(node.inputs[1])
            return (
                taken is not None and parameter(node, "axis", self._facts) == 1 and {*taken.reshape(-1)} <= {_BOX, -1}
            )
        names = ("starts", "ends", "axes", "steps")
        starts, ends, axes, steps = (parameter(node, name, self._facts) for name in names)
        return (
            node.op_type == "Slice" and (starts, axes) == ((_BOX,), (1,)) and ends[0] > _BOX and steps in (None, (1,))
        )

    def _keeps_rows(self, node: ir.Node) -> bool:
        """Whether the first axis of a result is that of the operand, and the others do not depend on it."""
        if node.op_type == "Reshape":
            return self._splits_rows(node)
        axes = parameter(node, "axes", self._facts)
        return node.op_type not in ("Squeeze", "Unsqueeze") or (isinstance(axes, tuple) and 0 not in axes)

    def _splits_rows(self, node: ir.Node) -> bool:
        """Whether a Reshape leaves as many rows as there are, each of known sizes."""
        before, after = self._facts.shape(node.inputs[0]), self._facts.shape(node.outputs[0])
        target = self._facts.const(node.inputs[1])
        if before is None or after is None or target is None or target.ndim != 1:
            return False
        return before[:1] == after[:1] and target[:1].tolist() == [-1] and bool((target[1:] > 0).all())

    def _gathered(
        self, node: ir.Node, tables: Sequence[ir.Value | None], places: Sequence[ir.Value | None]
    ) -> ir.Value | None:
        """Rows of one table by their numbers, or of a table of each class."""
        rows = self._of(places)
        if rows is None or len({*tables}) == 1:
            return None if rows is None else self._build.like(node, [tables[0], rows])
        shapes = {self._facts.shape(table) for table in tables}
        if (
            len(shapes) != 1
            or None in shapes
            or self._facts.rank(rows) != 1
            or self._facts.dtype(rows) != ir.DataType.INT64
            or self._build.opset < _GATHERS_BY_ROWS
        ):
            return None
        table = self._build.concat([self._build.unsqueeze(one, 0) for one in tables if one is not None], 0)
        pairs = self._build.concat([self._build.slice(self._all(), 1, _CLASS, _BOX), self._build.unsqueeze(rows, 1)], 1)
        return self._build.node("GatherND", [table, pairs])[0]

    def _are_same(self, columns: Sequence[Sequence[ir.Value | None]]) -> bool:
        """Whether the operands are the same for all classes."""
        return all(len({_number(value, self._facts) for value in column}) == 1 for column in columns)

    def _all(self) -> ir.Value:
        """The boxes of all classes."""
        if self._merged is None:
            first, scores = self._nodes[0], [node.inputs[1] for node in self._nodes]
            joined = self._build.concat([value for value in scores if value is not None], 1)
            self._merged = self._build.like(first, [first.inputs[0], joined, *first.inputs[2:]])
        return self._merged


def _kind(node: ir.Node) -> Hashable:
    """Return a key for the computation of a node without its operands; the key of an unsupported node is unique."""
    if node.domain or len(node.outputs) != 1 or any(walk.graphs_of(one) for one in node.attributes.values()):
        return node
    attributes = tuple(sorted((name, str(one.type), str(one.value)) for name, one in node.attributes.items()))
    return node.op_type, node.version, len(node.inputs), attributes
