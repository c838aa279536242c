"""Layout of MatMul on flattened images: permute the rows of the constant matrix with the axes of the image.

matmul(reshape(x, [n, h * w * c]), W) = matmul(reshape(transpose(x), [n, c * h * w]), W with its rows moved alike)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import attribute_value
from ortfuse.ir.dims import reshape_target
from ortfuse.transforms.layout.layout_unit import Port, State, layout
from ortfuse.transforms.layout.permutation import Order, is_unmoved, unmoved
from ortfuse.transforms.layout.reordered_node import Draft
from ortfuse.transforms.layout.reshape import Shape, reshaped


@dataclass(frozen=True, eq=False)
class Flattened:
    """A product whose first operand is flattened.

    Attributes:
        node: The MatMul or Gemm.
        ports: What is flattened.
        flatten: The Reshape or Flatten, which nothing else uses.
        shapes: The shapes before and after flattening.
        axes: The axes that become the last one.
        sizes: Their sizes.
        by_column: Whether the matrix has its rows as columns.
    """

    node: ir.Node
    ports: tuple[Port, ...]
    flatten: ir.Node
    shapes: tuple[Shape, Shape]
    axes: tuple[int, ...]
    sizes: tuple[int, ...]
    by_column: bool

    def follow(self, port: int, order: Order) -> State | None:
        """See `Unit`: the axes that become the last one may be moved among themselves, and those of size 1 at will."""
        longer = [axis for axis in order if self.shapes[0][axis] != 1]
        others = [axis for axis in longer if axis not in self.axes]
        if others != sorted(others) or any(axis in self.axes for axis in longer[: len(others)]):
            return None
        target = reshape_target([self.shapes[0][axis] for axis in order], self.shapes[1])
        return State((order,)) if target is not None or is_unmoved(order) else None

    def cost(self, state: State) -> int:
        """See `Unit`."""
        return 0

    def write(self, draft: Draft, state: State) -> None:
        """See `Unit`."""
        order = state.orders[0]
        target = reshape_target([self.shapes[0][axis] for axis in order], self.shapes[1])
        assert target is not None
        made = ir.node("Reshape", [draft.operands[0], draft.ints(target)])
        draft.before.append(made)
        draft.operands[0] = made.outputs[0]
        moved = [self.axes.index(axis) for axis in order if axis in self.axes]
        draft.move_rows(1, self.sizes, moved, by_column=self.by_column)


def flattened(node: ir.Node, facts: Facts) -> Flattened | None:
    """A MatMul or Gemm of something flattened and a constant matrix."""
    operand, matrix = node.inputs[:2]
    flatten = operand.producer() if operand is not None else None
    if operand is None or flatten is None or flatten.graph is not node.graph or flatten.domain:
        return None
    if flatten.op_type not in ("Reshape", "Flatten") or len(operand.uses()) > 1 or operand.is_graph_output():
        return None
    if not facts.is_const(matrix) or facts.rank(matrix) != 2 or attribute_value(node, "transA", facts):
        return None
    found = reshaped(flatten, facts)
    if found is None or not found.blocks or found.blocks[-1].after != (len(found.shapes[1]) - 1,):
        return None
    axes = found.blocks[-1].before
    sizes = [size for axis in axes if isinstance(size := found.shapes[0][axis], int)]
    if len(sizes) < len(axes) or math.prod(sizes) != found.shapes[1][-1]:
        return None
    port = Port(found.ports[0].value, 0, False, unmoved(len(found.shapes[0])))
    by_column = bool(attribute_value(node, "transB", facts))
    return Flattened(node, (port,), flatten, found.shapes, axes, tuple(sizes), by_column)


layout("Gemm")(flattened)
