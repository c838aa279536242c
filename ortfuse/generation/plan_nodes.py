"""Nodes that are added to a graph, with names of their own: single ones, and those of plans for index maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.index_maps import Fill
from ortfuse.transforms.index_maps.make import Make, Operand, Plan


class PlanNodes:
    """Adds nodes to a graph.

    Args:
        graph: The graph.
        prefix: What names of nodes and values begin with.
    """

    def __init__(self, graph: ir.Graph, prefix: str) -> None:
        self._graph, self._prefix, self._count = graph, prefix, 0
        self.first = graph[0]
        self._constants: dict[tuple[str, bytes], ir.Value] = {}
        values = [*graph.inputs, *graph.initializers.values(), *(one for node in graph for one in node.outputs)]
        self._taken = {value.name for value in values}

    def name(self, wanted: str = "") -> str:
        """A name that no value has."""
        found = wanted
        while not found or found in self._taken:
            self._count += 1
            found = f"{wanted or self._prefix}_{self._count}"
        self._taken.add(found)
        return found

    def add(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any] | None = None,
        *,
        before: ir.Node | None = None,
    ) -> ir.Value:
        """The output of a new node, which comes before another, or before all that were there."""
        return self.node(op_type, inputs, attributes, before=before).outputs[0]

    def node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any] | None = None,
        *,
        outputs: int = 1,
        before: ir.Node | None = None,
    ) -> ir.Node:
        """A new node of several outputs, which comes before another, or before all that were there."""
        made = ir.node(op_type, inputs, dict(attributes or {}), num_outputs=outputs)
        made.name = self.name()
        for number, output in enumerate(made.outputs):
            output.name = self.name() if number else made.name
        self._graph.insert_before(before or self.first, made)
        return made

    def ints(self, numbers: int | Sequence[int]) -> ir.Value:
        """A constant of int64."""
        return self.constant(np.array(numbers, np.int64))

    def constant(self, array: np.ndarray[Any, Any]) -> ir.Value:
        """A constant."""
        key = (f"{array.dtype}{array.shape}", array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.initializer(array)
        return self._constants[key]

    def initializer(self, array: np.ndarray[Any, Any]) -> ir.Value:
        """A constant of its own, such as a large weight."""
        name = self.name()
        tensor = ir.tensor(np.asarray(array, order="C"), name=name)
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)
        self._graph.register_initializer(value)
        return value

    def build(self, plan: Plan, before: ir.Node) -> ir.Value:
        """The value of a plan, whose nodes come before another."""
        if isinstance(plan, ir.Value):
            return plan
        made: dict[Make, ir.Value] = {}

        def operand_of(one: Operand) -> ir.Value:
            if isinstance(one, Make):
                return made[one]
            if isinstance(one, ir.Value):
                return one
            if isinstance(one, Fill):
                return self.constant(np.frombuffer(one.content, one.dtype.numpy())[0].copy())
            return self.ints(one)

        for node in plan.nodes():
            operands = [operand_of(one) for one in node.operands]
            made[node] = self.add(node.op_type, operands, dict(node.attributes), before=before)
        return made[plan]
