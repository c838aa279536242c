"""Branches: a layer, two in a row, or a diagonal map of an input; and the one layer that several of them are.

    (x A + a) B + b = x (A B) + (a B + b)          conv(conv(x, V, a), W, b) = conv(x, W V, W a + b)

Two convolutions in a row are one if along each axis one of them has a single tap, and no padding between them misses a bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.linear_maps import Diagonal, Layer, Window, layer_of, placed, united
from ortfuse.analysis.linear_maps.composition import chained, image_of
from ortfuse.analysis.linear_maps.windows import Axis
from ortfuse.ir.refusal import Refusal
from ortfuse.ir.walk import Scope
from ortfuse.transforms.context import Context
from ortfuse.transforms.fold_linear import guards
from ortfuse.transforms.fold_linear.rebuild_layer import is_own, rebuilt
from ortfuse.transforms.node_builder import Builder, Rounds

Array: TypeAlias = "np.ndarray[Any, Any]"

NAME = "compose_linear_maps"


@dataclass(frozen=True)
class Branch:
    """A layer of an input, which may be made of several.

    Attributes:
        data: The input.
        layers: The layers, of which the last computes the result; empty for a diagonal map.
        diagonal: The diagonal map, or `None`.
        window: The positions that it reads; `None` for a product.
        result: The value.
    """

    data: ir.Value
    layers: tuple[Layer, ...]
    diagonal: Diagonal | None
    window: Window | None
    result: ir.Value

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        """The nodes that compute the result."""
        inner = tuple(node for layer in self.layers for node in layer.nodes)
        return inner if self.diagonal is None else self.diagonal.nodes


def taps_of(layer: Layer, facts: Facts) -> int:
    """Return the number of taps of a convolution; 1 for a product."""
    return prod(dim for dim in (facts.shape(layer.weight) or ())[2:] if isinstance(dim, int))


def branch_of(value: ir.Value, facts: Facts) -> Branch | None:
    """Return the layers, one or two, that compute a value of an input."""
    node = value.producer()
    second = None if node is None else layer_of(node, facts)
    if second is None or second.node.op_type in ("FusedConv", "ConvTranspose"):
        return None
    window = second.window(facts)
    if not second.is_product and window is None:
        return None
    inner = second.data.producer()
    first = None if inner is None or not is_own(second.data, facts) else layer_of(inner, facts)
    if first is not None and node is not None and inner is not None and inner.graph is node.graph:
        joint = _joint(first, second, facts)
        if joint is not None:
            return Branch(first.data, (first, second), None, joint[0], value)
    return Branch(second.data, (second,), None, window, value)


def _joint(first: Layer, second: Layer, facts: Facts) -> tuple[Window | None] | None:
    """The window of two layers together; `None` if they cannot be one."""
    if first.node.op_type in ("FusedConv", "ConvTranspose") or facts.dtype(first.weight) != facts.dtype(second.weight):
        return None
    if first.is_product and second.is_product:
        sides = (first.storage == "left") == (second.storage == "left")
        return (None,) if first.out_axis == second.in_axis and sides and second.in_axis == second.out_axis else None
    if first.is_product or second.is_product:
        return None
    one, other = first.window(facts), second.window(facts)
    if one is None or other is None or one.groups != 1 or other.groups != 1 or len(one.axes) != len(other.axes):
        return None
    axes = [_merged_axis(a, b) for a, b in zip(one.axes, other.axes, strict=True)]
    padded = any(axis.front or axis.back for axis in other.axes)
    if None in axes or (padded and np.any(first.bias_vector(facts))):
        return None
    return (Window(tuple(axis for axis in axes if axis is not None), 1),)


def _merged_axis(one: Axis, other: Axis) -> Axis | None:
    """The window of both along an axis where one has a single tap: that of the other, with the strides of both."""
    if other.kernel == 1 and not (other.front or other.back):
        return Axis(one.kernel, one.stride * other.stride, one.dilation, one.front, one.back)
    return other if one == Axis(1, 1, one.dilation) else None


def last_layer(branch: Branch, facts: Facts) -> Branch:
    """Return the last layer of a branch alone."""
    if len(branch.layers) < 2:
        return branch
    layer = branch.layers[-1]
    return Branch(layer.data, (layer,), None, layer.window(facts), branch.result)


def kernel_of(branch: Branch, facts: Facts) -> Array:
    """Return the weights of the layers of a branch together, as [group, output, input, *taps]."""
    kernels = [layer.kernel(facts) for layer in branch.layers]
    return kernels[0] if len(kernels) == 1 else chained(*kernels)


def bias_of(branch: Branch, facts: Facts) -> Array:
    """Return the bias of the layers of a branch together, a number for each output."""
    biases = [layer.bias_vector(facts) for layer in branch.layers]
    if len(biases) == 1:
        return biases[0]
    return image_of(branch.layers[1].kernel(facts), biases[0]) + biases[1]


def _of_branch(branch: Branch, like: Branch, window: Window | None, facts: Facts) -> tuple[Array, Array] | None:
    """The weights, in their place in a window, and the bias of a branch; `None` if it has none."""
    if branch.diagonal is not None:
        return _of_diagonal(branch.diagonal, like, window, facts)
    kernel, bias = kernel_of(branch, facts), bias_of(branch, facts)
    if window is not None and branch.window is not None:
        flat = kernel.reshape(-1, *kernel.shape[2:])
        kernel = placed(flat, branch.window, window).reshape(*kernel.shape[:3], *(axis.kernel for axis in window.axes))
    return kernel, bias


def _of_diagonal(diagonal: Diagonal, like: Branch, window: Window | None, facts: Facts) -> tuple[Array, Array] | None:
    layer, rank = like.layers[-1], facts.rank(like.data) or 0
    channels, axis = layer.sizes[0], like.layers[0].in_axis
    vectors = []
    for array in (diagonal.factor, diagonal.offset):
        wide = array.reshape((1,) * (rank - array.ndim) + array.shape)
        if any(size != 1 for number, size in enumerate(wide.shape) if number != axis):
            return None
        vectors.append(np.broadcast_to(wide.reshape(-1), (channels,)))
    groups = layer.groups
    taps = () if window is None else tuple(axis.kernel for axis in window.axes)
    middle = () if window is None else tuple(axis.front // axis.dilation for axis in window.axes)
    kernel = np.zeros((groups, channels // groups, channels // groups, *taps))
    for channel in range(channels):
        group, place = divmod(channel, channels // groups)
        kernel[(group, place, place, *middle)] = vectors[0][channel]
    return kernel, vectors[1]


def replace_by_one(
    output: ir.Value,
    branches: Sequence[Branch],
    signs: Sequence[int],
    nodes: Sequence[ir.Node],
    rest: Sequence[tuple[int, ir.Value]],
    scope: Scope,
    context: Context,
) -> Refusal | bool:
    """Build one layer of several branches, and add what else a sum has."""
    facts, one = context.facts, branches[0]
    window = one.window
    for other in branches[1:]:
        window = None if window is None or other.window is None else united(window, other.window)
    parts = [_of_branch(branch, one, window, facts) for branch in branches]
    if any(part is None for part in parts):
        return False
    with np.errstate(all="ignore"):
        found = [part for part in parts if part is not None]
        kernel = sum((sign * part[0] for sign, part in zip(signs[1:], found[1:], strict=True)), signs[0] * found[0][0])
        bias = sum((sign * part[1] for sign, part in zip(signs[1:], found[1:], strict=True)), signs[0] * found[0][1])
    layer = _template([each for branch in branches for each in branch.layers], one)
    refused = guards.weights_are_held(layer, kernel, 1, facts) or guards.bias_is_held(layer, bias, facts)
    if refused is not None:
        return refused
    removed = list(dict.fromkeys(nodes))
    with context.editor.change(NAME, rule=Rounds(NAME), nodes=removed) as change:
        build = Builder(scope, context.editor, output.producer() or removed[0])
        made = rebuilt(
            layer, build, context, kernel=kernel, bias=bias, data=one.data, changes=window_attributes(window)
        )
        for sign, value in rest:
            made = build.node("Add" if sign > 0 else "Sub", [made, value])[0]
        context.editor.replace(output, made)
        pending = {output.producer(), *removed} - {None}
        context.editor.remove(*[node for node in reversed(list(scope.graph)) if node in pending])
    return bool(change)


def window_attributes(window: Window | None) -> dict[str, Any]:
    """Return the attributes of a Conv with this window; none for a product."""
    if window is None:
        return {}
    found = {name: list(one) if isinstance(one, tuple) else one for name, one in window.attributes().items()}
    return {**found, "auto_pad": "NOTSET"}


def _template(layers: Sequence[Layer], branch: Branch) -> Layer:
    """The layer that the new one is like: the first, or Gemm if one is; it has a bias if one has."""
    first = branch.layers[0]
    like = next((layer for layer in layers if layer.node.op_type == "Gemm"), first)
    bias = next((layer.bias for layer in layers if layer.bias is not None), None)
    if first.node.op_type == "Gemm":
        like = first
    return Layer(**{**vars(like), "bias": like.bias or bias, "data": branch.data})
