"""Merge a layer with the product before it through the movement of its rows, by which channels stay together.

conv(image(x W + b), V, c) = image(x (W V) + (b V + c))       V a single tap, as heads of SegFormer: arXiv:2105.15203
heads(x W + b) V + c = heads(x (W V) + (b V + c))             image and heads any Transposes and Reshapes
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.index_maps import axis
from ortfuse.analysis.linear_maps import Layer, layer_of, readings_of
from ortfuse.analysis.linear_maps.composition import chained, image_of
from ortfuse.analysis.linear_maps.trace_layer_channels import axes_in
from ortfuse.ir.dims import DimLike, reshape_target
from ortfuse.ir.refusal import Refusal, refuse
from ortfuse.ir.traits import RESHAPES
from ortfuse.ir.walk import Scope
from ortfuse.transforms.context import Context
from ortfuse.transforms.fold_linear import guards
from ortfuse.transforms.fold_linear.fold_diagonals import NAME
from ortfuse.transforms.fold_linear.merge_layers import LARGEST_MERGED
from ortfuse.transforms.fold_linear.rebuild_layer import is_own, rebuilt
from ortfuse.transforms.node_builder import Builder, Rounds

MOST_MOVES = 4
"""The most operators between the layers."""


@dataclass(frozen=True)
class _Move:
    """A node between the layers, with the target of a Reshape to another number of channels; `None` if it stays as it is."""

    node: ir.Node
    target: list[int] | None


def merge_moved(second: Layer, scope: Scope, context: Context) -> Refusal | bool:
    """Merge a layer with the product whose rows it reads elsewhere; returns whether it was, or why not."""
    facts = context.facts
    window = second.window(facts)
    is_pointwise = second.is_product or (window is not None and window.groups == 1 and window.is_single_tap)
    if not is_pointwise or second.node.op_type in ("FusedConv", "ConvTranspose") or second.in_axis != second.out_axis:
        return False
    nodes = _movement(second.data, facts)
    maker = None if not nodes or nodes[0].inputs[0] is None else nodes[0].inputs[0].producer()
    first = None if maker is None or maker.graph is not second.node.graph else layer_of(maker, facts)
    if first is None or not first.is_product or not is_own(first.output, facts):
        return False
    if facts.dtype(first.weight) != facts.dtype(second.weight) or first.sizes[0] != second.sizes[1]:
        return False
    inputs, inner, outputs = first.sizes[1], first.sizes[0], second.sizes[0]
    if inputs * outputs > inner * (inputs + outputs) or inner * max(inputs, outputs) > LARGEST_MERGED:
        return refuse("needless", second.output, found="one product is more work than both")
    moves = _moves(nodes, first, second, facts)
    if moves is None:
        return refuse("shape", second.data, found="others", needed="channels that stay together, of known positions")
    kernel = second.kernel(facts).reshape(1, outputs, inner)
    bias = image_of(kernel, first.bias_vector(facts)) + second.bias_vector(facts)
    kernel = chained(first.kernel(facts), kernel)
    refused = guards.are_not_copied((first.weight, second.weight), facts)
    refused = refused or guards.weights_are_held(first, kernel, 1, facts) or guards.bias_is_held(first, bias, facts)
    if refused is not None:
        return refused
    olds = [*first.nodes, *nodes, *second.nodes]
    with context.editor.change(NAME, rule=Rounds(NAME), nodes=olds) as change:
        build = Builder(scope, context.editor, second.nodes[-1])
        value = rebuilt(first, build, context, kernel=kernel, bias=bias)
        for move in moves:
            rest = move.node.inputs[1:]
            if move.target is None:
                value = build.like(move.node, [value, *rest])
            else:
                value = build.node("Reshape", [value, build.constant(ir.Tensor(np.array(move.target, np.int64)))])[0]
        context.editor.replace(second.output, value)
        context.editor.remove(*reversed(olds))
    return bool(change)


def _movement(value: ir.Value, facts: Facts) -> list[ir.Node]:
    """The Transposes and Reshapes that alone lead to a value, the first of them first."""
    found: list[ir.Node] = []
    while len(found) < MOST_MOVES and is_own(value, facts):
        node = value.producer()
        if node is None or node.domain or node.op_type not in RESHAPES | {"Transpose"} or node.inputs[0] is None:
            break
        found.insert(0, node)
        value = node.inputs[0]
    return found


def _moves(nodes: list[ir.Node], first: Layer, second: Layer, facts: Facts) -> list[_Move] | None:
    """The movement for the number of channels of the second layer; `None` if it mixes them with positions."""
    moves: list[_Move] = []
    before = _shape(first.output, first.out_axis, second.sizes[0], facts)
    for node in nodes:
        value = node.outputs[0]
        place = _axis_of_channels(value, first, facts)
        after = None if place is None else _shape(value, place, second.sizes[0], facts)
        if before is None or after is None or (value is second.data and place != second.in_axis):
            return None
        stays = first.sizes[0] == second.sizes[0] or node.op_type not in RESHAPES
        target = None if stays else reshape_target(before, after)
        if target is None and not stays:
            return None
        moves.append(_Move(node, target))
        before = after
    return moves


def _shape(value: ir.Value, place: int, channels: int, facts: Facts) -> list[DimLike] | None:
    """The shape of a value with another number of channels."""
    shape = facts.shape(value)
    return None if shape is None else [*shape[:place], channels, *shape[place + 1 :]]


def _axis_of_channels(value: ir.Value, first: Layer, facts: Facts) -> int | None:
    """The axis of a value that is the outputs of a layer, of which no other axis depends."""
    found, shape = readings_of(value, facts, 0, (first.output,)), facts.shape(value)
    if found is None or shape is None or found.has_zeros or len(found.read) != 1 or found.read[0].conditions:
        return None
    index = found.read[0].index
    place = next((place for place in range(len(shape)) if index[first.out_axis] == axis(place)), None)
    others = [formula for number, formula in enumerate(index) if number != first.out_axis]
    return None if place is None or any(place in axes_in(formula) for formula in others) else place
