"""Find where two versions of a graph differ: regions bounded by values that both versions have under the same name.

Values of the same name are taken to be the same, or meant to be; nodes that compute such a value from the same inputs in
the same way are the same node. All other nodes fall into regions: a region holds the old and the new nodes that are
connected by values of one side only, or that compute the same value.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field

import onnx_ir as ir

from ortfuse.ir import walk
from ortfuse.ir.detect_unlogged_edits import Place, bodies, key_of, operation, places


@dataclass
class Region:
    """A connected set of nodes that differ.

    Attributes:
        graph: The old graph.
        old: The nodes of the old side, in order.
        new: The nodes of the new side, in order.
        outputs: The values that both sides compute and that nodes outside may use, as pairs of old and new value.
    """

    graph: ir.Graph
    old: list[ir.Node] = field(default_factory=list)
    new: list[ir.Node] = field(default_factory=list)
    outputs: list[tuple[ir.Value, ir.Value]] = field(default_factory=list)


@dataclass(frozen=True)
class Difference:
    """The difference of a model from its earlier state: in regions, or in words if there are other differences."""

    regions: list[Region]
    beyond: str | None = None


Same = Callable[[ir.TensorProtocol | None, ir.TensorProtocol | None], bool]
"""Whether two constants of the same name have the same content."""


def difference(old: ir.Model, new: ir.Model) -> Difference:
    """Find how a changed model differs from its earlier state."""
    olds, news = dict(places(old)), dict(places(new))
    for place in {**olds, **news}:
        if place not in news or place not in olds:
            return Difference([], "functions or the bodies of control flow were added or removed")
    found: list[Region] = []
    for place, graph in olds.items():
        beyond = _interface(place, graph, news[place])
        if beyond is not None:
            return Difference([], beyond)
        for region in changed(graph, news[place]):
            beyond = _reach(region)
            if beyond is not None:
                return Difference([], beyond)
            found.append(region)
    return Difference(found)


def _interface(place: Place, old: ir.Graph, new: ir.Graph) -> str | None:
    """The difference in the graph's interface (seen by whatever runs it), in words; `None` if there is none."""
    for what in ("inputs", "outputs"):
        if [value.name for value in getattr(old, what)] != [value.name for value in getattr(new, what)]:
            return f"the {what} of {'the model' if not place else 'a function or body'} are others"
    for domain, version in old.opset_imports.items():
        if new.opset_imports.get(domain, version) != version:
            return f"the opset of {domain or 'ai.onnx'} is another"
    return None


def _reach(region: Region) -> str | None:
    """Why a region cannot be replaced on its own, in words."""
    for node in (*region.old, *region.new):
        if bodies(node):
            return "control flow was changed"
    replaced = {value for value, _ in region.outputs}
    inside = set(region.old)
    for node in region.old:
        for value in node.outputs:
            if value not in replaced and (
                value.is_graph_output() or any(use.node not in inside for use in value.uses())
            ):
                return f"'{value.name}' is gone, and is used in another graph"
    return None


def changed(old: ir.Graph, new: ir.Graph, same: Same = operator.is_, *, inside: bool = False) -> Iterator[Region]:
    """The regions in which two graphs differ.

    Args:
        old: The earlier graph.
        new: The later one.
        same: Whether constants of the same name are alike; by default if they are the same object.
        inside: Whether a node with graphs differs if its graphs do; otherwise they are compared as graphs of their own.
    """
    changed_old, changed_new = _changed(old, new, same, inside), _changed(new, old, same, inside)
    produced = {value.name: value for node in changed_old for value in node.outputs if value.name}
    own = {value.name for node in old for value in node.outputs} | _given(old)
    there = {value.name for node in new for value in node.outputs} | _given(new)
    groups = _Groups()
    for side, node in [(0, node) for node in changed_old] + [(1, node) for node in changed_new]:
        groups.add((side, node))
        for value in node.outputs:
            # Both sides compute it, so its nodes belong to one region.
            groups.join((side, node), ("made", value.name))
        for operand in node.inputs:
            if operand is not None and not (operand.name in own and operand.name in there):
                # Only one side has it, so its producer and its users belong to one region.
                groups.join((side, node), ("made", operand.name))
    found: dict[Hashable, Region] = {}
    for side, node in [(0, node) for node in changed_old] + [(1, node) for node in changed_new]:
        region = found.setdefault(groups.of((side, node)), Region(old))
        (region.new if side else region.old).append(node)
    news = {value.name: value for node in new for value in node.outputs} | dict(new.initializers)
    for region in found.values():
        for node in region.old:
            for value in node.outputs:
                if value.name in news and value.name in produced:
                    region.outputs.append((value, news[value.name]))
        yield region


def _changed(graph: ir.Graph, other: ir.Graph, same: Same, inside: bool) -> list[ir.Node]:
    """The nodes of a graph that the other one lacks, or has with constants of different content."""
    known = {key_of(node): node for node in other}
    others = {
        name
        for name, value in graph.initializers.items()
        if name in other.initializers and not same(other.initializers[name].const_value, value.const_value)
    }
    return [
        node
        for node in graph
        if (twin := known.get(key_of(node))) is None
        or operation(twin) != operation(node)
        or any(
            value is not None and value.name in others for value in (walk.used_values(node) if inside else node.inputs)
        )
        or (inside and any(map(_differ, bodies(node).values(), bodies(twin).values())))
    ]


def _differ(graph: ir.Graph, other: ir.Graph) -> bool:
    """Whether two graphs nested in nodes are not written alike."""
    if len(graph) != len(other) or graph.initializers.keys() != other.initializers.keys():
        return True
    ends = [[value.name for value in (*one.inputs, *one.outputs)] for one in (graph, other)]
    pairs = list(zip(graph, other, strict=True))
    return (
        ends[0] != ends[1]
        or any(operation(node) != operation(twin) for node, twin in pairs)
        or any(
            _differ(*two)
            for node, twin in pairs
            for two in zip(bodies(node).values(), bodies(twin).values(), strict=True)
        )
        or bool(graph.initializers)
    )


def _given(graph: ir.Graph) -> set[str | None]:
    """The names available to a graph from outside: its inputs and constants, and values of the graphs around it."""
    own = {value for node in graph for value in node.outputs}
    around = {value.name for node in graph for value in node.inputs if value is not None and value not in own}
    return around | {value.name for value in graph.inputs} | set(graph.initializers)


class _Groups:
    """Disjoint sets: groups of things that belong together, directly or transitively."""

    def __init__(self) -> None:
        self._parent: dict[Hashable, Hashable] = {}

    def add(self, thing: Hashable) -> None:
        self._parent.setdefault(thing, thing)

    def of(self, thing: Hashable) -> Hashable:
        """The representative of the group that a thing belongs to."""
        while self._parent[thing] != thing:
            self._parent[thing] = self._parent[self._parent[thing]]
            thing = self._parent[thing]
        return thing

    def join(self, one: Hashable, other: Hashable) -> None:
        self.add(other)
        self._parent[self.of(one)] = self.of(other)
