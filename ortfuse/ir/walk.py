"""Traversal of a model: its graphs with the imports in force, their nodes, and everything nested in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.ir.traits import CONTROL_FLOW


@dataclass(frozen=True, slots=True)
class Scope:
    """A graph, and the graph whose opset imports apply to it (the main graph or a function's)."""

    graph: ir.Graph
    root: ir.Graph

    @property
    def opset(self) -> int:
        """The ai.onnx version the scope imports (1 if it imports none)."""
        return self.root.opset_imports.get("", 1)


def roots(model: ir.Model) -> list[ir.Graph]:
    """The main graph and the bodies of the model's functions: the graphs that are not nested in another."""
    return [model.graph, *(function.graph for function in model.functions.values())]


def scopes(model: ir.Model) -> Iterator[Scope]:
    """Every graph of the model, an outer graph before its subgraphs."""
    for root in roots(model):
        for graph in nested(root):
            yield Scope(graph, root)


def graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """Every graph of the model: the main graph, the bodies of functions, and the graphs nested in their nodes."""
    for root in roots(model):
        yield from nested(root)


def nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Every node of the model, in all its graphs."""
    for graph in graphs(model):
        yield from graph


def nested(graph: ir.Graph) -> Iterator[ir.Graph]:
    """A graph and every graph nested in its nodes, outer ones first."""
    waiting = [graph]
    while waiting:
        inner = waiting.pop()
        yield inner
        for node in inner:
            if node.op_type in CONTROL_FLOW or node.domain:
                waiting += subgraphs(node)


def nodes_within(graph: ir.Graph) -> Iterator[ir.Node]:
    """The nodes of a graph and of all graphs nested in it."""
    for inner in nested(graph):
        yield from inner


def nested_nodes(node: ir.Node) -> Iterator[ir.Node]:
    """The nodes in the subgraphs of a node, at any depth."""
    for body in subgraphs(node):
        yield from nodes_within(body)


def subgraphs(node: ir.Node) -> list[ir.Graph]:
    """The graphs in a node's attributes (If, Loop, Scan, ...)."""
    if node.op_type not in CONTROL_FLOW and not node.domain:
        return []
    return [graph for attribute in node.attributes.values() for graph in graphs_of(attribute)]


def branches(node: ir.Node) -> dict[bool, ir.Graph]:
    """The branches of an If, by the conditions under which they are taken; nothing for other nodes."""
    if node.op_type != "If" or node.domain:
        return {}
    found = {True: node.attributes.get("then_branch"), False: node.attributes.get("else_branch")}
    return {truth: branch.as_graph() for truth, branch in found.items() if branch is not None and not branch.is_ref()}


def graphs_of(attribute: ir.Attr) -> tuple[ir.Graph, ...]:
    """The graphs in an attribute: one, several or, for attributes of other types, none."""
    if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
        return (attribute.value,)
    if attribute.type == ir.AttributeType.GRAPHS and not attribute.is_ref():
        return tuple(attribute.value)
    return ()


def own_values(graph: ir.Graph) -> Iterator[ir.Value]:
    """The values that belong to a graph: its inputs, its initializers and the outputs of its nodes."""
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


def captured_values(node: ir.Node) -> Iterator[ir.Value]:
    """The values that the bodies of `node` (If, Loop, Scan) read from the graphs around them."""
    inside = {graph for body in subgraphs(node) for graph in nested(body)}
    for graph in inside:
        values = [*graph.outputs, *(operand for inner in graph for operand in inner.inputs)]
        yield from (value for value in values if value is not None and value.graph not in inside)


def used_values(node: ir.Node) -> Iterator[ir.Value]:
    """The values that `node` needs: its inputs, and what its bodies read from the graphs around them."""
    yield from (value for value in node.inputs if value is not None)
    yield from captured_values(node)


def needed_nodes(graph: ir.Graph, needs: Callable[[ir.Node], Iterable[ir.Value]] = used_values) -> Iterator[ir.Node]:
    """The nodes of the graph that its outputs depend on, through the values that `needs` says of each node."""
    pending = [value.producer() for value in graph.outputs]
    seen: set[ir.Node] = set()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.graph is graph:
            yield node
        pending += [value.producer() for value in needs(node)]


def describe(node: ir.Node) -> str:
    """The text by which messages refer to a node: its name, or else its outputs."""
    kind = f"{node.domain}::{node.op_type}" if node.domain else node.op_type or "untyped"
    if node.name:
        return f"{kind} node '{node.name}'"
    outputs = [output.name for output in node.outputs if output.name]
    return f"{kind} node that produces '{outputs[0]}'" if outputs else f"{kind} node without a name"
