"""Fold a diagonal map into the layers before it or behind it.

    f layer(x) + t = layer'(x)       W' = f W, b' = f b + t                one f and t for each output
    layer(f x + t) = layer'(x)       W' = W f, b' = b + W t                one f and t for each input, no padding if t != 0

Between them, elements may be moved, averaged and, if all f > 0, maxima taken of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.linear_maps import Diagonal, Layer, along, by_channel, diagonal_of, layer_of, readings_of
from ortfuse.analysis.linear_maps.composition import image_of, scaled_inputs, scaled_outputs
from ortfuse.analysis.linear_maps.trace_layer_channels import Reading, Readings, is_moved_or_carried, whole
from ortfuse.ir.refusal import Refusal, refuse
from ortfuse.ir.walk import Scope
from ortfuse.transforms.context import Context
from ortfuse.transforms.fold_linear import guards
from ortfuse.transforms.fold_linear.layers_above import MOST_NODES, LayersAbove, layers_above
from ortfuse.transforms.fold_linear.rebuild_layer import copy_movement, in_order, is_own, rebuilt
from ortfuse.transforms.node_builder import Builder, Rounds

NAME = "compose_linear_maps"

Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True)
class Mapped:
    """A layer with the factor and offset for each of its outputs or inputs."""

    layer: Layer
    factor: Array
    offset: Array

    @property
    def changed(self) -> Array:
        """Whether each of the outputs or inputs has a factor or offset."""
        found: Array = (self.factor != 1) | (self.offset != 0)
        return found

    def kernel(self, facts: Facts, axis: int) -> Array | None:
        """The new weights; `None` if they stay. `axis` is 1 if the outputs are scaled, 2 if the inputs are."""
        if np.all(self.factor == 1):
            return None
        with np.errstate(all="ignore"):
            return (scaled_outputs if axis == 1 else scaled_inputs)(self.layer.kernel(facts), self.factor)


# Before


def fold_into_producers(
    diagonal: Diagonal, scope: Scope, context: Context, behind_movement: bool = False
) -> Refusal | bool:
    """Fold a diagonal map into all layers that its operand is made of.

    Args:
        diagonal: The map.
        scope: The graph.
        context: The model.
        behind_movement: Whether to fold only into products whose results are moved before, even if that saves nothing.

    Returns:
        Whether it was folded, or why not.
    """
    facts = context.facts
    above = layers_above(diagonal, facts)
    if above is None:
        return _is_output(diagonal, facts)
    layers = above.layers
    if behind_movement and not (above.nodes and all(layer.is_product for layer in layers)):
        return False
    readings = _readings(diagonal.data, layers, facts)
    if readings is None:
        return False
    if {one.source for one in readings.read} != {layer.output for layer in layers}:
        return False
    refused = guards.first((guards.is_finite(diagonal), guards.rounds_nothing(diagonal, facts)))
    refused = refused or _carries(diagonal, readings)
    if refused is not None:
        return refused
    mapped = [_by_output(diagonal, layer, readings.read, facts) for layer in layers]
    if any(one is None for one in mapped):
        return refuse(
            "shape", diagonal.output, found="others", needed="factors and offsets of one output of a layer each"
        )
    found = [one for one in mapped if one is not None]
    if not above.leaves_alone({one.layer.output: one.changed for one in found}, facts):
        return refuse("use", diagonal.data, found="others too", needed="the map alone, or others of other channels")
    added = sum(
        not one.layer.adds_bias_for_free and one.layer.bias is None and bool(np.any(one.offset)) for one in found
    )
    if added >= len(diagonal.nodes) + behind_movement and (added > 1 or diagonal.statistics is None):
        return False
    return _rewrite_producers(diagonal, found, above, scope, context)


def _is_output(diagonal: Diagonal, facts: Facts) -> Refusal | bool:
    """Why the layer right before a map stays as it is, if that is an output of the graph."""
    node = diagonal.data.producer()
    if node is None or not diagonal.data.is_graph_output() or layer_of(node, facts) is None:
        return False
    return refuse("graph_output", diagonal.data)


def _readings(value: ir.Value, layers: Sequence[Layer], facts: Facts) -> Readings | None:
    """The elements of layers that a value is made of."""
    if len(layers) == 1 and layers[0].output is value:
        rank = facts.rank(value)
        return None if rank is None else whole(value, rank)
    return readings_of(value, facts)


def _carries(diagonal: Diagonal, readings: Readings) -> Refusal | None:
    """Padded zeros are not shifted, and only positive factors keep maxima: both were found in pooled networks."""
    if readings.has_zeros and not diagonal.is_scale:
        return refuse("value", diagonal.data, found="zeros around or between them", needed="results of layers alone")
    if any(one.is_maximum for one in readings.read) and not np.all(diagonal.factor > 0):
        return refuse("value", diagonal.output, found="others", needed="of factors above 0, behind maxima")
    return None


def _by_output(diagonal: Diagonal, layer: Layer, read: Sequence[Reading], facts: Facts) -> Mapped | None:
    """The numbers for each output of a layer; `None` if there is not one for each."""
    shape, outputs = facts.shape(diagonal.data), layer.sizes[0]
    factor, offset = np.full(outputs, np.nan), np.full(outputs, np.nan)
    for one in read:
        if one.source is not layer.output:
            continue
        for total, constant in ((factor, diagonal.factor), (offset, diagonal.offset)):
            numbers = None if shape is None else by_channel(constant, np.nan, shape, one, layer.out_axis, outputs)
            if numbers is None:
                return None
            known = ~np.isnan(numbers)
            if np.any(known & ~np.isnan(total) & (total != numbers)):
                return None
            total[known] = numbers[known]
    return Mapped(layer, np.where(np.isnan(factor), 1.0, factor), np.where(np.isnan(offset), 0.0, offset))


def _rewrite_producers(
    diagonal: Diagonal, mapped: Sequence[Mapped], above: LayersAbove, scope: Scope, context: Context
) -> Refusal | bool:
    facts, new = context.facts, []
    instead: dict[ir.Value, ir.Value] = {}
    for one in mapped:
        layer, scales = one.layer, bool(np.any(one.factor != 1))
        refused = guards.growth_is_bounded(layer, diagonal, facts) if scales else None
        if scales and diagonal.statistics is None:
            refused = refused or guards.weight_is_small(layer, facts)
        if refused is not None:
            return refused
        kernel, bias = one.kernel(facts, 1), layer.bias_vector(facts) * one.factor + one.offset
        refused = guards.weights_are_held(layer, kernel, 1, facts) if kernel is not None else None
        refused = refused or guards.bias_is_held(layer, bias, facts)
        if refused is not None:
            return refused
        new.append((layer, kernel, bias))
    olds = [*diagonal.nodes, *above.nodes, *(node for one in mapped for node in one.layer.nodes)]
    with context.editor.change(NAME, rule=Rounds(NAME), nodes=olds) as change:
        for layer, kernel, bias in new:
            build = Builder(scope, context.editor, layer.nodes[-1])
            instead[layer.output] = rebuilt(layer, build, context, kernel=kernel, bias=bias)
        copy_movement(above.nodes, instead, context.editor)
        context.editor.replace(diagonal.output, instead[diagonal.data])
        for value in above.others:
            context.editor.replace(value, instead[value])
        context.editor.remove(*in_order(olds)[::-1])
    return bool(change)


# Behind


def fold_into_consumers(diagonal: Diagonal, scope: Scope, context: Context) -> Refusal | bool:
    """Fold a diagonal map into all layers that read it; returns whether it was, or why not."""
    facts = context.facts
    below, between = _below(diagonal, facts)
    if not below:
        return False
    refused = guards.first((guards.is_finite(diagonal), guards.rounds_nothing(diagonal, facts)))
    refused = refused or guards.offset_is_moderate(diagonal, facts)
    if refused is not None:
        return refused
    mapped = _by_inputs(diagonal, below, facts)
    if isinstance(mapped, Refusal):
        return mapped
    if any(guards.reads_no_border(one.layer, one.offset) for one in mapped):
        return _keep_offset(diagonal, below, between, scope, context)
    grown = [
        one.layer
        for one in mapped
        if not one.layer.adds_bias_for_free and one.layer.bias is None and np.any(one.offset)
    ]
    widened = diagonal.statistics is None and any(layer.sizes[0] > layer.sizes[1] for layer in grown)
    if widened or len(grown) > len(diagonal.nodes):
        return refuse("needless", diagonal.output, found="the sum would be one of more elements")
    return _rewrite_consumers(diagonal, mapped, between, diagonal.data, None, scope, context)


def _keep_offset(
    diagonal: Diagonal, below: Sequence[Layer], between: Sequence[ir.Node], scope: Scope, context: Context
) -> Refusal | bool:
    """Fold the factor before an offset, which then is divided by it, into layers with zeros around their input.

    layer(s x + t) = layer'(x + t / s)
    """
    facts = context.facts
    above = None if (node := diagonal.data.producer()) is None else diagonal_of(node, facts)
    refused = guards.first(guards.reads_no_border(layer, diagonal.offset) for layer in below)
    if above is None or not above.is_scale or not diagonal.is_shift or above.statistics or diagonal.statistics:
        return refused or False
    if any(use.node not in diagonal.nodes for use in diagonal.data.uses()) or diagonal.data.is_graph_output():
        return refused or False
    dtype, shape = facts.dtype(diagonal.output), facts.shape(above.data)
    if dtype is None or shape != facts.shape(diagonal.output) or dtype.numpy().kind != "f":
        return refused or False
    with np.errstate(all="ignore"):
        divided = (diagonal.offset / above.factor).astype(dtype.numpy())
    refused = guards.is_finite(above) or guards.quotient_is_held(diagonal, above, divided)
    if refused is not None:
        return refused
    scale = Diagonal((*above.nodes, *diagonal.nodes), above.data, above.factor, np.zeros(()), above.constants)
    mapped = _by_inputs(scale, below, facts)
    if isinstance(mapped, Refusal):
        return mapped
    divided = divided.reshape(-1)[:1] if np.all(divided == divided.reshape(-1)[0]) else divided
    return _rewrite_consumers(scale, mapped, between, above.data, divided, scope, context)


def _below(diagonal: Diagonal, facts: Facts) -> tuple[list[Layer], list[ir.Node]]:
    """The layers that read a diagonal map, and the nodes between; none if anything else reads it."""
    layers: dict[ir.Node, Layer] = {}
    seen: dict[ir.Node, None] = {}
    pending = [diagonal.output]
    while pending:
        value = pending.pop()
        if value.is_graph_output():
            return [], []
        for node, index in value.uses():
            if node in layers or node in seen:
                continue
            if node.graph is not diagonal.nodes[-1].graph or len(seen) > MOST_NODES:
                return [], []
            layer = layer_of(node, facts) if node.op_type != "Add" else None
            if layer is not None and node.inputs[index] is layer.data and index == (layer.storage == "left"):
                layers[node] = _with_bias(layer, facts)
            elif is_moved_or_carried(node, facts) and (index == 0 or node.op_type == "Concat"):
                seen[node] = None
                pending += node.outputs
            else:
                return [], []
    return list(layers.values()), list(seen)


def _with_bias(layer: Layer, facts: Facts) -> Layer:
    """The layer with the Add behind it, if that adds its bias."""
    result = layer.node.outputs[0]
    if layer.node.op_type != "MatMul" or not is_own(result, facts):
        return layer
    found = layer_of(next(iter(result.uses())).node, facts)
    return found if found is not None and found.node is layer.node else layer


def _by_inputs(diagonal: Diagonal, layers: Sequence[Layer], facts: Facts) -> list[Mapped] | Refusal:
    """The numbers for each input of each layer, or why there is not one for each."""
    mapped: list[Mapped] = []
    for layer in layers:
        found = _by_input(diagonal, layer, facts)
        if isinstance(found, Refusal):
            return found
        mapped.append(found)
    return mapped


def _by_input(diagonal: Diagonal, layer: Layer, facts: Facts) -> Mapped | Refusal:
    """The numbers for each input of a layer, or why there is not one for each."""
    inputs, shape, rank = layer.sizes[1], facts.shape(layer.data), facts.rank(diagonal.output)
    needed = "factors and offsets of one input of a layer each"
    refused = refuse("shape", diagonal.output, found="others", needed=needed)
    if shape is None or rank is None or len(shape) <= layer.in_axis or shape[layer.in_axis] != inputs:
        return refused
    readings = whole(layer.data, rank) if layer.data is diagonal.output else readings_of(layer.data, facts)
    if readings is None or not any(one.source is diagonal.output for one in readings.read):
        return refused
    if (carries := _carries(diagonal, readings)) is not None:
        return carries
    factor, offset = np.full(inputs, np.nan), np.full(inputs, np.nan)
    for one in readings.read:
        if one.source is not diagonal.output:
            continue
        for total, constant in ((factor, diagonal.factor), (offset, diagonal.offset)):
            found = along(constant, rank, one, layer.in_axis, inputs)
            if found is None or np.any(~np.isnan(total[found[0]]) & (total[found[0]] != found[1])):
                return refused
            total[found[0]] = found[1]
    if any(one.source is not diagonal.output and not _is_apart(one, layer, factor) for one in readings.read):
        return refused
    return Mapped(layer, np.where(np.isnan(factor), 1.0, factor), np.where(np.isnan(offset), 0.0, offset))


def _is_apart(reading: Reading, layer: Layer, factor: Array) -> bool:
    """Whether elements stand at none of the inputs that have a factor."""
    found = along(np.ones(()), len(reading.index), reading, layer.in_axis, len(factor))
    return found is not None and bool(np.all(np.isnan(factor[found[0]])))


def _rewrite_consumers(
    diagonal: Diagonal,
    mapped: Sequence[Mapped],
    between: Sequence[ir.Node],
    data: ir.Value,
    kept: Array | None,
    scope: Scope,
    context: Context,
) -> Refusal | bool:
    """Build the layers anew on other data, to which an offset may be added that is kept."""
    facts, new = context.facts, []
    for one in mapped:
        layer, scales = one.layer, bool(np.any(one.factor != 1))
        refused = guards.reads_no_border(layer, one.offset)
        if scales:
            refused = refused or guards.growth_is_bounded(layer, diagonal, facts)
            refused = refused or (guards.weight_is_small(layer, facts) if diagonal.statistics is None else None)
        if refused is not None:
            return refused
        kernel, bias = one.kernel(facts, 2), None
        refused = guards.weights_are_held(layer, kernel, 2, facts) if kernel is not None else None
        if np.any(one.offset):
            with np.errstate(all="ignore"):
                bias = layer.bias_vector(facts) + image_of(layer.kernel(facts), one.offset)
            refused = refused or guards.bias_is_held(layer, bias, facts)
        if refused is not None:
            return refused
        new.append((layer, kernel, bias))
    olds = [*diagonal.nodes, *between, *(node for one in mapped for node in one.layer.nodes)]
    with context.editor.change(NAME, rule=Rounds(NAME), nodes=olds) as change:
        if kept is not None:
            build = Builder(scope, context.editor, diagonal.nodes[-1])
            data = build.node("Add", [data, build.constant(ir.Tensor(kept))])[0]
        instead = {diagonal.output: data}
        copy_movement(between, instead, context.editor)
        for layer, kernel, bias in new:
            build = Builder(scope, context.editor, layer.nodes[-1])
            made = rebuilt(layer, build, context, kernel=kernel, bias=bias, data=instead[layer.data])
            context.editor.replace(layer.output, made)
        context.editor.remove(*in_order(olds)[::-1])
    return bool(change)
