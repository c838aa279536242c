"""Sink a Shape below elementwise users of its operand, so that fusions see a single use.

    shape(conv(x)) = shape(relu(batch_normalization(conv(x))))

A value whose shape is read is used by more than what computes with it. Read of a convolution, it keeps normalisation and
activation apart from that, here and in the runtime's own fusions. So it is read of what these make of it.

Transforms: Shapes of floats that one node computes with besides, element by element, to a result of the same shape.

Does not handle: results of bodies and of the model, and operands that depend on the Shape itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.operator_registry import sums_products
from ortfuse.ir.traits import BROADCASTS, DEQUANTISES, ELEMENTWISE, QUANTISES
from ortfuse.ir.walk import subgraphs
from ortfuse.transforms.context import Context

_SAME_SHAPE = ELEMENTWISE | BROADCASTS | QUANTISES | DEQUANTISES | {"BatchNormalization"}
_MOST_NODES = 100_000
"""The most nodes visited to decide whether one value depends on another."""


def settle(context: Context, graph: ir.Graph, author: str) -> int:
    """Read shapes of the graph where values are settled; returns how many Shapes were moved."""
    count = 0
    for node in list(graph):
        value = node.inputs[0] if node.op_type == "Shape" and not node.domain else None
        after = value if value is None else _last(value, node, context.facts)
        if value is not None and after is not None and after is not value:
            with context.editor.change(author, nodes=[node]) as change:
                made = ir.node("Shape", [after], dict(node.attributes), version=node.version)
                context.editor.insert_after(_producer(after), made)
                context.editor.replace(node.outputs[0], made.outputs[0])
                context.editor.remove(node)
            count += bool(change)
    if count:
        with context.editor.change(author):
            context.editor.sort(graph)
    return count


def following(value: ir.Value, facts: Facts) -> ir.Value | None:
    """Return the result of the only user of a value, if that is elementwise; `None` if there is none."""
    maker, shape = value.producer(), facts.shape(value)
    if maker is None or maker.domain or shape is None or value.is_graph_output():
        return None
    if not (maker.op_type in _SAME_SHAPE or sums_products(maker)) or not _is_float(facts.dtype(value)):
        return None
    users = {use.node for use in value.uses() if use.node.op_type != "Shape" or use.node.domain}
    node = next(iter(users), None)
    if len(users) != 1 or node is None or node.graph is not maker.graph or node.domain:
        return None
    if node.op_type not in _SAME_SHAPE or len(node.outputs) != 1 or facts.shape(node.outputs[0]) != shape:
        return None
    return node.outputs[0]


def _last(value: ir.Value, shape: ir.Node, facts: Facts) -> ir.Value:
    """The value from which a Shape can be read instead; the same if there is none."""
    last, found = value, value
    while (after := following(last, facts)) is not None:
        if any(depends_on(operand, shape.outputs[0]) for operand in _others(_producer(after), last, facts)):
            break
        last = after
        found = last if _is_float(facts.dtype(last)) else found
    return found


def _others(node: ir.Node, value: ir.Value, facts: Facts) -> Iterator[ir.Value]:
    """The operands of a node that are computed, but for one."""
    for operand in node.inputs:
        if operand is not None and operand is not value and not facts.is_const(operand):
            yield operand


def depends_on(value: ir.Value, other: ir.Value) -> bool:
    """Whether `value` is computed from `other`, as far as can be seen in bounded time."""
    producer = other.producer()
    # Values that a subgraph captures are not inputs of its node.
    return any(
        node is producer or subgraphs(node) or number >= _MOST_NODES for number, node in enumerate(_above(value))
    )


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


def _producer(value: ir.Value) -> ir.Node:
    node = value.producer()
    assert node is not None
    return node


def _is_float(dtype: ir.DataType | None) -> bool:
    return dtype is not None and dtype.is_floating_point()
