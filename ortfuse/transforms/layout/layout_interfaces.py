"""Layout interface of each operator: whether its axes may be permuted, and how it is then rewritten.

Operators that are not here fix the order of their operands and results: attention, recurrent layers, and whatever is not known.
So do nodes whose axes are not constant, and results that are left out in the middle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import UNKNOWN, attribute_value, parameter
from ortfuse.ir.operator_registry import key_of
from ortfuse.ir.traits import (
    ALONG_AXIS,
    BROADCASTS,
    ELEMENTWISE,
    IN_PLACE,
    MATRICES,
    MICROSOFT,
    PARAMETER_INPUTS,
    REDUCES,
    TRAILING,
    OperatorSet,
    has,
    operator_name,
)
from ortfuse.transforms.layout import (
    einsum,
    flattened_matmul,
    gather_nd_and_grid_sample,
    image_operators,
    matmul,
    quantized,
    reshape,
    special_axis_operators,
)
from ortfuse.transforms.layout.count_transposed_elements import typical_elements
from ortfuse.transforms.layout.layout_unit import LAYOUTS, Framed, Interface, Unit, layout
from ortfuse.transforms.layout.permutation import Order
from ortfuse.transforms.layout.reordered_node import Draft
from ortfuse.transforms.layout.unit_ports import is_movable, is_single, keeps_last, operand_of, rank_of, results_of

_SINCE_REPEATS = 6
"""The opset from which on Tile has repetitions for each axis."""

_SINCE_AXES = 13
"""The opset from which on Softmax, LogSoftmax and Hardmax work along one axis; before, on all axes from one on."""


__all__ = [
    "einsum",
    "flattened_matmul",
    "gather_nd_and_grid_sample",
    "image_operators",
    "is_movable_operator",
    "matmul",
    "quantized",
    "reshape",
    "special_axis_operators",
    "units_of",
]


def units_of(node: ir.Node, facts: Facts) -> list[Unit]:
    """The units that a node consists of; none if it fixes the order of its operands and results."""
    kind = LAYOUTS.of(node) or next((make for trait, make in _BY_TRAIT if has(node, trait)), None)
    if kind is None or not node.inputs or any(attribute.is_ref() for attribute in node.attributes.values()):
        return []
    ranks = [facts.rank(value) for value in (*node.inputs, *node.outputs) if value is not None and value.name != ""]
    if None in ranks:
        return []
    found = kind(node, facts)
    if found is None:
        return []
    return list(found) if isinstance(found, Sequence) else [found]


@layout(f"{MICROSOFT}.QLinearLeakyRelu", f"{MICROSOFT}.QLinearSigmoid")
def _elementwise(node: ir.Node, facts: Facts) -> Unit | None:
    """One operand; the others are single numbers, or a bias for the last axis."""
    rank = rank_of(node.inputs[0], facts)
    others = [value for value in node.inputs[1:] if not is_single(value, facts)]
    biased = bool(others) and node.domain != "" and all(rank_of(value, facts) == 1 for value in others)
    if (others and not biased and node.op_type != "CastLike") or not is_movable(node.inputs[0], facts):
        return None
    operand = operand_of(node, 0, range(rank))
    assert operand is not None
    ports = (operand, *results_of(node, range(rank)))
    return Framed(node, ports, rank, keeps_last(rank)) if biased else Framed(node, ports, rank)


@layout(*quantized.PAIRS)
def _broadcast(node: ir.Node, facts: Facts) -> Unit | None:
    rank = rank_of(node.outputs[0], facts)
    if "axis" in node.attributes or "broadcast" in node.attributes:
        return None  # as before opset 7
    data = (0, 3) if operator_name(node) in quantized.PAIRS else range(len(node.inputs))
    if not all(index in data or is_single(value, facts) for index, value in enumerate(node.inputs)):
        return None
    moved = [index for index in data if is_movable(node.inputs[index], facts)]
    fixed = [index for index in data if node.inputs[index] is not None and index not in moved]
    ports = []
    for index in moved:
        own = rank_of(node.inputs[index], facts)
        port = operand_of(node, index, range(rank - own, rank))
        assert port is not None
        ports.append(port)
    if not ports or any(facts.dtype(node.inputs[index]) == ir.DataType.STRING for index in fixed):
        return None
    whole = all(len(port.axes) < rank for port in ports)

    def write(draft: Draft, order: Order) -> None:
        for index in fixed:
            draft.move_constant(index, order, whole=whole)

    # One operand has all axes, so that the result does not lose any.
    if whole and not any(rank_of(node.inputs[index], facts) == rank for index in fixed):
        return None
    return Framed(node, (*ports, *results_of(node, range(rank))), rank, rewrite=write, aligns=True)


def _reduction(node: ir.Node, facts: Facts) -> Unit | None:
    rank = rank_of(node.inputs[0], facts)
    axes, keeps = parameter(node, "axes", facts), attribute_value(node, "keepdims", facts)
    if keeps not in (0, 1) or (attribute_value(node, "noop_with_empty_axes", facts) and not axes):
        return None
    whole = axes is None or (isinstance(axes, tuple | list) and not axes)
    if not whole and not _are_axes(axes, rank):
        return None
    reduced = tuple(range(rank)) if whole else tuple(axes)
    kept = tuple(range(rank)) if keeps else tuple(axis for axis in range(rank) if axis not in reduced)

    def write(draft: Draft, order: Order) -> None:
        if not whole:
            draft.parameter("axes", sorted(order.index(axis) for axis in reduced))

    operand = operand_of(node, 0, range(rank))
    assert operand is not None
    return Framed(node, (operand, *results_of(node, kept)), rank, rewrite=write)


def _are_axes(axes: object, rank: int) -> bool:
    known = isinstance(axes, tuple | list) and all(isinstance(axis, int) and 0 <= axis < rank for axis in axes)
    return known and len(set(axes)) == len(axes)  # type: ignore[arg-type, call-overload]


def _along_axis(node: ir.Node, facts: Facts) -> Unit | None:
    """One axis is special: all operands and results have the same axes, but for one that ArgMax drops."""
    parameters = set(PARAMETER_INPUTS.get(node.op_type, {}).values())
    data = [index for index, value in enumerate(node.inputs) if value is not None and index not in parameters]
    rank, axis = rank_of(node.inputs[0], facts), parameter(node, "axis", facts)
    if not isinstance(axis, int) or not 0 <= axis < rank:
        return None
    if any(rank_of(node.inputs[index], facts) != rank for index in data):
        return None
    moved = [index for index in data if is_movable(node.inputs[index], facts)]
    keeps = attribute_value(node, "keepdims", facts)
    if not moved or keeps not in (None, 0, 1):
        return None
    kept = [one for one in range(rank) if one != axis or keeps != 0]
    normalises = node.op_type in ("Softmax", "LogSoftmax", "Hardmax")
    old = normalises and facts.version(node) < _SINCE_AXES
    if old and axis != rank - 1:
        return None

    def write(draft: Draft, order: Order) -> None:
        for index in data:
            if index not in moved:
                draft.move_constant(index, order, whole=True)
        draft.parameter("axis", order.index(axis))

    elements = typical_elements(node.inputs[0], facts)

    def price(order: Order) -> int:
        # The kernels transpose what they normalise along any axis but the last, and the result back.
        return 2 * elements if normalises and order[-1] != axis else 0

    ports = [port for index in moved if (port := operand_of(node, index, range(rank))) is not None]
    allows = keeps_last(rank) if old else (lambda order: True)
    return Framed(node, (*ports, *results_of(node, kept)), rank, allows, write, price)


def _trailing(node: ir.Node, facts: Facts) -> Unit | None:
    """All axes from one on are normalised together."""
    rank, axis = rank_of(node.inputs[0], facts), parameter(node, "axis", facts)
    if not isinstance(axis, int) or not 0 <= axis < rank or sum(output.name != "" for output in node.outputs) > 1:
        return None
    operand = operand_of(node, 0, range(rank))
    assert operand is not None
    last = tuple(range(axis, rank))
    ports = (operand, *results_of(node, range(rank)))
    return Framed(node, ports, rank, lambda order: order[axis:] == last)


@layout("Slice")
def _slice(node: ir.Node, facts: Facts) -> Unit | None:
    rank, axes = rank_of(node.inputs[0], facts), parameter(node, "axes", facts)
    if axes is None and len(node.inputs) > 1:
        shape = facts.shape(node.inputs[1])
        axes = tuple(range(shape[0])) if shape and isinstance(shape[0], int) else UNKNOWN
    elif axes is None:
        axes = tuple(range(len(parameter(node, "starts", facts))))
    if not _are_axes(axes, rank):
        return None

    def write(draft: Draft, order: Order) -> None:
        places = [order.index(axis) for axis in axes]
        if len(node.inputs) > 1:
            draft.integers(3, places, like=1)
        else:
            draft.attribute("axes", places)

    return _one_to_one(node, rank, write)


def _one_to_one(node: ir.Node, rank: int, write: Callable[[Draft, Order], None]) -> Unit:
    operand = operand_of(node, 0, range(rank))
    assert operand is not None
    return Framed(node, (operand, *results_of(node, range(rank))), rank, rewrite=write)


@layout("Pad")
def _pad(node: ir.Node, facts: Facts) -> Unit | None:
    rank = rank_of(node.inputs[0], facts)
    chosen = node.inputs[3] if len(node.inputs) > 3 else None
    if chosen is not None:
        known = facts.ints(chosen)
        axes = [axis + rank if isinstance(axis, int) and axis < 0 else axis for axis in known.elements] if known else []
        if not axes or not _are_axes(axes, rank):
            return None
        return _one_to_one(node, rank, lambda draft, order: draft.integers(3, [order.index(axis) for axis in axes]))
    pads = parameter(node, "pads", facts)
    if not isinstance(pads, tuple | list) or len(pads) != 2 * rank or not all(isinstance(pad, int) for pad in pads):
        if len(node.inputs) < 2 or facts.shape(node.inputs[1]) != (2 * rank,):
            return None
        return _one_to_one(
            node, rank, lambda draft, order: draft.permute(1, (*order, *(axis + rank for axis in order)))
        )

    def write(draft: Draft, order: Order) -> None:
        draft.parameter("pads", [pads[axis + side] for side in (0, rank) for axis in order])

    return _one_to_one(node, rank, write)


@layout("Tile")
def _tile(node: ir.Node, facts: Facts) -> Unit | None:
    rank, repeats = rank_of(node.inputs[0], facts), parameter(node, "repeats", facts)
    if not isinstance(repeats, tuple | list) or len(repeats) != rank or not _are_ints(repeats):
        if facts.version(node) < _SINCE_REPEATS or facts.shape(node.inputs[1]) != (rank,):
            return None
        return _one_to_one(node, rank, lambda draft, order: draft.permute(1, order))
    return _one_to_one(node, rank, lambda draft, order: draft.parameter("repeats", [repeats[axis] for axis in order]))


def _are_ints(numbers: Iterable[object]) -> bool:
    return all(isinstance(number, int) for number in numbers)


@layout("Expand")
def _expand(node: ir.Node, facts: Facts) -> Unit | None:
    rank, own, shape = rank_of(node.outputs[0], facts), rank_of(node.inputs[0], facts), facts.const(node.inputs[1])
    if shape is None and facts.shape(node.inputs[1]) != (rank,):
        return None
    operand = operand_of(node, 0, range(rank - own, rank))
    assert operand is not None
    ports = (operand, *results_of(node, range(rank)))

    def write(draft: Draft, order: Order) -> None:
        if shape is None:
            draft.permute(1, order)
        else:
            full = [1] * (rank - len(shape)) + shape.tolist()
            draft.parameter("shape", [full[axis] for axis in order])

    return Framed(node, ports, rank, rewrite=write, aligns=True)


@layout("Squeeze", "Unsqueeze")
def _squeeze(node: ir.Node, facts: Facts) -> Unit | None:
    """Squeeze and Unsqueeze: the axes of the side that has more."""
    more = node.inputs[0] if node.op_type == "Squeeze" else node.outputs[0]
    rank, axes = rank_of(more, facts), parameter(node, "axes", facts)
    if not _are_axes(axes, rank):
        return None
    kept = [axis for axis in range(rank) if axis not in axes]
    wide, narrow = range(rank), kept
    operand = operand_of(node, 0, wide if node.op_type == "Squeeze" else narrow)
    assert operand is not None
    ports = (operand, *results_of(node, narrow if node.op_type == "Squeeze" else wide))
    return Framed(
        node,
        ports,
        rank,
        rewrite=lambda draft, order: draft.parameter("axes", sorted(order.index(axis) for axis in axes)),
    )


@layout("Gather")
def _gather(node: ir.Node, facts: Facts) -> Unit | None:
    rank, axis, numbers = rank_of(node.inputs[0], facts), parameter(node, "axis", facts), rank_of(node.inputs[1], facts)
    if not isinstance(axis, int) or not 0 <= axis < rank:
        return None
    if numbers > 1 or not is_movable(node.inputs[0], facts):
        return _numbered(node, axis, numbers, rank_of(node.outputs[0], facts))
    kept = [one for one in range(rank) if one != axis or numbers == 1]
    operand = operand_of(node, 0, range(rank))
    assert operand is not None
    return Framed(
        node,
        (operand, *results_of(node, kept)),
        rank,
        rewrite=lambda draft, order: draft.attribute("axis", order.index(axis)),
    )


def _numbered(node: ir.Node, axis: int, numbers: int, rank: int) -> Unit | None:
    """The numbers of elements, whose axes stand together in the result."""
    first, behind = tuple(range(axis)), tuple(range(axis + numbers, rank))
    operand = operand_of(node, 1, range(axis, axis + numbers))
    if operand is None or not numbers:
        return None

    def complete(part: Sequence[int], whole: int) -> Order:
        return tuple(part) if len(part) == whole else (*first, *part, *behind)

    def allows(order: Order) -> bool:
        return order[:axis] == first and order[axis + numbers :] == behind

    return Framed(node, (operand, *results_of(node, range(rank))), rank, allows, complete=complete)


@layout(f"{MICROSOFT}.FusedMatMul", f"{MICROSOFT}.TransposeMatMul")
def _fused_product(node: ir.Node, facts: Facts) -> Unit | None:
    """FusedMatMul with a plain matrix, nothing of which is transposed."""
    turned = any(attribute_value(node, name, facts) for name in ("transA", "transB", "transBatchA", "transBatchB"))
    rank = rank_of(node.inputs[0], facts)
    return None if turned or rank_of(node.inputs[1], facts) != 2 else quantized.product_of_rows(node, rank, facts)


@layout(f"{MICROSOFT}.SkipLayerNormalization", f"{MICROSOFT}.SkipSimplifiedLayerNormalization")
def _skip(node: ir.Node, facts: Facts) -> Unit | None:
    """The sum of two tensors of equal shapes, normalised over the last axis; weights and bias are for that one."""
    rank, (first, second) = rank_of(node.inputs[0], facts), node.inputs[:2]
    if facts.shape(first) != facts.shape(second) or any(output.name != "" for output in node.outputs[1:3]):
        return None
    ports = [port for index in (0, 1) if (port := operand_of(node, index, range(rank))) is not None]
    if not all(is_movable(port.value, facts) for port in ports):
        return None
    return Framed(node, (*ports, *results_of(node, range(rank))), rank, keeps_last(rank))


_BY_TRAIT: Sequence[tuple[OperatorSet, Interface]] = (
    (ELEMENTWISE | IN_PLACE, _elementwise),
    (BROADCASTS, _broadcast),
    (REDUCES, _reduction),
    (ALONG_AXIS, _along_axis),
    (TRAILING, _trailing),
    (MATRICES, special_axis_operators.matrices),
)
"""The layout interfaces of operators that have none of their own, by trait; the first one counts."""


def is_movable_operator(operator: str) -> bool:
    """Return whether the axes of an operator can be moved, as far as a node's attributes and operands allow it."""
    return key_of(operator) in LAYOUTS or any(operator in trait for trait, _ in _BY_TRAIT)
