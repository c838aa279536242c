"""Near misses that change inputs: broadcast ones, other ranks, sizes or types, unknown shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.verification.rule_tests.instance import Dims, Instance

Change = Callable[[Instance], bool]

HIDING = "hiding_"
"""The prefix of names of constants that only serve to hide an input."""

_TYPES = (ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.INT64, ir.DataType.BOOL)


def shape_changes(instance: Instance, names: Sequence[str]) -> Iterator[tuple[str, Change]]:
    """Changes of the instance's inputs, each with a short description."""
    inputs = instance.model.graph.inputs
    for position, value in enumerate(inputs):
        dims = list(instance.dims(value))
        if value.name in instance.fixed:
            continue
        for axis, dim in enumerate(dims):
            for text, other in _other_dims(dim):
                yield (
                    f"{value.name} is {text} along axis {axis}",
                    _reshaped(position, [*dims[:axis], other, *dims[axis + 1 :]]),
                )
            fresh = f"{value.name}_{axis}"
            yield f"{value.name} has an unrelated size along axis {axis}", _renamed(position, {axis: fresh})
        if dims:
            yield (
                f"{value.name} has unrelated sizes",
                _renamed(position, {a: f"{value.name}_{a}" for a in range(len(dims))}),
            )
            yield f"{value.name} lacks its first axis", _reshaped(position, dims[1:])
        yield f"{value.name} has an axis more", _reshaped(position, [2, *dims])
        yield f"{value.name} has an axis of 1 more", _reshaped(position, [1, *dims])
        for dim in _axes_before(dims, [instance.dims(other) for other in inputs]):
            yield f"{value.name} has the axis {dim} of another more", _reshaped(position, [dim, *dims])
        for text, shape in (("its own", dims), ("one axis more", [2, *dims]), ("one axis less", dims[1:])):
            yield f"{value.name} is of unknown rank, in fact {text}", undeclared(position, shape)
        yield f"{value.name} is of unknown rank and type", hidden(position)
        for dtype in _TYPES:
            if dtype != value.dtype:
                yield f"{value.name} is of {dtype.name}", _retyped(position, dtype)
    for text, edit in (
        ("lack their first axis", lambda dims: dims[1:]), ("have an axis more", lambda dims: [2, *dims]),
        ("have an axis more at the end", lambda dims: [*dims, 2]),
    ):  # fmt: skip
        yield f"all inputs {text}", _all_reshaped(edit)
    if len(inputs) > 1:
        yield "all sizes are unrelated", _all_renamed
        yield "all inputs are of unknown rank", _all_undeclared


def input_changes(instance: Instance) -> Iterator[tuple[str, Change]]:
    """Inputs without a declared shape, fed with ranks and sizes that the rest of the model is not made for."""
    for position, value in enumerate(instance.model.graph.inputs):
        dims = list(instance.dims(value))
        for text, shape in (
            ("an axis more", [2, *dims]),
            ("an axis of 1 more", [1, *dims]),
            ("an axis less", dims[1:]),
        ):
            yield f"{value.name} has {text}", undeclared(position, shape)
        for axis, dim in enumerate(dims):
            if dim != 1:
                shape = [*dims[:axis], 1, *dims[axis + 1 :]]
                yield f"{value.name} is broadcast along axis {axis}", undeclared(position, shape)


def _axes_before(dims: Dims, others: Sequence[Dims]) -> list[int | str]:
    """The leading axes that other values have beyond the shape `dims` of a value, if it broadcasts with them."""
    found = [other[-len(dims) - 1] for other in others if len(other) > len(dims)]
    return [dim for dim in dict.fromkeys(found) if dim not in (1, 2)]


def _all_reshaped(edit: Callable[[Any], Any]) -> Change:
    def change(instance: Instance) -> bool:
        for value in instance.model.graph.inputs:
            if value.name not in instance.fixed:
                value.shape = ir.Shape(edit(list(instance.dims(value))))
        return True

    return change


def _other_dims(dim: int | str) -> Iterator[tuple[str, int | str]]:
    if dim != 1:
        yield "broadcast", 1
    if isinstance(dim, int):
        yield "longer", dim + 1
        yield "twice as long", dim * 2
    else:
        yield "of size 4", 4


def _reshaped(position: int, dims: Sequence[int | str]) -> Change:
    def change(instance: Instance) -> bool:
        instance.model.graph.inputs[position].shape = ir.Shape(dims)
        return True

    return change


def _renamed(position: int, fresh: dict[int, str]) -> Change:
    """Give dimensions fresh names; of the sizes tried, some fit the rest of the model, and in others a fresh one is 1."""

    def change(instance: Instance) -> bool:
        value = instance.model.graph.inputs[position]
        dims = list(instance.dims(value))
        usual = next(instance.bindings())
        for axis, name in fresh.items():
            dim = dims[axis]
            instance.pinned[name] = dim if isinstance(dim, int) else usual[dim]
            dims[axis] = name
        # Names used elsewhere keep their sizes, so that the model still runs.
        instance.pinned |= usual
        value.shape = ir.Shape(dims)
        instance.loose = (*instance.loose, *fresh.values())
        return True

    return change


def _all_renamed(instance: Instance) -> bool:
    for position, value in enumerate(instance.model.graph.inputs):
        if value.name not in instance.fixed:
            _renamed(position, {axis: f"{value.name}_{axis}" for axis in range(len(instance.dims(value)))})(instance)
    return True


def undeclared(position: int, dims: Sequence[int | str] | None = None) -> Change:
    """Remove the declared shape of an input; it is fed with the shape `dims`, by default the one it had."""

    def change(instance: Instance) -> bool:
        value = instance.model.graph.inputs[position]
        instance.shapes[value.name or ""] = list(instance.dims(value) if dims is None else dims)
        value.shape = None
        return True

    return change


def _all_undeclared(instance: Instance) -> bool:
    for position in range(len(instance.model.graph.inputs)):
        undeclared(position)(instance)
    return True


def hidden(position: int) -> Change:
    """Put an input behind a runtime-specific operator, about whose results nothing is known."""

    def change(instance: Instance) -> bool:
        graph = instance.model.graph
        value = graph.inputs[position]
        axis = new_constant(graph, f"{HIDING}{value.name}_axis", np.array(0, np.int32))
        axes = new_constant(graph, f"{HIDING}{value.name}_axes", np.array([0]))
        wider = ir.Node("com.microsoft", "ExpandDims", [value, axis])
        same = ir.Node("", "Squeeze", [wider.outputs[0], axes])
        wider.outputs[0].name, same.outputs[0].name = f"{value.name}_wider", f"{value.name}_hidden"
        for use in tuple(value.uses()):
            if use.node is not wider:
                use.node.replace_input_with(use.idx, same.outputs[0])
        graph.insert_before(graph[0], [wider, same])
        return True

    return change


def new_constant(graph: ir.Graph, name: str, array: Any) -> ir.Value:
    """A new initializer."""
    tensor = ir.Tensor(array, name=name)
    value = ir.Value(name=name, const_value=tensor, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype))
    graph.register_initializer(value)
    return value


def _retyped(position: int, dtype: ir.DataType) -> Change:
    def change(instance: Instance) -> bool:
        instance.model.graph.inputs[position].type = ir.TensorType(dtype)
        return True

    return change
