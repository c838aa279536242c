"""Layout of quantised operators: all axes are free if scale and zero point are per tensor.

If the runtime makes pairs of signed numbers unsigned (`Quirk.TURNS_SIGNED_PAIRS`), signed pairs keep their axes. It
does not recognise a pair with a Transpose in between, and computes the operators beside it in float32, as other numbers
there are unsigned.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import attribute_value, parameter
from ortfuse.ir.traits import MICROSOFT, RESHAPES
from ortfuse.transforms.layout.layout_unit import Framed, Port, Unit, anything, layout
from ortfuse.transforms.layout.permutation import Order, unmoved
from ortfuse.transforms.layout.reordered_node import Draft
from ortfuse.transforms.layout.unit_ports import is_movable, is_single, keeps_last, operand_of, rank_of, results_of
from ortfuse.transforms.veto_edits_that_join_qdq_pairs import has_scales

PAIRS = (f"{MICROSOFT}.QLinearAdd", f"{MICROSOFT}.QLinearMul")
"""Operators on two quantised operands, each followed by its scale and zero point."""

_ROWS: Mapping[str, tuple[int, tuple[int, ...]]] = {
    f"{MICROSOFT}.DynamicQuantizeMatMul": (1, ()),
    f"{MICROSOFT}.MatMulIntegerToFloat": (1, (2, 4)),
    f"{MICROSOFT}.MatMulNBits": (1, ()),
    "MatMulInteger": (1, (2,)),
    "QLinearMatMul": (3, (1, 2, 6, 7)),
}
"""Positions: of the matrix, and of the scales and zero points of rows and result, which have to be single numbers."""


@layout(*(f"{domain}{name}" for domain in ("", f"{MICROSOFT}.") for name in ("QuantizeLinear", "DequantizeLinear")))
def conversion(node: ir.Node, facts: Facts) -> Unit | None:
    """QuantizeLinear and DequantizeLinear of activations: one scale, or one for each element of an axis.

    Operators between a pair and another of other scales stay there (`ortfuse.transforms.veto_edits_that_join_qdq_pairs`).
    """
    value, rank, axis = node.inputs[0], rank_of(node.inputs[0], facts), parameter(node, "axis", facts)
    if value is None or not is_movable(value, facts) or attribute_value(node, "block_size", facts):
        return None
    if has_scales(node, facts, RESHAPES | {"Transpose"}):
        return None
    ports = (Port(value, 0, False, unmoved(rank)), *results_of(node, unmoved(rank)))
    if all(is_single(value, facts) for value in node.inputs[1:]):
        return Framed(node, ports, rank)
    if not isinstance(axis, int) or not 0 <= axis < rank or any(rank_of(value, facts) > 1 for value in node.inputs[1:]):
        return None
    return Framed(node, ports, rank, anything, lambda draft, order: draft.attribute("axis", order.index(axis)))


@layout(*_ROWS)
def rows(node: ir.Node, facts: Facts) -> Unit | None:
    """A product with a matrix: all axes but the last are rows."""
    position, single = _ROWS[f"{node.domain}.{node.op_type}" if node.domain else node.op_type]
    rank = rank_of(node.inputs[0], facts)
    if node.op_type != "MatMulNBits" and facts.rank(node.inputs[position]) != 2:
        return None
    if not all(is_single(value, facts) for place, value in enumerate(node.inputs) if place in single):
        return None
    return product_of_rows(node, rank, facts)


def product_of_rows(node: ir.Node, rank: int, facts: Facts) -> Unit | None:
    """A unit whose first operand and result have rows of numbers as their last axes."""
    first = operand_of(node, 0, range(rank))
    if first is None or rank < 2 or facts.rank(node.outputs[0]) != rank:
        return None
    return Framed(node, (first, *results_of(node, range(rank))), rank, keeps_last(rank))


@layout(f"{MICROSOFT}.QLinearConcat")
def joined(node: ir.Node, facts: Facts) -> Unit | None:
    """QLinearConcat: behind scale and zero point of the result, each part with its own."""
    data = range(2, len(node.inputs), 3)
    rank, axis = rank_of(node.outputs[0], facts), attribute_value(node, "axis", facts)
    if not isinstance(axis, int) or any(facts.rank(node.inputs[place]) != rank for place in data):
        return None
    whole = axis + rank if axis < 0 else axis
    constant = [place for place in data if not is_movable(node.inputs[place], facts)]
    ports = [port for place in data if place not in constant and (port := operand_of(node, place, range(rank)))]

    def write(draft: Draft, order: Order) -> None:
        for place in constant:
            draft.move_constant(place, order, whole=True)
        draft.attribute("axis", order.index(whole))

    return Framed(node, (*ports, *results_of(node, range(rank))), rank, anything, write) if ports else None
