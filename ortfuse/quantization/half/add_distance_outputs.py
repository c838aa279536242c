"""Add outputs to a model that measure the distance between two of its values, in its main graph or in a body.

Every graph collects its numbers in one vector. A body returns its own to the graph around it. A Loop or Scan returns the
largest of all iterations. An If returns those of the executed branch, and 0 for the others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from ortfuse.ir import walk

OPSET = 9
"""The opset from which on there is what this takes (Where)."""

_AXES_AS_INPUT = 18
"""The opset from which on ReduceMax takes its axes as an input."""

NOT_ZERO = 1e30
"""Stands for a number that is not 0 in relation to 0."""

_FINITE, _FINITE_SQUARES = 3.5e38, 1e300
"""More than any finite float32, and than a sum of the squares of such."""

_NUMBERS = itertools.count()


Kind = Literal["error", "integers", "range"]
"""The measured quantity: the error of a value in relation to its norm, whether integers are others, or numbers out of range."""


@dataclass(frozen=True)
class Reading:
    """The subject of one number.

    Attributes:
        units: The units that it tells of.
        what: What is measured, in words.
        kind: What the number means.
    """

    units: tuple[int, ...]
    what: str
    kind: Kind = "error"


class Nodes:
    """Append nodes to a graph."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph

    def made(self, op_type: str, inputs: Sequence[ir.Value | None], *attributes: ir.Attr) -> ir.Value:
        """The first output of a new node."""
        return self.node("", op_type, inputs, attributes).outputs[0]

    def node(
        self,
        domain: str,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Sequence[ir.Attr],
        outputs: int = 1,
        version: int | None = None,
    ) -> ir.Node:
        """A new node, whose outputs have names that no value of another graph has."""
        made = ir.Node(domain, op_type, inputs, attributes, version=version, num_outputs=outputs)
        for value in made.outputs:
            value.name = _new_name()
        self.graph.append(made)
        return made

    def constant(self, array: Any) -> ir.Value:
        """A new constant."""
        return self.made("Constant", [], ir.AttrTensor("value", ir.tensor(np.asarray(array))))

    def cast(self, value: ir.Value, kind: ir.DataType) -> ir.Value:
        """A value in another type."""
        return self.made("Cast", [value], ir.AttrInt64("to", int(kind)))


class Tally(Nodes):
    """The numbers of one graph.

    Args:
        graph: The graph, which nodes are appended to.
    """

    def __init__(self, graph: ir.Graph) -> None:
        super().__init__(graph)
        self._found: list[tuple[list[Reading], ir.Value]] = []

    def apart(self, reading: Reading, own: ir.Value, other: ir.Value, kind: ir.DataType) -> None:
        """Measure how far a value is from another of the same type and shape.

        The norm of the difference in relation to that of `own`, where that is finite: infinite if `other` is not finite there,
        `NOT_ZERO` if `own` is 0. For truth values the share that differs.
        """
        if kind != ir.DataType.BOOL:
            self._add(reading, self._norms(own, other))
            return
        count = self._sum(self._flat(self.made("Xor", [own, other])))
        self._add(reading, self.made("Div", [count, self.made("Max", [self._size(own), self._number(1.0)])]))

    def differ(self, reading: Reading, own: ir.Value, other: ir.Value, *, as_many: bool) -> None:
        """Measure whether two values of integers, or of numbers that are counted, are not the same: `NOT_ZERO`, or 0.

        Args:
            reading: What it tells.
            own: The one.
            other: The other.
            as_many: Whether they have the same shape; else their sizes and sums are compared.
        """
        one, two = self._flat(own), self._flat(other)
        if as_many:
            lost = self._squares(self.made("Sub", [one, two]))
        else:
            sums = [(self._size(own), self._size(other)), (self._sum(one), self._sum(two))]
            sums.append((self._squares(one), self._squares(two)))
            apart = [self.made("Abs", [self.made("Sub", [first, second])]) for first, second in sums]
            lost = self.made("Max", apart)
        self._add(reading, self._where(self._is_above(lost, 0.0), self._number(NOT_ZERO), self._number(0.0)))

    def beyond(self, reading: Reading, value: ir.Value, limit: float) -> None:
        """Measure whether a finite number of a value is at least so large."""
        size = self.made("Abs", [self._flat(value)])
        is_beyond = self.made("And", [self._is_below(size, _FINITE), self._is_above(size, limit)])
        found = self.made("ReduceMax", [self.cast(is_beyond, ir.DataType.DOUBLE)], ir.AttrInt64("keepdims", 0))
        self._add(reading, found)

    def take(self, readings: list[Reading], vector: ir.Value) -> None:
        """Take numbers over that another graph measured."""
        self._found.append((readings, vector))

    def closed(self) -> tuple[list[Reading], ir.Value] | None:
        """All numbers as a vector of float32; `None` if there are none."""
        if not self._found:
            return None
        vector = self.made("Concat", [value for _, value in self._found], ir.AttrInt64("axis", 0))
        readings = [reading for some, _ in self._found for reading in some]
        return readings, _as_vector(vector, len(readings))

    def _norms(self, own: ir.Value, other: ir.Value) -> ir.Value:
        wide, off = self._flat(own), self._flat(other)
        usable, nothing = self._is_below(self.made("Abs", [wide]), _FINITE), self._number(0.0)
        wide, off = self._where(usable, wide, nothing), self._where(usable, off, nothing)
        lost = self._squares(self.made("Sub", [wide, off]))
        size = self._squares(wide)
        ratio = self.made("Sqrt", [self.made("Div", [lost, size])])
        known = self._where(self._is_above(size, 0.0), ratio, self._number(NOT_ZERO))
        error = self._where(self._is_above(lost, 0.0), known, nothing)
        return self._where(self._is_below(lost, _FINITE_SQUARES), error, self._number(math.inf))

    def _squares(self, value: ir.Value) -> ir.Value:
        return self.made("ReduceSumSquare", [value], ir.AttrInt64("keepdims", 0))

    def _flat(self, value: ir.Value) -> ir.Value:
        """The elements of a value in double, and a 0, so that there is one."""
        row = self.made("Reshape", [self.cast(value, ir.DataType.DOUBLE), self.constant(np.array([-1], np.int64))])
        return self.made("Concat", [row, self.constant(np.zeros(1))], ir.AttrInt64("axis", 0))

    def _sum(self, value: ir.Value) -> ir.Value:
        return self.made("ReduceSum", [value], ir.AttrInt64("keepdims", 0))

    def _size(self, value: ir.Value) -> ir.Value:
        return self.cast(self.made("Size", [value]), ir.DataType.DOUBLE)

    def _is_below(self, value: ir.Value, limit: float) -> ir.Value:
        return self.made("Less", [value, self._number(limit)])  # false for NaN, too

    def _is_above(self, value: ir.Value, limit: float) -> ir.Value:
        return self.made("Greater", [value, self._number(limit)])

    def _where(self, condition: ir.Value, one: ir.Value, other: ir.Value) -> ir.Value:
        return self.made("Where", [condition, one, other])

    def _number(self, number: float) -> ir.Value:
        return self.constant(np.float64(number))

    def _add(self, reading: Reading, number: ir.Value) -> None:
        narrow = self.cast(number, ir.DataType.FLOAT)
        self._found.append(([reading], self.made("Reshape", [narrow, self.constant(np.array([1], np.int64))])))


def handed_up(tallies: dict[ir.Graph, Tally], graph: ir.Graph, opset: int) -> tuple[list[Reading], ir.Value] | None:
    """The numbers of a graph and of the bodies in it, as a vector; `None` if there are none.

    Args:
        tallies: The numbers of each graph; those of a graph without any are added.
        graph: The graph.
        opset: The opset of the model.
    """
    tally = tallies.setdefault(graph, Tally(graph))
    for node in [node for node in graph if has_bodies(node)]:
        bodies = walk.subgraphs(node)
        found = [(body, handed_up(tallies, body, opset)) for body in bodies]
        if any(vector is not None for _, vector in found):
            readings = [reading for _, one in found if one is not None for reading in one[0]]
            tally.take(readings, _from_bodies(tally, node, found, len(readings), opset))
    return tally.closed()


def has_bodies(node: ir.Node) -> bool:
    """Whether a node is an If, a Loop or a Scan without an axis of batches."""
    return not node.domain and node.op_type in ("If", "Loop", "Scan")


def _from_bodies(
    tally: Tally,
    node: ir.Node,
    found: Sequence[tuple[ir.Graph, tuple[list[Reading], ir.Value] | None]],
    count: int,
    opset: int,
) -> ir.Value:
    """The numbers of the bodies of a node in the graph around it."""
    before = 0
    for body, one in found:
        own = 0 if one is None else len(one[0])
        parts = [Nodes(body).constant(np.zeros(before, np.float32)), None if one is None else one[1]]
        parts.append(Nodes(body).constant(np.zeros(count - before - own, np.float32)))
        made = Nodes(body).made("Concat", [part for part in parts if part is not None], ir.AttrInt64("axis", 0))
        body.outputs.append(_as_vector(made, count))
        before += own
    node.resize_outputs(len(node.outputs) + 1)
    given = node.outputs[-1]
    given.name = _new_name()
    if node.op_type == "If":
        return _as_vector(given, count)
    given.type = ir.TensorType(ir.DataType.FLOAT)
    for name in ("scan_output_axes", "scan_output_directions"):
        if name in node.attributes:
            node.attributes[name] = ir.AttrInt64s(name, [*node.attributes[name].as_ints(), 0])
    rows = tally.made("Reshape", [given, tally.constant(np.array([-1, count], np.int64))])
    rows = tally.made("Concat", [rows, tally.constant(np.zeros((1, count), np.float32))], ir.AttrInt64("axis", 0))
    kept = ir.AttrInt64("keepdims", 0)
    if opset < _AXES_AS_INPUT:
        return _as_vector(tally.made("ReduceMax", [rows], ir.AttrInt64s("axes", [0]), kept), count)
    return _as_vector(tally.made("ReduceMax", [rows, tally.constant(np.array([0], np.int64))], kept), count)


def _new_name() -> str:
    return f"ortfuse.reading.{next(_NUMBERS)}"


def _as_vector(value: ir.Value, length: int) -> ir.Value:
    value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([length])
    return value
