"""Kinds of operators in a result: those that fusions should have taken, and the kernels that are left to do the work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from ortfuse.ir.traits import BROADCASTS, ELEMENTWISE, FILLS, JOINS, MOVES, REDUCES

KERNEL = "kernel"
LEFTOVERS = ("data movement", "elementwise", "cast", "shape arithmetic", "reduction")
"""The kinds of operators that are leftovers; all others are kernels."""

_SIZES = frozenset({"Shape", "Size", "Range", "ConstantOfShape", "NonZero"})
_CASTS = frozenset({"Cast", "CastLike"})
_MOVING = frozenset({"ScatterND", "ScatterElements", "TensorScatter", *MOVES, *JOINS, *FILLS})
_COUNTED = frozenset({TensorProto.INT64, TensorProto.INT32})


def kind(node: NodeProto, small: bool) -> str:
    """The kind of a node.

    Args:
        node: The node.
        small: Whether its output is a vector or scalar of integers, as sizes and indices are.
    """
    if node.domain not in ("", "ai.onnx"):
        return KERNEL
    name = node.op_type
    if name in _SIZES:
        return "shape arithmetic"
    cast, moving = name in _CASTS, name in _MOVING
    computing = name in ELEMENTWISE or name in BROADCASTS
    if small and (cast or moving or computing or name in REDUCES):
        return "shape arithmetic"
    if cast:
        return "cast"
    if moving:
        return "data movement"
    if computing:
        return "elementwise"
    return "reduction" if name in REDUCES else KERNEL


def operators(model: ModelProto) -> Counter[str]:
    """Count the operators of a model, those of bodies too, once each."""
    return Counter(_name(node) for node, _ in _nodes(model.graph))


def kinds(model: ModelProto) -> Counter[str]:
    """Count the nodes of each kind of a model that has declared types, and the operators of each kind that is left."""
    found: Counter[str] = Counter()
    for node, small in _nodes(model.graph):
        one = kind(node, small)
        found[one] += 1
        if one != KERNEL:
            found[f"{one}: {_name(node)}"] += 1
    return found


def _name(node: NodeProto) -> str:
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def _nodes(graph: GraphProto) -> Iterator[tuple[NodeProto, bool]]:
    """Yield the nodes with whether their first output is a vector or scalar of integers."""
    types = {value.name: value.type.tensor_type for value in (*graph.value_info, *graph.output)}
    for node in graph.node:
        given = types.get(node.output[0]) if node.output else None
        small = (
            given is not None and given.elem_type in _COUNTED and given.HasField("shape") and len(given.shape.dim) <= 1
        )
        yield node, small
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _nodes(body)


def read(path: str) -> ModelProto:
    """Read a model with the shapes that inference finds."""
    return onnx.shape_inference.infer_shapes(onnx.load(path), data_prop=False)
