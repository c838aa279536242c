"""Layout of Reshape and Flatten that only merge or split axes, or add and drop axes of size 1.

Axes that become one axis, or come from one, are a block. Blocks can be moved as long as each stays in one piece; axes of size 1
may be anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import DimLike, reshape_target
from ortfuse.transforms.layout.layout_unit import Port, State, layout
from ortfuse.transforms.layout.permutation import Order, extended, is_unmoved, unmoved
from ortfuse.transforms.layout.reordered_node import Draft

Shape = tuple[DimLike, ...]


class Block(NamedTuple):
    """Axes of the operand, and the axes of the result that have the same elements in the same order."""

    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Reshaped:
    """A Reshape or Flatten as blocks."""

    node: ir.Node
    ports: tuple[Port, ...]
    shapes: tuple[Shape, Shape]
    blocks: tuple[Block, ...]

    def follow(self, port: int, order: Order) -> State | None:
        """See `Unit`."""
        blocks = self._blocks_in(port, order)
        if blocks is None:
            return None
        other = self._placed(1 - port, blocks)
        orders = (order, other) if port == 0 else (other, order)
        return None if reshape_target(*self._moved(orders)) is None else State(orders)

    def cost(self, state: State) -> int:
        """See `Unit`."""
        return 0

    def write(self, draft: Draft, state: State) -> None:
        """See `Unit`."""
        target = reshape_target(*self._moved(state.orders))
        assert target is not None
        draft.becomes("Reshape")
        draft.operands[1:] = [draft.ints(target)]

    def _moved(self, orders: Sequence[Order]) -> list[Shape]:
        """The shapes of both sides where they lie in these orders."""
        return [tuple(shape[axis] for axis in one) for shape, one in zip(self.shapes, orders, strict=True)]

    def _blocks_in(self, side: int, order: Order) -> list[int] | None:
        """The sequence of blocks where one side lies in an order; `None` if that would tear one apart."""
        place = {axis: number for number, block in enumerate(self.blocks) for axis in block[side]}
        flat = [axis for axis in order if axis in place]
        sequence = list(dict.fromkeys(place[axis] for axis in flat))
        whole = [axis for number in sequence for axis in self.blocks[number][side]]
        return sequence if whole == flat else None

    def _placed(self, side: int, sequence: Sequence[int]) -> Order:
        """The order of one side for a sequence of blocks."""
        rank = len(self.shapes[side])
        if is_unmoved(tuple(sequence)):
            return unmoved(rank)
        return extended([axis for number in sequence for axis in self.blocks[number][side]], rank)


def reshaped(node: ir.Node, facts: Facts) -> Reshaped | None:
    """A Reshape or Flatten as a unit; `None` if its axes cannot be told apart."""
    operand, result = node.inputs[0], node.outputs[0]
    before, after = facts.shape(operand), facts.shape(result)
    if operand is None or facts.is_const(operand) or before is None or after is None or 0 in (*before, *after):
        return None
    blocks = _blocks(before, after)
    if blocks is None:
        return None
    ports = (Port(operand, 0, False, unmoved(len(before))), Port(result, 0, True, unmoved(len(after))))
    return Reshaped(node, ports, (before, after), tuple(blocks))


layout("Reshape", "Flatten")(reshaped)


def _blocks(before: Shape, after: Shape) -> list[Block] | None:
    """The smallest blocks of axes of equal sizes, axes of size 1 left out."""
    left = [axis for axis, size in enumerate(before) if size != 1]
    right = [axis for axis, size in enumerate(after) if size != 1]
    found: list[Block] = []
    while left and right:
        found.append(_first(before, after, left, right) or Block(tuple(left), tuple(right)))
        del left[: len(found[-1].before)], right[: len(found[-1].after)]
    return None if left or right else found


def _first(before: Shape, after: Shape, left: Sequence[int], right: Sequence[int]) -> Block | None:
    """The smallest block at the front of the axes that are left."""
    products: dict[DimLike, int] = {}
    size: DimLike = 1
    for count, axis in enumerate(left, start=1):
        size = size * before[axis]
        products.setdefault(size, count)
    size = 1
    for count, axis in enumerate(right, start=1):
        size = size * after[axis]
        if size in products:
            return Block(tuple(left[: products[size]]), tuple(right[:count]))
    return None
