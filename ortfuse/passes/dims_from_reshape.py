"""Lengths that the exporter recomputes are taken from the shape of the tensor that has them.

    T = (n - 3) / 2 + 1;  reshape(x, [batch, T, -1, 64])   with x of shape [batch, L, 768]   becomes   T = shape(x)[1]

torch.export writes the output length of a chain of convolutions as arithmetic on the length of the input, with divisions
that round towards zero. For inputs that are too short the arithmetic disagrees with the convolutions, so the two are not
equal in all runs; but then the convolution, and with it the run, fails. So where an element of a Reshape target is provably
equal to a size of its input whenever that size is at least 1, and a convolution made that size, every use of the element is
replaced by the input's dimension.

The element must not have a special meaning at run time: 0 could copy a size of the input and -1 could be inferred, and the
run would succeed although the element is not that size. So the target must have another -1 (there can be at most one), and
0 must mean a size of 0, by `allowzero` or because the input has no axis at that position.

Left alone: targets in subgraphs, which need not be executed; lengths that the input of the Reshape itself depends on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import onnx_ir as ir

from ortfuse.dims import Dim, DimLike, positive_from, shifted
from ortfuse.facts.transfer import elements
from ortfuse.graph.editor import constant_node
from ortfuse.graph.traits import RESHAPES
from ortfuse.graph.walk import subgraphs
from ortfuse.passes.context import Context

MOST_NODES = 100_000
"""The most nodes visited to decide whether one value depends on another."""

_DEEPEST = 200
"""The most nodes in a row that are followed to compute a length."""


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
            data = node.inputs[0]
            assert data is not None
            if not _depends_on(data, found.length):
                changes += _read_off(context, node, found)
        if changes:
            with context.editor.change(self.name):
                context.editor.sort(graph)
        return changes


class _Solved(NamedTuple):
    """A value that is an element of a Reshape target, the axis of the input with that size, and the convolution that made it."""

    length: ir.Value
    axis: int
    convolution: ir.Node


def _solved(context: Context, node: ir.Node) -> _Solved | None:
    facts = context.facts
    if len(node.inputs) < 2 or node.inputs[0] is None or node.inputs[1] is None:
        return None
    numbers, before = facts.ints(node.inputs[1]), facts.shape(node.inputs[0])
    if numbers is None or before is None or -1 not in numbers.elements:
        return None
    zero = node.attributes.get("allowzero")
    for position, element in enumerate(numbers.elements):
        if isinstance(element, int) or not ((zero is not None and zero.as_int()) or position >= len(before)):
            continue
        length = _element(context, node.inputs[1], position)
        for axis, size in enumerate(before) if length is not None else ():
            start = positive_from(size) if size != element else None
            if start is None or shifted(size, *start) != _shifted_value(context, length, *start):
                continue
            convolution = _convolution_of(context, node.inputs[0], size)
            if length is not None and convolution is not None:
                return _Solved(length, axis, convolution)
    return None


_ARITHMETIC = {"Add": elements.add, "Sub": elements.subtract, "Mul": elements.multiply, "Div": elements.divide_integer}


def _shifted_value(context: Context, value: ir.Value | None, name: str, by: int, depth: int = 0) -> DimLike | None:
    """The integer in a tensor of one element, with ``name + by`` in place of the symbol `name`; None if it is unknown.

    Long chains of divisions are too complicated as facts, which hold for short inputs too, and simple from a length on.
    """
    known = context.facts.ints(value)
    if value is None or known is None or len(known.elements) != 1 or depth > _DEEPEST:
        return None
    if (element := known.elements[0]) is not None:
        return shifted(element, name, by)
    node = value.producer()
    if node is None or node.domain:
        return None
    if node.op_type in RESHAPES:
        return _shifted_value(context, node.inputs[0], name, by, depth + 1)
    if node.op_type not in _ARITHMETIC:
        return None
    left, right = [_shifted_value(context, operand, name, by, depth + 1) for operand in node.inputs]
    found = _ARITHMETIC[node.op_type](left, right)
    return found if isinstance(found, int | Dim) else None


def _convolution_of(context: Context, value: ir.Value, size: DimLike) -> ir.Node | None:
    """A convolution with that size that `value` is computed from: the runtime fails where the size would be less than 1."""
    for node in _above(value):
        if node.op_type == "Conv" and not node.domain and size in (context.facts.shape(node.outputs[0]) or ())[2:]:
            return node
    return None


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
    producer = other.producer()
    # Values that a subgraph captures are not inputs of its node.
    return any(node is producer or subgraphs(node) or number >= MOST_NODES for number, node in enumerate(_above(value)))


def _above(value: ir.Value) -> Iterator[ir.Node]:
    """The nodes that a value is computed from, the nearest first; captured values are not followed."""
    pending, seen = deque([value]), {value}
    while pending:
        node = pending.popleft().producer()
        if node is None:
            continue
        yield node
        new = [operand for operand in node.inputs if operand is not None and operand not in seen]
        seen.update(new)
        pending.extend(new)


def _read_off(context: Context, reshape: ir.Node, found: _Solved) -> bool:
    """Replace the length by a dimension of the reshaped tensor, wherever it is used; returns whether that was accepted."""
    data, target = reshape.inputs[:2]
    length = found.length
    assert data is not None and target is not None
    index = np.full(() if context.facts.shape(length) == () else (1,), found.axis, np.int64)
    user = length.producer()
    assert user is not None
    editor = context.editor
    witnesses = [*_integers_above(target), found.convolution, reshape]
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
