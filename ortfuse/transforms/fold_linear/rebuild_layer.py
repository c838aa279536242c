"""Build a layer anew with other weights, another bias or another input, as part of the open change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.linear_maps import Layer
from ortfuse.ir.editor import Editor
from ortfuse.transforms.context import Context
from ortfuse.transforms.node_builder import Builder

Array: TypeAlias = "np.ndarray[Any, Any]"


def rebuilt(
    layer: Layer,
    build: Builder,
    context: Context,
    *,
    kernel: Array | None = None,
    bias: Array | None = None,
    data: ir.Value | None = None,
    changes: dict[str, Any] | None = None,
) -> ir.Value:
    """Return the result of a layer like another one.

    Args:
        layer: The layer.
        build: The builder.
        context: The model.
        kernel: New weights in float64, as [group, output, input, *taps]; the old ones by default.
        bias: A new bias in float64, a number for each output; the old one by default.
        data: Another input.
        changes: New attributes.
    """
    facts, node = context.facts, layer.node
    weight = layer.weight if kernel is None else _constant(layer.stored(kernel), layer, build, context)
    vector = layer.bias if bias is None else _bias(bias, layer, build, context)
    operands = [data or layer.data, weight]
    inputs: list[ir.Value | None] = [*(operands[::-1] if layer.storage == "left" else operands)]
    changed = dict(changes or {})
    if node.op_type == "Gemm":
        changed |= {"alpha": 1.0} if kernel is not None else {}
        changed |= {"beta": 1.0} if bias is not None else {}
    if node.op_type != "MatMul":
        rest = list(node.inputs[3:])
        inputs += [vector, *rest] if vector is not None or rest else []
        return build.like(node, inputs, changed)
    made = build.like(node, inputs, changed)
    if vector is None:
        return made
    assert facts.rank(layer.data) is not None
    return build.node("Add", [made, vector])[0]


def _bias(bias: Array, layer: Layer, build: Builder, context: Context) -> ir.Value | None:
    if layer.bias is None and not np.any(bias):
        return None
    return _constant(bias[:, None] if layer.storage == "left" else bias, layer, build, context)


def _constant(array: Array, layer: Layer, build: Builder, context: Context) -> ir.Value:
    dtype = context.facts.dtype(layer.weight)
    assert dtype is not None
    with np.errstate(over="ignore"):
        made = np.ascontiguousarray(array.astype(dtype.numpy()))
    return build.constant(context.spill.keep(made))


def in_order(nodes: Iterable[ir.Node]) -> list[ir.Node]:
    """Return nodes in an order in which each comes behind those that it reads."""
    left, found = dict.fromkeys(nodes), dict[ir.Node, None]()
    while left:
        ready = [node for node in left if not any(_maker(value) in left for value in node.inputs)]
        found |= dict.fromkeys(ready)
        left = dict.fromkeys(node for node in left if node not in found)
    return list(found)


def _maker(value: ir.Value | None) -> ir.Node | None:
    return None if value is None else value.producer()


def copy_movement(nodes: Iterable[ir.Node], instead: dict[ir.Value, ir.Value], editor: Editor) -> None:
    """Move new values as nodes move the old ones.

    Args:
        nodes: The nodes.
        instead: The new values by the old ones; those that the copies of the nodes make are added.
        editor: The editor.
    """
    for node in in_order(nodes):
        operands = [None if value is None else instead.get(value, value) for value in node.inputs]
        attributes = node.attributes.values()
        copy = ir.Node(
            node.domain, node.op_type, operands, attributes, num_outputs=len(node.outputs), version=node.version
        )
        editor.insert_before(node, copy)
        for before, after in zip(node.outputs, copy.outputs, strict=True):
            if before.name == "":
                editor.rename(after, "")
            else:
                instead[before] = after


def is_own(value: ir.Value, facts: Facts) -> bool:
    """Return whether exactly one operand reads a value, which is no output of a graph."""
    return len(value.uses()) == 1 and not value.is_graph_output()
