"""Copy bodies of control flow with fewer inputs and outputs, or with other operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from ortfuse.ir.walk import nested_nodes, nodes_within


def narrowed(
    body: ir.Graph, given: Mapping[ir.Value, ir.Value], inputs: Sequence[int], outputs: Sequence[int]
) -> ir.Graph:
    """A copy with only some of its inputs and outputs and what those need; `given` values around it stand for inputs."""
    copy = body.clone(allow_outer_scope_values=True)
    for formal, old in zip(copy.inputs, body.inputs, strict=True):
        for use in tuple(formal.uses()) if old in given else ():
            use.node.replace_input_with(use.idx, given[old])
    copy.inputs[:] = [copy.inputs[index] for index in inputs]
    copy.outputs[:] = [copy.outputs[index] for index in outputs]
    for node in reversed(list(copy)):
        if node.outputs and not any(value.uses() or value.is_graph_output() for value in node.outputs):
            for inner in (node, *nested_nodes(node)):
                inner.resize_inputs(0)
            copy.remove(node)
    return copy


def redirected(
    body: ir.Graph, operands: Mapping[tuple[ir.Node, int], ir.Value], results: Mapping[int, ir.Value]
) -> ir.Graph:
    """A copy in which inputs of the body stand for operands of its nodes, and, behind an Identity, for results."""
    copy = body.clone(allow_outer_scope_values=True)
    formals, nodes = dict(zip(body.inputs, copy.inputs, strict=True)), dict(zip(body, copy, strict=True))
    for (node, index), value in operands.items():
        nodes[node].replace_input_with(index, formals[value])
    for index, value in results.items():
        carrier, old = ir.node("Identity", [formals[value]]), copy.outputs[index]
        copy.append(carrier)
        carrier.outputs[0].type, carrier.outputs[0].shape = old.type, old.shape
        copy.outputs[index] = carrier.outputs[0]
    return copy


def resolve_attributes(graph: ir.Graph, attributes: Mapping[str, ir.Attr]) -> None:
    """Put values in the place of references to attributes of a function; what refers to an absent one is absent too."""
    for node in nodes_within(graph):
        for name, attribute in list(node.attributes.items()):
            if not attribute.is_ref():
                continue
            found = attributes.get(attribute.ref_attr_name or "")
            if found is None:
                del node.attributes[name]
            elif found.is_ref():
                node.attributes[name] = ir.RefAttr(name, found.ref_attr_name or "", found.type)
            else:
                node.attributes[name] = ir.Attr(name, found.type, found.value)
