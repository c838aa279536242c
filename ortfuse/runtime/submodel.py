"""Build standalone models from parts of a model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.schemas import droppable_outputs
from ortfuse.ir.walk import nested, used_values
from ortfuse.targets import raise_to_newest

IR_VERSION = 10
"""The IR version of the models built here, which every supported version of the runtime can read."""


def upstream(values: Iterable[ir.Value], among: Callable[[ir.Node], bool] = lambda node: True) -> list[ir.Node]:
    """The nodes that `values` are computed from, in topological order; the search stops at nodes that are not `among`."""
    found: dict[ir.Node, None] = {}
    entered: set[ir.Node] = set()
    stack = [(producer, False) for value in values if (producer := value.producer()) is not None]
    while stack:
        node, finished = stack.pop()
        if finished:
            found[node] = None
        elif among(node) and node not in entered:
            entered.add(node)
            stack.append((node, True))
            stack += [(above, False) for value in used_values(node) if (above := value.producer()) is not None]
    return list(found)


def taken(nodes: Collection[ir.Node]) -> list[ir.Value]:
    """The values that nodes use but do not compute themselves."""
    inside = set(nodes)
    used = dict.fromkeys(value for node in nodes for value in used_values(node))
    return [value for value in used if value.producer() not in inside]


def model_of(
    nodes: Sequence[ir.Node],
    inputs: Mapping[ir.Value, str],
    outputs: Sequence[tuple[str, ir.Value]],
    constants: Mapping[ir.Value, ir.TensorProtocol],
    imports: Mapping[str, int],
    *,
    functions: Iterable[ir.Function] = (),
) -> ir.Model:
    """A model of copies of `nodes`, raised to the newest opset that any of them is marked with.

    Args:
        nodes: The nodes in topological order.
        inputs: The inputs of the model and their names. They have their declared types.
        outputs: The outputs of the model, each with its name: results of the nodes, inputs or constants.
        constants: The other values that the nodes use.
        imports: The opset imports in force for the nodes.
        functions: The model's functions, if any node calls one.

    Raises:
        TargetError: The nodes need different opsets, and some of them cannot be raised.
    """
    given = [*inputs, *constants]
    results = [value for _, value in outputs]
    graph = ir.GraphView(given, results, nodes=nodes, opset_imports=dict(imports), name="part").clone()
    copies = dict(zip(given, graph.inputs, strict=True))
    for node, copy in zip(nodes, graph, strict=True):
        _leave_out_unused(node, copy, results)
    _add_outputs(graph, [name for name, _ in outputs])
    _name_values(graph, {*inputs.values(), *(name for name, _ in outputs)})
    for value, name in inputs.items():
        copies[value].name, copies[value].const_value = name, None
    graph.inputs[:] = [copies[value] for value in inputs]
    for value, tensor in constants.items():
        copies[value].const_value = tensor
        copies[value].type, copies[value].shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
        graph.register_initializer(copies[value])
    model = ir.Model(graph, ir_version=IR_VERSION, functions=list(functions))
    raise_to_newest(model)
    return model


def computing(model: ir.Model, outputs: Sequence[tuple[str, ir.Value]]) -> ir.Model:
    """A model that computes these values of the main graph of `model` from its inputs, each under the given name."""
    graph = model.graph
    nodes = upstream(value for _, value in outputs)
    inputs = {value: value.name or "" for value in graph.inputs if value.name not in graph.initializers}
    used = [*taken(nodes), *(value for _, value in outputs)]
    constants = {value: value.const_value for value in used if value.is_initializer() and value.const_value is not None}
    return model_of(nodes, inputs, outputs, constants, graph.opset_imports, functions=model.functions.values())


def declare_inputs(model: ir.Model, arrays: Mapping[str, Any]) -> None:
    """Give the inputs of a part the element types of arrays, by name; what is no array keeps the type it has."""
    for value in model.graph.inputs:
        array = arrays[value.name or ""]
        if isinstance(array, np.ndarray):
            of_text = array.dtype.kind == "O"
            value.type = ir.TensorType(ir.DataType.STRING if of_text else ir.DataType.from_numpy(array.dtype))
            value.shape = None


def showing(model: ir.Model) -> ir.Model:
    """A copy in which every value of the main graph that has a name is an output."""
    return forced(model, {}, "", {value.name or "" for node in model.graph for value in node.outputs if value.name})


def forced(model: ir.Model, arrays: Mapping[str, Any], prefix: str, also: Collection[str] = ()) -> ir.Model:
    """A copy in which whatever uses the named values of the main graph takes inputs instead: `prefix` and the value's name.

    The nodes that compute these values remain, and the values become outputs besides those that there were, as do those
    named in `also`.
    """
    copy = model.clone()
    graph = copy.graph
    made = {value.name: value for node in graph for value in node.outputs if value.name in arrays}
    for name, value in made.items():
        given = ir.Value(name=f"{prefix}{name}", type=ir.TensorType(ir.DataType.from_numpy(arrays[name or ""].dtype)))
        for use in tuple(value.uses()):
            use.node.replace_input_with(use.idx, given)
        graph.inputs.append(given)
    shown = [value for node in graph for value in node.outputs if value.name in arrays or value.name in also]
    graph.outputs.extend(value for value in shown if not value.is_graph_output())
    return copy


def _leave_out_unused(node: ir.Node, copy: ir.Node, results: Collection[ir.Value]) -> None:
    """Remove the names of unused outputs, since the runtime computes every output that has a name."""
    droppable = droppable_outputs(node)
    for number, (value, output) in enumerate(zip(node.outputs, copy.outputs, strict=True)):
        if number in droppable and value not in results and not value.uses() and not value.is_graph_output():
            output.name = ""


def _add_outputs(graph: ir.Graph, names: Sequence[str]) -> None:
    """Name the results; one that is not a node's output, or that has several names, is copied by an Identity."""
    results = list(graph.outputs)
    graph.outputs.clear()
    for name, result in zip(names, results, strict=True):
        if result.producer() is None or result.is_graph_output():
            identity = ir.node("Identity", [result])
            graph.append(identity)
            identity.outputs[0].type, identity.outputs[0].shape = result.type, result.shape
            result = identity.outputs[0]
        result.name = name
        graph.outputs.append(result)


def _name_values(graph: ir.Graph, taken: Collection[str]) -> None:
    """Number all other values, since they come from graphs in which the same name may mean different values."""
    numbers = itertools.count()
    for value in _values(graph):
        if value.name != "" and not (value.graph is graph and value.is_graph_output()):
            value.name = next(name for number in numbers if (name := f"ortfuse.part.{number}") not in taken)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    for inner in nested(graph):
        yield from dict.fromkeys([*inner.inputs, *inner.initializers.values()])
        for node in inner:
            yield from node.outputs
