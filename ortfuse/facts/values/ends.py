"""Between which sizes the numbers of a tensor lie, as far as that is seen from the nodes that count and move them.

The ranges of `ask` are of numbers. Positions lie between sizes: those of a Range from 0 to `past + 1` are at most `past`,
which tells that a single query sees all keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import onnx_ir as ir

from ortfuse.dims import DimLike, at_most, maximum, minimum
from ortfuse.facts.transfer.op import UnknownError
from ortfuse.facts.values.ask import NOT_KNOWN, Asking, Question, Values
from ortfuse.graph.traits import FILLS, JOINS, MOVES

_COUNTED = (ir.DataType.INT64, ir.DataType.INT32)


class Ends(NamedTuple):
    """No number is lower than `low` or higher than `high`. Where there are no numbers, `low` may be the larger one."""

    low: DimLike
    high: DimLike


class EndsOf(Question):
    """Between which sizes do the elements lie?"""

    def answer(self, value: ir.Value, values: Values) -> Ends | None:
        """The ends, `None` if they are not known."""
        fact = values.analysis.fact(value)
        if fact.dtype not in _COUNTED:
            return None
        known = [element for element in fact.integers() or () if element is not None]
        if known and len(known) == fact.size:
            return Ends(minimum(*known), maximum(*known))
        node = value.producer()
        function = None if node is None or node.domain else _ENDS.get(node.op_type)
        if function is None or node is None:
            return None
        try:
            return function(Asking(node, value, self, values))
        except NOT_KNOWN:
            return None


def _of(op: Asking, index: int) -> Ends:
    found: Ends | None = op.ask(op.operand(index))
    if found is None:
        raise UnknownError
    return found


def _counted(op: Asking) -> Ends:
    """From the start up to the last number before the limit, upwards."""
    start, limit, step = _of(op, 0), _of(op, 1), _of(op, 2)
    if not at_most(1, step.low):
        raise UnknownError
    return Ends(start.low, limit.high - 1)


def _moved(op: Asking) -> Ends:
    return _of(op, 0)


def _sum(op: Asking) -> Ends:
    first, second = _of(op, 0), _of(op, 1)
    return Ends(first.low + second.low, first.high + second.high)


def _difference(op: Asking) -> Ends:
    first, second = _of(op, 0), _of(op, 1)
    return Ends(first.low - second.high, first.high - second.low)


_ENDS: dict[str, Callable[[Asking], Ends]] = {
    **dict.fromkeys(MOVES - JOINS - FILLS, _moved),
    "Cast": _moved,
    "Range": _counted,
    "Add": _sum,
    "Sub": _difference,
}

ENDS = EndsOf()
