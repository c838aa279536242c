"""Bound the Euclidean norms of vectors along an axis of a tensor.

    |LayerNormalization(x)| <= sqrt(n) max|scale| + |bias|      |x W| <= |x| |W|_2      |x + y| <= |x| + |y|

Scores of attention are products of such vectors, so that these bounds tell how far scores can be from zero. A normalised
vector has a bounded norm whatever the model computes before it. Bounds hold for vectors without NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.ranges.queries import NOT_KNOWN, Asking, Question, RangeOf, Values
from ortfuse.analysis.ranges.range import Range
from ortfuse.analysis.transfer.transfer_function_registry import UnknownError
from ortfuse.analysis.transfer.value_fact import Fact, Shape
from ortfuse.ir.dims import DimLike
from ortfuse.ir.operator_registry import Facet

_LARGEST_WEIGHT = 1 << 25
"""The most elements of a weight that is read for this."""


Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True)
class NormOf(Question):
    """Query for an upper bound of the norms of vectors along an axis.

    Attributes:
        axis: The axis, counted from the end: -1 is the last.
        part: If given, only consecutive parts of this size, each for itself: those of single heads.
        range_of: The question about the range of elements.
    """

    axis: int
    part: int | None
    range_of: RangeOf

    def answer(self, value: ir.Value, values: Values) -> float | None:
        """An upper bound of the norm; `None` if none is known."""
        fact = values.analysis.fact(value)
        shape = fact.shape
        if shape is None or len(shape) < -self.axis:
            return None
        if fact.is_constant:
            return self._of_constant(fact)
        node = value.producer()
        function = None if node is None else NORMS.of(node)
        found = None
        if node is not None and function is not None:
            with suppress(*NOT_KNOWN):
                found = function(Asking(node, value, self, values))
        return self._by_elements(value, shape, values) if found is None else found

    def _of_constant(self, fact: Fact) -> float | None:
        array = constant_array(fact)
        if array is None or array.dtype.kind not in "fiub" or not array.size:
            return None
        moved = np.moveaxis(array.astype(np.float64), self.axis, -1)
        if self.part is not None and moved.shape[-1] % self.part == 0:
            moved = moved.reshape(*moved.shape[:-1], -1, self.part)
        found = float(np.sqrt(np.max(np.sum(moved * moved, axis=-1))))
        return found if math.isfinite(found) else None

    def _by_elements(self, value: ir.Value, shape: Shape, values: Values) -> float | None:
        """The bound that the range of the elements gives."""
        size = self.length(shape[self.axis])
        largest = largest_magnitude(values.answers(self.range_of, [value])[0])
        return None if largest is None or size is None else largest * math.sqrt(size)

    def length(self, size: DimLike) -> int | None:
        """The number of elements that the vectors have, given the size of the axis."""
        if not isinstance(size, int):
            return None
        return self.part if self.part is not None and size % self.part == 0 else size


def constant_array(fact: Fact) -> Array | None:
    """The constant of a fact, unless it is too large to be read for a bound."""
    array = fact.array()
    if array is None and fact.tensor is not None and fact.tensor.size <= _LARGEST_WEIGHT:
        array = fact.tensor.numpy()
    return array


def largest_magnitude(found: Range | None) -> float | None:
    """The largest absolute value of a range, `None` if there is no bound. NaN does not count."""
    if found is None or not math.isfinite(found.low) or not math.isfinite(found.high):
        return None
    return float(max(abs(found.low), abs(found.high)))


Bound: TypeAlias = Callable[[Asking], "float | None"]


NORMS: Facet[Bound] = Facet("norm", "an upper bound of the Euclidean norm of the vectors along an axis")


norms = NORMS.register
"""Register the decorated function for the given operators."""


def norm_question(op: Asking) -> NormOf:
    """Return the question that is asked."""
    assert isinstance(op.question, NormOf)
    return op.question


def norm_of(op: Asking, index: int, *, axis: int | None = None, part: int | bool | None = True) -> float:
    """The bound for an operand, along the same axis and parts of it unless others are given.

    Raises:
        UnknownError: There is none.
    """
    asked = norm_question(op)
    wanted = replace(
        asked, axis=asked.axis if axis is None else axis, part=asked.part if part is True else part or None
    )
    found: float | None = op.ask(op.operand(index), wanted)
    if found is None:
        raise UnknownError
    return found


def magnitude_of(op: Asking, index: int) -> float:
    """The largest absolute value of the elements of an operand.

    Raises:
        UnknownError: There is no bound.
    """
    found = largest_magnitude(op.ask(op.operand(index), norm_question(op).range_of))
    if found is None:
        raise UnknownError
    return found


def size_along(op: Asking, index: int) -> int:
    """The size of an operand along the axis; 1 if it lacks the axis.

    Raises:
        UnknownError: It is no number.
    """
    shape, axis = op.known_shape(index), norm_question(op).axis
    size = shape[axis] if len(shape) >= -axis else 1
    if not isinstance(size, int):
        raise UnknownError
    return size


def result_size_along(op: Asking) -> int:
    """Return the size of the result along the axis.

    Raises:
        UnknownError: It is no number.
    """
    shape = op.result.shape
    size = None if shape is None else shape[norm_question(op).axis]
    if not isinstance(size, int):
        raise UnknownError
    return size


def broadcast_norm(op: Asking, index: int) -> float:
    """The bound for an operand that is broadcast along the axis, if it has a single element there."""
    if size_along(op, index) == result_size_along(op):
        return norm_of(op, index)
    return magnitude_of(op, index) * math.sqrt(norm_question(op).length(result_size_along(op)) or 0)
