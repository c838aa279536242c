"""Regions: units connected by values of undecided axis order, split into independent parts.

A tensor is a value together with all Transposes of it. Each order in which users need it and its producer does not make
it costs one Transpose, for all these users together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import onnx_ir as ir

from ortfuse.transforms.layout.layout_unit import State, Unit, start
from ortfuse.transforms.layout.permutation import Order, then

ELEMENT = 1 << 16
"""The price of transposing an element; positions of equal cost differ by a few units in all, or for each element
(`transpose_tie_break`)."""

MOST_ORDERS = 6
"""The most orders that are tried in one region; further ones are tried together with others that they never meet."""


class Use(NamedTuple):
    """A port of a unit, and the order in which the value at it lies in the graph."""

    unit: Unit
    port: int
    order: Order

    def lies(self, state: State) -> Order:
        """The order of the tensor at the port in a state of the unit."""
        return then(self.order, state.orders[self.port])


@dataclass(eq=False)
class Tensor:
    """A value and its Transposes.

    Attributes:
        base: The value that is transposed.
        aliases: The value and its Transposes, each with its order relative to the value.
        maker: The result of a unit that it is, if it is one.
        uses: The operands of units that it is.
        fixed: The orders in which something else needs it.
        weight: How many elements it has at usual sizes.
        ones: Its axes of size 1, which can be moved without moving anything.
        beside: How much worse or better a Transpose of it is than another one of as many elements.
        beyond: How much worse each of its elements is to transpose than one of a tensor with fewer axes.
    """

    base: ir.Value
    aliases: dict[ir.Value, Order]
    weight: int
    ones: frozenset[int]
    beside: int = 0
    beyond: int = 0
    maker: Use | None = None
    uses: list[Use] = field(default_factory=list)
    fixed: set[Order] = field(default_factory=set)

    @property
    def prices(self) -> Iterator[tuple[int, Callable[[Order], Order]]]:
        """The cost of distinct orders: all elements if axes that may be longer than 1 are moved, else next to nothing."""
        whole = self.weight * (ELEMENT + self.beyond) + self.beside
        if self.ones:
            yield whole, lambda order: tuple(axis for axis in order if axis not in self.ones)
            yield ELEMENT + self.beside, lambda order: order
        else:
            yield whole, lambda order: order

    @property
    def ends(self) -> Iterator[Use]:
        """All ports of units at it."""
        if self.maker is not None:
            yield self.maker
        yield from self.uses


@dataclass
class Region:
    """Connected units and the tensors at them.

    Attributes:
        units: The units, in the order of the graph.
        tensors: The tensors.
        orders: Assignments that have no Transposes inside, each as far as it reaches from one Transpose.
    """

    units: list[Unit]
    tensors: list[Tensor]
    orders: list[dict[Unit, State]] = field(default_factory=list)


def joined_by_node(units: Iterable[Unit]) -> dict[ir.Node, list[Unit]]:
    """The units of each node."""
    found: dict[ir.Node, list[Unit]] = {}
    for unit in units:
        found.setdefault(unit.node, []).append(unit)
    return found


def split(region: Region, spreads: Sequence[dict[Unit, State]]) -> Iterator[Region]:
    """The parts of a region that do not depend on each other.

    A unit that stays as it is in all of `spreads`, the orders that may be chosen, fixes what it needs and makes.
    """
    movable = {unit for spread in spreads for unit, state in spread.items() if state != start(unit)}
    part_of: dict[Unit, int] = {}
    parts: list[tuple[list[Unit], list[Tensor]]] = []
    for units, tensors in _connected(region, movable):
        part_of.update(dict.fromkeys(units, len(parts)))
        parts.append((units, tensors))
    orders: list[list[dict[Unit, State]]] = [[] for _ in parts]
    for spread in spreads:
        shares: dict[int, dict[Unit, State]] = {}
        for unit, state in spread.items():
            if unit in part_of:
                shares.setdefault(part_of[unit], {})[unit] = state
        for part, share in shares.items():
            orders[part].append(share)
    place = {unit: index for index, unit in enumerate(region.units)}
    for (units, tensors), found in zip(parts, orders, strict=True):
        own = [_fixing(tensor, movable) for tensor in tensors]
        yield Region(sorted(units, key=place.__getitem__), own, _joined(found))


def _connected(region: Region, movable: set[Unit]) -> Iterator[tuple[list[Unit], list[Tensor]]]:
    """Movable units that have tensors or nodes in common, and their tensors."""
    tensors_of: dict[Unit, list[Tensor]] = {unit: [] for unit in region.units if unit in movable}
    siblings = joined_by_node(tensors_of)
    makers: dict[Tensor, list[Unit]] = {}
    for tensor in region.tensors:
        producer = tensor.base.producer()
        makers[tensor] = [] if producer is None else siblings.get(producer, [])
        for unit in dict.fromkeys([*makers[tensor], *(use.unit for use in tensor.ends if use.unit in movable)]):
            tensors_of[unit].append(tensor)
    seen: set[Unit] = set()
    for first in tensors_of:
        if first in seen:
            continue
        units, tensors = {first: None}, dict[Tensor, None]()
        pending = [first]
        while pending:
            unit = pending.pop()
            new = [tensor for tensor in tensors_of[unit] if tensor not in tensors]
            tensors.update(dict.fromkeys(new))
            ends = [use.unit for tensor in new for use in tensor.ends if use.unit in movable]
            for other in (*siblings[unit.node], *ends, *(unit for tensor in new for unit in makers[tensor])):
                if other not in units:
                    units[other] = None
                    pending.append(other)
        seen.update(units)
        yield list(units), list(tensors)


def _fixing(tensor: Tensor, movable: set[Unit]) -> Tensor:
    """A tensor that units which stay as they are need in the order in which they do."""
    uses = [use for use in tensor.uses if use.unit in movable]
    maker = tensor.maker if tensor.maker is not None and tensor.maker.unit in movable else None
    fixed = tensor.fixed | {use.order for use in tensor.uses if use.unit not in movable}
    return replace(tensor, maker=maker, uses=uses, fixed=fixed)


def _joined(orders: Sequence[dict[Unit, State]]) -> list[dict[Unit, State]]:
    """No more than the most orders: those beyond it are joined to ones that have no unit in common with them."""
    found = [dict(order) for order in orders[:MOST_ORDERS]]
    for order in orders[MOST_ORDERS:]:
        apart = next((one for one in found if one.keys().isdisjoint(order)), None)
        if apart is not None:
            apart.update(order)
    return found
