"""Near misses that change the graph: other consumers, attributes or operators, operands swapped or no longer shared."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.schemas import attribute_default
from ortfuse.verification.rule_tests.instance import Instance
from ortfuse.verification.rule_tests.near_miss_inputs import new_constant

Change = Callable[[Instance], bool]

_KIN = {
    "Add": "Sub", "Sub": "Add", "Mul": "Div", "Div": "Mul", "Max": "Min", "Min": "Max", "ReduceMean": "ReduceSum",
    "Erf": "Tanh", "Tanh": "Erf", "Sqrt": "Exp", "Relu": "LeakyRelu", "Cos": "Sin", "Sin": "Cos", "Neg": "Abs",
    "Sigmoid": "HardSigmoid", "Softmax": "LogSoftmax", "LayerNormalization": "RMSNormalization",
}  # fmt: skip
"""Maps an operator to its replacement: another operator with the same operands."""

_ELEMENT_TYPES = {"to", "dtype"}
_FLAGS = {"saturate", "keepdims", "allowzero", "transA", "transB", "training_mode", "noop_with_empty_axes", "interleaved",
          "is_causal", "exclusive", "reverse", "fmod"}  # fmt: skip
_POSITIVE = {"strides", "dilations", "kernel_shape", "group", "num_heads", "q_num_heads", "kv_num_heads", "block_size"}
"""Attributes that kernels divide by; the runtime crashes on some non-positive values instead of rejecting them."""

_SCALED = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16})
"""Element types of operands that are multiplied by a number: patterns match modulo scalar coefficients."""

_FROM_OUTSIDE = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BOOL})


def graph_changes(instance: Instance, names: Sequence[str], facts: Facts) -> Iterator[tuple[str, Change]]:
    """Changes of the instance's nodes, each with a short description."""
    yield from attribute_changes(instance, names)
    for position, (node, name) in enumerate(zip(instance.model.graph, names, strict=True)):
        for index, output in enumerate(node.outputs):
            if not output.is_graph_output() and output.uses():
                yield f"{name} is a graph output", _output(position, index)
                yield f"{name} has another consumer", _consumer(position, index)
                shape = facts.shape(output)
                if facts.dtype(output) in _FROM_OUTSIDE and shape is not None and all(map(_plain, shape)):
                    dims = [dim if isinstance(dim, int) else str(dim) for dim in shape]
                    yield f"{name} is an input instead", _from_outside(position, index, dims, facts.dtype(output))
        for index in range(len(node.inputs) - 1):
            if node.inputs[index] is not node.inputs[index + 1]:
                yield f"operands {index} and {index + 1} of {name} exchanged", _exchanged(position, index)
        if node.op_type in _KIN and not node.domain:
            yield f"{_KIN[node.op_type]} instead of {name}", _other_operator(position, _KIN[node.op_type])
        if node.op_type == "Slice" and not node.domain:
            yield from _other_windows(position, node, name, facts)
        for index, operand in enumerate(node.inputs):
            dtype = facts.dtype(operand)
            if operand is not None and dtype in _SCALED and not facts.is_const(operand):
                yield f"operand {index} of {name} doubled", _doubled(position, index, dtype)
        if len(node.outputs) == 1:
            yield f"all outputs of {name} asked for", _all_outputs(position)
        yield f"{name} before its operand", _earlier(position)
    outputs = instance.model.graph.outputs
    for first, second in itertools.permutations(range(len(outputs)), 2):
        root = outputs[second].producer()
        for index in range(0 if root is None else len(root.inputs)):
            yield f"operand {index} of output {second} is output {first}", _dependent(first, second, index)
    for number, value in enumerate(instance.model.graph.inputs):
        uses = tuple(value.uses())
        for index in range(len(uses) if len(uses) > 1 else 0):
            yield f"one use ({index}) of {value.name} reads another input", _unshared(number, index)


def attribute_changes(instance: Instance, names: Sequence[str]) -> Iterator[tuple[str, Change]]:
    """Changes of the nodes' attributes."""
    opsets = instance.model.graph.opset_imports
    for position, (node, name) in enumerate(zip(instance.model.graph, names, strict=True)):
        for text, attributes in _other_attributes(node, opsets.get(node.domain, 1)):
            yield f"{name} with {text}", _attributes(position, attributes)


def _plain(dim: Any) -> bool:
    return isinstance(dim, int) or str(dim).isidentifier()


def _output(position: int, index: int) -> Change:
    def change(instance: Instance) -> bool:
        instance.model.graph.outputs.append(instance.model.graph[position].outputs[index])
        return True

    return change


def _consumer(position: int, index: int) -> Change:
    def change(instance: Instance) -> bool:
        graph = instance.model.graph
        value = graph[position].outputs[index]
        shape, keep = ir.Node("", "Shape", [value]), ir.Node("", "Identity", [value])
        shape.outputs[0].name, keep.outputs[0].name = "extra_shape", "extra"
        graph.extend([shape, keep])
        graph.outputs.extend([shape.outputs[0], keep.outputs[0]])
        return True

    return change


def _from_outside(position: int, index: int, dims: Sequence[int | str], dtype: ir.DataType | None) -> Change:
    def change(instance: Instance) -> bool:
        graph = instance.model.graph
        old = graph[position].outputs[index]
        new = ir.Value(name=f"{old.name}_outside", shape=ir.Shape(dims), type=ir.TensorType(dtype or ir.DataType.FLOAT))
        old.replace_all_uses_with(new)
        graph.inputs.append(new)
        return True

    return change


def _other_attributes(node: ir.Node, opset: int) -> Iterator[tuple[str, dict[str, ir.Attr | None]]]:
    """Attributes with other values, left out, or given where they had been left to their defaults."""
    try:
        schema: Any = onnx.defs.get_schema(node.op_type, opset, node.domain)
    except onnx.defs.SchemaError:
        schema = None
    for name, attribute in node.attributes.items():
        yield f"{name} left out", {name: None}
        for value in _other_values(name, attribute.type, attribute.value):
            yield f"{name} = {value}", {name: ir.Attr(name, attribute.type, value)}
    if schema is None:
        return
    for name in schema.attributes:
        if name in node.attributes or not schema.attributes[name].default_value.name:
            continue
        default = attribute_default(node.domain, node.op_type, opset, name)
        kind = ir.AttributeType(int(schema.attributes[name].type))
        for value in _other_values(name, kind, default):
            yield f"{name} = {value}", {name: ir.Attr(name, kind, value)}


def _other_values(name: str, kind: Any, value: Any) -> list[Any]:
    found = _any_values(name, kind, value)
    if name in _POSITIVE:
        return [other for other in found if min(other if isinstance(other, list) else [other]) > 0]
    return found


def _any_values(name: str, kind: Any, value: Any) -> list[Any]:
    types = ir.AttributeType
    if name in _ELEMENT_TYPES and kind == types.INT:
        return [int(dtype) for dtype in (*_FROM_OUTSIDE, ir.DataType.INT64) if int(dtype) != value]
    if name in _FLAGS:
        return [1 - value]
    if kind == types.INT:
        return [number for number in (0, 1, value - 1, value + 1, -1, 2) if number != value]
    if kind == types.INTS:
        return _other_lists(list(value))
    if kind == types.FLOAT:
        return [number for number in (value * 1.5 + 0.25, 0.0, -value, 1.0) if number != value]
    if name == "equation":
        return _other_equations(value)
    if kind == types.STRING:
        return [text for text in ("reflect", "edge", "SAME_UPPER", "tanh", "none", "NOTSET") if text != value]
    return []


def _other_equations(equation: str) -> list[str]:
    """Other equations for the same operands, with the labels of the result reordered, removed or added.

    All are well-formed: the runtime crashes on a malformed one.
    """
    operands, _, result = equation.replace(" ", "").partition("->")
    labels = "".join(dict.fromkeys(operands.replace(",", "")))
    results = (result[::-1], result[1:] + result[:1], result[:-1], result[1:], "", labels, labels[::-1])
    return [f"{operands}->{other}" for other in dict.fromkeys(results) if other != result]


def _other_lists(numbers: list[int]) -> list[list[int]]:
    found = (
        [[*numbers[1:], numbers[0]], numbers[::-1], numbers[:-1], [*numbers, 1], [*numbers, len(numbers)]]
        if numbers
        else []
    )
    for index, number in enumerate(numbers):
        for other in (number + 1, number - 1, 0, -1):
            found.append([*numbers[:index], other, *numbers[index + 1 :]])
    return [list(other) for other in dict.fromkeys(map(tuple, found)) if list(other) != numbers and other]


def _attributes(position: int, attributes: dict[str, ir.Attr | None]) -> Change:
    def change(instance: Instance) -> bool:
        node = instance.model.graph[position]
        for name, attribute in attributes.items():
            if attribute is None:
                node.attributes.pop(name)
            else:
                node.attributes[name] = attribute
        return True

    return change


def _exchanged(position: int, index: int) -> Change:
    def change(instance: Instance) -> bool:
        node = instance.model.graph[position]
        first, second = node.inputs[index], node.inputs[index + 1]
        node.replace_input_with(index, second)
        node.replace_input_with(index + 1, first)
        return True

    return change


def _doubled(position: int, index: int, dtype: ir.DataType) -> Change:
    def change(instance: Instance) -> bool:
        graph = instance.model.graph
        node = graph[position]
        doubled = ir.Node("", "Mul", [node.inputs[index], new_constant(graph, "two", np.asarray(2, dtype.numpy()))])
        doubled.outputs[0].name = "doubled"
        graph.insert_before(node, doubled)
        node.replace_input_with(index, doubled.outputs[0])
        return True

    return change


def _other_windows(position: int, node: ir.Node, name: str, facts: Facts) -> Iterator[tuple[str, Change]]:
    """Slices along one axis of known size that give as many elements, but different ones or in another order."""
    starts, ends, axes, steps = ([*node.inputs[1:], None, None, None, None][number] for number in range(4))
    numbers = [None if value is None else facts.const(value) for value in (starts, ends, axes, steps)]
    shape = facts.shape(node.inputs[0])
    start, end, axis = (
        None if found is None or found.size != 1 else int(found.reshape(-1)[0]) for found in numbers[:3]
    )
    if start is None or end is None or axis is None or shape is None or not -len(shape) <= axis < len(shape):
        return
    size = shape[axis]
    if not isinstance(size, int) or (
        steps is not None and (numbers[3] is None or numbers[3].reshape(-1).tolist() != [1])
    ):
        return
    start, end, _ = slice(start, end).indices(size)
    for first in dict.fromkeys((0, start - 1, start + 1, size - (end - start))):
        if first != start and 0 <= first <= size - (end - start):
            yield f"{name} from {first} on", _window(position, first, first + end - start)
    if end > start + 1:
        yield f"{name} backwards", _window(position, end - 1, start - 1 if start else -size - 1, -1)


def _window(position: int, start: int, end: int, step: int | None = None) -> Change:
    def change(instance: Instance) -> bool:
        graph = instance.model.graph
        old = graph[position]
        inputs = list(old.inputs)
        for index, number in ((1, start), (2, end), (4, step)):
            if number is not None:
                inputs[index:] = [new_constant(graph, f"window_{index}", np.array([number])), *inputs[index + 1 :]]
        _replace_node(instance, old, ir.Node("", "Slice", inputs))
        return True

    return change


def _replace_node(instance: Instance, old: ir.Node, new: ir.Node) -> None:
    graph = instance.model.graph
    graph.insert_before(old, new)
    for before, after in zip(old.outputs, new.outputs, strict=False):
        after.name, after.type, after.shape, before.name = before.name, before.type, before.shape, f"{before.name}_old"
        before.replace_all_uses_with(after, replace_graph_outputs=True)
    graph.remove(old, safe=True)


def _other_operator(position: int, op_type: str) -> Change:
    def change(instance: Instance) -> bool:
        node = instance.model.graph[position]
        _replace_node(instance, node, ir.Node("", op_type, node.inputs, node.attributes.values()))
        return True

    return change


def _all_outputs(position: int) -> Change:
    """Request the optional outputs too: this makes a BatchNormalization compute statistics, for example."""

    def change(instance: Instance) -> bool:
        graph = instance.model.graph
        node = graph[position]
        try:
            schema = onnx.defs.get_schema(node.op_type, graph.opset_imports.get(node.domain, 1), node.domain)
        except onnx.defs.SchemaError:
            return False
        if len(schema.outputs) < 2:
            return False
        more = ir.Node(
            node.domain, node.op_type, node.inputs, node.attributes.values(), num_outputs=len(schema.outputs)
        )
        for index, output in enumerate(more.outputs):
            output.name = f"more_{index}"
        _replace_node(instance, node, more)
        return True

    return change


def _earlier(position: int) -> Change:
    """`f(g(x, c))` becomes `g(f(x), c)`: an epsilon outside the root, a scale after the function instead of before."""

    def change(instance: Instance) -> bool:
        graph = instance.model.graph
        outer = graph[position]
        operand = outer.inputs[0] if outer.inputs else None
        inner = operand.producer() if operand is not None else None
        if operand is None or inner is None or len(operand.uses()) != 1 or len(outer.outputs) + len(inner.outputs) > 2:
            return False
        data = [index for index, value in enumerate(inner.inputs) if value is not None and not value.is_initializer()]
        if len(data) != 1:
            return False
        outer.replace_input_with(0, inner.inputs[data[0]])
        outer.outputs[0].replace_all_uses_with(operand, replace_graph_outputs=True)
        inner.replace_input_with(data[0], outer.outputs[0])
        for value in (outer.outputs[0], operand):
            value.type = value.shape = None
        graph.sort()
        return True

    return change


def _dependent(first: int, second: int, index: int) -> Change:
    """One root of a pattern is computed from another."""

    def change(instance: Instance) -> bool:
        graph = instance.model.graph
        node = graph.outputs[second].producer()
        if node is None or node is graph.outputs[first].producer():
            return False
        node.replace_input_with(index, graph.outputs[first])
        graph.sort()
        return True

    return change


def _unshared(number: int, index: int) -> Change:
    def change(instance: Instance) -> bool:
        graph = instance.model.graph
        value = graph.inputs[number]
        use = tuple(value.uses())[index]
        another = ir.Value(name=f"{value.name}_other", shape=value.shape, type=value.type)
        if value.name in instance.fixed:
            return False
        use.node.replace_input_with(use.idx, another)
        graph.inputs.append(another)
        return True

    return change
