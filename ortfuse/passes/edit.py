"""Edits of graphs that keep the facts informed. Passes change graphs through these functions only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import onnx_ir as ir

from ortfuse.graph.walk import Scope, nested_nodes
from ortfuse.passes.context import Context


def remove_nodes(context: Context, nodes: Collection[ir.Node]) -> None:
    """Remove nodes that nothing outside of `nodes` uses, with what is nested in them."""
    by_graph: dict[ir.Graph, list[ir.Node]] = {}
    for node in nodes:
        assert isinstance(node.graph, ir.Graph)
        by_graph.setdefault(node.graph, []).append(node)
        context.facts.node_removed(node)
        # A nested node that keeps its inputs would count for ever as a use of values outside of the removed subgraph.
        for inner in nested_nodes(node):
            context.facts.node_removed(inner)
            _release_inputs(inner)
        _release_inputs(node)
    for graph, members in by_graph.items():
        graph.remove(members)


def _release_inputs(node: ir.Node) -> None:
    node.resize_inputs(0)


def replace_value(context: Context, old: ir.Value, new: ir.Value) -> None:
    """Let `new` stand wherever `old` is an input of a node. `old` must not be a graph output."""
    old.replace_all_uses_with(new)
    context.facts.value_replaced(old, new)


def make_constant(context: Context, scope: Scope, old: ir.Value, tensor: ir.TensorProtocol) -> ir.Value:
    """Let a constant take the place and the name of `old`, an output of a node that its caller then removes.

    The constant is an initializer, the normal form, where it can be one. A function has no initializers, and a graph
    output that is an initializer is legal but trips up tools: there it is a Constant node.
    """
    name = old.name
    producer = old.producer()
    assert name
    assert producer is not None
    in_function = scope.root is not context.model.graph
    if in_function or old.is_graph_output():
        node = constant_node(tensor)
        new = node.outputs[0]
        new.type, new.shape = old.type, old.shape
        _take_uses_and_name(old, new)
        scope.graph.insert_before(producer, node)
        context.facts.node_added(node)
    else:
        new = ir.Value(type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor)
        _take_uses_and_name(old, new)
        scope.graph.register_initializer(new)
    context.facts.value_replaced(old, new)
    return new


def _take_uses_and_name(old: ir.Value, new: ir.Value) -> None:
    name = old.name
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    # A value that is both without a use and without a name stays behind; the name must be free before it is given on.
    old.const_value, old.name = None, None
    new.name = name
    new.metadata_props.update(old.metadata_props)


def constant_node(tensor: ir.TensorProtocol) -> ir.Node:
    """A Constant node with the tensor as its value."""
    return ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)])


def initializers_to_nodes(context: Context) -> None:
    """Turn what rules registered as initializers of functions, which have none in ONNX, into Constant nodes."""
    for function in context.model.functions.values():
        graph = function.graph
        for value in list(graph.initializers.values()):
            assert value.name
            assert value.const_value is not None
            del graph.initializers[value.name]
            node = constant_node(value.const_value)
            _take_uses_and_name(value, node.outputs[0])
            first = next(iter(graph), None)
            graph.append(node) if first is None else graph.insert_before(first, node)
            context.facts.node_added(node)
            context.facts.value_replaced(value, node.outputs[0])


def uses_of(values: Iterable[ir.Value]) -> Iterator[ir.Node]:
    """The nodes that use any of the values, each as often as it uses one."""
    for value in values:
        for use in value.uses():
            yield use.node
