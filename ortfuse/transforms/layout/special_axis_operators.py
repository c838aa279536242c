"""Layout of operators with axes of special meaning: Shape, Compress, ReverseSequence, OneHot, Det and others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import attribute_value
from ortfuse.transforms.layout.layout_unit import Framed, Port, Unit, anything, layout, nothing
from ortfuse.transforms.layout.permutation import Order, inverse, unmoved
from ortfuse.transforms.layout.reordered_node import Draft


def _operand(node: ir.Node, facts: Facts, position: int = 0) -> tuple[ir.Value, int] | None:
    """An operand that is not constant, with its rank."""
    value = node.inputs[position] if position < len(node.inputs) else None
    rank = facts.rank(value)
    return None if value is None or rank is None or facts.is_const(value) else (value, rank)


def _alike(
    node: ir.Node, facts: Facts, allows: Callable[[Order], bool], write: Callable[[Draft, Order], None]
) -> Unit | None:
    """A unit whose first result has the axes of its first operand."""
    found = _operand(node, facts)
    if found is None:
        return None
    value, rank = found
    ports = (Port(value, 0, False, unmoved(rank)), Port(node.outputs[0], 0, True, unmoved(rank)))
    return Framed(node, ports, rank, allows, write)


@layout("Shape", "Size")
def shape(node: ir.Node, facts: Facts) -> Unit | None:
    """The shape of what lies in another order is that shape, permuted; how many elements there are does not change."""
    found = _operand(node, facts)
    if found is None:
        return None
    value, rank = found
    port = Port(value, 0, False, unmoved(rank))
    if node.op_type == "Size":
        return Framed(node, (port,), rank)
    first, last = attribute_value(node, "start", facts), attribute_value(node, "end", facts)

    def write(draft: Draft, order: Order) -> None:
        whole = ir.node("Shape", [draft.operands[0]])
        draft.before.append(whole)
        draft.becomes("Gather")
        draft.operands = [whole.outputs[0], draft.ints(inverse(order)[first:last])]

    return Framed(node, (port,), rank, anything, write)


@layout("Compress")
def compress(node: ir.Node, facts: Facts) -> Unit | None:
    """Elements of one axis that a condition picks."""
    axis = _axis(node, facts)
    if axis is None:
        return None
    return _alike(node, facts, anything, lambda draft, order: draft.attribute("axis", order.index(axis)))


def _axis(node: ir.Node, facts: Facts) -> int | None:
    """The axis of a node, counted from the front; `None` if it has none."""
    axis, rank = attribute_value(node, "axis", facts), facts.rank(node.inputs[0])
    if not isinstance(axis, int) or rank is None:
        return None
    return axis + rank if axis < 0 else axis


@layout("ReverseSequence")
def reverse_sequence(node: ir.Node, facts: Facts) -> Unit | None:
    """The first two axes are batch and time, in either order."""

    def write(draft: Draft, order: Order) -> None:
        for name in ("batch_axis", "time_axis"):
            draft.attribute(name, order.index(attribute_value(node, name, facts)))

    return _alike(node, facts, lambda order: {*order[:2]} == {0, 1}, write)


@layout("Det")
def determinant(node: ir.Node, facts: Facts) -> Unit | None:
    """One number for each matrix in the last two axes."""
    found = _operand(node, facts)
    if found is None:
        return None
    value, rank = found
    ports = (Port(value, 0, False, unmoved(rank)), Port(node.outputs[0], 0, True, unmoved(rank - 2)))
    return Framed(node, ports, rank, lambda order: order[-2:] == (rank - 2, rank - 1))


@layout("CenterCropPad")
def cropped(node: ir.Node, facts: Facts) -> Unit | None:
    """CenterCropPad: a size for each of some axes, or of all."""
    found, axes = _operand(node, facts), attribute_value(node, "axes", facts)
    if found is None:
        return None
    rank = found[1]
    cut = range(rank) if axes is None else [axis + rank if axis < 0 else axis for axis in axes]
    return _alike(
        node, facts, anything, lambda draft, order: draft.attribute("axes", [order.index(axis) for axis in cut])
    )


def matrices(node: ir.Node, facts: Facts) -> Unit | None:
    """The last two axes are rows and columns."""
    return _alike(node, facts, lambda order: order[-2:] == unmoved(len(order))[-2:], nothing)


@layout("MeanVarianceNormalization")
def mean_variance(node: ir.Node, facts: Facts) -> Unit | None:
    """Normalised over the same axes; the kernel takes only some sets of them."""
    axes = attribute_value(node, "axes", facts)
    if not isinstance(axes, Sequence) or any(axis < 0 for axis in axes):
        return None
    return _alike(node, facts, lambda order: {order.index(axis) for axis in axes} == {*axes}, nothing)


@layout("DynamicQuantizeLinear")
def dynamic_quantisation(node: ir.Node, facts: Facts) -> Unit | None:
    """One scale and zero point for all elements."""
    return _alike(node, facts, anything, nothing)


@layout("OneHot")
def one_hot(node: ir.Node, facts: Facts) -> Unit | None:
    """The axis that is inserted may stand anywhere."""
    found, axis = _operand(node, facts), attribute_value(node, "axis", facts)
    if found is None or not isinstance(axis, int):
        return None
    value, rank = found[0], found[1] + 1
    inserted = axis + rank if axis < 0 else axis
    kept = tuple(one for one in range(rank) if one != inserted)
    ports = (Port(value, 0, False, kept), Port(node.outputs[0], 0, True, unmoved(rank)))
    return Framed(node, ports, rank, anything, lambda draft, order: draft.attribute("axis", order.index(inserted)))
