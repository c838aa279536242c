"""Inline all functions in a copy of a model that is only analysed or run.

`ortfuse.transforms.canonicalize.inline_functions` does so in models that are optimised, where each change is journaled
and checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import onnx_ir as ir
from onnx_ir import convenience

from ortfuse.ir.body_copies import resolve_attributes
from ortfuse.ir.walk import nested, nodes_within, own_values, subgraphs

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def inline_all(model: ir.Model) -> bool:
    """Put the bodies of functions in the place of all calls in the main graph, and remove the functions.

    The time is linear in the nodes that the model then has.

    Returns:
        Whether that was possible. A call that gives a graph as an attribute, or more operands than its function has, stands in
        the way; the model is then half done.
    """
    for body in model.functions.values():
        body.graph.sort()
    names, waiting = _Names(model.graph), [model.graph]
    while waiting:
        graph = waiting.pop()
        pending = list(graph)
        while pending:
            node = pending.pop()
            function = model.functions.get(node.op_identifier())
            if function is None:
                waiting += subgraphs(node)
            elif not _can_be_inlined(node, function):
                return False
            else:
                pending += _inline(node, function, names)
    model.functions.clear()
    return True


def _can_be_inlined(node: ir.Node, function: ir.Function) -> bool:
    return (
        len(node.inputs) <= len(function.inputs)
        and len(node.outputs) <= len(function.outputs)
        and all(attribute.type not in _GRAPHS for attribute in node.attributes.values())
    )


def _inline(node: ir.Node, function: ir.Function, names: _Names) -> list[ir.Node]:
    """Put the body of a function in the place of a call; returns the new nodes."""
    assert isinstance(node.graph, ir.Graph)
    copy = function.graph.clone()
    defaults = {name: attribute for name, attribute in function.attributes.items() if attribute.value is not None}
    resolve_attributes(copy, {**defaults, **node.attributes})
    given = [*node.inputs, *[None] * (len(copy.inputs) - len(node.inputs))]
    outputs, formals = list(copy.outputs), dict(zip(copy.inputs, given, strict=True))
    nodes = list(copy)
    names.set_apart(copy)
    copy.outputs.clear()
    copy.remove(nodes)
    for formal, value in formals.items():
        for use in tuple(formal.uses()):
            use.node.replace_input_with(use.idx, value)
    seen: set[ir.Value] = set()
    for old, result in zip(node.outputs, outputs, strict=False):
        if result in formals or result in seen:
            carrier = ir.node("Identity", [formals.get(result, result)])
            nodes.append(carrier)
            result = carrier.outputs[0]
        seen.add(result)
        _take_place(old, result)
    node.graph.insert_before(node, nodes)
    node.graph.remove(node, safe=True)
    return nodes


def _take_place(old: ir.Value, new: ir.Value) -> None:
    """Use a value in the place of another, under its name and with what is declared of it."""
    new.type, new.shape = old.type or new.type, old.shape or new.shape
    name, old.name = old.name, None
    new.name = name or new.name
    convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)


class _Names:
    """Names that are taken in a model, so that those of copies are new; each is found in constant time."""

    def __init__(self, graph: ir.Graph) -> None:
        self._taken = set(_named(graph))
        self._copies = Counter[str]()

    def set_apart(self, graph: ir.Graph) -> None:
        """Give the nodes and values of a copy, at any depth, names that nothing else has."""
        for one in nested(graph):
            for value in own_values(one):
                value.name = self._new(value.name or "val")
        for node in nodes_within(graph):
            node.name = self._new(node.name or "node")

    def _new(self, stem: str) -> str:
        name = stem
        while name in self._taken:
            self._copies[stem] += 1
            name = f"{stem}_{self._copies[stem]}"
        self._taken.add(name)
        return name


def _named(graph: ir.Graph) -> Iterator[str]:
    """The names of all nodes and values of a graph and of the graphs nested in it."""
    named: Iterable[ir.Node | ir.Value]
    for one in nested(graph):
        for named in (own_values(one), one):
            yield from (item.name for item in named if item.name)
