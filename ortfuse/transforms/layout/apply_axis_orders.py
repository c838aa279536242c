"""Rewrite units in the chosen axis orders, and insert Transposes where orders differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, cast

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import parameter
from ortfuse.ir.dims import DimLike, is_nonnegative, reshape_target
from ortfuse.ir.editor import Editor
from ortfuse.ir.graph_transaction import Change
from ortfuse.ir.refusal import Refusal, refuse
from ortfuse.ir.traits import EXACT, has
from ortfuse.transforms.layout.count_transposed_elements import elements, moved_ones, moves_only_ones, typical_elements
from ortfuse.transforms.layout.find_units import Map
from ortfuse.transforms.layout.flattened_matmul import Flattened
from ortfuse.transforms.layout.layout_unit import Port, State, Unit
from ortfuse.transforms.layout.matmul import ABSORBING
from ortfuse.transforms.layout.permutation import Order, between, swaps_last_two, then, unmoved
from ortfuse.transforms.layout.region import Tensor
from ortfuse.transforms.layout.reordered_node import Draft
from ortfuse.transforms.layout.transpose_tie_break import axes_beyond, disadvantage


class Move:
    """One change: units that are written anew together."""

    def __init__(self, found: Map, units: Sequence[Unit], states: Mapping[Unit, State], editor: Editor, facts: Facts):
        self._map, self._units, self._states = found, units, states
        self._editor, self._facts = editor, facts
        self._graph = found.graph
        self._nodes: dict[ir.Node, list[Unit]] = {}
        for unit in units:
            self._nodes.setdefault(unit.node, []).append(unit)
        self._old = {*self._nodes, *(unit.flatten for unit in units if isinstance(unit, Flattened))}
        self._tensors: dict[Tensor, None] = {}
        for unit in units:
            self._tensors.update(dict.fromkeys(found.tensors_at(unit)))
        nodes = [value.producer() for tensor in self._tensors for value in tensor.aliases if value is not tensor.base]
        self._transposes = sorted((node for node in nodes if node is not None), key=found.place.__getitem__)
        self._made: dict[Tensor, tuple[ir.Value, Order]] = {}
        self._versions: dict[tuple[Tensor, Order], ir.Value] = {}
        self._added: list[ir.Node] = []

    @property
    def nodes(self) -> list[ir.Node]:
        """The nodes that are written anew, and the Transposes of their operands and results."""
        return sorted([*self._old, *self._transposes], key=self._map.place.__getitem__)

    @property
    def rounds(self) -> bool:
        """Whether results may be rounded differently."""
        return not all(has(node, EXACT) for node in self._nodes)

    def make(self, change: Change) -> None:
        """Make the change; it is cancelled if it is no gain."""
        before = _Moved.by(self._transposes, self._facts, self._map.fast_axes)
        for node, units in self._nodes.items():
            self._write(node, units, change)
        for tensor in self._tensors:
            self._hand_on(tensor)
        kept = self._remove()
        refusal = _Moved.by([*kept, *self._added], self._facts, self._map.fast_axes).unless_less_than(
            before, self._units[0].ports[0].value
        )
        refusal = refusal or next(filter(None, map(_unless_merged, self._added)), None)
        if refusal is not None:
            change.cancel(refusal)

    def _write(self, node: ir.Node, units: Sequence[Unit], change: Change) -> None:
        """Write a node anew."""
        draft = Draft(node, self._facts, self._editor)
        for unit in units:
            state = self._states[unit]
            for port, order in zip(unit.ports, state.orders, strict=True):
                tensor = None if port.is_output else self._map.tensor(port.value)
                if tensor is not None:
                    wanted = then(tensor.aliases[port.value], order)
                    draft.operands[port.position] = self._version(tensor, wanted)
        for unit in units:
            unit.write(draft, self._states[unit])
        made = draft.build()
        self._added += draft.before
        change.origins[made] = node
        self._editor.insert_before(node, *draft.before, made)
        orders = {port.position: order for unit in units for port, order in self._results(unit)}
        for position, output in enumerate(node.outputs):
            tensor = self._map.tensor(output) if output.name != "" else None
            if tensor is not None:
                lies = orders.get(position, unmoved(len(tensor.aliases[output])))
                self._made[tensor] = (made.outputs[position], lies)
            elif output.name != "":
                self._editor.replace(output, made.outputs[position])
            else:
                self._editor.rename(made.outputs[position], "")  # left out

    def _results(self, unit: Unit) -> Iterable[tuple[Port, Order]]:
        """The results among the ports of a unit, and how they lie."""
        ends = zip(unit.ports, self._states[unit].orders, strict=True)
        return [(port, order) for port, order in ends if port.is_output]

    def _version(self, tensor: Tensor, order: Order) -> ir.Value:
        """The tensor in an order: as it is made, or transposed right there."""
        source, lies = self._made.get(tensor, (tensor.base, unmoved(len(order))))
        if order == lies:
            return source
        if (tensor, order) not in self._versions:
            self._versions[tensor, order] = self._transposed(source, between(lies, order))
        return self._versions[tensor, order]

    def _transposed(self, source: ir.Value, perm: Order) -> ir.Value:
        """A new Transpose of a value; a Reshape if that moves only axes of size 1."""
        producer = source.producer()
        here = producer is not None and producer.graph is self._graph
        place = producer if here and producer is not None else self._graph[0]
        shape = self._facts.shape(source)
        moved = None if shape is None else [shape[axis] for axis in perm]
        target = reshape_target(shape, moved) if moves_only_ones(source, perm, self._facts) else None
        if target is None:
            node = ir.node("Transpose", [source], {"perm": perm})
        else:
            node = ir.node("Reshape", [source, self._editor.add_constant(place, ir.tensor(target, ir.DataType.INT64))])
        (self._editor.insert_after if here else self._editor.insert_before)(place, node)
        self._added.append(node)
        return node.outputs[0]

    def _hand_on(self, tensor: Tensor) -> None:
        """Let what is not written anew have the tensor in the orders that it needs, transposed once for all that need one."""
        for value, order in tensor.aliases.items():
            if tensor not in self._made and (tensor, order) not in self._versions:
                continue
            left = [use for use in value.uses() if use.node not in self._old and self._map.perm(use.node) is None]
            if left or value.is_graph_output():
                self._editor.replace(value, self._version(tensor, order))

    def _remove(self) -> list[ir.Node]:
        """Remove what is not needed any more; returns the Transposes that still are."""
        self._editor.remove(*sorted(self._old, key=self._map.place.__getitem__, reverse=True))
        kept = []
        for node in reversed(self._transposes):
            output = node.outputs[0]
            if output.is_graph_output() or output.uses():
                kept.append(node)
            else:
                self._editor.remove(node)
        return kept


class _Moved(NamedTuple):
    """The cost of data movement: Transposes, transposed elements, Reshapes that move axes of size 1, and their positions."""

    number: int
    elements: DimLike | None
    ones: int
    beside: int

    @classmethod
    def by(cls, nodes: Iterable[ir.Node], facts: Facts, fast_axes: int | None) -> _Moved:
        """Return the elements that nodes move in execution, without Transposes that the runtime merges into products."""
        number, total, ones, beside = 0, cast(DimLike | None, 0), 0, 0
        for node in nodes:
            source = node.inputs[0]
            beside += 0 if source is None else disadvantage(source, node.outputs, facts)
            if _moves_ones(node, facts):
                ones += 1
            elif source is not None and node.op_type == "Transpose" and not _is_absorbed(node, facts):
                size = elements(node.outputs[0], facts)
                number, total = number + 1, None if size is None or total is None else total + size
                beside += typical_elements(source, facts) * axes_beyond(source, facts, fast_axes)
        return cls(number, total, ones, beside)

    def unless_less_than(self, before: _Moved, value: ir.Value) -> Refusal | None:
        """A refusal unless fewer elements are moved, by no more Transposes, whatever the sizes; or as many, elsewhere."""
        if before.elements is None or self.elements is None:
            return refuse("shape", value)
        saved = before.elements - self.elements
        fewer = saved != 0 or (self.ones, self.beside) < (before.ones, before.beside)
        if fewer and self.number <= before.number and is_nonnegative(saved):
            return None
        found = f"{self.number} Transposes of {self.elements} elements instead of {before.number} of {before.elements}"
        return refuse("needless", value, found=found)


def _unless_merged(node: ir.Node) -> Refusal | None:
    """A refusal of a Transpose of a Transpose, which the canonical form makes one, so that the two passes would never settle."""
    source = node.inputs[0]
    if (
        node.op_type != "Transpose"
        or source is None
        or (above := source.producer()) is None
        or above.op_type != "Transpose"
    ):
        return None
    return refuse("needless", source, found="the canonical form merges a Transpose with the one before it")


def _moves_ones(node: ir.Node, facts: Facts) -> bool:
    """Whether a node moves nothing but axes of size 1."""
    if node.op_type == "Reshape":
        return moved_ones(facts.shape(node.inputs[0]), facts.shape(node.outputs[0])) is not None
    source = node.inputs[0]
    return (
        node.op_type == "Transpose"
        and source is not None
        and moves_only_ones(source, tuple(parameter(node, "perm", facts)), facts)
    )


def _is_absorbed(node: ir.Node, facts: Facts) -> bool:
    """Whether the runtime merges a Transpose into the products behind it: it swaps the last two axes."""
    output = node.outputs[0]
    users = output.consumers()
    merged = users and all(user.op_type in ("MatMul", "FusedMatMul") for user in users)
    swaps = swaps_last_two(tuple(parameter(node, "perm", facts)))
    return bool(merged) and swaps and facts.dtype(output) in ABSORBING and not output.is_graph_output()
