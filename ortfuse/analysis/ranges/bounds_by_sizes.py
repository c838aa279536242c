"""Bound the integers in a tensor by symbolic sizes, for example 0 <= index <= sequence - 1.

The ranges of `ask` are of numbers. Positions lie between sizes: those of a Range from 0 to `past + 1` are at most `past`,
which tells that a single query sees all keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import onnx_ir as ir

from ortfuse.analysis.ranges.queries import NOT_KNOWN, Asking, Question, Values
from ortfuse.analysis.transfer.transfer_function_registry import UnknownError
from ortfuse.ir.dims import DimLike, maximum, minimum
from ortfuse.ir.operator_registry import Facet

_LARGEST = 1 << 48
"""Numbers beyond this are not taken for sizes: sums of them may not fit into 64 bits."""


class Ends(NamedTuple):
    """No number is lower than `low` or higher than `high`. For an empty tensor, `low` may be the larger one."""

    low: DimLike
    high: DimLike


BOUNDS: Facet[Callable[[Asking], Ends]] = Facet("symbolic_bounds", "between which sizes the numbers of an output lie")


bounds = BOUNDS.register
"""Register the decorated function for the given operators."""


class EndsOf(Question):
    """Query for the symbolic sizes between which the elements lie."""

    def answer(self, value: ir.Value, values: Values) -> Ends | None:
        """The ends, `None` if they are not known."""
        fact = values.analysis.fact(value)
        if fact.dtype not in (ir.DataType.INT64, ir.DataType.INT32):
            return None
        known = [element for element in fact.integers() or () if element is not None]
        if known and len(known) == fact.size:
            fits = all(abs(element) <= _LARGEST for element in known if isinstance(element, int))
            return Ends(minimum(*known), maximum(*known)) if fits else None
        node = value.producer()
        function = None if node is None else BOUNDS.of(node)
        if function is None or node is None:
            return None
        try:
            return function(Asking(node, value, self, values))
        except NOT_KNOWN:
            return None


def bounds_of(op: Asking, index: int) -> Ends:
    """Return the bounds of an operand.

    Raises:
        UnknownError: There are none.
    """
    found: Ends | None = op.ask(op.operand(index))
    if found is None:
        raise UnknownError
    return found


def demand_wide(op: Asking) -> None:
    """Demand that the result is of int64, in which sums of sizes do not wrap around.

    Raises:
        UnknownError: It is not.
    """
    if not is_wide(op):
        raise UnknownError


def is_wide(op: Asking) -> bool:
    """Whether the result is of int64."""
    return op.result_dtype is ir.DataType.INT64


ENDS = EndsOf()
