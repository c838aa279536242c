"""Operands and results of layout units as ports, and queries about operands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.transforms.layout.layout_unit import Port
from ortfuse.transforms.layout.permutation import Order


def operand_of(node: ir.Node, position: int, axes: Iterable[int]) -> Port | None:
    """An operand with axes of the unit; `None` if the node does not have it."""
    value = node.inputs[position] if position < len(node.inputs) else None
    return None if value is None else Port(value, position, False, tuple(axes))


def results_of(node: ir.Node, axes: Sequence[int]) -> list[Port]:
    """All results, with the same axes of the unit."""
    return [Port(value, index, True, tuple(axes)) for index, value in enumerate(node.outputs) if value.name != ""]


def is_movable(value: ir.Value | None, facts: Facts) -> bool:
    """Whether a Transpose of the value would be executed: it is not constant."""
    return value is not None and not facts.is_const(value)


def rank_of(value: ir.Value | None, facts: Facts) -> int:
    """The rank of a value whose rank is known."""
    rank = facts.rank(value)
    assert rank is not None
    return rank


def is_single(value: ir.Value | None, facts: Facts) -> bool:
    """Whether an operand is left out, or a single number of rank 0 or 1."""
    shape = facts.shape(value)
    return value is None or (shape is not None and all(size == 1 for size in shape) and len(shape) <= 1)


def keeps_last(rank: int) -> Callable[[Order], bool]:
    """Allow the orders in which the last axis stays the last."""
    return lambda order: order[-1] == rank - 1
