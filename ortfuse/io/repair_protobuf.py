"""Rewrite protobuf models that ONNX Runtime accepts but a graph cannot represent, with the runtime's meaning.

- A name defined several times alike, by initializers, sparse initializers and Constants, is defined once. If the definitions
  differ, it depends on the kernel which one the runtime takes, and nothing is done. Initializers without a name are of no use.
- Sparse tensors become dense.
- Two imports of one domain: the last one counts. Version 0 of a domain that is not ONNX's own is version 1.
- Text that is not UTF-8 becomes text with escapes. Names of inputs and outputs are part of the signature and stay.
- Types of inputs and outputs that a graph cannot represent (maps, opaque types) are kept aside and written again.
- Information for training, which the runtime does not read, is left out.

It is done only to models that could not be taken in otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import Message  # type: ignore[import-untyped]

from ortfuse.io.wire_format import Extent

_LARGEST = 1 << 28
"""Elements that a dense tensor made of a sparse one may have."""

_GRAPHS = {onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS}

Types = dict[str, onnx.TypeProto]
"""Types kept aside, by the name of the input or output."""


def tidy(proto: onnx.ModelProto, extents: list[Extent | None]) -> tuple[bool, Types, list[str]]:
    """Rewrite what a graph cannot represent, in place.

    Args:
        proto: The model.
        extents: What is known of the initializers of the main graph, one entry each; kept parallel to them.

    Returns:
        Whether anything was changed, the types that were kept aside, and remarks for the user.
    """
    notes = []
    changed = _decode(proto)
    changed |= _import_once(proto)
    if proto.training_info:
        proto.ClearField("training_info")
        notes.append("the model's training information, which the runtime does not read, is left out")
    for graph in _graphs(proto):
        changed |= _define_once(graph, extents if graph is proto.graph else [None] * len(graph.initializer))
        changed |= _type_initializers(graph)
    for nodes in _node_lists(proto):
        for node in nodes:
            changed |= _make_dense(node)
    types = _take_types(proto.graph)
    return changed or bool(types or notes), types, notes


def _decode(message: Message) -> bool:
    """Replace text that is not UTF-8, which protobuf gives as bytes, in a message and all that it holds."""
    changed, waiting = False, [message]
    kept = _interface(message) if isinstance(message, onnx.ModelProto) else frozenset()
    while waiting:
        current = waiting.pop()
        for field, value in current.ListFields():
            if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
                waiting += [value] if isinstance(value, Message) else list(value)
            elif field.type != FieldDescriptor.TYPE_STRING:
                continue
            elif isinstance(value, bytes):
                if value not in kept:
                    setattr(current, field.name, _text(value))
                    changed = True
            elif not isinstance(value, str):
                for index, one in enumerate(value):
                    if isinstance(one, bytes) and one not in kept:
                        value[index] = _text(one)
                        changed = True
    return changed


def _text(content: bytes) -> str:
    return content.decode("utf-8", "backslashreplace")


def _interface(proto: onnx.ModelProto) -> frozenset[Any]:
    return frozenset(value.name for value in (*proto.graph.input, *proto.graph.output))


def _import_once(proto: onnx.ModelProto) -> bool:
    versions: dict[str, int] = {}
    for entry in proto.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        versions[domain] = max(entry.version, 1) if domain else entry.version
    if [*versions.items()] == [(entry.domain, entry.version) for entry in proto.opset_import]:
        return False
    del proto.opset_import[:]
    for domain, version in versions.items():
        proto.opset_import.add(domain=domain, version=version)
    return True


def _node_lists(proto: onnx.ModelProto) -> Iterator[Sequence[onnx.NodeProto]]:
    """The nodes of every graph and function."""
    yield from (function.node for function in proto.functions)
    yield from (graph.node for graph in _graphs(proto))


def _graphs(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """The main graph, and the graphs in attributes of nodes, also of functions'."""
    waiting: list[onnx.GraphProto | onnx.FunctionProto] = [proto.graph, *proto.functions]
    while waiting:
        owner = waiting.pop()
        if isinstance(owner, onnx.GraphProto):
            yield owner
        for node in owner.node:
            for attribute in node.attribute:
                if attribute.type in _GRAPHS:
                    waiting += [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs


def _define_once(graph: onnx.GraphProto, extents: list[Extent | None]) -> bool:
    """Keep one of several equal definitions of a name, and make sparse initializers dense."""
    before = len(graph.initializer), len(graph.node)
    made = [_dense(sparse, sparse.values.name) for sparse in graph.sparse_initializer]
    dense = [tensor for tensor in made if tensor is not None]
    if len(dense) < len(made) or not _agree(graph, extents, dense):
        return False
    constants = {node.output[0]: index for index, node in enumerate(graph.node) if _is_constant(node)}
    defined = {tensor.name for tensor in dense}
    for index in reversed(range(len(graph.node))):
        node = graph.node[index]
        if _is_constant(node) and (node.output[0] in defined or constants[node.output[0]] != index):
            del graph.node[index]
    defined |= constants.keys() | {""}
    for index in reversed(range(len(graph.initializer))):
        name = graph.initializer[index].name
        if name in defined:
            del graph.initializer[index], extents[index]
        defined.add(name)
    graph.ClearField("sparse_initializer")
    graph.initializer.extend(dense)
    extents += [None] * len(dense)
    return bool(dense) or before != (len(graph.initializer), len(graph.node))


def _agree(graph: onnx.GraphProto, extents: Sequence[Extent | None], dense: Sequence[onnx.TensorProto]) -> bool:
    """Whether all definitions of one name are the same."""
    found: dict[str, list[onnx.TensorProto | None]] = {}
    for tensor in dense:
        found.setdefault(tensor.name, []).append(tensor)
    for node in filter(_is_constant, graph.node):
        tensors = [attribute.t for attribute in node.attribute if attribute.name == "value"]
        found.setdefault(node.output[0], []).append(tensors[0] if tensors else None)
    for tensor, extent in zip(graph.initializer, extents, strict=True):
        found.setdefault(tensor.name, []).append(tensor if extent is None else None)
    several = [tensors for name, tensors in found.items() if name and len(tensors) > 1]
    return all(_is_same(tensors[0], other) for tensors in several for other in tensors[1:])


def _is_same(one: onnx.TensorProto | None, other: onnx.TensorProto | None) -> bool:
    """Whether two tensors have the same type, shape and bits; not if either is stored elsewhere."""
    if one is None or other is None or onnx.TensorProto.EXTERNAL in (one.data_location, other.data_location):
        return False
    try:
        first, second = onnx.numpy_helper.to_array(one), onnx.numpy_helper.to_array(other)
    except (ValueError, TypeError):
        return False
    alike = (one.data_type, first.shape) == (other.data_type, second.shape)
    return alike and (
        first.tolist() == second.tolist() if first.dtype == object else first.tobytes() == second.tobytes()
    )


def _is_constant(node: onnx.NodeProto) -> bool:
    return node.op_type == "Constant" and node.domain in ("", "ai.onnx") and len(node.output) == 1


def _type_initializers(graph: onnx.GraphProto) -> bool:
    """Give inputs without a type that are initializers the type of their tensor."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    changed = False
    for value in graph.input:
        tensor = tensors.get(value.name)
        if tensor is not None and not value.type.WhichOneof("value"):
            value.type.CopyFrom(onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims))
            changed = True
    return changed


def _make_dense(node: onnx.NodeProto) -> bool:
    """Make a Constant with a sparse tensor one with a dense tensor."""
    changed = False
    for attribute in node.attribute:
        if node.op_type == "Constant" and attribute.name == "sparse_value":
            tensor = _dense(attribute.sparse_tensor, "")
            if tensor is not None:
                attribute.CopyFrom(onnx.helper.make_attribute("value", tensor))
                changed = True
    return changed


def _dense(sparse: onnx.SparseTensorProto, name: str) -> onnx.TensorProto | None:
    """The dense tensor; `None` if it is damaged, too large, or has its numbers in another file."""
    dims, external = list(sparse.dims), onnx.TensorProto.EXTERNAL
    if external in (sparse.values.data_location, sparse.indices.data_location):
        return None
    try:
        values, places = (onnx.numpy_helper.to_array(tensor) for tensor in (sparse.values, sparse.indices))
        if min(dims, default=0) < 0 or int(np.prod(dims, dtype=object)) > _LARGEST:
            return None
        array = np.zeros(dims, values.dtype)
        if places.ndim == 2:
            array[tuple(places.T)] = values
        else:
            array.reshape(-1)[places] = values
    except (ValueError, IndexError, TypeError):
        return None
    return onnx.numpy_helper.from_array(array, name)


def _take_types(graph: onnx.GraphProto) -> Types:
    """Take away the types of inputs and outputs that a graph cannot represent, and of other values for good."""
    types: Types = {}
    for value in (*graph.input, *graph.output):
        if not _is_representable(value.type):
            types[value.name] = onnx.TypeProto()
            types[value.name].CopyFrom(value.type)
            value.ClearField("type")
    for index in reversed(range(len(graph.value_info))):
        if not _is_representable(graph.value_info[index].type):
            del graph.value_info[index]
    return types


def _is_representable(kind: onnx.TypeProto) -> bool:
    while (which := kind.WhichOneof("value")) in ("sequence_type", "optional_type"):
        kind = getattr(kind, which).elem_type
    return which not in ("map_type", "opaque_type")
