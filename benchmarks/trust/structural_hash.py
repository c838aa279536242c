"""Structural hashes: two graphs that differ only in names, node order and order of commuting operands have the same one."""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import onnx
import onnx.defs
import onnx.helper
import onnx_ir as ir

from ortfuse.ir.traits import COMMUTES, PICKS, has
from ortfuse.ir.walk import graphs, graphs_of, used_values


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _of_tensor(tensor: ir.TensorProtocol | None) -> str:
    if tensor is None:
        return "unknown"
    return _digest([tensor.dtype.name, str(tuple(tensor.shape)), hashlib.sha256(tensor.tobytes()).hexdigest()])


Content = Callable[["ir.TensorProtocol | None"], str]
"""The hash of a constant."""

_NEARLY = 1e-5
"""The difference of constants, relative to the largest number, that is rounding."""


def structural_hash(model: ir.Model, rounded_as: ir.Model | None = None) -> str:
    """The hash of a model's graph; inputs and outputs count by position.

    Args:
        model: The model.
        rounded_as: If given, floating-point constants that differ by rounding from one of this model count as that one.
    """
    return _of_graph(model.graph, {}, _of_tensor if rounded_as is None else _nearest_of(rounded_as))


def _nearest_of(model: ir.Model) -> Content:
    """Hash constants as those of a model that are nearly the same."""
    every = [value.const_value for graph in graphs(model) for value in _initializers(graph)]
    alike = defaultdict[tuple[str, tuple[int, ...]], list[ir.TensorProtocol]](list)
    for tensor in every:
        if tensor is not None and tensor.dtype.is_floating_point():
            alike[tensor.dtype.name, tuple(tensor.numpy().shape)].append(tensor)

    def content(tensor: ir.TensorProtocol | None) -> str:
        if tensor is None:
            return _of_tensor(None)
        for one in alike.get((tensor.dtype.name, tuple(tensor.numpy().shape)), ()):
            mine, other = (np.asarray(each.numpy(), np.float64) for each in (tensor, one))
            if np.allclose(mine, other, rtol=0, atol=_NEARLY * float(np.abs(other).max(initial=0)), equal_nan=True):
                return _of_tensor(one)
        return _of_tensor(tensor)

    return content


def _initializers(graph: ir.Graph | ir.Function) -> Iterable[ir.Value]:
    return graph.initializers.values() if isinstance(graph, ir.Graph) else ()


def _of_graph(graph: ir.Graph, known: dict[ir.Value | None, str], content: Content = _of_tensor) -> str:
    """The hash of a graph; `known` has those of the values around it, and gets those of its own."""
    known[None] = ""
    for number, value in enumerate(graph.inputs):
        known[value] = f"input {number}"
    for value in graph.initializers.values():
        known[value] = content(value.const_value)
    made = []
    for node in graph:
        made.append(_of_node(node, known, content))
        known.update((output, _digest((made[-1], str(number)))) for number, output in enumerate(node.outputs))
    return _digest([*(known[value] for value in graph.outputs), "nodes", *sorted(made)])


def _of_node(node: ir.Node, known: Mapping[ir.Value | None, str], content: Content) -> str:
    operands = [known[value] for value in node.inputs]
    if has(node, COMMUTES) or node.op_type == "Sum":
        operands.sort()
    attributes = [
        f"{name}={_from_front(node) if name == 'axis' else _of_attribute(node.attributes[name], known, content)}"
        for name in sorted(node.attributes)
        if not _is_default(node, node.attributes[name])
    ]
    return _digest([node.domain, node.op_type, *operands, "attributes", *attributes, str(len(node.outputs))])


def _is_default(node: ir.Node, attribute: ir.Attr) -> bool:
    """Whether an attribute has the value that it has where it is left out."""
    if attribute.name == "axis" or not onnx.defs.has(node.op_type, node.domain):
        return False
    known = onnx.defs.get_schema(node.op_type, node.domain).attributes.get(attribute.name)
    return (
        known is not None
        and bool(known.default_value.name)
        and onnx.helper.get_attribute_value(known.default_value) == attribute.value
    )


def _from_front(node: ir.Node) -> int:
    """The axis of a node, counted from the front if the rank of its first operand is known."""
    axis = node.attributes["axis"].as_int()
    shape = node.inputs[0].shape if axis < 0 and node.inputs and node.inputs[0] is not None else None
    return axis if shape is None else axis + len(shape)


def _of_attribute(attribute: ir.Attr, known: Mapping[ir.Value | None, str], content: Content) -> str:
    bodies = graphs_of(attribute)
    if bodies:
        return _digest([_of_graph(body, dict(known), content) for body in bodies])
    return content(attribute.value) if attribute.type == ir.AttributeType.TENSOR else str(attribute.value)


def shuffle(model: ir.Model, seed: int) -> None:
    """Write a model in another way: nodes in a random topological order, uses, commuting operands and names at random.

    Inputs, outputs and the names by which bodies and functions are called stay as they are.
    """
    generator = random.Random(seed)
    for graph in list(graphs(model)):
        rank = {node: generator.random() for node in graph}
        _place(graph, rank)
        _swap_operands(graph, generator)
    every = [node for graph in graphs(model) for node in graph]
    generator.shuffle(every)
    for node in every:
        _use_again(node)
    _rename(model, generator)


def _swap_operands(graph: ir.Graph | ir.Function, generator: random.Random) -> None:
    """Swap the operands of half of the nodes that compute the same bits of them in either order."""
    for node in graph:
        if has(node, COMMUTES) and not has(node, PICKS) and len(node.inputs) == 2 and generator.random() < 0.5:
            first, second = node.inputs
            node.replace_input_with(0, second)
            node.replace_input_with(1, first)


def _use_again(node: ir.Node) -> None:
    """Make a node the last user of each of its inputs."""
    for number, value in enumerate(node.inputs):
        node.replace_input_with(number, None)
        node.replace_input_with(number, value)


def _rename(model: ir.Model, generator: random.Random) -> None:
    """Give the values that nodes compute and the initializers of the main graph random names, in a random order."""
    for graph in list(graphs(model)):
        for node in graph:
            for value in node.outputs:
                if value.name and not value.is_graph_output():
                    value.name = f"{generator.getrandbits(40):x}"
    weights = [value for value in model.graph.initializers.values() if not value.is_graph_input()]
    generator.shuffle(weights)
    for value in weights:
        if not value.is_graph_output():
            model.graph.initializers.pop(value.name or "")
            value.name = f"{generator.getrandbits(40):x}"
            model.graph.register_initializer(value)


def _place(graph: ir.Graph, rank: Mapping[ir.Node, float]) -> None:
    """Order the nodes by rank, each behind those that it needs, also in its bodies."""
    inside = set(graph)
    needs = {node: _needed(node, inside) for node in graph}
    placed: list[ir.Node] = []
    done: set[ir.Node] = set()
    for start in sorted(inside, key=lambda node: rank[node]):
        stack = [start]
        while stack:
            node = stack[-1]
            missing = sorted((other for other in needs[node] if other not in done), key=lambda other: rank[other])
            if missing:
                stack += missing
                continue
            stack.pop()
            if node not in done:
                done.add(node)
                placed.append(node)
    for node in placed:
        graph.remove(node)
    graph.extend(placed)


def _needed(node: ir.Node, inside: set[ir.Node]) -> set[ir.Node]:
    return {
        producer for value in used_values(node) if (producer := value.producer()) is not None and producer in inside
    }
