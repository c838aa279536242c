"""List the contents of a model, to detect edits that bypass the editor.

Tensors are the same if they are the same objects; clones of a model share theirs.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import onnx_ir as ir

from ortfuse.ir import walk

Place = tuple[Hashable, ...]
"""The location of a graph: empty for the main graph, else the function, and the nodes and attributes that lead to it."""

Contents = Mapping[Hashable, Any]
"""One entry for each graph, node, initializer and declared type."""


class Identity:
    """Compare an object by identity; hold a reference, so that its address is not reused."""

    def __init__(self, thing: object) -> None:
        self._thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self._thing is other._thing

    def __hash__(self) -> int:
        return id(self._thing)


def contents(model: ir.Model) -> Contents:
    """Everything in a model that is written to its file."""
    found: dict[Hashable, Any] = {
        ("model",): (model.ir_version, model.doc_string, tuple(sorted(model.metadata_props.items()))),
        ("functions",): frozenset(model.functions),
    }
    for place, graph in places(model):
        found |= _graph_entries(place, graph)
    return found


def changes(before: Contents, after: Contents) -> int:
    """The number of entries in which two models differ."""
    missing = object()
    return sum(before.get(key, missing) != after.get(key, missing) for key in {**before, **after})


def places(model: ir.Model) -> Iterator[tuple[Place, ir.Graph]]:
    """Every graph of a model, with its location."""
    stack: list[tuple[Place, ir.Graph]] = [((), model.graph)]
    stack += [((name,), function.graph) for name, function in model.functions.items()]
    while stack:
        place, graph = stack.pop()
        yield place, graph
        for node in graph:
            stack += [((*place, *key), inner) for key, inner in bodies(node).items()]


def bodies(node: ir.Node) -> dict[tuple[Hashable, ...], ir.Graph]:
    """The graphs in a node's attributes, by their location in the node."""
    return {
        (key_of(node), name, number): graph
        for name, attribute in node.attributes.items()
        for number, graph in enumerate(walk.graphs_of(attribute))
    }


def key_of(node: ir.Node) -> Hashable:
    """The key that identifies a node in its graph: the names of its outputs, or its own name if it has none."""
    return tuple(output.name for output in node.outputs) or node.name


def operation(node: ir.Node) -> tuple[Any, ...]:
    """The entry of a node: what it computes, by the names of its inputs; the graphs it contains are left out."""
    attributes = tuple((name, _attribute(node.attributes[name])) for name in sorted(node.attributes))
    inputs = tuple(None if value is None else value.name for value in node.inputs)
    return node.op_identifier(), node.version, inputs, tuple(output.name for output in node.outputs), attributes


def _attribute(attribute: ir.Attr) -> Hashable:
    if attribute.is_ref():
        return attribute.type, attribute.ref_attr_name
    if walk.graphs_of(attribute):
        return (attribute.type,)
    value = attribute.value
    if attribute.type in (ir.AttributeType.TENSOR, ir.AttributeType.TENSORS):
        tensors = (value,) if attribute.type == ir.AttributeType.TENSOR else tuple(value)
        return attribute.type, tuple(Identity(tensor) for tensor in tensors)
    return attribute.type, tuple(value) if isinstance(value, list) else str(value) if value != value else value


def _graph_entries(place: Place, graph: ir.Graph) -> dict[Hashable, Any]:
    entries: dict[Hashable, Any] = {
        (place, "interface"): (
            graph.name, graph.doc_string, tuple(sorted(graph.opset_imports.items())),
            tuple(sorted(graph.metadata_props.items())), tuple(value.name for value in graph.inputs),
            tuple(value.name for value in graph.outputs),
        ),
        (place, "order"): tuple(key_of(node) for node in graph),
    }  # fmt: skip
    for name, value in graph.initializers.items():
        entries[place, "initializer", name] = Identity(value.const_value)
    for node in graph:
        metadata = tuple(sorted(node.metadata_props.items()))
        entries[place, "node", key_of(node)] = (operation(node), node.name, node.doc_string, metadata)
    for value in walk.own_values(graph):
        metadata = tuple(sorted(value.metadata_props.items()))
        shape = None if value.shape is None else tuple(str(dim) for dim in value.shape)
        entries[place, "value", value.name] = (str(value.type), shape, value.doc_string, metadata)
    return entries
