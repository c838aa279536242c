"""Lower bound of the transposed elements in a region over all assignments of axis orders.

The bound is half of the sum of isolating cuts, each of which separates one order from all others. Source: Dahlhaus, Johnson,
Papadimitriou, Seymour & Yannakakis, SIAM Journal on Computing 23, 1994. An assignment pays for a tensor at least once for every
two orders that meet there. If only two orders meet, the bound is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ortfuse.transforms.layout.dinic_min_cut import UNCUT, Network
from ortfuse.transforms.layout.layout_unit import State, Unit, start
from ortfuse.transforms.layout.permutation import Order, unmoved
from ortfuse.transforms.layout.region import ELEMENT, Region, Tensor, Use


def bound(region: Region) -> int:
    """The fewest elements that have to be transposed, counted as `Tensor.weight` does."""
    counted: set[tuple[Tensor, int, Order]] = set()
    total = sum(_parted(region, order, counted) for order in region.orders)
    return (total // ELEMENT + 1) // 2


def _parted(region: Region, order: Mapping[Unit, State], counted: set[tuple[Tensor, int, Order]]) -> int:
    """Return the cost of separating the units in one order from all those in another. Each order of a tensor is counted once."""
    network = Network()
    nodes = {unit: network.node() for unit in order}
    for tensor in region.tensors:
        ends = [use for use in tensor.ends if use.unit in order]
        for number, (weight, key) in enumerate(tensor.prices):
            lies = list(dict.fromkeys(key(use.lies(order[use.unit])) for use in ends))
            if len(lies) == 1 and (tensor, number, lies[0]) not in counted:
                counted.add((tensor, number, lies[0]))
                _part(network, nodes, (region, order), tensor, (weight, key, lies[0]))
    return network.cut()[0]


def _part(
    network: Network,
    nodes: Mapping[Unit, int],
    parted: tuple[Region, Mapping[Unit, State]],
    tensor: Tensor,
    price: tuple[int, Callable[[Order], Order], Order],
) -> None:
    """Pay if something at a tensor lies in the order, which is the sink's side, and something else certainly does not."""
    weight, key, order = price
    fixed = {key(one) for one in tensor.fixed}
    if tensor.maker is None:
        fixed.add(key(unmoved(len(tensor.aliases[tensor.base]))))
    inside, outside = network.node(), network.node()
    for use in tensor.ends:
        node = nodes.get(use.unit)
        if node is not None:
            network.edge(inside, node, UNCUT)
        if order not in _elsewhere(use, key, *parted):
            network.edge(Network.SOURCE if node is None else node, outside, UNCUT)
    if order in fixed:
        network.edge(inside, Network.SINK, UNCUT)
    if fixed - {order}:
        network.edge(Network.SOURCE, outside, UNCUT)
    network.edge(outside, inside, weight)


def _elsewhere(use: Use, key: Callable[[Order], Order], region: Region, parted: Mapping[Unit, State]) -> set[Order]:
    """The orders in which a port may lie while its unit is not in the order that is parted."""
    states = [start(use.unit), *(order[use.unit] for order in region.orders if use.unit in order)]
    return {key(use.lies(state)) for state in states if state != parted.get(use.unit)}
