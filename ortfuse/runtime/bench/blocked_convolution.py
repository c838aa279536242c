"""Measure convolutions in ONNX Runtime's blocked layout, without the reorderings that a single operator would pay.

The runtime computes most convolutions in blocks of channels, and reorders an image only where it comes from or goes to what
does not. A convolution alone would be measured with both reorderings, which it does not have among others. So whatever
images such a model takes and gives go through a pool over single pixels, which runs in blocks and computes nothing. The
time of pools and reorderings is measured on its own and subtracted.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.runtime.current_execution_target import execution_target

_CONVOLUTIONS = frozenset({"Conv", "FusedConv"})


def runs_in_blocks(model: ir.Model) -> bool:
    """Whether a convolution of a model runs in blocks."""
    layout, facts = execution_target().blocked_layout, Facts(model)
    return layout is not None and any(
        node.op_type in _CONVOLUTIONS and layout.convolves_in_blocks(node, facts) for node in model.graph
    )


def surrounded(model: ir.Model, names: Collection[str] | None = None) -> tuple[ir.Model, list[str]]:
    """A copy with pools around it, and the names of the inputs and outputs that go through them.

    Args:
        model: The model.
        names: The inputs and outputs that are in blocks within the network; by default all that can be.
    """
    copy = model.clone()
    facts = Facts(copy)
    images = [value for value in (*copy.graph.inputs, *copy.graph.outputs) if _is_image(value, facts)]
    chosen = [value for value in images if names is None or value.name in names]
    inputs, outputs = ([value for value in chosen if value.is_graph_input() is of] for of in (True, False))
    found = [value.name or "" for value in (*inputs, *outputs) if value.uses() or value in outputs]
    for value in inputs:
        _before(copy.graph, value)
    for value in outputs:
        _behind(copy.graph, value)
    return copy, found


def pools(shape: Sequence[int]) -> ir.Model:
    """Two pools over single pixels in a row, between the reorderings of an image of this shape."""
    x, y = (ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT)) for name in "xy")
    first = _pool(x)
    second = _pool(first.outputs[0], y)
    graph = ir.Graph([x], [y], nodes=[first, second], opset_imports={"": 17}, name="pools")
    first.outputs[0].name = "between"
    return ir.Model(graph, ir_version=8)


def _before(graph: ir.Graph, value: ir.Value) -> None:
    uses = list(value.uses())
    node = _pool(value)
    node.outputs[0].name = f"{value.name}#before"
    graph.insert_before(graph[0], node)
    for use in uses:
        use.node.replace_input_with(use.idx, node.outputs[0])


def _behind(graph: ir.Graph, value: ir.Value) -> None:
    node = _pool(value)
    result = node.outputs[0]
    result.name, result.type, result.shape = f"{value.name}#behind", value.type, value.shape
    graph.append(node)
    graph.outputs[list(graph.outputs).index(value)] = result


def _pool(value: ir.Value, result: ir.Value | None = None) -> ir.Node:
    attributes = [ir.AttrInt64s("kernel_shape", [1, 1])]
    if result is None:
        return ir.Node("", "MaxPool", [value], attributes)
    return ir.Node("", "MaxPool", [value], attributes, outputs=[result])


def _is_image(value: ir.Value, facts: Facts) -> bool:
    """Whether the runtime can keep a value in blocks."""
    layout, shape = execution_target().blocked_layout, facts.shape(value)
    if layout is None or shape is None or len(shape) != 4 or facts.dtype(value) != ir.DataType.FLOAT:
        return False
    return isinstance(shape[1], int) and shape[1] % layout.LARGEST_BLOCK == 0
