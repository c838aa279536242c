"""Near misses of an instance: the same model with one thing changed, so that the rule may no longer be right."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx_ir as ir

Change = Callable[[ir.Model], bool]
"""Changes a copy of the instance in place; false if there was nothing to change."""


def near_misses(model: ir.Model) -> Iterator[tuple[str, ir.Model]]:
    """Every near miss of `model`, each a changed copy with a few words on what was changed."""
    for text, change in _changes(model):
        copy = model.clone()
        if change(copy):
            yield text, copy


def _changes(model: ir.Model) -> Iterator[tuple[str, Change]]:
    nodes = list(model.graph)
    for position, node in enumerate(nodes):
        for index, output in enumerate(node.outputs):
            if not output.is_graph_output() and output.uses():
                yield f"{node.op_type} is a graph output", _output(position, index)
                yield f"{node.op_type} has another consumer", _consumer(position, index)
        for name, attribute in node.attributes.items():
            if attribute.type in (ir.AttributeType.INT, ir.AttributeType.INTS, ir.AttributeType.FLOAT):
                yield f"{node.op_type}.{name} is another", _attribute(position, name)
    for name, value in model.graph.initializers.items():
        if value.const_value is not None and value.const_value.size == 1:
            yield f"the constant {value.const_value.numpy().tolist()} is another", _constant(name)
    for position, value in enumerate(model.graph.inputs):
        for axis in range(len(value.shape or ())):
            yield f"{value.name} is broadcast along axis {axis}", _broadcast(position, axis)
        if value.shape:
            yield f"{value.name} has an axis more", _more_rank(position)


def _output(position: int, index: int) -> Change:
    def change(model: ir.Model) -> bool:
        value = model.graph[position].outputs[index]
        model.graph.outputs.append(value)
        return True

    return change


def _consumer(position: int, index: int) -> Change:
    def change(model: ir.Model) -> bool:
        value = model.graph[position].outputs[index]
        shape = ir.Node("", "Shape", [value])
        shape.outputs[0].name = "extra_shape"
        keep = ir.Node("", "Identity", [value])
        keep.outputs[0].name = "extra"
        model.graph.extend([shape, keep])
        model.graph.outputs.extend([shape.outputs[0], keep.outputs[0]])
        return True

    return change


def _attribute(position: int, name: str) -> Change:
    def change(model: ir.Model) -> bool:
        node = model.graph[position]
        old = node.attributes[name]
        if old.type == ir.AttributeType.INT:
            node.attributes[name] = ir.AttrInt64(name, 1 - old.value if old.value in (0, 1) else old.value + 1)
        elif old.type == ir.AttributeType.INTS:
            if len(old.value) < 2:
                node.attributes[name] = ir.AttrInt64s(name, [0 if item else 1 for item in old.value])
            else:
                node.attributes[name] = ir.AttrInt64s(name, [*old.value[1:], old.value[0]])
        else:
            node.attributes[name] = ir.AttrFloat32(name, old.value * 1.5 + 0.25)
        return True

    return change


def _constant(name: str) -> Change:
    def change(model: ir.Model) -> bool:
        value = model.graph.initializers[name]
        assert value.const_value is not None
        array = value.const_value.numpy()
        if array.dtype.kind == "f":
            with np.errstate(all="ignore"):
                moved = (array * 1.25 + (0.25 if not array.any() else 0)).astype(array.dtype)
        elif array.dtype.kind == "i":
            moved = array + np.asarray(1, array.dtype)
        else:
            return False
        value.const_value = ir.tensor(moved, name=name)
        return True

    return change


def _broadcast(position: int, axis: int) -> Change:
    def change(model: ir.Model) -> bool:
        value = model.graph.inputs[position]
        assert value.shape is not None
        dims = list(value.shape)
        if dims[axis] == 1:
            return False
        dims[axis] = 1
        value.shape = ir.Shape(dims)
        return True

    return change


def _more_rank(position: int) -> Change:
    def change(model: ir.Model) -> bool:
        value = model.graph.inputs[position]
        assert value.shape is not None
        value.shape = ir.Shape([2, *value.shape])
        return True

    return change
