"""Raising a model's ai.onnx opset with ONNX's own version converter, without moving the weights.

The converter is given a skeleton: all initializers but small ones become inputs. Nodes of other domains pass through it;
nodes that rules made for the new opset already (their `version` says so) are hidden from it in a domain of their own. It
does not look into subgraphs and model functions, so these must hold only operators that mean the same at both opsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ortfuse.errors import TargetError
from ortfuse.rewrite.scopes import scopes, subgraphs

PENDING_DOMAIN = "ortfuse.pending"
SMALL = 64
"""Initializers up to this many elements are shown to the converter: adapters read axes, sizes and scales."""

_MEANS_THE_SAME = {
    # Operators whose later versions only admit more element types or attributes whose defaults are the old meaning.
    name: since
    for names, since in (
        (
            "Add Sub Mul Div Pow Neg Abs Sqrt Exp Log Erf Sigmoid Tanh Relu Ceil Floor Sign Reciprocal Min Max MatMul Gemm",
            13,
        ),
        (
            "Cast Identity Reshape Shape Size Transpose Flatten Expand Gather GatherElements GatherND Concat Slice Tile",
            13,
        ),
        (
            "Squeeze Unsqueeze Where Equal Less Greater And Or Not LessOrEqual GreaterOrEqual Constant ConstantOfShape",
            13,
        ),
        ("Softmax LogSoftmax Clip NonZero Range IsNaN IsInf If Loop Scan LeakyRelu Dropout ScatterND CumSum Conv", 13),
    )
    for name in names.split()
}


def raise_opset(model: ir.Model, opset: int) -> None:
    """Raise the ai.onnx version that `model` imports to `opset`, in place; nothing happens if it is that high already.

    Nodes that the converter does not change stay the objects they are. Raises TargetError, the model unchanged, when the
    converter fails or something would not be converted.
    """
    current = model.graph.opset_imports.get("")
    if current is None:
        model.graph.opset_imports[""] = opset
        return
    if current >= opset:
        return
    _check_inner_graphs(model, current, opset)
    try:
        converted = onnx.version_converter.convert_version(_skeleton(model, opset), opset)
    except Exception as error:
        # The converter reports every failure as RuntimeError or worse, with the C++ assertion as its text.
        text = str(error).strip().splitlines()
        raise TargetError(
            f"ONNX's version converter cannot raise the model from opset {current} to {opset}: {text[-1] if text else error}; "
            f"give --max-opset {current} to stay below"
        ) from error
    _adopt(model, converted.graph)
    for scope in scopes(model):
        for node in scope.graph:
            node.version = None
        scope.root.opset_imports[""] = opset
    model.ir_version = max(
        model.ir_version, int(onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)], True))
    )


def _is_pending(node: ir.Node, current: int) -> bool:
    return node.domain == "" and (node.version or 0) > current


def _check_inner_graphs(model: ir.Model, current: int, opset: int) -> None:
    functions = {function.graph: name for name, function in model.functions.items()}
    for scope in scopes(model):
        if scope.graph is model.graph:
            continue
        for node in scope.graph:
            if node.domain or (node.version or 0) > current or subgraphs(node):
                continue
            if not _same_meaning(node.op_type, scope.root.opset_imports.get("", current), opset):
                where = (
                    f"function {functions[scope.root]}" if scope.root in functions else f"subgraph '{scope.graph.name}'"
                )
                raise TargetError(
                    f"{node.op_type} '{node.name}' in {where} differs between opset {current} and {opset}, and ONNX's version "
                    f"converter does not convert it there; give --max-opset {current} to stay below"
                )


def _same_meaning(op_type: str, current: int, opset: int) -> bool:
    try:
        old = onnx.defs.get_schema(op_type, current, "").since_version
        new = onnx.defs.get_schema(op_type, opset, "").since_version
    except onnx.defs.SchemaError:
        return False
    return old == new or _MEANS_THE_SAME.get(op_type, opset + 1) <= old


def _skeleton(model: ir.Model, opset: int) -> onnx.ModelProto:
    current = model.graph.opset_imports[""]
    graph = onnx.GraphProto(name=model.graph.name or "main")
    small = {name for name, value in model.graph.initializers.items() if _is_small(value)}
    for value in model.graph.inputs:
        graph.input.append(_typed(value))
    known = {value.name for value in model.graph.inputs}
    for name, value in model.graph.initializers.items():
        if name in small and value.const_value is not None:
            graph.initializer.append(ir.serde.serialize_tensor(value.const_value))
            graph.initializer[-1].name = name
        elif name not in known:
            graph.input.append(_typed(value))
    for value in model.graph.outputs:
        graph.output.append(_typed(value))
    for node in model.graph:
        proto = graph.node.add()
        ir.serde.serialize_node_into(proto, node)
        if _is_pending(node, current):
            proto.domain = PENDING_DOMAIN
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in model.graph.opset_imports.items()]
    imports.append(onnx.helper.make_opsetid(PENDING_DOMAIN, 1))
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=max(model.ir_version, 4))


def _is_small(value: ir.Value) -> bool:
    return value.const_value is not None and value.const_value.size <= SMALL and not value.is_graph_input()


def _typed(value: ir.Value) -> onnx.ValueInfoProto:
    if value.type is None and value.const_value is None:
        return onnx.ValueInfoProto(name=value.name or "")
    return ir.serde.serialize_value(value)


def _adopt(model: ir.Model, graph: onnx.GraphProto) -> None:
    """Make the nodes of `graph` those of the model, reusing every node that did not change."""
    old_nodes = list(model.graph)
    by_outputs = {tuple(output.name for output in node.outputs): node for node in old_nodes}
    values = _values(model, old_nodes)
    kept: set[ir.Node] = set()
    order: list[ir.Node | onnx.NodeProto] = []
    for proto in graph.node:
        node = by_outputs.get(tuple(proto.output))
        if node is not None and _is_same(node, proto):
            kept.add(node)
            order.append(node)
        else:
            order.append(proto)
    if len(kept) == len(old_nodes) and len(order) == len(old_nodes):
        return
    for tensor in graph.initializer:
        if tensor.name not in values:
            constant = ir.serde.deserialize_tensor(tensor)
            value = ir.Value(
                name=tensor.name,
                const_value=constant,
                type=ir.TensorType(constant.dtype),
                shape=ir.Shape(constant.numpy().shape),
            )
            model.graph.register_initializer(value)
            values[tensor.name] = value
    _rebuild(model, old_nodes, order, kept, values)


def _values(model: ir.Model, nodes: Sequence[ir.Node]) -> dict[str, ir.Value]:
    found = dict(model.graph.initializers.items())
    found |= {value.name: value for value in model.graph.inputs if value.name is not None}
    found |= {output.name: output for node in nodes for output in node.outputs if output.name}
    return found


def _is_same(node: ir.Node, proto: onnx.NodeProto) -> bool:
    if proto.domain == PENDING_DOMAIN:
        return True
    inputs = ["" if value is None else value.name for value in node.inputs]
    if node.op_type != proto.op_type or inputs != list(proto.input)[: len(inputs)] or len(proto.input) > len(inputs):
        return False
    if {attribute.name for attribute in proto.attribute} != set(node.attributes):
        return False
    for attribute in proto.attribute:
        own = node.attributes[attribute.name]
        simple = own.type in (
            ir.AttributeType.INT,
            ir.AttributeType.INTS,
            ir.AttributeType.FLOAT,
            ir.AttributeType.STRING,
        )
        if simple and not own.is_ref() and _plain(own.value) != _plain(onnx.helper.get_attribute_value(attribute)):
            return False
    return True


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, float):
        return np.float32(value)  # as the file stores it
    return list(value) if isinstance(value, (list, tuple)) else value


def _rebuild(
    model: ir.Model, old_nodes: Sequence[ir.Node], order: Sequence[ir.Node | onnx.NodeProto], kept: set[ir.Node],
    values: Mapping[str, ir.Value],
) -> None:  # fmt: skip
    """Put new nodes in the places of those that changed; consumers follow to the new outputs."""
    known = dict(values)
    replaced = {name: old for node in old_nodes if node not in kept for name, old in _named_outputs(node)}
    previous: ir.Node | None = None
    for item in order:
        if isinstance(item, onnx.NodeProto):
            node = _new_node(item, known)
            if previous is None:
                model.graph.insert_before(model.graph[0], node)
            else:
                model.graph.insert_after(previous, node)
            for output in node.outputs:
                old = replaced.get(output.name or "")
                if old is not None:
                    old.replace_all_uses_with(output, replace_graph_outputs=True)
                    output.type, output.shape = old.type, old.shape
                    output.metadata_props.update(old.metadata_props)
                    node.metadata_props.update(old.producer().metadata_props if old.producer() else {})  # type: ignore[union-attr]
                if output.name:
                    known[output.name] = output
            previous = node
        else:
            previous = item
    for node in reversed(old_nodes):
        if node not in kept:
            model.graph.remove(node, safe=True)
    model.graph.sort()


def _named_outputs(node: ir.Node) -> Iterator[tuple[str, ir.Value]]:
    return ((output.name, output) for output in node.outputs if output.name)


def _new_node(proto: onnx.NodeProto, known: Mapping[str, ir.Value]) -> ir.Node:
    inputs = [known[name] if name else None for name in proto.input]
    attributes = [ir.serde.deserialize_attribute(attribute) for attribute in proto.attribute]
    outputs = [ir.Value(name=name) for name in proto.output]
    return ir.Node(proto.domain, proto.op_type, inputs, attributes, outputs=outputs, name=proto.name or None)
