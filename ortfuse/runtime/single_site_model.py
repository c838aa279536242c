"""Extract one quantisation site as a model, to measure the time and error of a scheme."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import VerificationError
from ortfuse.ir.dims import Dim
from ortfuse.runtime.submodel import model_of, taken, upstream


@dataclass(frozen=True)
class Part:
    """A site, cut out.

    Attributes:
        name: The name of the site.
        model: Its nodes with their weights. Inputs and outputs are called as in the whole model.
        inputs: The names of the values that it takes.
        outputs: The names of the values that it computes and that are used, with their element types.
    """

    name: str
    model: ir.Model
    inputs: tuple[str, ...]
    outputs: Mapping[str, ir.DataType]


def cut(model: ir.Model, name: str, activations: Collection[str], facts: Facts) -> Part:
    """The nodes between the activations of a site and its output, with their weights.

    Args:
        model: The whole model; not changed.
        name: The site: the name of its output.
        activations: The names of the values that the site takes from the rest of the model.
        facts: What is known about the values of `model`.

    Raises:
        VerificationError: The site cannot be cut out.
    """
    values = {value.name: value for node in model.graph for value in node.outputs if value.name}
    producer = values[name].producer()
    assert producer is not None
    results = [value for value in producer.outputs if value.uses() or value.is_graph_output()]
    stops = {values[one].producer() for one in activations if one in values}
    nodes = upstream(results, lambda node: node not in stops)
    border = taken(nodes)
    constants = {value: value.const_value for value in border if value.is_initializer() and value.const_value}
    inputs = [value for value in border if value not in constants]
    outputs = {value.name or "": facts.dtype(value) for value in results}
    if not all(value.name for value in inputs) or not all(outputs) or None in outputs.values():
        raise VerificationError(f"{name}: a value there has no name, or its element type is not known")
    made = model_of(
        nodes,
        {value: value.name or "" for value in inputs},
        [(value.name or "", value) for value in results],
        constants,
        model.graph.opset_imports,
        functions=model.functions.values(),
    )
    for value, copy in zip(inputs, made.graph.inputs, strict=True):
        _declare(copy, value, facts)
    kinds = {name: dtype for name, dtype in outputs.items() if dtype is not None}
    return Part(name, made, tuple(value.name or "" for value in inputs), kinds)


def _declare(copy: ir.Value, value: ir.Value, facts: Facts) -> None:
    """Give an input what is known about the value that it stands for."""
    dtype, shape = facts.dtype(value), facts.shape(value)
    if dtype is not None:
        copy.type = ir.TensorType(dtype)
    if shape is not None:
        # Sizes that are equal stay so: rules ask for that. A name that begins with a question mark would say nothing.
        copy.shape = ir.Shape([str(dim).replace("?", "open_") if isinstance(dim, Dim) else dim for dim in shape])
