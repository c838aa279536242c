"""Ways through a whole model: every graph in it, and every tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import onnx_ir

Replace = Callable[[onnx_ir.TensorProtocol], None]


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """A place in a model that holds a tensor: `owner` says which in words, `replace` puts another tensor there."""

    tensor: onnx_ir.TensorProtocol
    owner: str
    replace: Replace


def graphs(model: onnx_ir.Model) -> Iterator[onnx_ir.Graph]:
    """Every graph of a model: the main graph, the bodies of functions, and what is nested in their nodes."""
    for root in (model.graph, *(function.graph for function in model.functions.values())):
        yield from nested(root)


def nested(graph: onnx_ir.Graph) -> Iterator[onnx_ir.Graph]:
    """A graph and every graph nested in its nodes, outer before inner."""
    waiting = [graph]
    while waiting:
        inner = waiting.pop()
        yield inner
        for node in inner:
            if node.attributes:
                waiting += subgraphs(node)


def subgraphs(node: onnx_ir.Node) -> list[onnx_ir.Graph]:
    """The graphs that a node (If, Loop, Scan, ...) has as attributes."""
    return [graph for attribute in node.attributes.values() for graph in graphs_of(attribute)]


def tensors_of(attribute: onnx_ir.Attr) -> tuple[onnx_ir.TensorProtocol, ...]:
    """The tensors in an attribute: one, several or, if it is of another type, none.

    `Attr.as_tensor` would compare the tensor with a protocol, member by member, which takes longer than all the rest.
    """
    if attribute.type == onnx_ir.AttributeType.TENSOR and not attribute.is_ref():
        return (attribute.value,)
    if attribute.type == onnx_ir.AttributeType.TENSORS and not attribute.is_ref():
        return tuple(attribute.value)
    return ()


def graphs_of(attribute: onnx_ir.Attr) -> tuple[onnx_ir.Graph, ...]:
    """The graphs in an attribute: one, several or, if it is of another type, none."""
    if attribute.type == onnx_ir.AttributeType.GRAPH and not attribute.is_ref():
        return (attribute.value,)
    if attribute.type == onnx_ir.AttributeType.GRAPHS and not attribute.is_ref():
        return tuple(attribute.value)
    return ()


def tensors(model: onnx_ir.Model) -> Iterator[TensorSlot]:
    """Every tensor of a model: the initializers and the attributes, in all of its graphs."""
    for graph in graphs(model):
        for name, value in graph.initializers.items():
            if value.const_value is not None:
                yield TensorSlot(value.const_value, f"initializer '{name}'", _setter(value))
        for node in graph:
            for attribute in node.attributes.values():
                if tensors_of(attribute):
                    yield from _attribute_slots(node, attribute)


def _setter(value: onnx_ir.Value) -> Replace:
    def replace(tensor: onnx_ir.TensorProtocol) -> None:
        value.const_value = tensor

    return replace


def _attribute_slots(node: onnx_ir.Node, attribute: onnx_ir.Attr) -> Iterator[TensorSlot]:
    single = attribute.type == onnx_ir.AttributeType.TENSOR
    content = list(tensors_of(attribute))

    def replacer(index: int) -> Replace:
        def replace(tensor: onnx_ir.TensorProtocol) -> None:
            content[index] = tensor
            stored = tensor if single else tuple(content)
            changed = onnx_ir.Attr(attribute.name, attribute.type, stored, doc_string=attribute.doc_string)
            node.attributes[attribute.name] = changed

        return replace

    for index, tensor in enumerate(content):
        yield TensorSlot(tensor, f"attribute '{attribute.name}' of {describe(node)}", replacer(index))


def describe(node: onnx_ir.Node) -> str:
    """How messages speak of a node: by its name, else by what it produces."""
    kind = f"{node.domain}::{node.op_type}" if node.domain else node.op_type or "untyped"
    if node.name:
        return f"{kind} node '{node.name}'"
    outputs = [output.name for output in node.outputs if output.name]
    return f"{kind} node that produces '{outputs[0]}'" if outputs else f"{kind} node without a name"
