"""Whether the last axis of a value repeats its numbers: half after half, or each one twice in a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.ranges import queries
from ortfuse.analysis.ranges.end_columns import cuts_of_last_axis, gathers_whole_rows, last_stays_last
from ortfuse.analysis.ranges.queries import Asking, Question, Values
from ortfuse.ir.dims import DimLike
from ortfuse.ir.operators import Facet
from ortfuse.ir.traits import BROADCASTS, ELEMENTWISE, RESHAPES, has

_Answer: TypeAlias = Callable[[Asking], bool]

PERIODS: Facet[_Answer] = Facet("periodicity", "whether the last axis of an output repeats its numbers")

periods = PERIODS.register
"""Register the decorated function for the given operators, which are not elementwise."""


class Repeats(Question):
    """Does an axis of 2n elements repeat n numbers: as a, b, c, a, b, c, or (`in_pairs`) as a, a, b, b, c, c?"""

    def __init__(self, in_pairs: bool) -> None:
        self.in_pairs = in_pairs

    def answer(self, value: ir.Value, values: Values) -> bool:
        """Whether this can be proved; for an axis of unknown size, whether it holds whenever the size is even."""
        fact = values.analysis.fact(value)
        if fact.is_constant:
            array = values.constant(fact)
            return array is not None and self._is_repeated(array)
        node = value.producer()
        function = None if node is None else PERIODS.of(node) or (_by_element if has(node, _BY_ELEMENT) else None)
        if function is None or node is None or not fact.shape or _is_odd(fact.shape[-1]):
            return False
        try:
            return function(Asking(node, value, self, values))
        except queries.NOT_KNOWN:
            return False

    def _is_repeated(self, array: np.ndarray[Any, Any]) -> bool:
        if not array.ndim or array.shape[-1] % 2:
            return False
        half = array.shape[-1] // 2
        if self.in_pairs:
            return np.array_equal(array[..., ::2], array[..., 1::2])
        return np.array_equal(array[..., :half], array[..., half:])


def _is_odd(dim: DimLike) -> bool:
    return isinstance(dim, int) and dim % 2 == 1


def _in_pairs(op: Asking) -> bool:
    return isinstance(op.question, Repeats) and op.question.in_pairs


def _operand_repeats(op: Asking, index: int = 0) -> bool:
    return bool(op.ask(op.operand(index)))


def _by_element(op: Asking) -> bool:
    """Each operand repeats its numbers, or has a single one for the whole axis."""
    size = (op.result.shape or ())[-1]
    for index in range(len(op.inputs)):
        shape = op.known_shape(index)
        if shape and shape[-1] != 1 and not (shape[-1] == size and _operand_repeats(op, index)):
            return False
    return True


@periods("Concat")
def _concat(op: Asking) -> bool:
    """Along the last axis: the same tensor twice, or operands that all consist of pairs. Else: if all operands repeat."""
    rank = len(op.known_shape(0))
    indices = range(len(op.inputs))
    if op.axis("axis", 1, rank) != rank - 1:
        return all(_operand_repeats(op, index) for index in indices)
    twice = len(op.inputs) == 2 and op.operand(0) is op.operand(1)
    if not _in_pairs(op):
        return twice
    return (twice and op.known_shape(0)[-1] == 1) or all(
        isinstance(size := op.known_shape(index)[-1], int) and size % 2 == 0 and _operand_repeats(op, index)
        for index in indices
    )


def _keeps_size(op: Asking) -> bool:
    before, after = op.known_shape(0), op.result.shape or ()
    return bool(before) and before[-1] == after[-1]


@periods("Expand")
def _expand(op: Asking) -> bool:
    """A single number for the whole axis, or a repeating operand."""
    before = op.known_shape(0)
    return not before or before[-1] == 1 or (_keeps_size(op) and _operand_repeats(op))


@periods("Tile")
def _tile(op: Asking) -> bool:
    """A single number for the whole axis, an even number of copies, or a repeating operand."""
    copies = op.constants(1)[-1]
    if op.known_shape(0)[-1] == 1 or (copies % 2 == 0 and not _in_pairs(op)):
        return True
    return (copies == 1 or _in_pairs(op)) and _even(op) and _operand_repeats(op)


def _even(op: Asking) -> bool:
    size = op.known_shape(0)[-1]
    return isinstance(size, int) and size % 2 == 0


@periods(*RESHAPES)
def _reshape(op: Asking) -> bool:
    """A repeating operand if the last axis keeps its size; pairs also if they had an axis of their own."""
    if _keeps_size(op):
        return _operand_repeats(op)
    before, after = op.known_shape(0), op.result.shape or ()
    merged = len(before) > 1 and before[-1] == 2 and before[-2] * 2 == after[-1]
    return _in_pairs(op) and merged and _operand_repeats(op)


def _if_last_axis_is_kept(kept: _Answer) -> _Answer:
    return lambda op: _keeps_size(op) and kept(op) and _operand_repeats(op)


periods("Gather")(_if_last_axis_is_kept(gathers_whole_rows))
periods("Slice")(_if_last_axis_is_kept(lambda op: not cuts_of_last_axis(op)))
periods("Transpose")(_if_last_axis_is_kept(last_stays_last))

_BY_ELEMENT = ELEMENTWISE | BROADCASTS
