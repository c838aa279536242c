"""Lengths that the exporter recomputes are taken from the shape of the tensor that has them.

    T = (n - 3) / 2 + 1;  reshape(x, [batch, T, -1, 64])   with x of shape [batch, L, 768]   becomes   T = shape(x)[1]

torch.export writes the output length of a chain of convolutions as arithmetic on the length of the input, with divisions
that round towards zero. For inputs that are too short the arithmetic disagrees with the convolutions, so no algebra can
prove the two equal; but then the Reshape, and with it the run, fails. So where the facts can solve for the one unknown
element of a Reshape target from the sizes of its input, every use of that element is replaced by the input's dimension.

The element must not have a special meaning at run time: 0 could copy a size of the input and -1 could be inferred, and the
run would succeed although the element is not that size. So the target must have another -1 (there can be at most one), and
0 must mean a size of 0, by `allowzero` or because the input has no axis at that position.

Left alone: targets in subgraphs, which need not be executed; lengths that the input of the Reshape itself depends on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortfuse.dims import Dim, DimLike
from ortfuse.graph.editor import constant_node
from ortfuse.graph.traits import RESHAPES
from ortfuse.graph.walk import subgraphs
from ortfuse.passes.context import Context

MOST_NODES = 100_000
"""The most nodes visited to decide whether one value depends on another."""


@dataclass(frozen=True)
class DimsFromReshape:
    """Replaces computed lengths that a Reshape proves equal to a dimension of its input."""

    name: ClassVar[str] = "dims_from_reshape"

    def run(self, context: Context) -> int:
        """Replace what can be replaced; returns the number of lengths."""
        graph = context.model.graph
        changes = 0
        for node in [node for node in graph if node.op_type == "Reshape" and not node.domain]:
            found = _solved(context, node)
            if found is None:
                continue
            length, axis = found
            data = node.inputs[0]
            assert data is not None
            if not _depends_on(data, length):
                changes += _read_off(context, node, axis, length)
        if changes:
            with context.editor.change(self.name):
                context.editor.sort(graph)
        return changes


def _solved(context: Context, node: ir.Node) -> tuple[ir.Value, int] | None:
    """The value that is the one unknown element of a Reshape target, and the axis of the input with that size."""
    facts = context.facts
    if len(node.inputs) < 2 or node.inputs[0] is None or node.inputs[1] is None:
        return None
    numbers = facts.ints(node.inputs[1])
    before, after = facts.shape(node.inputs[0]), facts.shape(node.outputs[0])
    if numbers is None or before is None or after is None or list(numbers.elements).count(None) != 1:
        return None
    position = list(numbers.elements).index(None)
    zero = node.attributes.get("allowzero")
    if -1 not in numbers.elements or not ((zero is not None and zero.as_int()) or position >= len(before)):
        return None
    size: DimLike = after[position]
    if (isinstance(size, Dim) and size.fresh) or size not in before:
        return None
    length = _element(context, node.inputs[1], position)
    return None if length is None else (length, before.index(size))


def _element(context: Context, vector: ir.Value, position: int) -> ir.Value | None:
    """The computed integer at `position` of a vector that a Concat builds."""
    node = vector.producer()
    if node is None or node.op_type != "Concat" or node.domain:
        return None
    for operand in node.inputs:
        shape = context.facts.shape(operand)
        if operand is None or shape is None or len(shape) != 1 or not isinstance(shape[0], int):
            return None
        if position < shape[0]:
            return _innermost(context, operand) if shape[0] == 1 else None
        position -= shape[0]
    return None


def _innermost(context: Context, value: ir.Value) -> ir.Value | None:
    """The value that a one-element tensor is reshaped from; replaceable if a node of the same graph computes it."""
    while (node := value.producer()) is not None and node.op_type in RESHAPES:
        source = node.inputs[0]
        if node.domain or source is None or context.facts.shape(source) not in ((), (1,)):
            break
        value = source
    replaceable = value.producer() is not None and not value.is_graph_output()
    return value if replaceable and context.facts.dtype(value) == ir.DataType.INT64 else None


def _depends_on(value: ir.Value, other: ir.Value) -> bool:
    """Whether `value` is computed from `other`, as far as can be seen in bounded time."""
    pending, seen = [value], {value}
    while pending:
        value = pending.pop()
        node = value.producer()
        if value is other or len(seen) > MOST_NODES:
            return True
        if node is None:
            continue
        if subgraphs(node):
            return True  # values that a subgraph captures are not inputs of the node
        for operand in node.inputs:
            if operand is not None and operand not in seen:
                seen.add(operand)
                pending.append(operand)
    return False


def _read_off(context: Context, reshape: ir.Node, axis: int, length: ir.Value) -> bool:
    """Replace `length` by a dimension of the reshaped tensor, wherever it is used; returns whether that was accepted."""
    data, target = reshape.inputs[:2]
    assert data is not None and target is not None
    index = np.full(() if context.facts.shape(length) == () else (1,), axis, np.int64)
    user = length.producer()
    assert user is not None
    editor = context.editor
    witnesses = [*_integers_above(target), reshape]
    with editor.change(DimsFromReshape.name, nodes=_integers_above(length), witnesses=witnesses) as change:
        shape = ir.node("Shape", [data])
        place = constant_node(ir.tensor(index))
        made = ir.node("Gather", [shape.outputs[0], place.outputs[0]])
        editor.insert_after(user, shape, place, made)
        editor.replace(length, made.outputs[0])
    return bool(change)


def _integers_above(value: ir.Value) -> list[ir.Node]:
    """The nodes that compute a length from the shapes of tensors."""
    found: dict[ir.Node, None] = {}
    pending = [value.producer()]
    while pending:
        node = pending.pop()
        if node is not None and node not in found:
            found[node] = None
            if node.op_type not in ("Shape", "Size") and len(found) < MOST_NODES:
                pending += [operand.producer() for operand in node.inputs if operand is not None]
    return list(found)
