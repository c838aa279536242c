"""Match the nodes and values of two models: by the names of results, then by structure.

By structure, nodes match if they have the same operator and attributes and their operands match, or if values that match are
computed by them at the same position. Large constants count by type and shape, so that nodes with other weights still match;
among several nodes that match alike, those with the same constants come first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence

import onnx_ir as ir

from ortfuse.ir.walk import graphs_of
from ortfuse.verification.diff.constants import constant_of, same_tensor

SMALL = 8
"""The most elements of a constant whose content is part of the structure: an axis or a shape rather than a weight."""

Nodes = Sequence[ir.Node]


class Matching:
    """The nodes, values and graphs of one model with their counterparts in another.

    Attributes:
        values: The values of the first model that have a counterpart, with it; constants are left out.
        nodes: The nodes of the first model that have a counterpart, with it.
        graphs: The pairs of graphs that were matched, outer ones first.
        sure: The values that must be the same: of one name, inputs and outputs, and what is computed from such in the same way.
            Others have a counterpart that stands where they stand, with other weights or attributes before it.
    """

    def __init__(self, first: ir.Model, second: ir.Model) -> None:
        self.values: dict[ir.Value, ir.Value] = {}
        self.nodes: dict[ir.Node, ir.Node] = {}
        self.graphs: list[tuple[ir.Graph, ir.Graph]] = []
        self.sure: set[ir.Value] = set()
        self._taken: set[ir.Value] = set()
        self._numbers: dict[Hashable, int] = {}
        waiting = [(first.graph, second.graph)]
        waiting += [
            (function.graph, second.functions[key].graph)
            for key, function in first.functions.items()
            if key in second.functions
        ]
        while waiting:
            pair = waiting.pop()
            self.graphs.append(pair)
            self._match(*pair)
            for node in pair[0]:
                if (twin := self.nodes.get(node)) is not None:
                    waiting += _bodies(node, twin)

    @property
    def seconds(self) -> set[ir.Node]:
        """The nodes of the second model that have a counterpart."""
        return set(self.nodes.values())

    def counterpart(self, value: ir.Value | None) -> ir.Value | None:
        """The value of the second model that stands for one of the first."""
        return None if value is None else self.values.get(value)

    def _match(self, one: ir.Graph, other: ir.Graph) -> None:
        self._interface(one.inputs, other.inputs)
        ours, theirs = _computing(one), _computing(other)
        named = {value.name: node for node in theirs for value in node.outputs[:1] if value.name}
        for node in ours:
            twin = named.get(node.outputs[0].name or "") if node.outputs else None
            if twin is not None and _alike(node, twin):
                self._pair(node, twin)
        there = {value.name: value for node in theirs for value in node.outputs if value.name}
        for node in ours:
            for value in node.outputs:
                if (found := there.get(value.name or "")) is not None and _may_be_same(value, found):
                    self._join(value, found)
        self.sure.update(self.values)
        self._by_operands(ours, theirs, alone=True)
        self._interface(one.outputs, other.outputs)
        self.sure.update(value for value in one.outputs if value in self.values)
        self._by_users(ours)
        self._by_operands(ours, theirs, alone=False)
        self._by_users(ours)

    def _interface(self, ours: Sequence[ir.Value], theirs: Sequence[ir.Value]) -> None:
        """Match inputs or outputs by name, and the rest in order if there are as many."""
        names = {value.name: value for value in theirs}
        for value in ours:
            if value.name in names:
                self._join(value, names[value.name])
        left = [value for value in ours if value not in self.values]
        right = [value for value in theirs if value not in self._taken]
        if len(left) == len(right):
            for value, twin in zip(left, right, strict=True):
                self._join(value, twin)

    def _by_operands(self, ours: Nodes, theirs: Nodes, *, alone: bool) -> None:
        """Match what is left by operator and operands, in the order of the graphs.

        With `alone`, nodes that match alike must be equally many in both models; otherwise their users tell them apart better.
        """
        keys: dict[ir.Value, int] = {}
        for value, twin in self.values.items():
            keys[value] = keys[twin] = self._number(("matched", value))
        groups: tuple[dict[int, list[ir.Node]], ...] = (defaultdict(list), defaultdict(list))
        for side, nodes in enumerate((ours, theirs)):
            for node in nodes:
                if any(value in keys for value in node.outputs):
                    continue
                operands = tuple(self._operand(value, keys) for value in node.inputs)
                key = self._number((node.op_identifier(), _attributes(node), operands, len(node.outputs)))
                for number, value in enumerate(node.outputs):
                    keys[value] = self._number((key, number))
                groups[side][key].append(node)
        for key, left in groups[0].items():
            there = groups[1].get(key, [])
            for node, other in _paired(left, there) if len(left) == len(there) or not alone else ():
                self._pair(node, other)
        self.sure.update(
            value for node in ours if (found := self.nodes.get(node)) is not None and self._computes_same(node, found)
            for value in node.outputs
        )  # fmt: skip

    def _computes_same(self, node: ir.Node, twin: ir.Node) -> bool:
        if len(node.inputs) != len(twin.inputs) or _attributes(node) != _attributes(twin) or not _equal(node, twin):
            return False
        operands = zip(node.inputs, twin.inputs, strict=True)
        computed = [(one, other) for one, other in operands if one is not None and constant_of(one) is None]
        return all(one in self.sure and self.values.get(one) is other for one, other in computed)

    def _by_users(self, ours: Nodes) -> None:
        """Match what computes the same operand of nodes that match, or the same output, from the outputs upwards."""
        for value, twin in list(self.values.items()):
            node, other = value.producer(), twin.producer()
            if node is not None and other is not None and value.index() == twin.index():
                self._upwards(node, other)
        for node in reversed(ours):
            found = self.nodes.get(node)
            for operand, counterpart in zip(node.inputs, found.inputs if found is not None else (), strict=False):
                if operand is None or counterpart is None or operand.index() != counterpart.index():
                    continue
                above, beside = operand.producer(), counterpart.producer()
                if above is not None and beside is not None:
                    self._upwards(above, beside)

    def _upwards(self, node: ir.Node, twin: ir.Node) -> None:
        taken = any(value in self.values for value in node.outputs) or any(one in self._taken for one in twin.outputs)
        joined = all(
            self.values.get(one, other) is other for one, other in zip(node.outputs, twin.outputs, strict=False)
        )
        if node not in self.nodes and _alike(node, twin) and (joined or not taken) and not _is_constant(node):
            self._pair(node, twin)

    def _operand(self, value: ir.Value | None, keys: dict[ir.Value, int]) -> int:
        if value is None:
            return -1
        if value not in keys:
            tensor = constant_of(value)
            keys[value] = self._number((tensor.dtype, tuple(tensor.shape)) if tensor is not None else ("alone", value))
        return keys[value]

    def _number(self, thing: Hashable) -> int:
        return self._numbers.setdefault(thing, len(self._numbers))

    def _pair(self, node: ir.Node, twin: ir.Node) -> None:
        self.nodes[node] = twin
        for value, other in zip(node.outputs, twin.outputs, strict=False):
            self._join(value, other)

    def _join(self, value: ir.Value, twin: ir.Value) -> None:
        if value not in self.values and twin not in self._taken:
            self.values[value] = twin
            self._taken.add(twin)


def _computing(graph: ir.Graph) -> list[ir.Node]:
    return [node for node in graph if not _is_constant(node)]


def _is_constant(node: ir.Node) -> bool:
    return node.op_type == "Constant" and not node.domain


def _alike(node: ir.Node, twin: ir.Node) -> bool:
    return node.op_identifier() == twin.op_identifier() and len(node.outputs) == len(twin.outputs)


def _may_be_same(value: ir.Value, twin: ir.Value) -> bool:
    """Whether two values of one name can be the same by their declared types."""
    if (
        value.dtype is not None
        and twin.dtype is not None
        and value.dtype.is_floating_point() != twin.dtype.is_floating_point()
    ):
        return False
    if value.shape is None or twin.shape is None:
        return True
    if len(value.shape) != len(twin.shape):
        return False
    return all(
        one == other or not isinstance(one, int) or not isinstance(other, int)
        for one, other in zip(value.shape, twin.shape, strict=True)
    )


def _bodies(node: ir.Node, twin: ir.Node) -> Iterable[tuple[ir.Graph, ir.Graph]]:
    for name, attribute in node.attributes.items():
        if name in twin.attributes:
            yield from zip(graphs_of(attribute), graphs_of(twin.attributes[name]), strict=False)


def _paired(left: Nodes, right: Nodes) -> Iterable[tuple[ir.Node, ir.Node]]:
    """Pairs of nodes that match alike: those with the same attributes and constants first, the rest in order."""
    if len(left) == len(right) == 1:
        return [(left[0], right[0])]
    found: list[tuple[ir.Node, ir.Node]] = []
    free = dict.fromkeys(right)
    rest = []
    for node in left:
        twin = next((one for one in free if _equal(node, one)), None)
        if twin is None:
            rest.append(node)
        else:
            found.append((node, twin))
            del free[twin]
    return [*found, *zip(rest, free, strict=False)]


def _equal(node: ir.Node, twin: ir.Node) -> bool:
    """Whether two nodes have the same constants."""
    constants = zip(map(constant_of, node.inputs), map(constant_of, twin.inputs), strict=False)
    return all(same_tensor(one, other) for one, other in constants)


def _attributes(node: ir.Node) -> Hashable:
    """The attributes of a node that are no graphs, as text."""
    return tuple(sorted((name, str(one)) for name, one in node.attributes.items() if not graphs_of(one)))


def _kind(tensor: ir.TensorProtocol) -> Hashable:
    """The type and shape of a constant, and its content if it is small."""
    content = tensor.numpy().tobytes() if tensor.size <= SMALL and tensor.dtype != ir.DataType.STRING else b""
    return tensor.dtype, tuple(tensor.shape), content
