"""Undo entries for operations on a graph; calling an entry again redoes the operation.

Each entry of a journal is called without arguments and toggles its operation between done and undone. Entries are undone
in reverse order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import onnx_ir as ir

Flip = Callable[[], None]


class Assigned:
    """Toggle an attribute of an object between two values."""

    __slots__ = ("name", "other", "thing")

    def __init__(self, thing: Any, name: str, other: Any) -> None:
        self.thing, self.name, self.other = thing, name, other

    def __call__(self) -> None:
        other = getattr(self.thing, self.name)
        setattr(self.thing, self.name, self.other)
        self.other = other


class Filled:
    """Toggle the whole content of a small mapping between two states."""

    __slots__ = ("mapping", "other")

    def __init__(self, mapping: MutableMapping[Any, Any], other: Mapping[Any, Any]) -> None:
        self.mapping, self.other = mapping, other

    def __call__(self) -> None:
        other = dict(self.mapping)
        self.mapping.clear()
        self.mapping.update(self.other)
        self.other = other


class Entry:
    """Toggle the entry of a mapping at one key between two values (`None`: no entry); drop that key from the cache."""

    __slots__ = ("cache", "key", "mapping", "other")

    def __init__(
        self, mapping: MutableMapping[Any, Any], key: Any, other: Any, cache: MutableMapping[Any, Any] | None = None
    ) -> None:
        self.mapping, self.key, self.other, self.cache = mapping, key, other, cache

    def __call__(self) -> None:
        known = self.mapping.pop(self.key, None)
        if self.other is not None:
            self.mapping[self.key] = self.other
        self.other = known
        if self.cache is not None:
            self.cache.pop(self.key, None)


class Listed:
    """Toggle the inputs or the outputs of a graph between two lists."""

    __slots__ = ("other", "values")

    def __init__(self, values: Any, other: Sequence[ir.Value]) -> None:
        self.values, self.other = values, other

    def __call__(self) -> None:
        other = list(self.values)
        self.values[:] = self.other
        self.other = other


class Rewired:
    """Toggle uses of a value between that value and another."""

    __slots__ = ("other", "uses", "value")

    def __init__(self, uses: Sequence[tuple[ir.Node, int]], value: ir.Value, other: ir.Value) -> None:
        self.uses, self.value, self.other = uses, value, other

    def __call__(self) -> None:
        for node, index in self.uses:
            node.replace_input_with(index, self.other)
        self.value, self.other = self.other, self.value


class Detached:
    """Toggle a node between having its inputs and having none, so that it does not count as their user."""

    __slots__ = ("inputs", "node")

    def __init__(self, node: ir.Node) -> None:
        self.node = node
        self.inputs: Sequence[ir.Value | None] | None = None

    def __call__(self) -> None:
        if self.inputs is None:
            self.inputs = self.node.inputs
            self.node.resize_inputs(0)
            return
        self.node.resize_inputs(len(self.inputs))
        for index, value in enumerate(self.inputs):
            self.node.replace_input_with(index, value)
        self.inputs = None


class Placed(Detached):
    """Toggle a node between being in its place in a graph, and being out of it without inputs."""

    __slots__ = ("following", "graph")

    def __init__(self, node: ir.Node, graph: ir.Graph) -> None:
        super().__init__(node)
        self.graph = graph
        self.following: ir.Node | None = None

    def __call__(self) -> None:
        if self.node.graph is not None:
            self.following = following(self.node, self.graph)
            self.graph.remove(self.node)
            super().__call__()
            return
        super().__call__()
        put_before(self.graph, self.node, self.following)


class Moved:
    """Toggle a node of a graph between two positions."""

    __slots__ = ("following", "graph", "node")

    def __init__(self, node: ir.Node, graph: ir.Graph, before: ir.Node | None) -> None:
        self.node, self.graph, self.following = node, graph, before

    def __call__(self) -> None:
        other = following(self.node, self.graph)
        put_before(self.graph, self.node, self.following)
        self.following = other


class Ordered:
    """Toggle the nodes of a graph between two orders. Nodes that are not in the given order come first."""

    __slots__ = ("graph", "other")

    def __init__(self, graph: ir.Graph, other: Sequence[ir.Node]) -> None:
        self.graph, self.other = graph, other

    def __call__(self) -> None:
        other = list(self.graph)
        self.graph.extend([node for node in self.other if node.graph is self.graph])
        self.other = other


class Shortened:
    """Toggle the last outputs of a node between present and removed."""

    __slots__ = ("node", "other")

    def __init__(self, node: ir.Node, other: Sequence[ir.Value]) -> None:
        self.node, self.other = node, other

    def __call__(self) -> None:
        # `resize_outputs` would create new values, unknown to everything that refers to the old ones.
        other: Any = self.node.outputs
        node: Any = self.node
        node._outputs = tuple(self.other)
        for value in other:
            value._producer, value._index = None, -1
        for index, value in enumerate(node._outputs):
            value._producer, value._index = self.node, index
        self.other = other


class Registered:
    """Toggle an initializer of a graph between registered and not; `ranks` give the order of the initializers."""

    __slots__ = ("graph", "ranks", "value")

    def __init__(self, value: ir.Value, graph: ir.Graph, ranks: Mapping[ir.Value, int]) -> None:
        self.value, self.graph, self.ranks = value, graph, ranks

    def __call__(self) -> None:
        if self.value.is_initializer():
            assert self.value.name is not None
            del self.graph.initializers[self.value.name]
        else:
            self.graph.initializers.add(self.value)
            put_in_order(self.graph, self.ranks)


class Named:
    """Toggle a value between two names. An initializer keeps its position."""

    __slots__ = ("other", "ranks", "value")

    def __init__(self, value: ir.Value, other: str | None, ranks: Mapping[ir.Value, int] | None) -> None:
        self.value, self.other, self.ranks = value, other, ranks

    def __call__(self) -> None:
        other, self.value.name = self.value.name, self.other
        self.other = other
        if self.ranks is not None and self.value.is_initializer() and self.value.graph is not None:
            put_in_order(self.value.graph, self.ranks)


def following(node: ir.Node, graph: ir.Graph) -> ir.Node | None:
    """The node after this one. Uses internals of onnx_ir: its public interface would search from the start of the graph."""
    nodes: Any = graph._nodes
    found: ir.Node | None = nodes._value_ids_to_boxes[id(node)].next.value
    return found


def put_before(graph: ir.Graph, node: ir.Node, before: ir.Node | None) -> None:
    """Put a node before another, or at the end if that is `None`; it may already be elsewhere in the same graph."""
    if before is None:
        graph.append(node)
    else:
        graph.insert_before(before, node)


def put_in_order(graph: ir.Graph, ranks: Mapping[ir.Value, int]) -> None:
    """Sort the initializers of a graph by their ranks."""
    content = graph.initializers.data
    items = sorted(content.items(), key=lambda item: ranks.get(item[1], len(ranks)))
    content.clear()
    content.update(items)
