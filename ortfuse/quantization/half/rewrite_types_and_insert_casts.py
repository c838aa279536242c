"""Rewrite a model to the type chosen for each value, and insert Casts where types differ."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from ortfuse.ir import walk
from ortfuse.ir.schemas import attribute_default
from ortfuse.quantization.half.clamp_mask_constants import LARGEST, LEAST, clamped, is_bound, is_guard
from ortfuse.quantization.half.same_type_units import Units, Use
from ortfuse.quantization.half.shared_type_ports import TYPE_ATTRIBUTES

SHARED = 1024
"""A constant of so many numbers or more is stored once, and cast where it is half, if something else needs it in float32."""


class _Names:
    """Names for new values, which no value of any graph has."""

    def __init__(self, model: ir.Model) -> None:
        self._taken = {value.name for graph in walk.graphs(model) for value in walk.own_values(graph)}

    def new(self, stem: str) -> str:
        """A name that nothing has yet."""
        name = next(
            name
            for name in itertools.chain([stem], (f"{stem}.{number}" for number in itertools.count(1)))
            if name not in self._taken
        )
        self._taken.add(name)
        return name


def rewrite(units: Units, wide: Sequence[bool]) -> int:
    """Turn the model of `units` into one that computes in the chosen types; returns how many Casts that takes.

    Args:
        units: The model, which is changed.
        wide: For each unit whether it computes in float32.
    """
    versions = {node: units.facts.version(node) for node in units.of_node}
    hidden = clamped(units.model, units.facts, units.half).constants
    names = _Names(units.model)
    casts = 0
    for value in dict.fromkeys((*units.makers, *units.uses)):
        uses = units.uses.get(value, {})
        if value not in units.makers:
            narrow_uses = [use for use, unit in uses.items() if not wide[unit]]
            if 0 < len(narrow_uses) < len(uses) and _is_cast_alike(value, units.half):
                _cast(value, narrow_uses, [units.half], names)
                casts += 1
            else:
                _spread(value, narrow_uses, len(uses), units.half, hidden, names)
            continue
        narrow = not wide[units.makers[value]]
        others = [use for use, unit in uses.items() if wide[unit] == narrow]
        if narrow:
            _retype(value, units.half)
        if others:
            _cast(value, others, [ir.DataType.FLOAT if narrow else units.half], names)
            casts += 1
    for node, unit in units.of_node.items():
        if not wide[unit] and units.units[unit].ports.outputs:
            _name_type(node, versions[node], units.half)
    return casts


def _retype(value: ir.Value, half: ir.DataType) -> None:
    """Let a value be half, with its default if it is an input that has one."""
    value.type = ir.TensorType(half)
    if value.const_value is not None:
        value.const_value = _narrowed(value.const_value, half, clamp=False)


def _spread(
    value: ir.Value, narrow: Sequence[Use], count: int, half: ir.DataType, hidden: Collection[ir.Value], names: _Names
) -> None:
    """Let a constant be half where it is used so: itself, or a copy if something else uses it as it is."""
    assert value.const_value is not None
    if not narrow:
        return
    bound = all(isinstance(place, ir.Node) and is_bound(place, value) for place, _ in narrow)
    if is_guard(value, half):
        tensor: ir.TensorProtocol = _least(value.const_value, half)
    else:
        tensor = _narrowed(value.const_value, half, clamp=value in hidden or bound or half == ir.DataType.BFLOAT16)
    if len(narrow) == count:
        value.type, value.const_value = ir.TensorType(half), tensor
        return
    graph = value.graph
    assert isinstance(graph, ir.Graph)
    copy = ir.Value(
        name=names.new(f"{value.name}.{half.name.lower()}"),
        type=ir.TensorType(half),
        shape=value.shape,
        const_value=tensor,
    )
    graph.register_initializer(copy)
    _point(narrow, copy)


def _is_cast_alike(value: ir.Value, half: ir.DataType) -> bool:
    """Whether a constant is large enough to be stored once, and a Cast makes of it what it would be in half precision."""
    tensor = value.const_value
    return tensor is not None and tensor.size >= SHARED and bool(np.abs(tensor.numpy()).max() <= LARGEST[half])


def _narrowed(tensor: ir.TensorProtocol, half: ir.DataType, *, clamp: bool) -> ir.TensorProtocol:
    """A constant in half precision, made when it is read; with `clamp`, what is beyond its range becomes its largest number."""

    def make() -> ir.TensorProtocol:
        array = tensor.numpy()
        if clamp:
            array = np.clip(array, -LARGEST[half], LARGEST[half])
        with np.errstate(over="ignore"):
            return ir.Tensor(array.astype(half.numpy()), dtype=half)

    return ir.LazyTensor(make, half, ir.Shape(tensor.shape.numpy()), name=tensor.name, cache=False)


def _least(tensor: ir.TensorProtocol, half: ir.DataType) -> ir.TensorProtocol:
    """The least number of float16 with the sign of a constant."""
    return ir.Tensor(np.copysign(LEAST, tensor.numpy()).astype(half.numpy()), dtype=half, name=tensor.name)


def _cast(value: ir.Value, uses: Sequence[Use], types: Sequence[ir.DataType], names: _Names) -> None:
    """Cast a value where it is made, to one type after the other, for the given uses. An output of a graph keeps its name."""
    graph, producer, made = value.graph, value.producer(), value
    assert isinstance(graph, ir.Graph)
    nodes = []
    for kind in types:
        node = ir.node("Cast", [made], {"to": int(kind)})
        made = node.outputs[0]
        made.type, made.shape = ir.TensorType(kind), value.shape
        made.name = names.new(f"{value.name}.{kind.name.lower()}")
        nodes.append(node)
    if producer is not None:
        graph.insert_after(producer, nodes)
    elif len(graph):
        graph.insert_before(graph[0], nodes)
    else:
        graph.extend(nodes)
    if producer is not None and any(place is graph for place, _ in uses):
        name, value.name = value.name, names.new(f"{value.name}.before")
        made.name = name
    _point(uses, made)


def _point(uses: Sequence[Use], value: ir.Value) -> None:
    for place, number in uses:
        if isinstance(place, ir.Node):
            place.replace_input_with(number, value)
        else:
            place.outputs[number] = value


def _name_type(node: ir.Node, version: int, half: ir.DataType) -> None:
    """Let the attribute that names the type of the result, if there is one, name the other one."""
    if node.op_type == "ConstantOfShape":
        given = node.attributes.get("value")
        filled = np.zeros(1, np.float32) if given is None else given.value.numpy()
        node.attributes["value"] = ir.AttrTensor("value", ir.Tensor(filled.astype(half.numpy()), dtype=half))
    for name in TYPE_ATTRIBUTES:
        known = node.attributes.get_int(name) if name in node.attributes else None
        default = attribute_default(node.domain, node.op_type, version, name)
        if int(ir.DataType.FLOAT) in (known, default if known is None else None):
            node.attributes[name] = ir.AttrInt64(name, int(half))
