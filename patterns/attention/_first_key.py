"""Whether every row of an attention mask keeps its first key, so that no row is hidden altogether.

Causal masks do: query i sees the keys 0 to i. The analysis of `_masks` is run for the first column alone, `x[..., 0]` of every
value (the number itself where a value has no axes). What computes element by element does so within a column, as
broadcasting aligns the last axes; of operators that move data only those count whose first column is one of their input. For
everything else the numbers of the whole value stand in. Where no number of the first column of the mask hides a key, none
of its rows does so to all keys. A mask of padding says nothing about its first column, nor do masks that it is part of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import onnx_ir as ir

from ortfuse.facts.facts import Facts
from ortfuse.pattern.operators import UNKNOWN, attribute_value, parameter

from ._masks import ZERO, Range, Search, of_constant, union

_BY_ELEMENT = frozenset({"Cast", "Neg", "Div", "Concat", "ConstantOfShape", "Add", "Sub", "Mul", "Min", "Max"})
"""What `Search` computes from the numbers of its operands, and so from columns. The first column of a Concat is one of those
of its inputs, whatever its axis."""

_EXACT = 256.0
"""Whole numbers up to here are exact in every element type, so that comparing them gives what the model's comparison does."""


def keeps_first_key(mask: ir.Value, facts: Facts) -> bool:
    """Whether no row of the mask [..., keys] hides its first key, which is provable for causal masks."""
    found = _FirstColumn(facts).range_of(mask)
    return found is not None and not found.deep


class _FirstColumn(Search):
    """One walk from a mask back to its constants that looks at index 0 of the last axis of every value."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.whole = Search(facts)

    def _find(self, value: ir.Value) -> Range | None:
        if self.facts.is_const(value):
            return of_constant(value, self.facts, first_column=True)
        node = value.producer()
        found = None if node is None or node.domain else self._column(node)
        return self.whole.range_of(value) if found is None else found

    def _column(self, node: ir.Node) -> Range | None:
        """What the first column can hold where it follows from first columns of the operands."""
        operands = [operand for operand in node.inputs if operand is not None]
        dtype = self.facts.dtype(node.outputs[0])
        if dtype is None or not operands:
            return None
        kind = node.op_type
        if kind in _KEPT_BY:
            return self.range_of(operands[0]) if _KEPT_BY[kind](node, self.facts) else None
        if kind == "Trilu":
            return self._triangle(node)
        if kind == "Range":
            return self.range_of(operands[0])
        if kind == "Where":
            truths = _truths(self.range_of(operands[0]))
            return union(
                [self.range_of(part) for part, when in zip(operands[1:], (1.0, 0.0), strict=True) if when in truths]
            )
        if kind in _TRUTHS and dtype == ir.DataType.BOOL:
            return _truth(kind, [self.range_of(operand) for operand in operands])
        return self._computed(node, dtype) if kind in _BY_ELEMENT else None

    def _triangle(self, node: ir.Node) -> Range | None:
        """The lower triangle has the whole first column if its diagonal starts there or later, the upper one nothing of it."""
        assert node.inputs[0] is not None
        upper = attribute_value(node, "upper", self.facts)
        shift = node.inputs[1] if len(node.inputs) > 1 else None
        diagonal = ZERO if shift is None else self.whole.range_of(shift)
        found = self.range_of(node.inputs[0])
        if diagonal is not None and upper == 0 and diagonal.low >= 0:
            return found
        if diagonal is not None and upper == 1 and diagonal.low >= 1:
            return ZERO
        return union([found, ZERO])


_LOGIC: dict[str, Callable[[float, float], float]] = {
    "And": min,
    "Or": max,
    "Xor": lambda a, b: float(a != b),
}
_BOTH = frozenset((0.0, 1.0))


def _truths(found: Range | None) -> frozenset[float]:
    return _BOTH if found is None or found.levels is None else (found.levels & _BOTH) or _BOTH


def _of_truths(truths: Iterable[float]) -> Range:
    levels = frozenset(truths)
    return Range(frozenset(), levels, min(levels), max(levels))


def _exact_ends(found: Range) -> tuple[float, float]:
    """Bounds of the numbers, infinite where they are not numbers that compare exactly."""
    low, high = min((found.low, *found.deep)), found.high
    return low if _is_exact(low) else -math.inf, high if _is_exact(high) else math.inf


def _is_exact(number: float) -> bool:
    return abs(number) <= _EXACT and number.is_integer()


def _greater(first: Range, second: Range) -> frozenset[float]:
    """Which of false and true ``first > second`` can be."""
    (low, high), (other_low, other_high) = _exact_ends(first), _exact_ends(second)
    if low > other_high:
        return frozenset((1.0,))
    return frozenset((0.0,)) if high <= other_low else _BOTH


def _equal(first: Range, second: Range) -> frozenset[float]:
    """Which of false and true ``first == second`` can be."""
    (low, high), (other_low, other_high) = _exact_ends(first), _exact_ends(second)
    if low > other_high or high < other_low:
        return frozenset((0.0,))
    return frozenset((1.0,)) if low == high == other_low == other_high else _BOTH


_COMPARISONS: dict[str, Callable[[Range, Range], frozenset[float]]] = {
    "Equal": _equal,
    "Greater": _greater,
    "Less": lambda a, b: _greater(b, a),
    "GreaterOrEqual": lambda a, b: frozenset(1.0 - truth for truth in _greater(b, a)),
    "LessOrEqual": lambda a, b: frozenset(1.0 - truth for truth in _greater(a, b)),
}
_TRUTHS = frozenset({"Not", "Cast", *_LOGIC, *_COMPARISONS})


def _truth(kind: str, operands: list[Range | None]) -> Range | None:
    """What an operator with a boolean result gives."""
    if kind in _LOGIC:
        first_truths, second_truths = map(_truths, operands)
        return _of_truths(_LOGIC[kind](a, b) for a in first_truths for b in second_truths)
    if kind == "Not":
        return _of_truths(1.0 - truth for truth in _truths(operands[0]))
    first, second = operands if kind in _COMPARISONS else (operands[0], ZERO)
    if first is None or second is None:
        return None
    if kind == "Cast":
        return _of_truths(1.0 - truth for truth in _equal(first, second))
    return _of_truths(_COMPARISONS[kind](first, second))


def _last_axis(value: ir.Value | None, facts: Facts) -> int | None:
    rank = facts.rank(value)
    return rank - 1 if rank else None


def _always(node: ir.Node, facts: Facts) -> bool:
    return True


def _reshape_keeps(node: ir.Node, facts: Facts) -> bool:
    """The last axis has the same size before and after."""
    before, after = facts.shape(node.inputs[0]), facts.shape(node.outputs[0])
    return bool(before) and bool(after) and before is not None and after is not None and before[-1] == after[-1]


def _transpose_keeps(node: ir.Node, facts: Facts) -> bool:
    perm = parameter(node, "perm", facts)
    return perm is not UNKNOWN and bool(perm) and perm[-1] == len(perm) - 1


def _unsqueeze_keeps(node: ir.Node, facts: Facts) -> bool:
    """The last axis is not a new one."""
    last, axes = _last_axis(node.outputs[0], facts), parameter(node, "axes", facts)
    return _is_vector(axes) and all(isinstance(axis, int) for axis in axes) and last not in (None, *axes)


def _gather_keeps(node: ir.Node, facts: Facts) -> bool:
    """Whole rows are taken."""
    last, axis = _last_axis(node.inputs[0], facts), parameter(node, "axis", facts)
    return last is not None and isinstance(axis, int) and axis != last


def _slice_keeps(node: ir.Node, facts: Facts) -> bool:
    """The last axis is not cut, or from 0 on, forwards."""
    last = _last_axis(node.inputs[0], facts)
    starts, axes, steps = (parameter(node, name, facts) for name in ("starts", "axes", "steps"))
    if axes is None and _is_vector(starts):
        axes = range(len(starts))
    if last is None or not _is_vector(axes) or not all(isinstance(axis, int) for axis in axes):
        return False
    if last not in axes:
        return True
    if not _is_vector(starts, len(axes)) or not (steps is None or _is_vector(steps, len(axes))):
        return False
    place = list(axes).index(last)
    return starts[place] == 0 and (steps is None or (isinstance(steps[place], int) and steps[place] > 0))


def _is_vector(numbers: Any, size: int | None = None) -> bool:
    return isinstance(numbers, tuple | list | range) and size in (None, len(numbers))


_KEPT_BY: dict[str, Callable[[ir.Node, Facts], bool]] = {
    "Identity": _always,
    "Expand": _always,
    "Tile": _always,
    "Reshape": _reshape_keeps,
    "Transpose": _transpose_keeps,
    "Squeeze": _always,  # where it drops the last axis, that has nothing but a first column
    "Unsqueeze": _unsqueeze_keeps,
    "Gather": _gather_keeps,
    "Slice": _slice_keeps,
}
"""Operators that move data, and whether the first column of a result is made of the first column of the input."""
