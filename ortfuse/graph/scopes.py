"""The graphs of a model: main graph, subgraphs of control flow, bodies of model functions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.graph import walk


@dataclass(frozen=True, slots=True)
class Scope:
    """One graph and the graph whose opset imports govern it (the main graph's or a function's)."""

    graph: ir.Graph
    root: ir.Graph

    @property
    def opset(self) -> int:
        """The ai.onnx version the scope imports (1 if it imports none)."""
        return self.root.opset_imports.get("", 1)


def scopes(model: ir.Model) -> Iterator[Scope]:
    """Every graph of the model, an outer graph before its subgraphs."""
    roots = [model.graph, *(function.graph for function in model.functions.values())]
    for root in roots:
        stack = [root]
        while stack:
            graph = stack.pop()
            yield Scope(graph, root)
            for node in graph:
                stack.extend(subgraphs(node))


def subgraphs(node: ir.Node) -> list[ir.Graph]:
    """The graphs held by the node's attributes (If, Loop, Scan, ...)."""
    if node.op_type not in _CONTROL_FLOW and not node.domain:
        return []
    found: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            found.append(attribute.value)
        elif attribute.type == ir.AttributeType.GRAPHS:
            found.extend(attribute.value)
    return found


def captured_values(node: ir.Node) -> Iterator[ir.Value]:
    """The values that the bodies of `node` (If, Loop, Scan) read from the graphs around them."""
    inside = {graph for body in subgraphs(node) for graph in walk.nested(body)}
    for graph in inside:
        values = [*graph.outputs, *(operand for inner in graph for operand in inner.inputs)]
        yield from (value for value in values if value is not None and value.graph not in inside)


_CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})
