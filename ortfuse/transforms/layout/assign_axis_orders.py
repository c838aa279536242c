"""Assign an axis order to every unit of a region so that the fewest elements are transposed.

With two orders this is a minimum cut, solved exactly (Ford & Fulkerson, Canadian Journal of Mathematics 8, 1956). With more,
orders are spread one after the other over whatever gains from them, each time by a minimum cut (expansion moves: Boykov,
Veksler & Zabih, IEEE PAMI 23, 2001). Among all minimum cuts, the one that changes the fewest units is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ortfuse.transforms.layout.dinic_min_cut import UNCUT, Network
from ortfuse.transforms.layout.layout_unit import State, Unit, start
from ortfuse.transforms.layout.permutation import Order, unmoved
from ortfuse.transforms.layout.region import ELEMENT, Region, Tensor, Use

_PRICE = 1 << 12
"""The cost of a unit of `Tensor.prices`, in units of the cost of rewriting a node."""

_MOST_ROUNDS = 10

_MOST_STARTED = 1600
"""How many units may be given their first order when the choice is begun anew from one order after the other."""

Assignment = dict[Unit, State]


def as_it_is(region: Region) -> Assignment:
    """The assignment in which everything lies as it does in the graph."""
    return {unit: start(unit) for unit in region.units}


def cost(region: Region, states: Mapping[Unit, State]) -> int:
    """The cost of an assignment: elements that are transposed, and to break ties, units that are written anew."""
    units = sum(_unit_cost(unit, states[unit]) for unit in region.units)
    return units + sum(_local(tensor, states) for tensor in region.tensors)


def transposed(region: Region, states: Mapping[Unit, State]) -> int:
    """The number of transposed elements, counted as `Tensor.weight` does."""
    return sum(_local(tensor, states) for tensor in region.tensors) // (_PRICE * ELEMENT)


def _unit_cost(unit: Unit, state: State) -> int:
    return unit.cost(state) * ELEMENT * _PRICE + (not state.is_unmoved)


def _local(tensor: Tensor, states: Mapping[Unit, State]) -> int:
    """The cost of transposing one tensor."""
    needed = {*tensor.fixed, *(use.lies(states[use.unit]) for use in tensor.uses)}
    made = _made(tensor, states)
    return sum(weight * _PRICE * len({key(order) for order in needed} - {key(made)}) for weight, key in tensor.prices)


def _made(tensor: Tensor, states: Mapping[Unit, State]) -> Order:
    """The order in which a tensor is made."""
    maker = tensor.maker
    return unmoved(len(tensor.aliases[tensor.base])) if maker is None else maker.lies(states[maker.unit])


def best(region: Region) -> Assignment:
    """The cheapest assignment found; that of the graph as it is unless another one is cheaper."""
    here = as_it_is(region)
    found, least = here, cost(region, here)
    starts = max(1, _MOST_STARTED // max(1, len(region.units)))
    for first in [{}, *region.orders[:starts]]:
        states, total = _improved(region, {**here, **first})
        if total < least:
            found, least = states, total
    return found


def _improved(region: Region, states: Assignment) -> tuple[Assignment, int]:
    """Spread each order in turn, until none gains anything any more."""
    total = cost(region, states)
    here = as_it_is(region)
    seen: dict[int, int] = {}
    for _ in range(_MOST_ROUNDS):
        before = total
        for number, order in enumerate([*region.orders, here]):
            if seen.get(number) == total:
                continue  # nothing changed since it was spread last
            changed = _expanded(region, states, order, fewest=order is not here)
            tried = {**states, **changed}
            price = cost(region, tried) if changed else total
            if price < total:
                states, total = tried, price
            seen[number] = total
        states, total = _polished(region, states, total)
        if total == before:
            break
    return states, total


def _polished(region: Region, states: Assignment, total: int) -> tuple[Assignment, int]:
    """Change single units wherever that gains something."""
    states, ends = dict(states), _tensors_of(region)
    for unit in region.units:
        for state in dict.fromkeys([start(unit), *(order[unit] for order in region.orders if unit in order)]):
            known = states[unit]
            before = sum(_local(one, states) for one in ends[unit]) + _unit_cost(unit, known)
            states[unit] = state
            gain = before - sum(_local(one, states) for one in ends[unit]) - _unit_cost(unit, state)
            if gain > 0:
                total -= gain
            else:
                states[unit] = known
    return states, total


def _tensors_of(region: Region) -> dict[Unit, list[Tensor]]:
    """The tensors at the ports of each unit."""
    found: dict[Unit, dict[Tensor, None]] = {unit: {} for unit in region.units}
    for tensor in region.tensors:
        for use in tensor.ends:
            found[use.unit][tensor] = None
    return {unit: list(tensors) for unit, tensors in found.items()}


def _expanded(region: Region, states: Assignment, order: Mapping[Unit, State], *, fewest: bool) -> Assignment:
    """The units that are to take on another order, with their states in it: of the best choices that of the fewest, or most."""
    open_ = [unit for unit in region.units if unit in order and order[unit] != states[unit]]
    if not open_:
        return {}
    network = Network()
    nodes = {unit: network.node() for unit in open_}
    for unit, node in nodes.items():
        gain = (unit.cost(order[unit]) - unit.cost(states[unit])) * ELEMENT
        network.edge(Network.SOURCE, node, gain)
        network.edge(node, Network.SINK, -gain)
    for tensor in region.tensors:
        if any(use.unit in nodes for use in tensor.ends):
            for weight, key in tensor.prices:
                _Term(tensor, weight, key, (states, order), network, nodes).add()
    taken = network.cut(near_sink=fewest)[1]
    return {unit: order[unit] for unit, node in nodes.items() if taken[node]}


class _Term:
    """The cost of transposing one tensor, as edges: units on the sink's side take on the other order."""

    def __init__(
        self,
        tensor: Tensor,
        weight: int,
        key: Callable[[Order], Order],
        states: tuple[Mapping[Unit, State], Mapping[Unit, State]],
        network: Network,
        nodes: Mapping[Unit, int],
    ) -> None:
        """`key`: what tells orders apart; `states`: of all units as they are, and of those that may take on the other order."""
        self._tensor, self._weight, self._key, self._states = tensor, weight, key, states
        self._network, self._nodes = network, nodes
        self._fixed = {key(order) for order in tensor.fixed}

    def add(self) -> None:
        """Add the edges for every order in which the tensor may be needed."""
        orders = dict.fromkeys(self._fixed)
        for use in self._tensor.uses:
            orders.update(dict.fromkeys(self._keys(use)))
        for order in orders:
            self._add(order)

    def _keys(self, use: Use) -> tuple[Order, Order]:
        """The orders at a port before and after its unit takes on the other order."""
        before = self._key(use.lies(self._states[0][use.unit]))
        return before, self._key(use.lies(self._states[1][use.unit])) if use.unit in self._nodes else before

    def _add(self, order: Order) -> None:
        """The weight is paid if anything needs the tensor in this order and its maker does not make it so."""
        tensor, network = self._tensor, self._network
        made = self._key(_made(tensor, self._states[0]))
        before, after = (made, made) if tensor.maker is None else self._keys(tensor.maker)
        if before == after == order:
            return
        always = order in self._fixed
        staying: list[int] = []
        moving: list[int] = []
        for use in tensor.uses:
            keys = self._keys(use)
            always = always or keys == (order, order)
            if keys[0] != keys[1] and order in keys:
                (staying if keys[0] == order else moving).append(self._nodes[use.unit])
        maker = self._nodes[tensor.maker.unit] if tensor.maker is not None and before != after else None
        # The maker makes the order while it stays, once it moves, or never.
        lost = Network.SINK if maker is None or order not in (before, after) else maker
        if always:
            self._unless_made(order, before, after, maker)
            return
        if staying and order != after:
            needed = staying[0] if len(staying) == 1 else network.node()
            for node in staying:
                network.edge(node, needed, UNCUT)
            network.edge(needed, lost, self._weight)
        if moving and order != before:
            needed = moving[0] if len(moving) == 1 else network.node()
            for node in moving:
                network.edge(needed, node, UNCUT)
            network.edge(lost if lost != Network.SINK else Network.SOURCE, needed, self._weight)

    def _unless_made(self, order: Order, before: Order, after: Order, maker: int | None) -> None:
        """Pay where the maker does not make an order that is needed in any case."""
        if maker is not None and order == before:
            self._network.edge(Network.SOURCE, maker, self._weight)
        elif maker is not None and order == after:
            self._network.edge(maker, Network.SINK, self._weight)
