"""Fingerprint of a model's graphs, by which a fixpoint detects a state that was seen before.

Names and the order of nodes count for nothing. Large tensors are known by their objects, so that keys are good for the states of
one model in one process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from ortfuse.ir.walk import graphs_of, roots

_READ = 1 << 10
"""The most bytes of a tensor that are read."""

Keys = dict[ir.Value, bytes]


def fingerprint(model: ir.Model) -> bytes:
    """The key of a model whose graphs are in topological order."""
    keys: Keys = {}
    return _digest(*(_graph(root, keys, 0) for root in roots(model)))


def _graph(graph: ir.Graph, keys: Keys, depth: int) -> bytes:
    """The key of a graph in so many others; those of the values around it are known."""
    for number, value in enumerate(graph.inputs):
        keys[value] = _digest(b"input", number, depth)
    made = []
    for node in graph:
        key = _node(node, keys, depth)
        made.append(key)
        for number, value in enumerate(node.outputs):
            keys[value] = _digest(key, number)
    return _digest(*sorted(made), *(_value(value, keys) for value in graph.outputs))


def _node(node: ir.Node, keys: Keys, depth: int) -> bytes:
    attributes = sorted((name, _attribute(attribute, keys, depth)) for name, attribute in node.attributes.items())
    inputs = [_value(value, keys) for value in node.inputs]
    named = [value.name != "" for value in node.outputs]
    return _digest(
        *node.op_identifier(), node.version, *named, *(part for pair in attributes for part in pair), *inputs
    )


def _value(value: ir.Value | None, keys: Keys) -> bytes:
    if value is None:
        return b""
    if value not in keys:
        tensor = value.const_value
        keys[value] = _digest(id(value)) if tensor is None else _tensor(tensor)
    return keys[value]


def _tensor(tensor: ir.TensorProtocol) -> bytes:
    if tensor.dtype == ir.DataType.STRING or tensor.nbytes > _READ:
        return _digest(id(tensor))
    return _digest(tensor.dtype.value, *tensor.shape.numpy(), tensor.tobytes())


def _attribute(attribute: ir.Attr, keys: Keys, depth: int) -> bytes:
    if attribute.is_ref():
        return _digest(b"reference", attribute.ref_attr_name)
    if attribute.type == ir.AttributeType.TENSOR:
        return _tensor(attribute.as_tensor())
    bodies = [_graph(graph, keys, depth + 1) for graph in graphs_of(attribute)]
    return _digest(*(bodies or _plain(attribute.value)))


def _plain(value: object) -> Iterator[object]:
    """The parts of an attribute that is a number, a text or a list of these; other things are known by their objects."""
    for part in value if isinstance(value, Sequence) and not isinstance(value, str | bytes) else [value]:
        yield repr(part) if isinstance(part, int | float | str | bytes) else id(part)


def _digest(*parts: object) -> bytes:
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        content = part if isinstance(part, bytes) else str(part).encode()
        found.update(len(content).to_bytes(8))
        found.update(content)
    return found.digest()
