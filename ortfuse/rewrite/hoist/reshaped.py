"""The facet `reshaped` of operators: what a node becomes if its result is made in another shape, element by element the same.

    reshape(x + y) = reshape(x) + reshape(y)         unsqueeze(sum(x)) = sum(x, keepdims=1)
    reshape(softmax(x)) = softmax(reshape(x))        reshape(concat(x, y)) = concat(reshape(x), reshape(y))

Most operators have it by their traits: elementwise and broadcasting ones, reductions, and those that work along one axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import attribute_value, parameter
from ortfuse.ir.dims import DimLike
from ortfuse.ir.operator_registry import Facet
from ortfuse.ir.traits import BROADCASTS, ELEMENTWISE, REDUCES, TRAILING, has
from ortfuse.rewrite.hoist.axis_groups import AxisGroup, Shape, axis_groups, gaps

_BY_AXIS = 13
"""The opset from which on Softmax works along one axis; before, on all from one on."""

_BROADCASTS_BY_SHAPE = 7
"""The opset from which on operands are broadcast by their shapes; before, an attribute says along which axis."""


_FIRST_PLACE = 3
"""The fewest axes of a batch of channels with places."""

_FAST_AXES = 4
"""The most axes that a Transpose gets: runtimes transpose more of them several times as slowly."""

_PICKS = frozenset({"ReduceMax", "ReduceMin"})
"""Reductions with the same bits in any order: the runtime sums along two axes in another order than along one."""


@dataclass(frozen=True)
class Reshaped:
    """A node that makes its result in another shape.

    Attributes:
        operands: The shape that each operand is needed in; `None` if it stays as it is.
        broadcast: For each operand, the shape that it is to be broadcast to before, if it is a constant.
        attributes: The attributes and parameters that change.
    """

    operands: Sequence[Shape | None]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    broadcast: Mapping[int, Shape] = field(default_factory=dict)


Reshaping = Callable[[ir.Node, Shape, Facts], "Reshaped | None"]
"""Returns what a node becomes whose result is to have a shape; `None` if no such node is known."""

RESHAPED: Facet[Reshaping] = Facet("reshaped", "what a node becomes if its result is made in another shape")

reshapes = RESHAPED.register
"""Register the decorated function for operators whose traits do not tell how they are reshaped."""


def reshaping_of(node: ir.Node) -> Reshaping | None:
    """Return how a node makes its result in another shape; `None` if that is not known of its operator."""
    return RESHAPED.of(node) or next((made for trait, made in _BY_TRAIT if has(node, trait)), None)


def reshaped(node: ir.Node, shape: Shape, facts: Facts) -> Reshaped | None:
    """Return what a node with one output becomes if its result is to have this shape; `None` if that is not known."""
    function = reshaping_of(node)
    fixed = len(node.outputs) != 1 or any(attribute.is_ref() for attribute in node.attributes.values())
    return None if fixed or function is None else function(node, shape, facts)


def _is_single(value: ir.Value | None, facts: Facts) -> bool:
    known = facts.shape(value)
    return value is None or (known is not None and all(dim == 1 for dim in known) and len(known) <= 1)


def _elementwise(node: ir.Node, shape: Shape, facts: Facts) -> Reshaped | None:
    """The first operand has the shape of the result; others are single numbers."""
    if node.op_type != "CastLike" and not all(_is_single(value, facts) for value in node.inputs[1:]):
        return None
    return Reshaped((shape, *(None for _ in node.inputs[1:])))


def _broadcast(node: ir.Node, shape: Shape, facts: Facts) -> Reshaped | None:
    """Each operand is reshaped as far as it is not broadcast."""
    if not node.domain and facts.version(node) < _BROADCASTS_BY_SHAPE and len(node.inputs) == 2:
        return None
    return broadcast_operands(node, range(len(node.inputs)), facts.shape(node.outputs[0]), shape, facts)


def broadcast_operands(
    node: ir.Node, operands: Sequence[int], before: Shape | None, after: Shape, facts: Facts
) -> Reshaped | None:
    """Return the shapes of operands that are broadcast to one shape, if they are to be broadcast to another one.

    One operand gets all axes. Others keep the shape that they have if only leading axes of size 1 tell the difference.
    """
    given = {index: facts.shape(node.inputs[index]) for index in operands}
    known = {index: shape for index, shape in given.items() if shape is not None}
    groups = None if before is None or len(known) < len(given) else axis_groups(before, after)
    if before is None or groups is None:
        return None
    wanted: dict[int, Shape] = {}
    spread: dict[int, Shape] = {}
    for index, shape in known.items():
        made = _broadcast_in(shape, before, after, groups)
        if made is None:
            return None
        wanted[index], whole = made
        if whole is not None:
            spread[index] = whole
    computed = [index for index in operands if not facts.is_const(node.inputs[index])] or list(operands)
    main = next((index for index in computed if known[index] == before), None)
    main = max(computed, key=lambda index: len(known[index])) if main is None else main
    shapes: list[Shape | None] = [None] * len(node.inputs)
    for index in operands:
        fits = _trimmed(known[index]) == _trimmed(wanted[index]) and len(known[index]) <= len(after)
        if node.inputs[index] is node.inputs[main]:
            shapes[index] = wanted[index]
        elif index in spread or not fits:
            shapes[index] = _trimmed(wanted[index])
    return Reshaped(shapes, broadcast=spread)


def _broadcast_in(
    given: Shape, before: Shape, after: Shape, groups: Sequence[AxisGroup]
) -> tuple[Shape, Shape | None] | None:
    """The shape of an operand that is broadcast to `before`, so that it is broadcast to `after`.

    The second is the shape that it has to be broadcast to before: it varies along some axes of a group alone. `None` if it is
    not broadcast to `before`.
    """
    if len(given) > len(before):
        return None
    full = (*(1,) * (len(before) - len(given)), *given)
    if any(size not in (1, whole) for size, whole in zip(full, before, strict=True)):
        return None
    made: list[DimLike] = [1] * len(after)
    whole: list[DimLike] = [1] * len(before)
    apart = False
    for group in groups:
        varies = [full[axis] != 1 for axis in group.before]
        if any(varies):
            apart = apart or not all(varies)
            for axis in group.after:
                made[axis] = after[axis]
            for axis in group.before:
                whole[axis] = before[axis]
    return tuple(made), tuple(whole) if apart else None


def _trimmed(shape: Shape) -> Shape:
    """A shape without its leading axes of size 1."""
    first = next((axis for axis, dim in enumerate(shape) if dim != 1), len(shape))
    return shape[first:]


def reduced_axes(node: ir.Node, facts: Facts) -> tuple[int, ...] | None:
    """Return the axes that a reduction reduces, in ascending order; `None` if they are not known."""
    rank, axes = facts.rank(node.inputs[0]), parameter(node, "axes", facts)
    if rank is None or (axes is not None and not isinstance(axes, tuple | list)):
        return None
    found = tuple(range(rank)) if axes is None else tuple(axes)
    known = all(isinstance(axis, int) and 0 <= axis < rank for axis in found) and len(set(found)) == len(found)
    return found if known and found else None


def _reduction(node: ir.Node, shape: Shape, facts: Facts) -> Reshaped | None:
    """The reduced axes become axes of size 1 that the shape has at their place, or are left out."""
    before, reduced = facts.shape(node.inputs[0]), reduced_axes(node, facts)
    if before is None or reduced is None:
        return None
    for keepdims in (1, 0):
        if shape == reduced_shape(before, reduced, keepdims):
            return _reduced(node, before, reduced, keepdims)
    if node.op_type not in _PICKS:
        return None
    kept = [axis for axis in range(len(before)) if axis not in reduced]
    groups = axis_groups([before[axis] for axis in kept], shape) or []
    held = [tuple(kept[axis] for axis in group.before) for group in groups]
    apart = any(axes[0] < axis < axes[-1] for axes in held for axis in reduced)
    if not groups or apart or any(not _are_neighbours(group.after) for group in groups):
        return None
    waiting = [sum(axes[-1] < axis for axes in held) for axis in reduced]
    units = [len(axes) for axes in gaps(groups, len(shape), after=True)]
    keepdims = int(all(waiting.count(number) <= count for number, count in enumerate(units)))
    operand: list[DimLike] = []
    axes: list[int] = []
    for number, count in enumerate(units):
        here = [axis for axis, place in zip(reduced, waiting, strict=True) if place == number]
        axes += range(len(operand), len(operand) + len(here))
        operand += [before[axis] for axis in here]
        operand += [1] * (count - len(here) if keepdims else count)
        operand += [shape[axis] for axis in groups[number].after] if number < len(groups) else []
    return _reduced(node, tuple(operand), axes, keepdims)


def reduced_shape(before: Shape, reduced: Sequence[int], keepdims: int) -> Shape:
    """Return the shape of the result of a reduction over these axes."""
    dims = [(1 if axis in reduced else dim) for axis, dim in enumerate(before) if keepdims or axis not in reduced]
    return tuple(dims)


def _reduced(node: ir.Node, operand: Shape, axes: Sequence[int], keepdims: int) -> Reshaped:
    """The same reduction over these axes of its operand; all of them are written as none."""
    given = None if len(axes) == len(operand) else list(axes)
    return Reshaped((operand,), {"axes": given, "keepdims": keepdims})


def _are_neighbours(axes: Sequence[int]) -> bool:
    return list(axes) == list(range(axes[0], axes[-1] + 1))


def _along(node: ir.Node, shape: Shape, facts: Facts) -> Reshaped | None:
    """The axis along which it works stays one axis, and the last one before opset 13."""
    before = facts.shape(node.outputs[0])
    axis = parameter(node, "axis", facts)
    if not before or not isinstance(axis, int):
        return None
    place = _place_of(axis % len(before), before, shape)
    is_last = axis % len(before) == len(before) - 1 and place == len(shape) - 1
    if place is None or not (is_last or node.domain or facts.version(node) >= _BY_AXIS):
        return None
    return Reshaped((shape,), {"axis": place})


def _place_of(axis: int, before: Shape, after: Shape) -> int | None:
    """The axis that an axis becomes; `None` if it is of size 1, or becomes part of others."""
    groups = axis_groups(before, after) or ()
    return next((group.after[0] for group in groups if group.is_one_axis and group.before[0] == axis), None)


reshapes("Softmax", "LogSoftmax", "Hardmax")(_along)


@reshapes("PRelu")
def _prelu(node: ir.Node, shape: Shape, facts: Facts) -> Reshaped | None:
    """The slope is broadcast to the operand, and not the operand to the slope."""
    is_whole = facts.shape(node.inputs[0]) is not None and not facts.is_const(node.inputs[0])
    return _broadcast(node, shape, facts) if is_whole else None


@reshapes("LpNormalization")
def _lp_normalization(node: ir.Node, shape: Shape, facts: Facts) -> Reshaped | None:
    before, axis = facts.shape(node.outputs[0]), attribute_value(node, "axis", facts)
    if not before or not isinstance(axis, int):
        return None
    place = _place_of(axis % len(before), before, shape)
    return None if place is None else Reshaped((shape,), {"axis": place})


@reshapes("Concat")
def _concat(node: ir.Node, shape: Shape, facts: Facts) -> Reshaped | None:
    """Each operand has the shape but for the axis along which they are joined."""
    before, axis = facts.shape(node.outputs[0]), attribute_value(node, "axis", facts)
    shapes = [facts.shape(value) for value in node.inputs]
    if not before or not isinstance(axis, int) or None in shapes:
        return None
    axis %= len(before)
    place = _place_of(axis, before, shape)
    # The runtime leaves out operands without elements, whatever their other sizes are.
    alike = all(known is not None and _all_but(axis, known) == _all_but(axis, before) for known in shapes)
    if place is None or not alike:
        return None
    operands = tuple((*shape[:place], known[axis], *shape[place + 1 :]) for known in shapes if known is not None)
    return Reshaped(operands, {"axis": place})


@reshapes("MatMul")
def _matmul(node: ir.Node, shape: Shape, facts: Facts) -> Reshaped | None:
    """The matrices stay what they are: the axes before them are broadcast."""
    before, operands = facts.shape(node.outputs[0]), [facts.shape(value) for value in node.inputs]
    known = [operand for operand in operands if operand is not None and len(operand) >= 2]
    if before is None or len(known) < 2 or len(shape) < 2 or shape[-2:] != before[-2:]:
        return None
    groups = axis_groups(before[:-2], shape[:-2])
    if groups is None:
        return None
    made = [_broadcast_in(operand[:-2], before[:-2], shape[:-2], groups) for operand in known]
    wanted = [(*batch[0], *operand[-2:]) for batch, operand in zip(made, known, strict=True) if batch and not batch[1]]
    whole = [number for number, operand in enumerate(known) if operand[:-2] == before[:-2]]
    if len(wanted) < 2 or not whole:
        return None
    return Reshaped([one if number == whole[0] or one != operand else None
                     for number, (one, operand) in enumerate(zip(map(tuple, wanted), known, strict=True))])  # fmt: skip


@reshapes("Transpose")
def _transpose(node: ir.Node, shape: Shape, facts: Facts) -> Reshaped | None:
    """Axes that are merged or split lie side by side in the operand, too."""
    before, perm = facts.shape(node.outputs[0]), parameter(node, "perm", facts)
    groups = None if before is None or not isinstance(perm, tuple | list) else axis_groups(before, shape)
    if before is None or groups is None or len(shape) > max(len(before), _FAST_AXES):
        return None
    sources = [[perm[axis] for axis in group.before] for group in groups]
    if not all(_are_neighbours(axes) for axes in (*sources, *(group.after for group in groups))):
        return None
    units = [[axis] for axis, dim in enumerate(shape) if dim == 1]
    order = [list(groups[number].after) for number in sorted(range(len(groups)), key=lambda number: sources[number])]
    axes = [axis for part in (*units, *order) for axis in part]
    return Reshaped([tuple(shape[axis] for axis in axes)], {"perm": [axes.index(axis) for axis in range(len(axes))]})


@reshapes("Gather")
def _gather(node: ir.Node, shape: Shape, facts: Facts) -> Reshaped | None:
    """The indices get other axes; those of the data stay what they are."""
    data, axis = facts.shape(node.inputs[0]), attribute_value(node, "axis", facts)
    if not data or not isinstance(axis, int) or facts.is_const(node.inputs[1]):
        return None
    axis %= len(data)
    rows = data[axis + 1 :]
    end = len(shape) - len(rows)
    if end < axis or shape[:axis] != data[:axis] or shape[end:] != rows:
        return None
    return Reshaped((None, shape[axis:end]))


@reshapes("BatchNormalization", "InstanceNormalization", "GroupNormalization")
def _by_channel(node: ir.Node, shape: Shape, facts: Facts) -> Reshaped | None:
    """The batch and the channels stay the first two axes; those behind them are normalised alike, whatever axes they are."""
    before, training = facts.shape(node.outputs[0]), attribute_value(node, "training_mode", facts)
    if node.domain or training not in (None, 0) or before is None or min(len(before), len(shape)) < _FIRST_PLACE:
        return None
    return Reshaped((shape, *(None for _ in node.inputs[1:]))) if before[:2] == shape[:2] else None


def _all_but(axis: int, shape: Shape) -> Shape:
    return (*shape[:axis], *shape[axis + 1 :])


def _trailing(node: ir.Node, shape: Shape, facts: Facts) -> Reshaped | None:
    """The last axes, which are normalised together, stay what they are."""
    before, axis = facts.shape(node.outputs[0]), attribute_value(node, "axis", facts)
    if before is None or not isinstance(axis, int) or node.domain:
        return None
    count = len(before) - axis if axis >= 0 else -axis
    if not 0 < count <= min(len(before), len(shape)) or before[-count:] != shape[-count:]:
        return None
    if axis_groups(before[:-count], shape[:-count]) is None:
        return None
    return Reshaped((shape, *(None for _ in node.inputs[1:])), {"axis": -count})


_BY_TRAIT = ((ELEMENTWISE, _elementwise), (BROADCASTS, _broadcast), (REDUCES, _reduction), (TRAILING, _trailing))
