"""Class `Unit`: a node whose operands and results can be permuted together.

A unit says which order of its other operands and results goes with an order of one of them, and writes itself anew for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.operator_registry import Facet
from ortfuse.transforms.layout.permutation import Order, extended, is_unmoved, restricted, unmoved
from ortfuse.transforms.layout.reordered_node import Draft


class Port(NamedTuple):
    """An operand or a result of a unit.

    Attributes:
        value: The value as it is in the graph.
        position: Its number among the inputs or outputs of the node.
        is_output: Whether it is a result.
        axes: The axes of the unit that it has.
    """

    value: ir.Value
    position: int
    is_output: bool
    axes: tuple[int, ...]


class State(NamedTuple):
    """The axis orders of the ports of a unit, each relative to the value in the graph, and the axes of the unit if it has any."""

    orders: tuple[Order, ...]
    frame: Order = ()

    @property
    def is_unmoved(self) -> bool:
        """Whether everything lies as it does in the graph."""
        return all(map(is_unmoved, self.orders))


class Unit(Protocol):
    """A node that can be written for other orders of axes."""

    @property
    def node(self) -> ir.Node:
        """The node as it is in the graph."""

    @property
    def ports(self) -> Sequence[Port]:
        """Its operands and results whose axes can be moved."""

    def follow(self, port: int, order: Order) -> State | None:
        """The state in which one port lies in an order; `None` if there is none."""

    def cost(self, state: State) -> int:
        """The number of elements that the kernel moves by itself in a state."""

    def write(self, draft: Draft, state: State) -> None:
        """Write the node for a state; the operands of the draft lie as the state says."""


Interface: TypeAlias = "Callable[[ir.Node, Facts], Unit | Sequence[Unit] | None]"
"""Returns the units that a node consists of; `None` or none if it fixes the order of its operands and results."""

LAYOUTS: Facet[Interface] = Facet("layout", "how a node is written for another order of axes")
"""The layout interfaces of operators whose traits do not tell."""

layout = LAYOUTS.register
"""Register the decorated function as the layout interface of the given operators."""


def start(unit: Unit) -> State:
    """The state in which everything lies as it does in the graph."""
    return State(tuple(unmoved(len(port.axes)) for port in unit.ports))


def anything(order: Order) -> bool:
    """Every order is allowed."""
    return True


def nothing(draft: Draft, order: Order) -> None:
    """Nothing has to be written but the operands."""


def _free(order: Order) -> int:
    return 0


@dataclass(frozen=True, eq=False)
class Framed:
    """A unit with axes of its own, of which every port has some, in their order.

    Attributes:
        node: The node.
        ports: Its operands and results.
        rank: The number of axes.
        allows: Whether the node can be written for an order of the axes.
        rewrite: Writes the node for it.
        price: How many elements its kernel moves by itself then.
        aligns: Whether operands with fewer axes are broadcast.
        complete: Where the other axes are if those of a port lie in an order.
    """

    node: ir.Node
    ports: tuple[Port, ...]
    rank: int
    allows: Callable[[Order], bool] = anything
    rewrite: Callable[[Draft, Order], None] = nothing
    price: Callable[[Order], int] = _free
    aligns: bool = False
    complete: Callable[[Sequence[int], int], Order] = extended
    _states: dict[Order, State] = field(default_factory=dict)

    def follow(self, port: int, order: Order) -> State | None:
        """See `Unit`."""
        axes = self.ports[port].axes
        frame = self.complete([axes[index] for index in order], self.rank)
        if is_unmoved(frame):
            return start(self)
        if not self.allows(frame):
            return None
        if frame not in self._states:
            self._states[frame] = State(tuple(restricted(frame, one.axes) for one in self.ports), frame)
        return self._states[frame]

    def cost(self, state: State) -> int:
        """See `Unit`."""
        return self.price(state.frame or unmoved(self.rank))

    def write(self, draft: Draft, state: State) -> None:
        """See `Unit`."""
        for port in self.ports:
            if self.aligns and not port.is_output:
                draft.align(port.position, port.axes, state.frame)
        self.rewrite(draft, state.frame)
