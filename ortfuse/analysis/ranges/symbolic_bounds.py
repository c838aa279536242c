"""Between which sizes the numbers of a tensor lie, as far as that is seen from the nodes that count and move them.

The ranges of `ask` are of numbers. Positions lie between sizes: those of a Range from 0 to `past + 1` are at most `past`,
which tells that a single query sees all keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import onnx_ir as ir

from ortfuse.analysis.ranges.queries import NOT_KNOWN, Asking, Question, Values
from ortfuse.analysis.transfer.op import UnknownError
from ortfuse.ir.dims import DimLike, at_most, maximum, minimum
from ortfuse.ir.operators import Facet
from ortfuse.ir.traits import FILLS, JOINS, MOVES

_LARGEST = 1 << 48
"""Numbers beyond this are not taken for sizes: sums of them may not fit into 64 bits."""

_SMALL = 1 << 27
"""Two sizes, which are below 10^9, and a number up to this fit into 32 bits; of sums in 32 bits nothing is said."""


class Ends(NamedTuple):
    """No number is lower than `low` or higher than `high`. Where there are no numbers, `low` may be the larger one."""

    low: DimLike
    high: DimLike


BOUNDS: Facet[Callable[[Asking], Ends]] = Facet("symbolic_bounds", "between which sizes the numbers of an output lie")

bounds = BOUNDS.register
"""Register the decorated function for the given operators."""


class EndsOf(Question):
    """Between which sizes do the elements lie?"""

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


def _of(op: Asking, index: int) -> Ends:
    found: Ends | None = op.ask(op.operand(index))
    if found is None:
        raise UnknownError
    return found


def _demand_wide(op: Asking) -> None:
    if not _is_wide(op):
        raise UnknownError


@bounds("Range")
def _counted(op: Asking) -> Ends:
    """From the start up to the last number before the limit, upwards."""
    _demand_wide(op)
    start, limit, step = _of(op, 0), _of(op, 1), _of(op, 2)
    if not at_most(1, step.low):
        raise UnknownError
    return Ends(start.low, limit.high - 1)


@bounds(*(MOVES - JOINS - FILLS))
def _moved(op: Asking) -> Ends:
    return _of(op, 0)


@bounds("Cast")
def _cast(op: Asking) -> Ends:
    """The same numbers, if they fit into the type."""
    found = _of(op, 0)
    if not (_is_wide(op) or all(map(_fits, found))):
        raise UnknownError
    return found


def _fits(end: DimLike) -> bool:
    """Whether it is that small: a number, or the sum of two sizes at most and a number."""
    if isinstance(end, int):
        return abs(end) <= _SMALL
    sizes = [coefficient for monomial, coefficient in end.terms if monomial]
    single = all(len(monomial) <= 1 and all(not one.args for one in monomial) for monomial, _ in end.terms)
    numbers = [coefficient for monomial, coefficient in end.terms if not monomial]
    return single and sum(map(abs, sizes)) <= 2 and all(abs(number) <= _SMALL for number in numbers)


def _is_wide(op: Asking) -> bool:
    return op.result_dtype is ir.DataType.INT64


@bounds("Add")
def _sum(op: Asking) -> Ends:
    _demand_wide(op)
    first, second = _of(op, 0), _of(op, 1)
    return Ends(first.low + second.low, first.high + second.high)


@bounds("Sub")
def _difference(op: Asking) -> Ends:
    _demand_wide(op)
    first, second = _of(op, 0), _of(op, 1)
    return Ends(first.low - second.high, first.high - second.low)


ENDS = EndsOf()
