"""Merge layers with constant weights: one behind the other, and of one input that are joined.

    (x A + a) B + b = x (A B) + (a B + b)          conv(conv(x, V, a), W, b) = conv(x, W V, W a + b)
    concat(conv(x, V, a), conv(x, W, b)) = conv(x, concat(V, W), concat(a, b))

They are merged where that needs no more multiplications and no more weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.linear_maps import Layer, layer_of
from ortfuse.ir.refusal import Refusal, refuse
from ortfuse.ir.walk import Scope
from ortfuse.transforms.context import Context
from ortfuse.transforms.fold_linear import guards
from ortfuse.transforms.fold_linear.layer_branches import (
    branch_of,
    replace_by_one,
    taps_of,
    window_attributes,
)
from ortfuse.transforms.fold_linear.rebuild_layer import is_own, rebuilt
from ortfuse.transforms.node_builder import Builder, Rounds

Array: TypeAlias = "np.ndarray[Any, Any]"

NAME = "compose_linear_maps"

LARGEST_MERGED = 1 << 21
"""The most elements of weights that are multiplied with each other, which takes time and memory for larger ones."""


def merge_consecutive(layer: Layer, scope: Scope, context: Context) -> Refusal | bool:
    """Merge a layer with the one that it alone reads; returns whether it was, or why not."""
    facts = context.facts
    branch = branch_of(layer.output, facts)
    if branch is None or len(branch.layers) < 2:
        return False
    first, second = branch.layers
    inner = first.sizes[0]
    if inner * max(first.sizes[1], second.sizes[0]) > LARGEST_MERGED:
        return refuse("needless", layer.output, found="the weights are large: they stay as they are in their file")
    taps = [1 if layer.is_product else taps_of(layer, facts) for layer in branch.layers]
    before = inner * (first.sizes[1] * taps[0] + second.sizes[0] * taps[1])
    after = first.sizes[1] * second.sizes[0] * (1 if branch.window is None else branch.window.taps)
    if after > before:
        return refuse("needless", layer.output, found=f"{after} multiplications instead of {before}")
    refused = guards.are_not_copied((first.weight, second.weight), facts)
    return refused or replace_by_one(branch.result, [branch], [1], branch.nodes, (), scope, context)


def merge_concat(node: ir.Node, scope: Scope, context: Context) -> Refusal | bool:
    """Merge neighbours among the operands of a Concat along their outputs that are layers of one input."""
    facts = context.facts
    rank, axis = facts.rank(node.outputs[0]), node.attributes.get_int("axis", 0)
    if rank is None or any(one.is_ref() for one in node.attributes.values()):
        return False
    layers = [_layer_of_concat(value, axis % rank, node, facts) for value in node.inputs]
    start = 0
    while start < len(layers):
        end = start + 1
        while end < len(layers) and _are_alike(layers[start], layers[end], facts):
            end += 1
        run = [layer for layer in layers[start:end] if layer is not None]
        if len(run) > 1:
            return _joined(node, run, start, scope, context)
        start = end
    return False


def _layer_of_concat(value: ir.Value | None, axis: int, node: ir.Node, facts: Facts) -> Layer | None:
    """The layer that an operand of a Concat along its outputs is; `None` if it is needed elsewhere or its weights are shared."""
    maker = None if value is None or not is_own(value, facts) else value.producer()
    layer = None if maker is None or maker.graph is not node.graph else layer_of(maker, facts)
    if (
        layer is None
        or layer.groups != 1
        or layer.node.op_type in ("FusedConv", "ConvTranspose")
        or layer.out_axis != axis
    ):
        return None
    if layer.is_product and layer.storage == "left":
        return None
    kept = guards.are_not_copied((layer.weight, layer.bias), facts) or guards.weight_is_small(layer, facts)
    return None if kept is not None else layer


def _are_alike(one: Layer | None, other: Layer | None, facts: Facts) -> bool:
    """Whether two layers have one input, one window and one type."""
    if one is None or other is None or one.data is not other.data or one.node.op_type != other.node.op_type:
        return False
    if facts.dtype(one.weight) != facts.dtype(other.weight) or one.in_axis != other.in_axis:
        return False
    windows = [layer.window(facts) for layer in (one, other)]
    return one.sizes[1] == other.sizes[1] and (one.is_product or (windows[0] is not None and windows[0] == windows[1]))


def _joined(node: ir.Node, run: Sequence[Layer], start: int, scope: Scope, context: Context) -> bool:
    facts, first = context.facts, run[0]
    kernel = np.concatenate([layer.kernel(facts) for layer in run], axis=1)
    bias = np.concatenate([layer.bias_vector(facts) for layer in run])
    layer = Layer(**{**vars(first), "bias": next((one.bias for one in run if one.bias is not None), None)})
    nodes = [node, *(one for layer_ in run for one in layer_.nodes)]
    with context.editor.change(NAME, rule=Rounds(NAME), nodes=nodes) as change:
        build = Builder(scope, context.editor, node)
        window = first.window(facts)
        made = rebuilt(layer, build, context, kernel=kernel, bias=bias, changes=window_attributes(window))
        operands = [*node.inputs[:start], made, *node.inputs[start + len(run) :]]
        context.editor.replace(node.outputs[0], made if len(operands) == 1 else build.like(node, operands))
        context.editor.remove(node, *(one for layer_ in run for one in reversed(layer_.nodes)))
    return bool(change)
