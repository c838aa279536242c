"""Layout of MatMul: permute the leading and batch axes, or swap the last two axes of an operand.

If the second operand is a plain matrix, all axes but the last of the first operand may be permuted. Batch axes may be permuted
in both operands and the result alike.

At session creation the runtime merges a Transpose of the last two axes into the MatMul behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import parameter
from ortfuse.transforms.layout.flattened_matmul import flattened
from ortfuse.transforms.layout.layout_unit import Port, State, Unit, layout
from ortfuse.transforms.layout.permutation import Order, is_unmoved, swaps_last_two, unmoved
from ortfuse.transforms.layout.reordered_node import Draft

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
            _swap(draft, self.ports[0].position, state.orders[0])


@dataclass(frozen=True, eq=False)
class Batched:
    """A product of matrices of one batch, whose axes are moved in both operands and the result alike."""

    node: ir.Node
    ports: tuple[Port, ...]
    absorbs: bool

    def follow(self, port: int, order: Order) -> State | None:
        """See `Unit`; the last two axes of an operand may be swapped besides."""
        rank = len(order)
        swaps = order[-2:] == (rank - 1, rank - 2) and self.absorbs and not self.ports[port].is_output
        if sorted(order[:-2]) != list(range(rank - 2)) or not (swaps or order[-2:] == (rank - 2, rank - 1)):
            return None
        plain = (*order[:-2], rank - 2, rank - 1)
        return State(tuple(order if index == port else plain for index in range(len(self.ports))))

    def both(self, state: State, port: int, order: Order) -> State:
        """A state that one port has led to, with the last two axes of another one swapped if that lies so."""
        found = self.follow(port, order)
        if found is None or found.orders[-1] != state.orders[-1]:
            return state
        return State(tuple(order if index == port else one for index, one in enumerate(state.orders)))

    def cost(self, state: State) -> int:
        """See `Unit`."""
        return 0

    def write(self, draft: Draft, state: State) -> None:
        """See `Unit`."""
        for port, order in zip(self.ports, state.orders, strict=True):
            rank = len(order)
            if order[-2:] == (rank - 1, rank - 2):
                _swap(draft, port.position, (*range(rank - 2), rank - 1, rank - 2))


def _swap(draft: Draft, position: int, perm: Order) -> None:
    """Transpose an operand, which the runtime merges into the product."""
    made = ir.node("Transpose", [draft.operands[position]], {"perm": perm})
    draft.before.append(made)
    draft.operands[position] = made.outputs[0]


@layout("MatMul")
def product(node: ir.Node, facts: Facts) -> list[Unit]:
    """The operands of a MatMul as units, the first together with the result if the second is a plain matrix.

    The three matrices of one batch are one unit, unless both operands are already swapped: then each may lose its swap.
    """
    flat = flattened(node, facts)
    if flat is not None:
        return [flat]
    absorbs = facts.dtype(node.outputs[0]) in ABSORBING
    if _have_one_batch(node, facts) and not all(_is_swapped(value, facts) for value in node.inputs):
        values = [*node.inputs, node.outputs[0]]
        axes = unmoved(facts.rank(node.outputs[0]) or 0)
        ports = [Port(value, index % 2, index == 2, axes) for index, value in enumerate(values) if value is not None]
        return [Batched(node, tuple(ports), absorbs)]
    return _one_by_one(node, facts, absorbs)


def _have_one_batch(node: ir.Node, facts: Facts) -> bool:
    """Whether the operands are matrices of the same batch, which has several axes that may be longer than 1."""
    left, right = (facts.shape(value) for value in node.inputs)
    if left is None or right is None or any(facts.is_const(value) for value in node.inputs):
        return False
    return left[:-2] == right[:-2] and sum(size != 1 for size in left[:-2]) > 1


def _is_swapped(value: ir.Value | None, facts: Facts) -> bool:
    """Whether a value comes out of a Transpose of its last two axes."""
    maker = value.producer() if value is not None else None
    perm = parameter(maker, "perm", facts) if maker is not None and maker.op_type == "Transpose" else None
    return isinstance(perm, tuple | list) and swaps_last_two(tuple(perm))


def _one_by_one(node: ir.Node, facts: Facts, absorbs: bool) -> list[Unit]:
    left, right = node.inputs
    result = node.outputs[0]
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
