"""Operators of a body, applied to the values of all runs at once, which have the runs as a new first axis.

Axes are counted one further; operands that are broadcast get axes of size 1 behind the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import parameter
from ortfuse.ir.traits import BROADCASTS, ELEMENTWISE, REDUCES
from ortfuse.transforms.node_builder import Builder

_PER_AXIS = 13
"""The opset from which on Softmax is computed along one axis."""


class Runs(Protocol):
    """The values of a body over all runs."""

    def of(self, value: ir.Value) -> ir.Value:
        """The values of all runs along a new first axis."""

    def constant(self, value: ir.Value) -> ir.Value:
        """A value that is the same in all runs, outside of the loop."""

    def is_same(self, value: ir.Value) -> bool:
        """Whether a value is the same in all runs."""


@dataclass(frozen=True)
class Lifted:
    """Builds operators on the values of all runs."""

    runs: Runs
    build: Builder
    facts: Facts

    def outputs(self, node: ir.Node) -> Sequence[ir.Value] | None:
        """The outputs of a node over all runs; `None` if it is not known how to compute them at once."""
        if node.domain or any(attribute.is_ref() for attribute in node.attributes.values()):
            return None
        if all(self.runs.is_same(value) for value in node.inputs if value is not None):
            return None  # the result would lack the axis of the runs
        if node.op_type == "Split":
            return self._split(node)
        found = self._output(node) if len(node.outputs) == 1 else None
        return None if found is None else [found]

    def _output(self, node: ir.Node) -> ir.Value | None:
        if node.op_type in ELEMENTWISE:
            return self._along(node, {})
        if node.op_type in BROADCASTS:
            return self._broadcast(node)
        if node.op_type in ("MatMul", "Gemm"):
            return self._product(node)
        if node.op_type in ("Squeeze", "Unsqueeze") or node.op_type in REDUCES:
            return self._with_axes(node)
        if node.op_type == "Transpose":
            perm = parameter(node, "perm", self.facts)
            return self.build.transpose(self.runs.of(_present(node, 0)), [0, *(axis + 1 for axis in perm)])
        if node.op_type in ("Softmax", "LogSoftmax", "LayerNormalization"):
            is_old = node.op_type != "LayerNormalization" and self.facts.version(node) < _PER_AXIS
            return None if is_old else self._along(node, {"axis": parameter(node, "axis", self.facts)})
        return self._concat(node) if node.op_type == "Concat" else None

    def _along(self, node: ir.Node, axes: dict[str, Any]) -> ir.Value | None:
        """A node that treats elements or rows alike; its other operands are the same in all runs."""
        if not all(isinstance(axis, int) for axis in axes.values()):
            return None
        operands = [None if operand is None else self.runs.constant(operand) for operand in node.inputs[1:]]
        changes = {name: axis + 1 for name, axis in axes.items()}
        return self.build.like(node, [self.runs.of(_present(node, 0)), *operands], changes)

    def _broadcast(self, node: ir.Node) -> ir.Value | None:
        rank = self.facts.rank(node.outputs[0])
        if rank is None:
            return None
        operands = [self._aligned(_present(node, index), rank) for index in range(len(node.inputs))]
        return None if None in operands else self.build.like(node, operands)

    def _aligned(self, value: ir.Value, rank: int) -> ir.Value | None:
        """An operand that is broadcast with others to results of a rank."""
        own = self.facts.rank(value)
        if own is None or own > rank:
            return None
        if self.runs.is_same(value):
            return self.runs.constant(value)
        found = self.runs.of(value)
        return self.build.unsqueeze(found, *range(1, 1 + rank - own)) if own < rank else found

    def _product(self, node: ir.Node) -> ir.Value | None:
        left, right = _present(node, 0), _present(node, 1)
        ranks = self.facts.rank(left), self.facts.rank(right)
        if ranks[0] is None or ranks[1] is None or min(ranks[0], ranks[1]) < 2:
            return None
        if node.op_type == "Gemm":
            return self._gemm(node, left, right)
        rank = max(ranks[0], ranks[1])
        operands = [self._aligned(left, rank), self._aligned(right, rank)]
        return None if None in operands else self.build.like(node, operands)

    def _gemm(self, node: ir.Node, left: ir.Value, right: ir.Value) -> ir.Value | None:
        options = [parameter(node, name, self.facts) for name in ("transA", "transB", "alpha", "beta")]
        if options not in ([0, 0, 1.0, 1.0], [0, 1, 1.0, 1.0]) or not self.runs.is_same(right):
            return None
        matrix = self.runs.constant(right)
        matrix = self.build.transpose(matrix, (1, 0)) if options[1] else matrix
        product = self.build.node("MatMul", [self.runs.of(left), matrix])[0]
        if len(node.inputs) < 3 or node.inputs[2] is None:
            return product
        added = self._aligned(node.inputs[2], 2)
        return None if added is None else self.build.node("Add", [product, added])[0]

    def _with_axes(self, node: ir.Node) -> ir.Value | None:
        """A node with axes that are given: Squeeze, Unsqueeze and reductions."""
        axes = parameter(node, "axes", self.facts)
        if not isinstance(axes, tuple | list) or not axes or not all(isinstance(axis, int) for axis in axes):
            return None
        found, moved = self.runs.of(_present(node, 0)), [axis + 1 for axis in axes]
        if "axes" in node.attributes:
            return self.build.like(node, [found], {"axes": moved})
        return self.build.like(node, [found, self.build.ints(moved)])

    def _concat(self, node: ir.Node) -> ir.Value | None:
        axis = parameter(node, "axis", self.facts)
        operands = [operand for operand in node.inputs if operand is not None]
        if not isinstance(axis, int) or any(map(self.runs.is_same, operands)):
            return None
        return self.build.like(node, [self.runs.of(operand) for operand in operands], {"axis": axis + 1})

    def _split(self, node: ir.Node) -> Sequence[ir.Value] | None:
        axis = parameter(node, "axis", self.facts)
        shapes = [self.facts.shape(output) for output in node.outputs]
        sizes = [None if shape is None or not isinstance(axis, int) else shape[axis] for shape in shapes]
        known = [size for size in sizes if isinstance(size, int)]
        if len(known) != len(sizes):
            return None
        return self.build.split(self.runs.of(_present(node, 0)), axis + 1, known)


def _present(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    assert value is not None
    return value
