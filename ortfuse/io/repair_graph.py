"""Repair faults of a graph that ONNX Runtime accepts, such as node order and shadowed names; raise for others.

Empty lists of axes of a Squeeze are dropped: to the runtime they mean all axes of size 1, as if there were no list, while ONNX
and the runtime's own optimiser take them for none.

Repaired are: nodes that are not in topological order, inputs and initializers of a subgraph that shadow a value outside of it,
the spelling "ai.onnx" of the default domain in the opset imports, a missing import of the runtime's own operator domain,
and value_info that contradicts an initializer. ONNX Runtime accepts all of these; the rest of ortfuse can assume that they
do not occur.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import onnx_ir

from ortfuse.errors import InvalidModelError
from ortfuse.io.check_model import RepairableError, check
from ortfuse.ir import walk
from ortfuse.ir.traits import MICROSOFT, NAMES_INPUTS, has
from ortfuse.ir.walk import describe


def admit(model: onnx_ir.Model, *, name: str) -> None:
    """Repair in place what may be repaired, and check the rest.

    Args:
        model: The model.
        name: The model's name in error messages, such as its path.

    Raises:
        InvalidModelError: The model is not valid; the message names the node or value.
    """
    _spell_default_domain(model, name)
    for node in walk.nodes(model):
        if node.op_type == "Squeeze" and not node.domain:
            _drop_empty_axes(node)
    try:
        check(model, name=name)
    except RepairableError:
        # Each repair traverses the whole model, and almost no model needs any.
        _repair(model, name)
        check(model, name=name)


def _drop_empty_axes(node: onnx_ir.Node) -> None:
    """Drop a constant list of axes that is empty."""
    attribute, given = node.attributes.get("axes"), node.inputs[1] if len(node.inputs) > 1 else None
    if attribute is not None and _holds(attribute, onnx_ir.AttributeType.INTS) and not attribute.as_ints():
        del node.attributes["axes"]
    if given is not None and _is_empty_constant(given):
        node.resize_inputs(1)


def _holds(attribute: onnx_ir.Attr, kind: onnx_ir.AttributeType) -> bool:
    """Whether an attribute has a value of this type: those of other types are refused later, with their names."""
    return not attribute.is_ref() and attribute.type == kind


def _is_empty_constant(value: onnx_ir.Value) -> bool:
    producer, tensor = value.producer(), value.const_value
    if producer is not None:
        attributes = producer.attributes if producer.op_type == "Constant" and not producer.domain else {}
        several, held = attributes.get("value_ints"), attributes.get("value")
        if several is not None and _holds(several, onnx_ir.AttributeType.INTS):
            return not several.as_ints()
        tensor = held.value if held is not None and _holds(held, onnx_ir.AttributeType.TENSOR) else None
    elif value.is_graph_input():
        return False
    return tensor is not None and tensor.size == 0


def _repair(model: onnx_ir.Model, name: str) -> None:
    for graph in walk.roots(model):
        _sort(graph, name)
    for graph in walk.graphs(model):
        _declare_initializers_as_they_are(graph)
    owners: list[onnx_ir.Model | onnx_ir.Function] = [model, *model.functions.values()]
    for owner in owners:
        if any(node.domain == MICROSOFT for node in walk.nodes_within(owner.graph)):
            owner.opset_imports.setdefault(MICROSOFT, 1)
    _rename_shadowing(model)


def _spell_default_domain(model: onnx_ir.Model, name: str) -> None:
    owners: list[onnx_ir.Model | onnx_ir.Function] = [model, *model.functions.values()]
    for owner in owners:
        imports = owner.opset_imports
        if "ai.onnx" in imports:
            version = imports.pop("ai.onnx")
            if imports.setdefault("", version) != version:
                raise InvalidModelError(
                    f"{name}: imports both opset {imports['']} and opset {version} of ai.onnx; keep one"
                )


def _declare_initializers_as_they_are(graph: onnx_ir.Graph) -> None:
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and not value.is_graph_input():
            value.shape, value.type = onnx_ir.Shape(tensor.shape.numpy()), onnx_ir.TensorType(tensor.dtype)


_BROKEN = "it can be run in no order: export the model again"


def _sort(graph: onnx_ir.Graph, name: str) -> None:
    """Sort the nodes of a graph and of its nested graphs topologically, otherwise keeping their order."""
    try:
        graph.sort()
    except ValueError:
        for inner in walk.nested(graph):
            if cycle := find_cycle(inner):
                names = "; ".join(describe(node) for node in cycle[:6]) + ("; ..." if len(cycle) > 6 else "")
                raise InvalidModelError(
                    f"{name}: the graph has a cycle of {len(cycle)} nodes: {names}; {_BROKEN}"
                ) from None
        raise InvalidModelError(f"{name}: the graph has a cycle; {_BROKEN}") from None


def find_cycle(graph: onnx_ir.Graph) -> list[onnx_ir.Node]:
    """Nodes of a graph that form a dependency cycle, each depending on the next; empty if there is none."""
    finished: set[onnx_ir.Node] = set()
    for start in graph:
        path: dict[onnx_ir.Node, Iterator[onnx_ir.Node]] = {}
        node: onnx_ir.Node | None = start if start not in finished else None
        while node is not None:
            if node not in path:
                path[node] = _dependencies(node, graph)
            following = next((other for other in path[node] if other not in finished), None)
            if following in path:
                return list(path)[list(path).index(following) :]
            if following is None:
                finished.add(path.popitem()[0])
                following = next(reversed(path), None)
            node = following
    return []


def _dependencies(node: onnx_ir.Node, graph: onnx_ir.Graph) -> Iterator[onnx_ir.Node]:
    """The nodes of `graph` whose outputs are used by one of its nodes, or by anything nested in that node."""
    for user in (node, *walk.nested_nodes(node)):
        for value in user.inputs:
            producer = value.producer() if value is not None else None
            if producer is not None and producer.graph is graph:
                yield producer


def _rename_shadowing(model: onnx_ir.Model) -> None:
    """Rename inputs and initializers of subgraphs that have the same name as a value outside."""
    taken = {value.name for graph in walk.graphs(model) for value in walk.own_values(graph)}
    numbers = itertools.count(1)

    def fresh(name: str | None) -> str:
        return next(new for number in numbers if (new := f"{name}_{number}") not in taken)

    for root in walk.roots(model):
        _rename_inside(root, set(), fresh)


def _rename_inside(
    graph: onnx_ir.Graph, outside: set[str | None], fresh: Callable[[str | None], str], *, named: bool = False
) -> None:
    """Rename in a graph; if it is `named`, its inputs keep their names."""
    own: set[str | None] = set()
    for value in [*graph.inputs, *graph.initializers.values()]:
        if value.name in outside and not (named and value.is_graph_input()):
            value.name = fresh(value.name)
        own.add(value.name)
    added = own - outside
    outside |= added
    for node in graph:
        for inner in walk.subgraphs(node):
            _rename_inside(inner, outside, fresh, named=has(node, NAMES_INPUTS))
        outputs = {output.name for output in node.outputs} - outside
        added |= outputs
        outside |= outputs
    outside -= added
