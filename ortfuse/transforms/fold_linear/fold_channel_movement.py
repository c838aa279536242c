"""Fold the movement of channels before a layer into its weights, and a selection of its outputs.

    conv(x[:, indices], W) = conv(x, W')       W'[:, c] the sum of W[:, i] over the positions i of c among the indices
    conv(x, W, b)[:, from : to] = conv(x, W[from : to], b[from : to])

Images come as BGR instead of RGB, and pixels that became channels in the order of one framework or another. Index maps tell which
channel stands where: Gather, Slice, Split, and a shuffle by Reshape and Transpose are the same to them.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.index_maps import axis
from ortfuse.analysis.linear_maps import Layer, along, layer_of, readings_of
from ortfuse.analysis.linear_maps.composition import of_selected_inputs, of_selected_outputs
from ortfuse.analysis.linear_maps.trace_layer_channels import axes_in
from ortfuse.ir.refusal import Refusal, refuse
from ortfuse.ir.traits import MOVES, has
from ortfuse.ir.walk import Scope
from ortfuse.transforms.context import Context
from ortfuse.transforms.fold_linear import guards
from ortfuse.transforms.fold_linear.rebuild_layer import is_own, rebuilt
from ortfuse.transforms.node_builder import Builder, Rounds

NAME = "compose_linear_maps"

MOST_MOVES = 4
"""The most operators that move channels before a layer."""

SELECTIONS = frozenset({"Slice", "Gather"})

Array: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.int64]]"


def fold_movement_of_inputs(layer: Layer, scope: Scope, context: Context) -> Refusal | bool:
    """Read the channels of an input where they are; returns whether a layer does now, or why not."""
    facts, moved = context.facts, layer.data.producer()
    if moved is None or moved.domain or not has(moved, MOVES) or not is_own(layer.data, facts) or layer.groups != 1:
        return False
    if layer.is_product and moved.op_type not in SELECTIONS:
        return False
    selected = _farthest(layer, facts)
    if selected is None:
        return False
    source, places = selected
    channels = (facts.shape(source) or ())[layer.in_axis]
    if not isinstance(channels, int) or sorted(set(places.tolist())) != list(range(channels)):
        # NaN and infinities neither appear nor vanish.
        return refuse("condition", layer.data, found="a part", needed="something that takes each channel")
    refused = guards.are_not_copied((layer.weight,), facts) or guards.weight_is_small(layer, facts)
    if refused is not None:
        return refused
    kernel = of_selected_inputs(layer.kernel(facts), places.tolist(), channels)
    refused = guards.weights_are_held(layer, kernel, 1, facts)
    if refused is not None:
        return refused
    with context.editor.change(NAME, rule=Rounds(NAME), nodes=[moved, *layer.nodes]) as change:
        build = Builder(scope, context.editor, layer.nodes[-1])
        made = rebuilt(layer, build, context, kernel=kernel, data=source)
        context.editor.replace(layer.output, made)
        context.editor.remove(*reversed(layer.nodes))
    return bool(change)


def fold_selection_of_outputs(node: ir.Node, scope: Scope, context: Context) -> Refusal | bool:
    """Compute only the outputs that a Slice or Gather takes; returns whether a layer does now, or why not."""
    facts, data = context.facts, node.inputs[0] if node.inputs else None
    maker = None if data is None or not is_own(data, facts) else data.producer()
    layer = None if maker is None or maker.graph is not node.graph else layer_of(maker, facts)
    if layer is None or layer.groups != 1 or layer.node.op_type == "FusedConv":
        return False
    output = node.outputs[0]
    places = _selected(output, layer.output, layer.out_axis, facts)
    if places is None or not 0 < len(places) <= layer.sizes[0]:
        return False
    refused = guards.are_not_copied((layer.weight,), facts) or guards.weight_is_small(layer, facts)
    if refused is not None:
        return refused
    kernel, bias = of_selected_outputs(layer.kernel(facts), places.tolist()), layer.bias_vector(facts)[places]
    with context.editor.change(NAME, rule=Rounds(NAME), nodes=[node, *layer.nodes]) as change:
        build = Builder(scope, context.editor, node)
        made = rebuilt(layer, build, context, kernel=kernel, bias=bias)
        context.editor.replace(output, made)
        context.editor.remove(node, *reversed(layer.nodes))
    return bool(change)


def _farthest(layer: Layer, facts: Facts) -> tuple[ir.Value, Array] | None:
    """The farthest value above a layer of which it reads the channels in another order, and that order."""
    value, found = layer.data, None
    for _ in range(MOST_MOVES):
        node = value.producer()
        if node is None or node.domain or not has(node, MOVES) or not is_own(value, facts) or node.inputs[0] is None:
            break
        value = node.inputs[0]
        places = _selected(layer.data, value, layer.in_axis, facts)
        found = found if places is None or len(places) != layer.sizes[1] else (value, places)
    return found


def _selected(value: ir.Value, source: ir.Value, along_axis: int, facts: Facts) -> Array | None:
    """The channels of a source that stand at each position along an axis of a value; `None` if others move too."""
    found, shape, before = readings_of(value, facts, 0, (source,)), facts.shape(value), facts.shape(source)
    if found is None or found.has_zeros or any(one.source is not source for one in found.read):
        return None
    if shape is None or before is None or len(shape) != len(before) or len(shape) <= along_axis:
        return None
    size, channels = shape[along_axis], before[along_axis]
    others = [number for number in range(len(shape)) if number != along_axis]
    if not isinstance(size, int) or not isinstance(channels, int) or any(shape[n] != before[n] for n in others):
        return None
    numbers = np.arange(channels, dtype=np.float64).reshape(-1, *[1] * (len(shape) - along_axis - 1))
    places = np.full(size, -1, np.int64)
    for one in found.read:
        if any(one.index[number] != axis(number) and shape[number] != 1 for number in others):
            return None
        if any(axes_in(condition) != {along_axis} for condition in one.conditions):
            return None
        taken = along(numbers, len(shape), one, along_axis, size)
        if taken is None:
            return None
        places[taken[0]] = taken[1].astype(np.int64)
    return None if np.any(places < 0) or np.array_equal(places, np.arange(channels)) else places
