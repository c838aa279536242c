"""Partition a model into units that each compute in one type (see `min_cut_float32_islands`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir import walk
from ortfuse.ir.nn_module_of_node import describe_in_module
from ortfuse.ir.traits import CONTRACTS, LAYER, has
from ortfuse.quantization.half.min_cut_float32_islands import Kind, Wire, choose
from ortfuse.quantization.half.shared_type_ports import Ports, is_float, ports
from ortfuse.targets import Target

FLOAT = 0
"""The unit that stands for everything that is float32 by definition."""

Use = tuple[ir.Node | ir.Graph, int]
"""An input of a node, or an output of a graph, by position."""


@dataclass
class Unit:
    """A unit with one type: a node, an input or output of the model, or a loop-carried value.

    Attributes:
        name: What reports call it.
        kind: What it has to be.
        reason: Why it has to be float32; empty if it need not.
        node: The node.
        ports: Which of the node's inputs and outputs follow it.
    """

    name: str
    kind: Kind = "free"
    reason: str = ""
    node: ir.Node | None = None
    ports: Ports = field(default_factory=Ports)

    @property
    def is_product(self) -> bool:
        """Whether it is an operator whose cost outweighs that of Casts."""
        node = self.node
        return node is not None and (has(node, LAYER) or node.op_type in CONTRACTS or bool(node.domain))


class Units:
    """The units of a model without functions, and for each float32 value which unit makes it and which use it.

    Args:
        model: The model.
        half: The type that is to take the place of float32.
        keep_io: Whether inputs and outputs of the model stay float32.
        target: The runtime that has to have kernels; `None` for any.
    """

    def __init__(self, model: ir.Model, half: ir.DataType, *, keep_io: bool, target: Target | None) -> None:
        self.model, self.half, self.facts = model, half, Facts(model)
        self.units = [Unit("float32 by definition", "float", "it is float32 by definition")]
        self.of_node: dict[ir.Node, int] = {}
        self.makers: dict[ir.Value, int] = {}
        self.uses: dict[ir.Value, dict[Use, int]] = {}
        ends: Kind = "float" if keep_io else "half"
        for value in model.graph.inputs:
            self._tie(f"input '{value.name}'", [], [value], ends)
        for graph in walk.nested(model.graph):
            for node in graph:
                if walk.subgraphs(node):
                    self._control_flow(node)
                else:
                    self._add_node(node, target)
        for number, value in enumerate(model.graph.outputs):
            self._tie(f"output '{value.name}'", [(model.graph, number)], [], ends)

    def keep(self, unit: int, reason: str) -> bool:
        """Demand that a unit is float32; returns whether that is new."""
        one = self.units[unit]
        if one.kind == "float":
            return False
        one.kind, one.reason = "float", reason
        return True

    def chosen(self) -> list[bool]:
        """For each unit whether it computes in float32. Products are half wherever they can be."""
        kinds: list[Kind] = ["half" if one.kind == "free" and one.is_product else one.kind for one in self.units]
        wires = [Wire(source, frozenset(self.uses.get(value, {}).values())) for value, source in self.makers.items()]
        return choose(kinds, wires)

    def _tie(self, name: str, taken: Iterable[Use], made: Iterable[ir.Value], kind: Kind = "free") -> None:
        """Add a unit that hands values on as they are, if they are float32."""
        taken = [use for use in taken if is_float(_used(use), self.facts)]
        made = [value for value in made if is_float(value, self.facts)]
        if taken or made:
            self.units.append(Unit(name, kind))
            self._connect(len(self.units) - 1, taken, made)

    def _connect(self, unit: int, taken: Iterable[Use], made: Iterable[ir.Value]) -> None:
        for use in taken:
            value = _used(use)
            if is_float(value, self.facts):
                assert value is not None
                self.uses.setdefault(value, {})[use] = unit
        self.makers.update((value, unit) for value in made if is_float(value, self.facts))

    def _add_node(self, node: ir.Node, target: Target | None) -> None:
        if not any(is_float(value, self.facts) for value in (*node.inputs, *node.outputs)):
            return
        found = ports(node, self.facts, self.half, target)
        self.units.append(
            Unit(describe_in_module(node), "float" if found.reason else "free", found.reason, node, found)
        )
        unit = self.of_node[node] = len(self.units) - 1
        for number in range(len(node.inputs)):
            self._connect(unit if number in found.inputs else FLOAT, [(node, number)], [])
        for number, value in enumerate(node.outputs):
            self._connect(unit if number in found.outputs else FLOAT, [], [value])

    def _control_flow(self, node: ir.Node) -> None:
        name, bodies = walk.describe(node), walk.subgraphs(node)
        if node.op_type == "If" and not node.domain:
            for number, output in enumerate(node.outputs):
                self._tie(f"{name}, output {number}", [(body, number) for body in bodies], [output])
        elif node.op_type == "Loop" and not node.domain:
            self._iteration(node, name, bodies[0], states=len(node.inputs) - 2, skipped=2)
        elif node.op_type == "Scan" and not node.domain and self.facts.version(node) >= _SCAN_WITHOUT_BATCHES:
            scanned = node.attributes.get_int("num_scan_inputs", 0) or 0
            self._iteration(node, name, bodies[0], states=len(node.inputs) - scanned, skipped=0)
        else:
            results = [(body, number) for body in bodies for number in range(len(body.outputs))]
            taken: list[Use] = [*((node, number) for number in range(len(node.inputs))), *results]
            self._connect(FLOAT, taken, [*node.outputs, *(value for body in bodies for value in body.inputs)])

    def _iteration(self, node: ir.Node, name: str, body: ir.Graph, states: int, skipped: int) -> None:
        """A Loop or Scan, whose inputs begin with `skipped` others, of which the body outputs one."""
        first = 1 if skipped else 0
        for number in range(len(node.inputs) - skipped):
            given: Use = (node, number + skipped)
            inner = body.inputs[number + skipped]
            if number < states:
                self._tie(f"{name}, state {number}", [given, (body, number + first)], [inner, node.outputs[number]])
            else:
                self._tie(f"{name}, input {number}", [given], [inner])
        for number in range(states, len(body.outputs) - first):
            self._tie(f"{name}, output {number}", [(body, number + first)], [node.outputs[number]])


_SCAN_WITHOUT_BATCHES = 9
"""The opset from which on a Scan has no axis of batches."""


def graph_of(use: Use) -> ir.Graph:
    """The graph that a use is in."""
    place, _ = use
    graph = place.graph if isinstance(place, ir.Node) else place
    assert isinstance(graph, ir.Graph)
    return graph


def _used(use: Use) -> ir.Value | None:
    place, number = use
    return place.inputs[number] if isinstance(place, ir.Node) else place.outputs[number]
