"""Products of matrices: all axes but the last of the operand before a plain matrix may be moved, and last two axes swapped.

At session creation the runtime merges a Transpose of the last two axes into the MatMul behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.facts.facts import Facts
from ortfuse.passes.layout.draft import Draft
from ortfuse.passes.layout.flattened import flattened
from ortfuse.passes.layout.permutation import Order, is_unmoved, swaps_last_two, unmoved
from ortfuse.passes.layout.unit import Port, State, Unit

ABSORBING = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})
"""Types of products into which the runtime merges Transposes."""


@dataclass(frozen=True, eq=False)
class Product:
    """An operand of a product, with the result if the other operand is a plain matrix behind it."""

    node: ir.Node
    ports: tuple[Port, ...]
    absorbs: bool

    def follow(self, port: int, order: Order) -> State | None:
        """See `Unit`."""
        rank = len(order)
        if is_unmoved(order) or (len(self.ports) == 2 and order[-1] == rank - 1):
            return State(tuple(order for _ in self.ports))
        if port == 0 and self.absorbs and swaps_last_two(order):
            return State((order, *(unmoved(rank) for _ in self.ports[1:])))
        return None

    def cost(self, state: State) -> int:
        """See `Unit`."""
        return 0

    def write(self, draft: Draft, state: State) -> None:
        """See `Unit`."""
        if swaps_last_two(state.orders[0]):
            position = self.ports[0].position
            swap = ir.node("Transpose", [draft.operands[position]], {"perm": state.orders[0]})
            draft.before.append(swap)
            draft.operands[position] = swap.outputs[0]


def product(node: ir.Node, facts: Facts) -> list[Unit]:
    """The operands of a MatMul as units, the first together with the result if the second is a plain matrix."""
    flat = flattened(node, facts)
    if flat is not None:
        return [flat]
    left, right = node.inputs
    result = node.outputs[0]
    absorbs = facts.dtype(result) in ABSORBING
    found: list[Unit] = []
    for position, value in enumerate((left, right)):
        rank = facts.rank(value)
        if value is None or rank is None or rank < 2 or facts.is_const(value):
            continue
        ports = [Port(value, position, False, unmoved(rank))]
        if position == 0 and facts.rank(right) == 2:
            ports.append(Port(result, 0, True, unmoved(rank)))
        if absorbs or len(ports) == 2:
            found.append(Product(node, tuple(ports), absorbs))
    return found
