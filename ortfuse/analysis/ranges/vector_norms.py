"""How long vectors along an axis can be: upper bounds of their Euclidean norm.

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
from ortfuse.analysis.transfer.fact import Fact, Shape
from ortfuse.analysis.transfer.op import UnknownError, normalize_axes
from ortfuse.ir.dims import DimLike
from ortfuse.ir.operators import Facet
from ortfuse.ir.traits import MICROSOFT, RESHAPES

_LARGEST = 1 << 25
"""The most elements of a weight that is read for this."""

_MOST_WORK = 1 << 29
"""The most multiplications for a spectral norm; beyond that, a larger bound that takes less is used."""

Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True)
class NormOf(Question):
    """How long can vectors along an axis be?

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
        """How many elements the vectors have, given the size of the axis."""
        if not isinstance(size, int):
            return None
        return self.part if self.part is not None and size % self.part == 0 else size


def constant_array(fact: Fact) -> Array | None:
    """The constant of a fact, unless it is too large to be read for a bound."""
    array = fact.array()
    if array is None and fact.tensor is not None and fact.tensor.size <= _LARGEST:
        array = fact.tensor.numpy()
    return array


def largest_magnitude(found: Range | None) -> float | None:
    """The largest absolute value of a range, `None` if there is no bound. NaN does not count."""
    if found is None or not math.isfinite(found.low) or not math.isfinite(found.high):
        return None
    return float(max(abs(found.low), abs(found.high)))


Answer: TypeAlias = Callable[[Asking], "float | None"]

NORMS: Facet[Answer] = Facet("norm", "an upper bound of the Euclidean norm of the vectors along an axis")

norms = NORMS.register
"""Register the decorated function for the given operators."""


def _question(op: Asking) -> NormOf:
    assert isinstance(op.question, NormOf)
    return op.question


def _norm(op: Asking, index: int, *, axis: int | None = None, part: int | bool | None = True) -> float:
    """The bound for an operand, along the same axis and parts of it unless others are given.

    Raises:
        UnknownError: There is none.
    """
    asked = _question(op)
    wanted = replace(
        asked, axis=asked.axis if axis is None else axis, part=asked.part if part is True else part or None
    )
    found: float | None = op.ask(op.operand(index), wanted)
    if found is None:
        raise UnknownError
    return found


def _magnitude(op: Asking, index: int) -> float:
    """The largest absolute value of the elements of an operand.

    Raises:
        UnknownError: There is no bound.
    """
    found = largest_magnitude(op.ask(op.operand(index), _question(op).range_of))
    if found is None:
        raise UnknownError
    return found


def _size(op: Asking, index: int) -> int:
    """The size of an operand along the axis; 1 if it lacks the axis.

    Raises:
        UnknownError: It is no number.
    """
    shape, axis = op.known_shape(index), _question(op).axis
    size = shape[axis] if len(shape) >= -axis else 1
    if not isinstance(size, int):
        raise UnknownError
    return size


def _result_size(op: Asking) -> int:
    shape = op.result.shape
    size = None if shape is None else shape[_question(op).axis]
    if not isinstance(size, int):
        raise UnknownError
    return size


def _broadcast_norm(op: Asking, index: int) -> float:
    """The bound for an operand that is broadcast along the axis, if it has a single element there."""
    if _size(op, index) == _result_size(op):
        return _norm(op, index)
    return _magnitude(op, index) * math.sqrt(_question(op).length(_result_size(op)) or 0)


@norms("Identity", "Neg", "Dropout", "Abs", "Relu")
def same(op: Asking) -> float | None:
    """No longer than the operand."""
    return _norm(op, 0)


@norms("Cast")
def converted(op: Asking) -> float | None:
    """That of the operand, rounded."""
    dtype = op.result.dtype
    return 1.01 * _norm(op, 0) if dtype is not None and dtype.is_floating_point() else None


@norms("Transpose")
def transposed(op: Asking) -> float | None:
    """That of the operand along the axis that ends up here."""
    rank = len(op.known_shape(0))
    perm = op.attr_ints("perm") or tuple(range(rank))[::-1]
    return _norm(op, 0, axis=perm[_question(op).axis + rank] - rank)


@norms(*RESHAPES)
def reshaped(op: Asking) -> float | None:
    """Along an axis that is kept, split or merged, with the axes behind it as they were."""
    before, after, asked = op.known_shape(0), op.result.shape, _question(op)
    if after is None:
        return None
    place = asked.axis + len(after)
    behind = [dim for dim in after[place + 1 :] if dim != 1]
    for axis in range(-1, -len(before) - 1, -1):
        if [dim for dim in before[axis + len(before) + 1 :] if dim != 1] == behind and before[axis] != 1:
            return _resized(op, axis, before[axis], after[place])
    return None


def _resized(op: Asking, axis: int, old: Any, new: Any) -> float | None:
    part = _question(op).part
    if old == new:
        return _norm(op, 0, axis=axis)
    if not isinstance(old, int) or not isinstance(new, int):
        return None
    if old % new == 0:  # split: consecutive parts
        return _norm(op, 0, axis=axis, part=new if part is None else part)
    if new % old == 0 and part is None:  # merged
        return _norm(op, 0, axis=axis) * math.sqrt(new // old)
    return _norm(op, 0, axis=axis) if part is not None and old % part == 0 else None


@norms("Expand", "Tile")
def repeated(op: Asking) -> float | None:
    """That of the operand, if it is not repeated along the axis itself."""
    return _broadcast_norm(op, 0) if op.node.op_type == "Expand" or _size(op, 0) == _result_size(op) else None


@norms("Slice", "Split", "Gather", "GatherElements")
def taken(op: Asking) -> float | None:
    """At most that of the operand; of parts that may be cut otherwise, at most that of the whole vector."""
    asked, rank = _question(op), len(op.known_shape(0))
    if op.node.op_type == "Gather":
        axis = op.axis("axis", 0, rank)
        behind = rank - 1 - axis
        if -asked.axis > behind:  # along what is gathered, or before it
            added = len(op.known_shape(1))
            if -asked.axis <= behind + added:
                return None
            return _norm(op, 0, axis=asked.axis + added - 1)
        return _norm(op, 0)
    if op.node.op_type == "GatherElements" or _cuts_parts(op, asked, rank):
        return _norm(op, 0, part=None)
    return _norm(op, 0)


def _cuts_parts(op: Asking, asked: NormOf, rank: int) -> bool:
    """Whether parts of the result may begin elsewhere than parts of the operand do."""
    if asked.part is None or _size(op, 0) == _result_size(op):
        return False
    if op.node.op_type != "Split" or op.axis("axis", 0, rank) != asked.axis + rank:
        return True
    shapes = [op.analysis.fact(value).shape for value in op.node.outputs]
    sizes = [None if shape is None else shape[asked.axis] for shape in shapes]
    return not all(isinstance(size, int) and size % asked.part == 0 for size in sizes)


@norms("Concat")
def joined(op: Asking) -> float | None:
    """Along the axis, of all operands together; otherwise the longest."""
    rank, asked = len(op.known_shape(0)), _question(op)
    count = len(op.node.inputs)
    if op.axis("axis", 1, rank) != asked.axis + rank:
        return max(_norm(op, index) for index in range(count))
    return math.sqrt(sum(_norm(op, index, part=None) ** 2 for index in range(count)))


@norms("Add", "Sub")
def added(op: Asking) -> float | None:
    """At most the sum."""
    return _broadcast_norm(op, 0) + _broadcast_norm(op, 1)


@norms("Mul")
def multiplied(op: Asking) -> float | None:
    """One operand times the largest element of the other."""
    found = []
    for one, other in ((0, 1), (1, 0)):
        with suppress(UnknownError):
            found.append(_broadcast_norm(op, one) * _magnitude(op, other))
    return min(found, default=None)


@norms("Div")
def divided(op: Asking) -> float | None:
    """By numbers away from zero, or by something that is no less than the norm itself."""
    if _is_own_norm(op):
        return 1.0
    found: Range | None = op.ask(op.operand(1), _question(op).range_of)
    if found is None or found.nan or found.low <= 0 <= found.high:
        return None
    return _broadcast_norm(op, 0) / min(abs(found.low), abs(found.high))


def _is_own_norm(op: Asking) -> bool:
    """Whether the divisor is at least the norm of the dividend along this axis: max(|x|, epsilon), |x| + epsilon."""
    divisor, asked = op.node.inputs[1], _question(op)
    node = None if divisor is None else divisor.producer()
    if node is not None and node.op_type in ("Clip", "Max", "Add"):
        if node.op_type == "Clip" and len(node.inputs) > 2 and node.inputs[2] is not None:
            return False
        others = [value for value in node.inputs[1:] if value is not None]
        low = [op.ask(value, asked.range_of) for value in others] if node.op_type == "Add" else []
        if any(found is None or found.nan or found.low < 0 for found in low):
            return False
        node = None if node.inputs[0] is None else node.inputs[0].producer()
    if node is None or node.op_type not in ("ReduceL2", "Expand") or node.domain:
        return False
    inner = Asking(node, node.outputs[0], asked, op.values)
    axes = inner.int_list("axes", 1)
    rank = len(op.known_shape(0))
    return (
        node.op_type == "ReduceL2"
        and node.inputs[0] is op.node.inputs[0]
        and axes is not None
        and normalize_axes(axes, rank) == (asked.axis + rank,)
        and inner.attr_int("keepdims", 1) == 1
    )


@norms("Where")
def chosen(op: Asking) -> float | None:
    """At most that of both together."""
    return math.hypot(_broadcast_norm(op, 1), _broadcast_norm(op, 2))


@norms("MatMul")
def product(op: Asking) -> float | None:
    """Along the last axis: that of the first operand times the spectral norm of a constant matrix."""
    weight = constant_array(op.fact(1)) if _question(op).axis == -1 else None
    if weight is None or weight.ndim != 2:
        return None
    return _norm(op, 0, part=None) * spectral_norm(weight, _question(op).part)


@norms("Gemm")
def linear(op: Asking) -> float | None:
    """Along the last axis: the product and the bias."""
    weight = constant_array(op.fact(1)) if _question(op).axis == -1 else None
    if weight is None or weight.ndim != 2 or op.attr_int("transA", 0):
        return None
    weight = weight.T if op.attr_int("transB", 0) else weight
    alpha, beta = (abs(float(op.attribute(name) or default)) for name, default in (("alpha", 1.0), ("beta", 1.0)))
    found = alpha * _norm(op, 0, part=None) * spectral_norm(weight, _question(op).part)
    return found + beta * _broadcast_norm(op, 2) if op.has(2) else found


def spectral_norm(matrix: Array, part: int | None) -> float:
    """An upper bound of the spectral norm of a matrix, or of the largest one of its parts of so many columns."""
    wide = matrix.astype(np.float64)
    rows, columns = wide.shape
    width = columns if part is None or columns % part else part
    parts = np.moveaxis(wide.reshape(rows, -1, width), 1, 0)
    if rows * columns * min(width, rows) > _MOST_WORK:
        sums = np.abs(parts)
        return float(np.sqrt(np.max(sums.sum(1).max(1) * sums.sum(2).max(1))))
    small = parts.transpose(0, 2, 1) @ parts if width <= rows else parts @ parts.transpose(0, 2, 1)
    return float(np.sqrt(max(np.max(np.linalg.eigvalsh(small)), 0.0)))


@norms("Softmax")
def weights(op: Asking) -> float | None:
    """Numbers that are not negative and sum to 1."""
    rank = len(op.known_shape(0))
    along = op.version >= 13 and op.axis("axis", -1, rank) == _question(op).axis + rank
    return 1.0 if along else None


@norms("LpNormalization")
def unit(op: Asking) -> float | None:
    """Unit vectors."""
    rank = len(op.known_shape(0))
    return 1.0 if op.attr_int("p", 2) == 2 and op.axis("axis", -1, rank) == _question(op).axis + rank else None


def _normalised(scale: int, bias: int | None) -> Answer:
    def bound(op: Asking) -> float | None:
        asked = _question(op)
        shape = op.known_shape(0)
        is_last = op.axis("axis", -1, len(shape)) == len(shape) - 1
        if asked.axis != -1 or not is_last or not isinstance(shape[-1], int) or op.output is not op.node.outputs[0]:
            return None
        found = math.sqrt(shape[-1]) * (_magnitude(op, scale) if op.has(scale) else 1.0)
        return found + _norm(op, bias) if bias is not None and op.has(bias) else found

    return bound


norms("LayerNormalization", f"{MICROSOFT}.LayerNormalization")(_normalised(1, 2))
norms("RMSNormalization", "SimplifiedLayerNormalization", f"{MICROSOFT}.SimplifiedLayerNormalization")(
    _normalised(1, None)
)
norms(f"{MICROSOFT}.SkipLayerNormalization")(_normalised(2, 3))
norms(f"{MICROSOFT}.SkipSimplifiedLayerNormalization")(_normalised(2, None))


@norms(f"{MICROSOFT}.RotaryEmbedding", "RotaryEmbedding")
def rotated(op: Asking) -> float | None:
    """Rotated by angles whose cosines and sines have a known range, every pair for itself."""
    first = 1 if not op.node.domain else 2
    if _question(op).axis != -1 or len(op.known_shape(0)) != 4:
        return None
    return _norm(op, 0, part=None) * max(1.0, math.hypot(_magnitude(op, first), _magnitude(op, first + 1)))
