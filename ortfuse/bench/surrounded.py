"""Convolutions in the layout in which the runtime executes them within a network.

The runtime computes most convolutions in blocks of channels, and reorders an image only where it comes from or goes to what
does not. A convolution alone would be measured with both reorderings, which it does not have among others. So whatever
images such a model takes and gives go through a pool over single pixels, which runs in blocks and computes nothing. What pools
and reorderings take is measured by themselves and subtracted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from ortfuse.facts.facts import Facts
from ortfuse.targets.blocked_layout import LARGEST_BLOCK, convolves_in_blocks

_CONVOLUTIONS = frozenset({"Conv", "FusedConv"})

Image = tuple[int, ...]
"""The shape of an image: batch, channels, height, width."""


def runs_in_blocks(model: ir.Model) -> bool:
    """Whether a convolution of a model runs in blocks."""
    facts = Facts(model)
    return any(node.op_type in _CONVOLUTIONS and convolves_in_blocks(node, facts) for node in model.graph)


def surrounded(model: ir.Model) -> tuple[ir.Model, list[Image]]:
    """A copy with pools around it, and the shapes of the images that go through them."""
    copy = model.clone()
    facts = Facts(copy)
    return copy, [*_before(copy.graph, facts), *_behind(copy.graph, facts)]


def pools(shape: Sequence[int]) -> ir.Model:
    """Two pools over single pixels in a row, between the reorderings of an image of this shape."""
    x, y = (ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT)) for name in "xy")
    first = _pool(x)
    second = _pool(first.outputs[0], y)
    graph = ir.Graph([x], [y], nodes=[first, second], opset_imports={"": 17}, name="pools")
    first.outputs[0].name = "between"
    return ir.Model(graph, ir_version=8)


def _before(graph: ir.Graph, facts: Facts) -> Iterator[Image]:
    for value in list(graph.inputs):
        shape = _image(value, facts)
        if shape is None:
            continue
        uses = list(value.uses())
        node = _pool(value)
        node.outputs[0].name = f"{value.name}#before"
        graph.insert_before(graph[0], node)
        for use in uses:
            use.node.replace_input_with(use.idx, node.outputs[0])
        yield shape


def _behind(graph: ir.Graph, facts: Facts) -> Iterator[Image]:
    for index, value in enumerate(list(graph.outputs)):
        shape = _image(value, facts)
        if shape is None:
            continue
        node = _pool(value)
        result = node.outputs[0]
        result.name, result.type, result.shape = f"{value.name}#behind", value.type, value.shape
        graph.append(node)
        graph.outputs[index] = result
        yield shape


def _pool(value: ir.Value, result: ir.Value | None = None) -> ir.Node:
    attributes = [ir.AttrInt64s("kernel_shape", [1, 1])]
    if result is None:
        return ir.Node("", "MaxPool", [value], attributes)
    return ir.Node("", "MaxPool", [value], attributes, outputs=[result])


def _image(value: ir.Value, facts: Facts) -> Image | None:
    """The shape of a value that the runtime can keep in blocks; `None` if it cannot."""
    shape = facts.shape(value)
    if facts.dtype(value) != ir.DataType.FLOAT or shape is None or len(shape) != 4:
        return None
    numbers = tuple(dim for dim in shape if isinstance(dim, int))
    return numbers if len(numbers) == 4 and numbers[1] % LARGEST_BLOCK == 0 else None
