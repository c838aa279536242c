"""Decide whether the last axis of a value repeats its first half, or repeats each element twice in a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.ranges import queries
from ortfuse.analysis.ranges.queries import Asking, Question, Values
from ortfuse.ir.dims import DimLike
from ortfuse.ir.operator_registry import Facet
from ortfuse.ir.traits import BROADCASTS, ELEMENTWISE, has

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


def in_pairs(op: Asking) -> bool:
    """Whether the question is about pairs of numbers."""
    return isinstance(op.question, Repeats) and op.question.in_pairs


def operand_repeats(op: Asking, index: int = 0) -> bool:
    """Whether an operand repeats its numbers."""
    return bool(op.ask(op.operand(index)))


def _by_element(op: Asking) -> bool:
    """Each operand repeats its numbers, or has a single one for the whole axis."""
    size = (op.result.shape or ())[-1]
    for index in range(len(op.inputs)):
        shape = op.known_shape(index)
        if shape and shape[-1] != 1 and not (shape[-1] == size and operand_repeats(op, index)):
            return False
    return True


def keeps_size(op: Asking) -> bool:
    """Whether the last axis of the first operand keeps its size."""
    before, after = op.known_shape(0), op.result.shape or ()
    return bool(before) and before[-1] == after[-1]


def if_last_axis_is_kept(kept: _Answer) -> _Answer:
    """Return the answer for an operator that keeps the numbers of the last axis under a condition."""
    return lambda op: keeps_size(op) and kept(op) and operand_repeats(op)


_BY_ELEMENT = ELEMENTWISE | BROADCASTS
