"""Layout of operators on images [batch, channels, spatial...]: the axes and attributes that may be permuted.

Convolutions, pools and normalisations of channels keep batch and channels where they are. Height and width may be swapped, and
with them sizes of windows, strides, pads, and the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import attribute_value, parameter
from ortfuse.ir.traits import MICROSOFT
from ortfuse.transforms.layout.layout_unit import Framed, Port, Unit, layout, nothing
from ortfuse.transforms.layout.permutation import Order, unmoved
from ortfuse.transforms.layout.reordered_node import Draft

_SINCE_REGION = 11
"""The opset from which on Resize has a region as its second input."""

_SINCE_CHANNELS = 9
"""The opset from which on BatchNormalization is always one of channels."""

_FLAT = 4
"""The number of axes of batches of flat images, whose channels may be last where the kernel interpolates."""

_WEIGHTS = {"QLinearConv": 3}
"""The index of the weights, if not the second input."""

_ADDED = 3
"""The addend of FusedConv."""

_PER_AXIS = ("kernel_shape", "strides", "dilations", "output_padding", "output_shape")
"""Attributes with a number for each axis behind the channels."""


@layout("AveragePool", "LpPool", "MaxPool")
@layout("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", f"{MICROSOFT}.QLinearGlobalAveragePool")
def pool(node: ir.Node, facts: Facts) -> Unit | None:
    """A pool without indices, with channels first."""
    if sum(output.name != "" for output in node.outputs) > 1 or attribute_value(node, "channels_last", facts):
        return None
    return _of_images(node, facts, _windows(node))


@layout("Conv", "ConvInteger", "ConvTranspose", "QLinearConv", f"{MICROSOFT}.FusedConv")
def convolution(node: ir.Node, facts: Facts) -> Unit | None:
    """A convolution with constant weights; to that of FusedConv, something of its shape may be added."""
    position = _WEIGHTS.get(node.op_type, 1)
    if not facts.is_const(node.inputs[position]) or facts.is_const(node.inputs[0]):
        return None
    write_windows, added = _windows(node), node.inputs[_ADDED:] if node.op_type == "FusedConv" else ()
    constant = [position, *([_ADDED] if added and facts.is_const(added[0]) else [])]

    def write(draft: Draft, order: Order) -> None:
        write_windows(draft, order)
        for place in constant:
            draft.move_constant(place, order, whole=True)

    more = [_ADDED] if added and added[0] is not None and len(constant) == 1 else []
    return _of_images(node, facts, write, more)


def _windows(node: ir.Node) -> Callable[[Draft, Order], None]:
    def write(draft: Draft, order: Order) -> None:
        spatial = [axis - 2 for axis in order[2:]]
        for name in _PER_AXIS:
            if name in node.attributes:
                numbers = node.attributes[name].as_ints()
                draft.attribute(name, [numbers[axis] for axis in spatial])
        if "pads" in node.attributes:
            pads = node.attributes["pads"].as_ints()
            draft.attribute("pads", [pads[axis + side] for side in (0, len(spatial)) for axis in spatial])

    return write


def _of_images(
    node: ir.Node, facts: Facts, write: Callable[[Draft, Order], None], more: Sequence[int] = ()
) -> Unit | None:
    """A unit that keeps batch and channels where they are."""
    return _unit(node, facts, lambda order: order[:2] == (0, 1), write, more)


def _unit(
    node: ir.Node,
    facts: Facts,
    allows: Callable[[Order], bool],
    write: Callable[[Draft, Order], None],
    more: Sequence[int] = (),
) -> Unit | None:
    rank = facts.rank(node.inputs[0])
    if rank is None or any(
        facts.rank(value) != rank for value in (node.outputs[0], *(node.inputs[place] for place in more))
    ):
        return None
    axes = unmoved(rank)
    operands = [(place, value) for place in (0, *more) if (value := node.inputs[place]) is not None]
    ports = [*(Port(value, place, False, axes) for place, value in operands), Port(node.outputs[0], 0, True, axes)]
    return Framed(node, tuple(ports), rank, allows, write)


@layout("BatchNormalization", "GroupNormalization", "InstanceNormalization", "LRN")
def normalisation(node: ir.Node, facts: Facts) -> Unit | None:
    """A normalisation whose channels are the second axis; only some are indifferent to where the batch is."""
    if sum(output.name != "" for output in node.outputs) > 1 or attribute_value(node, "training_mode", facts):
        return None
    if node.op_type == "BatchNormalization" and facts.version(node) < _SINCE_CHANNELS:
        return None
    if node.op_type in ("BatchNormalization", "LRN"):
        return _unit(node, facts, lambda order: len(order) > 1 and order[1] == 1, nothing)
    return _of_images(node, facts, nothing)


@layout("Resize", "Upsample")
def resize(node: ir.Node, facts: Facts) -> Unit | None:
    """Resizing: nearest neighbours along any axes, interpolation with the batch first and the channels second or last."""
    mode = attribute_value(node, "mode", facts)
    crops = attribute_value(node, "coordinate_transformation_mode", facts) == "tf_crop_and_resize"
    axes = parameter(node, "axes", facts) if "axes" in node.attributes else None
    positions = _sizes_of(node, facts)
    if crops or positions is None:
        return None

    channels = _channels(node, facts)
    last = mode == "linear" and facts.rank(node.inputs[0]) == _FLAT

    def allows(order: Order) -> bool:
        if mode == "nearest":
            return True
        places = (1, len(order) - 1) if last else (1,)
        return order[0] == 0 and any(order[place] == channels for place in places)

    def write(draft: Draft, order: Order) -> None:
        if axes is not None:
            draft.attribute("axes", [order.index(axis) for axis in axes])
            return
        for position in positions:
            draft.permute(position, order)
        if "scales" in node.attributes:
            scales = node.attributes["scales"].as_floats()
            draft.settings["scales"] = ir.AttrFloat32s("scales", [scales[axis] for axis in order])

    return _unit(node, facts, allows, write)


def _channels(node: ir.Node, facts: Facts) -> int | None:
    """The axis of channels, which is not resized: the second, or the last one."""
    before, after = facts.shape(node.inputs[0]), facts.shape(node.outputs[0])
    if before is None or after is None or len(before) != len(after) or len(before) < 2:
        return None
    return next((axis for axis in (1, len(before) - 1) if before[axis] == after[axis]), None)


def _sizes_of(node: ir.Node, facts: Facts) -> Sequence[int] | None:
    """The inputs that hold a number for each axis; `None` if that is not known of them all."""
    rank = facts.rank(node.inputs[0])
    # The second input was the scales once; now it is a region, which only cropping looks at.
    first = 2 if node.op_type == "Resize" and facts.version(node) >= _SINCE_REGION else 1
    shapes = {
        place: facts.shape(value) for place, value in enumerate(node.inputs) if place >= first and value is not None
    }
    given = {place: shape for place, shape in shapes.items() if shape != (0,)}
    known = "axes" in node.attributes or all(shape == (rank,) for shape in given.values())
    return list(given) if known else None
