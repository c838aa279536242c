"""Copy a model so that errors can be added to inner values, to see their effect on the outputs.

One session serves for all places: each of them gets an Add with an input of its own, which is a zero unless an error is fed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import onnx_ir as ir

from ortfuse.runtime.inputs.random_inputs import Inputs

PREFIX = "ortfuse.error."
"""Prefix of the names of the further inputs; the name of the value follows."""

SHOWN = "ortfuse.shown."
"""Prefix of the names of the further outputs."""


def disturbed(model: ir.Model, errors: Mapping[str, ir.DataType], shown: Collection[str] = ()) -> ir.Model:
    """A copy that adds an input to each of the named values of the main graph, wherever they are used.

    Args:
        model: The model; not changed.
        errors: The element types of the values that errors are added to, by name.
        shown: The names of values that become outputs too, called `SHOWN` and the name.
    """
    copy = model.clone()
    graph = copy.graph
    values = {value.name: value for node in graph for value in node.outputs if value.name}
    values |= {value.name: value for value in graph.inputs if value.name}
    for name in shown:
        _show(graph, values[name])
    for name, dtype in errors.items():
        _add_error(graph, values[name], dtype)
    return copy


def no_errors(errors: Mapping[str, ir.DataType]) -> Inputs:
    """The further inputs where no error is added."""
    return {f"{PREFIX}{name}": np.zeros((), dtype.numpy()) for name, dtype in errors.items()}


def _show(graph: ir.Graph, value: ir.Value) -> None:
    """An output that is a value before an error is added to it."""
    identity = ir.node("Identity", [value])
    identity.outputs[0].name = f"{SHOWN}{value.name}"
    identity.outputs[0].type = value.type
    graph.append(identity)
    graph.outputs.append(identity.outputs[0])


def _add_error(graph: ir.Graph, value: ir.Value, dtype: ir.DataType) -> None:
    producer = value.producer()
    assert producer is not None
    error = ir.Value(name=f"{PREFIX}{value.name}", type=ir.TensorType(dtype))
    uses = [use for use in value.uses() if not (use.node.outputs[0].name or "").startswith(SHOWN)]
    add = ir.node("Add", [value, error])
    total = add.outputs[0]
    total.name = f"{PREFIX}{value.name}.added"  # one that is made up might be that of a value in a body
    total.type, total.shape = value.type, value.shape
    graph.insert_after(producer, [add])
    for use in uses:
        use.node.replace_input_with(use.idx, total)
    graph.inputs.append(error)
    if value.is_graph_output():
        places = [index for index, output in enumerate(graph.outputs) if output is value]
        total.name, value.name = value.name, f"{PREFIX}{value.name}.before"
        for index in places:
            graph.outputs[index] = total
