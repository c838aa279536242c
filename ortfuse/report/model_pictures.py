"""Draw parts of models: a site before and after, and the regions in which two models differ."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import onnx_ir as ir

from ortfuse.ir import walk
from ortfuse.report.graph_drawing import Box, Picture

WIDELY = 4
"""A value that more nodes take than this, such as a mask that all layers have, does not make one part of them."""

_ENDS = {2**63 - 1: "2⁶³-1", -(2**63): "-2⁶³"}
"""The end of slices without an end."""

Name = Callable[[ir.Value], "str | None"]

MOST = 40
"""The most nodes that are drawn of one part."""


@dataclass(frozen=True)
class Pair:
    """A part of a model before and after.

    Attributes:
        before: The part of the first model; `None` if there is nothing in it.
        after: The part of the second.
        was: Its operators before, with their numbers.
        became: Its operators after.
    """

    before: Picture | None
    after: Picture | None
    was: Mapping[str, int]
    became: Mapping[str, int]


class Pictures:
    """Draw parts of a model before and after.

    Args:
        before: The model as it was.
        after: The model as it is.
        name: The name by which a value is known; by default its own. Values of both models with one name are the same.
    """

    def __init__(self, before: ir.Model, after: ir.Model, name: Name = attrgetter("name")) -> None:
        self._name = name
        self._before, self._after = list(_nodes(before)), list(_nodes(after))
        self._by_name: dict[str, list[ir.Node]] = {}
        for node in self._before:
            self._by_name.setdefault(node.name or "", []).append(node)
        self._place = {id(node): number for nodes in (self._before, self._after) for number, node in enumerate(nodes)}
        self._made = {value.name: node for node in self._after for value in node.outputs if value.name}

    def site(self, root: str, nodes: Sequence[str], made: Collection[str]) -> Pair:
        """A site.

        Args:
            root: The name of the value at its root.
            nodes: The names of the nodes that it stood for.
            made: The operators that it is computed by now.
        """
        was = [node for name in nodes if name for node in self._by_name.get(name, ())]
        return _pair(self._in_order(was), self._in_order(self._behind(root, made)))

    def _in_order(self, nodes: Iterable[ir.Node]) -> list[ir.Node]:
        """Nodes in the order of their model, whichever a rule names first."""
        return sorted(nodes, key=lambda node: self._place[id(node)])

    def regions(self) -> list[Pair]:
        """The parts in which the models differ, the largest first.

        Parts are one if they share a value that only one of the models has and few nodes take. At a value that
        both have by the same name, what computes it in either belongs together, and what takes it is another part.
        """
        before, after = ([_identity(node, self._name) for node in nodes] for nodes in (self._before, self._after))
        kept = {*before} & {*after}
        was = [node for node, key in zip(self._before, before, strict=True) if key not in kept]
        became = [node for node, key in zip(self._after, after, strict=True) if key not in kept]
        groups = _connected([*was, *became], self._name)
        first = set(map(id, was))
        found = [
            _pair([n for n in group if id(n) in first], [n for n in group if id(n) not in first]) for group in groups
        ]
        return sorted(found, key=lambda pair: -sum(pair.was.values()) - sum(pair.became.values()))

    def _behind(self, root: str, made: Collection[str]) -> list[ir.Node]:
        """The nodes of some operators that compute a value, as far as they follow each other; each operator as often as told."""
        left = Counter(name.rpartition(".")[2] for name in made)
        found: dict[int, ir.Node] = {}
        waiting = [root]
        while waiting:
            node = self._made.get(waiting.pop(0))
            if node is None or id(node) in found or (found and not left[node.op_type]):
                continue
            left[node.op_type] -= 1
            found[id(node)] = node
            waiting += [value.name for value in node.inputs if value is not None and value.name]
        return list(found.values())


def operators(model: ir.Model) -> dict[str, int]:
    """The operators of a model with their numbers, most frequent first."""
    return _counted(walk.nodes(model))


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    """The nodes that are drawn as such; constants are drawn where they enter."""
    return (node for node in walk.nodes(model) if node.op_type != "Constant" or node.domain)


def _pair(was: Sequence[ir.Node], became: Sequence[ir.Node]) -> Pair:
    return Pair(_picture(was), _picture(became), _counted(was), _counted(became))


def _counted(nodes: Iterable[ir.Node]) -> dict[str, int]:
    """Operators with their numbers, the most frequent first; among equals, in the order of the nodes."""
    return dict(Counter(_operator(node) for node in nodes).most_common())


def _operator(node: ir.Node) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def _identity(node: ir.Node, name: Name) -> tuple[object, ...]:
    """The key by which two nodes are the same: operator, attributes, and the names of their operands and results.

    Constants count by the names of the values alone: those that differ are told of by themselves.
    """
    attributes = tuple(sorted((key, _content(one)) for key, one in node.attributes.items()))
    names = [None if value is None else "constant" if _is_constant(value) else name(value) for value in node.inputs]
    return _operator(node), attributes, tuple(names), tuple(name(value) for value in node.outputs)


def _is_constant(value: ir.Value) -> bool:
    return ir.convenience.get_const_tensor(value) is not None


def _content(attribute: ir.Attr) -> str:
    """The content of an attribute; nodes of graphs are compared by themselves."""
    if attribute.is_ref():
        return f"@{attribute.ref_attr_name}"
    if walk.graphs_of(attribute):
        return ""
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        content = tensor.numpy() if tensor.dtype == ir.DataType.STRING else tensor.tobytes()
        return f"{tensor.dtype} {tensor.shape} {hashlib.sha256(str(content).encode()).hexdigest()}"
    return str(attribute.value)


def _connected(nodes: Sequence[ir.Node], name: Name) -> list[list[ir.Node]]:
    """Nodes of two models grouped by values, told by name, that both make, or that one takes and only one makes."""
    parent = list(range(len(nodes)))

    def top(number: int) -> int:
        while parent[number] != number:
            parent[number] = parent[parent[number]]
            number = parent[number]
        return number

    made: dict[str | None, int] = {}
    common: set[str | None] = set()
    for number, node in enumerate(nodes):
        for output in map(name, node.outputs):
            if not output:
                continue
            if output in made:
                common.add(output)
            parent[top(number)] = top(made.setdefault(output, number))
    taken = Counter(name(value) for node in nodes for value in node.inputs if value is not None)
    for number, node in enumerate(nodes):
        for operand in (name(value) for value in node.inputs if value is not None):
            if operand in common or taken[operand] > WIDELY:
                continue
            if operand in made:
                parent[top(number)] = top(made[operand])
    groups: dict[int, list[ir.Node]] = {}
    for number, node in enumerate(nodes):
        groups.setdefault(top(number), []).append(node)
    return list(groups.values())


def _picture(nodes: Sequence[ir.Node]) -> Picture | None:
    """The nodes with what enters and leaves them."""
    if not nodes:
        return None
    drawn = list(nodes[:MOST])
    made = {value.name: number for number, node in enumerate(drawn) for value in node.outputs if value.name}
    boxes = [Box(f"n{number}", node.op_type, _detail(node)) for number, node in enumerate(drawn)]
    edges: list[tuple[str, str, str]] = []
    entering: dict[str, Box] = {}
    for number, node in enumerate(drawn):
        for value in node.inputs:
            if value is None or not value.name:
                continue
            if value.name in made:
                edges.append((f"n{made[value.name]}", f"n{number}", value.name))
                continue
            box = entering.setdefault(value.name, _entering(value, len(entering)))
            edges.append((box.key, f"n{number}", value.name))
    outputs = [*_leaving(drawn)]
    boxes += [Box(f"o{place}", _tail(name), name, "output") for place, (_, name) in enumerate(outputs)]
    edges += [(f"n{number}", f"o{place}", name) for place, (number, name) in enumerate(outputs)]
    return Picture([*entering.values(), *boxes], edges, len(nodes) - len(drawn))


def _leaving(nodes: Sequence[ir.Node]) -> Iterator[tuple[int, str]]:
    """The values that something other than these nodes takes, by the number of the node that makes them."""
    inside = set(map(id, nodes))
    for number, node in enumerate(nodes):
        for value in node.outputs:
            if value.name and (value.is_graph_output() or any(id(use.node) not in inside for use in value.uses())):
                yield number, value.name


def _entering(value: ir.Value, number: int) -> Box:
    constant = ir.convenience.get_const_tensor(value)
    if constant is None:
        return Box(f"i{number}", _tail(value.name or ""), value.name or "", "input")
    shape = "×".join(map(str, constant.shape)) or "scalar"
    text = _scalar(constant) if constant.size == 1 else shape
    return Box(f"i{number}", text, f"{value.name}: {constant.dtype.name.lower()} {shape}", "constant")


def _scalar(tensor: ir.TensorProtocol) -> str:
    number = tensor.numpy().reshape(-1)[0]
    if tensor.dtype.is_floating_point():
        return f"{float(number):.4g}"
    return _ENDS.get(int(number), str(number))


def _detail(node: ir.Node) -> str:
    attributes = ", ".join(f"{name}={str(value.value)[:40]}" for name, value in node.attributes.items())
    return f"{_operator(node)} '{node.name}'" + (f" ({attributes})" if attributes else "")


def _tail(name: str) -> str:
    """The last part of a name, which tells more than the first."""
    return name.rstrip("/").rpartition("/")[2] or name
