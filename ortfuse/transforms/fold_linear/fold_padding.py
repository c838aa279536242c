"""Fold Pad before a convolution or pool, and Slice behind a convolution, into its pads.

    conv(pad(x, p)) = conv(x, pads + p)                          zeros around the spatial axes
    averagepool(pad(x, p)) = averagepool(x, pads + p)            zeros that count as elements
    maxpool(pad(x, p)) = maxpool(x, pads + p)                    numbers no higher than any, as zeros around positive ones
    slice(conv(x), p) = conv(x, pads - p)                        of a stride of 1, as causal convolutions are written
    slice(convtranspose(x), p) = convtranspose(x, pads + p)

Other zeros before a MaxPool stay: `patterns.ort_workarounds` keeps the runtime from folding them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import parameter
from ortfuse.ir.dims import is_nonzero
from ortfuse.ir.refusal import Refusal, refuse
from ortfuse.ir.traits import MICROSOFT
from ortfuse.ir.walk import Scope
from ortfuse.transforms.context import Context
from ortfuse.transforms.fold_linear.fold_diagonals import NAME
from ortfuse.transforms.fold_linear.rebuild_layer import is_own
from ortfuse.transforms.node_builder import Builder, Rounds

Window: TypeAlias = Mapping[str, Any]
"""The attributes of a convolution or pool."""

Guard: TypeAlias = "Callable[[ir.Node, ir.Node, list[int], Facts], Refusal | None]"
"""Why a node cannot have the padding of a Pad as its own, which then is the list."""


def fold_padding(node: ir.Node, scope: Scope, context: Context) -> Refusal | bool:
    """Take the padding before a convolution or pool as its own; returns whether it was taken, or why not."""
    facts, guard = context.facts, _GUARDS.get((node.domain, node.op_type))
    pad = None if guard is None or node.inputs[0] is None else node.inputs[0].producer()
    if guard is None or pad is None or pad.domain or pad.op_type != "Pad" or _has_references(node, pad):
        return False
    pads = _with_border(pad, _window(node), facts)
    if pads is None or pad.inputs[0] is None:
        return refuse("attribute", pad.outputs[0], found="others", needed="numbers that pad spatial axes alone")
    refused = guard(node, pad, pads, facts)
    if refused is not None:
        return refused
    counts = {"count_include_pad": 1} if node.op_type == "AveragePool" else {}
    return _replace(node, node, [pad.inputs[0], *node.inputs[1:]], {"pads": pads, **counts}, scope, context)


def fold_trimming(node: ir.Node, scope: Scope, context: Context) -> Refusal | bool:
    """Leave out what a Slice trims off a convolution; returns whether it was left out, or why not."""
    facts, data = context.facts, node.inputs[0]
    layer = None if data is None or not is_own(data, facts) else data.producer()
    if layer is None or layer.domain or layer.op_type not in ("Conv", "ConvTranspose") or _has_references(node, layer):
        return False
    pads = _trimmed(node, layer, facts)
    if pads is None or min(pads) < 0:
        return refuse("attribute", node.outputs[0], found="others", needed="known elements of spatial axes, in padding")
    if not all(map(is_nonzero, (facts.shape(node.outputs[0]) or ())[2:])):
        return refuse("shape", node.outputs[0], found="perhaps an empty one", needed="some elements")
    return _replace(node, layer, layer.inputs, {"pads": pads}, scope, context)


def _replace(
    node: ir.Node, like: ir.Node, inputs: Any, changes: dict[str, Any], scope: Scope, context: Context
) -> bool:
    with context.editor.change(NAME, rule=Rounds(NAME), nodes=[node] if like is node else [like, node]) as change:
        build = Builder(scope, context.editor, node)
        context.editor.replace(node.outputs[0], build.like(like, inputs, {**changes, "auto_pad": "NOTSET"}))
        context.editor.remove(node, *([] if like is node else [like]))
    return bool(change)


def _has_references(*nodes: ir.Node) -> bool:
    return any(one.is_ref() for node in nodes for one in node.attributes.values())


def _window(node: ir.Node) -> Window:
    return {name: one.value for name, one in node.attributes.items()}


# Padding before


def _with_border(pad: ir.Node, window: Window, facts: Facts) -> list[int] | None:
    """The padding of a window and of a Pad together; `None` if either is not known, or not spatial."""
    rank, border = facts.rank(pad.inputs[0]), parameter(pad, "pads", facts)
    automatic = window.get("auto_pad", "NOTSET")
    if rank is None or automatic not in ("NOTSET", "VALID") or parameter(pad, "mode", facts) not in (None, "constant"):
        return None
    where = _axes(pad, rank, facts)
    if where is None or not isinstance(border, tuple | list) or len(border) != 2 * len(where):
        return None
    if not all(isinstance(number, int) and number >= 0 for number in border):
        return None
    spatial = rank - 2
    pads = list((window.get("pads") if automatic == "NOTSET" else None) or [0] * 2 * spatial)
    if spatial < 1 or len(pads) != 2 * spatial:
        return None
    for number, axis in enumerate(where):
        front, back = border[number], border[number + len(where)]
        if axis < 2 and (front or back):
            return None
        if axis > 1:
            pads[axis - 2] += front
            pads[axis - 2 + spatial] += back
    return pads


def _axes(pad: ir.Node, rank: int, facts: Facts) -> list[int] | None:
    """The axes that a Pad names, counted from the front, or all; `None` if they are not known."""
    axes = pad.inputs[3] if len(pad.inputs) > 3 else None
    if axes is None:
        return list(range(rank))
    known = facts.ints(axes)
    found = [axis % rank for axis in (() if known is None else known.elements) if isinstance(axis, int)]
    return found if known is not None and len(found) == len(known.elements) else None


def _filling(pad: ir.Node, facts: Facts) -> Any:
    """The number that a Pad puts in; `None` if it is not known."""
    name = "value" if "value" in pad.attributes else "constant_value"
    found = parameter(pad, name, facts)
    return 0 if found is None else found if isinstance(found, int | float) else None


def with_zeros(node: ir.Node, pad: ir.Node, pads: list[int], facts: Facts) -> Refusal | None:
    """The Pad is with zeros."""
    if _filling(pad, facts) == 0:
        return None
    return refuse("value", pad.outputs[0], found="others", needed="zeros around the image")


def _of_pool(node: ir.Node, pad: ir.Node, pads: list[int], facts: Facts) -> Refusal | None:
    """No window hangs over or lies in the padding alone, and the image is not empty, which the kernels of pools refuse."""
    window, image = _window(node), pad.inputs[0]
    shape, kernel = facts.shape(image) or (), window.get("kernel_shape") or ()
    if window.get("ceil_mode"):
        return refuse("needless", node.outputs[0], found="it has windows that hang over")
    if not shape or not all(map(is_nonzero, shape[2:])):
        return refuse("shape", image, found="perhaps an empty one", needed="some elements")
    if len(pads) != 2 * len(kernel) or any(pad >= size for pad, size in zip(pads, (*kernel, *kernel), strict=True)):
        return refuse("attribute", node.outputs[0], found="as much padding as the kernel", needed="less")
    return None


def counts_zeros(node: ir.Node, pad: ir.Node, pads: list[int], facts: Facts) -> Refusal | None:
    """An average has no padding of its own that it leaves out."""
    window = _window(node)
    own = any(window.get("pads") or ()) and window.get("auto_pad", "NOTSET") == "NOTSET"
    if own and not window.get("count_include_pad"):
        return refuse("attribute", node.outputs[0], found="count_include_pad=0", needed="count_include_pad=1")
    return with_zeros(node, pad, pads, facts) or _of_pool(node, pad, pads, facts)


def with_the_lowest(node: ir.Node, pad: ir.Node, pads: list[int], facts: Facts) -> Refusal | None:
    """No element is lower than the padding, nothing asks for indices, and no window with gaps reads padding alone."""
    values = None if pad.inputs[0] is None else facts.range(pad.inputs[0])
    filling = _filling(pad, facts)
    if filling is None or not (filling == -np.inf or (values is not None and filling <= values.low)):
        return refuse("value", pad.outputs[0], found="others", needed="no higher than any element")
    if any(step != 1 for step in _window(node).get("dilations") or ()):
        return refuse("attribute", node.outputs[0], found="dilated windows", needed="windows without gaps")
    if any(output.name for output in node.outputs[1:]):
        return refuse("needless", node.outputs[0], found="its indices are asked for")
    return _of_pool(node, pad, pads, facts)


_GUARDS: Mapping[tuple[str, str], Guard] = {
    ("", "Conv"): with_zeros,
    (MICROSOFT, "FusedConv"): with_zeros,
    ("", "AveragePool"): counts_zeros,
    ("", "MaxPool"): with_the_lowest,
}

# Trimming behind


def _trimmed(node: ir.Node, layer: ir.Node, facts: Facts) -> list[int] | None:
    """The padding of a convolution of which a Slice trims elements; `None` if that is not known, or not spatial."""
    window, before, after = _window(layer), facts.shape(layer.outputs[0]), facts.shape(node.outputs[0])
    starts, axes, steps = (parameter(node, name, facts) for name in ("starts", "axes", "steps"))
    is_transposed = layer.op_type == "ConvTranspose"
    if before is None or after is None or window.get("auto_pad", "NOTSET") != "NOTSET" or window.get("output_shape"):
        return None
    where = tuple(range(len(starts))) if axes is None and isinstance(starts, tuple | list) else axes
    if not isinstance(starts, tuple | list) or not isinstance(where, tuple | list):
        return None
    if steps is not None and tuple(steps) != (1,) * len(starts):
        return None
    spatial, sign = len(before) - 2, 1 if is_transposed else -1
    pads, strides = list(window.get("pads") or [0] * 2 * spatial), window.get("strides") or [1] * spatial
    for start, axis in zip(starts, where, strict=True):
        if not isinstance(start, int) or not isinstance(axis, int):
            return None
        trimmed = before[axis] - after[axis]
        if not isinstance(trimmed, int) or not 0 <= start <= trimmed or (axis < 2 and trimmed):
            return None
        if axis > 1 and trimmed:
            if strides[axis - 2] != 1 and not is_transposed:
                return None
            pads[axis - 2] += sign * start
            pads[axis - 2 + spatial] += sign * (trimmed - start)
    return pads
