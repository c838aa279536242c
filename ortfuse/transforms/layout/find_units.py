"""Find the tensors, units and regions of one graph."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import parameter
from ortfuse.ir import walk
from ortfuse.transforms.layout.count_transposed_elements import moved_ones, typical_elements
from ortfuse.transforms.layout.flattened_matmul import Flattened
from ortfuse.transforms.layout.layout_interfaces import units_of
from ortfuse.transforms.layout.layout_unit import State, Unit
from ortfuse.transforms.layout.matmul import Batched
from ortfuse.transforms.layout.permutation import Order, between, then, unmoved
from ortfuse.transforms.layout.region import Region, Tensor, Use, split
from ortfuse.transforms.layout.transpose_tie_break import axes_beyond, disadvantage
from ortfuse.transforms.veto_edits_that_join_qdq_pairs import is_signed

_MOST_SPREAD = 16
"""How many times as many units as a region has may be visited to find out how far the orders in it reach."""


class Map:
    """Find the tensors, units and regions of one graph.

    Args:
        graph: The graph.
        facts: What is known of its values.
        turned: Whether the runtime makes signed pairs unsigned, which have to stay pairs for that.
        fast_axes: How many axes the target transposes fast; `None` if that is not known.
        kept: Whether interpolation keeps its axes, as the runtime interpolates the last two alone.
    """

    def __init__(
        self, graph: ir.Graph, facts: Facts, turned: bool = False, fast_axes: int | None = None, kept: bool = False
    ) -> None:
        self.fast_axes, self._kept = fast_axes, kept
        self.graph, self._facts, self._turned = graph, facts, turned
        self._tensors: dict[ir.Value, Tensor] = {}
        self._units: dict[ir.Node, list[Unit]] = {}
        self.place = {node: place for place, node in enumerate(graph)}
        """The position of each node."""

    def regions(self) -> Iterator[Region]:
        """Every region in which something is transposed, as parts that do not depend on each other."""
        seen: set[Tensor] = set()
        for node in self.graph:
            if self.perm(node) is not None:
                tensor = self.tensor(node.outputs[0])
                if tensor is not None and tensor not in seen:
                    region = self._region(tensor)
                    seen.update(region.tensors)
                    yield from split(region, self._orders(region))

    def perm(self, node: ir.Node | None) -> Order | None:
        """The order of a Transpose, or of a Reshape that does the same, of something that is not constant."""
        if node is None or node.domain or node.op_type not in ("Transpose", "Reshape") or node not in self.place:
            return None
        if self._facts.is_const(node.inputs[0]):
            return None
        if node.op_type == "Reshape":
            return moved_ones(self._facts.shape(node.inputs[0]), self._facts.shape(node.outputs[0]))
        perm = parameter(node, "perm", self._facts)
        if not isinstance(perm, tuple | list) or self._facts.rank(node.inputs[0]) != len(perm):
            return None
        return tuple(perm)

    def tensor(self, value: ir.Value) -> Tensor | None:
        """The tensor that a value belongs to; `None` if its rank is unknown or it has no axes to be moved."""
        if value in self._tensors:
            return self._tensors[value]
        base = value
        while (node := base.producer()) is not None and self.perm(node) is not None:
            base = node.inputs[0]  # type: ignore[assignment]
        shape = self._facts.shape(base)
        if shape is None or len(shape) < 2:
            return None
        ones = frozenset(axis for axis, size in enumerate(shape) if size == 1)
        made = Tensor(base, {}, typical_elements(base, self._facts), ones)
        self._gather(made, base, unmoved(len(shape)))
        made.beside = disadvantage(base, made.aliases, self._facts)
        made.beyond = axes_beyond(base, self._facts, self.fast_axes)
        producer = base.producer()
        if producer is not None and producer in self.place:
            made.maker = next(self._ports(producer, base, True, unmoved(len(shape))), None)
        return made

    def tensors_at(self, unit: Unit) -> list[Tensor]:
        """The tensors that are written anew with a unit: at its ports, and all results of its node."""
        values = dict.fromkeys([*(port.value for port in unit.ports), *unit.node.outputs])
        found = (self.tensor(value) for value in values if value.name != "")
        return list(dict.fromkeys(tensor for tensor in found if tensor is not None))

    def _gather(self, tensor: Tensor, base: ir.Value, order: Order) -> None:
        """Find all Transposes of a value, and what uses them."""
        pending = [(base, order)]
        while pending:
            value, order = pending.pop()
            tensor.aliases[value] = order
            self._tensors[value] = tensor
            if value.is_graph_output():
                tensor.fixed.add(order)
            for node in dict.fromkeys(use.node for use in value.uses()):
                if node.graph is None:
                    continue
                perm = self.perm(node)
                if perm is not None:
                    pending.append((node.outputs[0], then(order, perm)))
                    continue
                found = list(self._ports(node, value, False, order)) if node.graph is self.graph else []
                tensor.uses += found
                if len(found) < sum(operand is value for operand in node.inputs) or not found:
                    tensor.fixed.add(order)

    def _ports(self, node: ir.Node, value: ir.Value, is_output: bool, order: Order) -> Iterator[Use]:
        for unit in self._units_of(node):
            for index, port in enumerate(unit.ports):
                if port.value is value and port.is_output == is_output:
                    yield Use(unit, index, order)

    def _units_of(self, node: ir.Node) -> list[Unit]:
        """The units of a node; a Reshape that flattens an operand of a product belongs to the product."""
        if node not in self._units:
            stays = walk.subgraphs(node) or (self._turned and is_signed(node, self._facts))
            stays = stays or (self._kept and not node.domain and node.op_type in ("Resize", "Upsample"))
            self._units[node] = [] if stays else units_of(node, self._facts)
            users = node.outputs[0].consumers() if node.op_type in ("Reshape", "Flatten") and not node.domain else ()
            for user in users:
                flat = [unit for unit in self._units_of(user) if isinstance(unit, Flattened) and unit.flatten is node]
                self._units[node] = list[Unit](flat) or self._units[node]
        return self._units[node]

    def _region(self, start: Tensor) -> Region:
        units: dict[Unit, None] = {}
        tensors, pending = {start: None}, [start]
        while pending:
            for use in pending.pop().ends:
                if use.unit in units:
                    continue
                siblings = self._units_of(use.unit.node)  # that are written anew together
                units.update(dict.fromkeys(siblings))
                for tensor in (tensor for unit in siblings for tensor in self.tensors_at(unit)):
                    if tensor not in tensors:
                        tensors[tensor] = None
                        pending.append(tensor)
        return Region(sorted(units, key=lambda unit: self.place[unit.node]), list(tensors))

    def _orders(self, region: Region) -> list[dict[Unit, State]]:
        """The orders that the Transposes of a region bring in, each spread as far as it reaches."""
        found: list[dict[Unit, State]] = []
        known: set[tuple[Tensor, Order]] = set()
        left = _MOST_SPREAD * len(region.units)
        transposed = sorted((one for one in region.tensors if len(one.aliases) > 1), key=lambda one: -one.weight)
        for tensor in transposed:
            for order in dict.fromkeys(tensor.aliases.values()):
                if (tensor, order) not in known and left > 0:
                    states, orders = self._spread(tensor, order)
                    known.update(orders.items())
                    found.append(states)
                    left -= len(states)
        return found

    def _spread(self, start: Tensor, order: Order) -> tuple[dict[Unit, State], dict[Tensor, Order]]:
        """Return the orders that follow from the order of one tensor without a Transpose; tensors with many axes go first."""
        orders, states = {start: order}, dict[Unit, State]()
        pending = [(-len(order), 0, start)]
        while pending:
            tensor = heapq.heappop(pending)[2]
            for use in tensor.ends:
                lies = between(use.order, orders[tensor])
                if use.unit in states:
                    if isinstance(use.unit, Batched):
                        states[use.unit] = use.unit.both(states[use.unit], use.port, lies)
                    continue
                state = use.unit.follow(use.port, lies)
                if state is None:
                    continue
                states[use.unit] = state
                for port, one in zip(use.unit.ports, state.orders, strict=True):
                    other = self.tensor(port.value)
                    if other is not None and other not in orders:
                        orders[other] = then(other.aliases[port.value], one)
                        heapq.heappush(pending, (-len(one), len(orders), other))
        return states, orders
