"""Values that masks choose, and masks that say where rows end.

    Where(m, a, b), m a + (1 - m) b, b + m (a - b), m a          m = t < lengths, at step t of unrolled steps or of a loop

Index maps say which comparison, at which number, a mask consists of, however its elements are moved, for one step or all at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import TypeAlias

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.index_maps import Element, IndexMapOf, Number, Read, axis
from ortfuse.analysis.loop_summary.loop_structure import Iteration
from ortfuse.ir.dims import DimLike

_COMPARISONS = {"Less": (True, 0), "LessOrEqual": (True, 1), "GreaterOrEqual": (False, 0), "Greater": (False, 1)}
"""Whether number ? length is true before the end, and what is to be added to a length for the end."""

_MIRRORED = {"Less": "Greater", "LessOrEqual": "GreaterOrEqual", "Greater": "Less", "GreaterOrEqual": "LessOrEqual"}
_INTEGERS = (ir.DataType.INT32, ir.DataType.INT64)
_Index: TypeAlias = Sequence[DimLike]


@dataclass(frozen=True)
class Bound:
    """A step is before the end of a row if `number` < its length; in a loop, iteration t if `number + t` is."""

    lengths: ir.Value
    number: int

    def further(self, steps: int) -> Bound:
        """The bound so many steps further along the rows."""
        return replace(self, number=self.number + steps)

    def is_positive(self, facts: Facts) -> bool:
        """Whether no row is empty."""
        known = facts.range(self.lengths)
        return known is not None and known.low - self.number >= 1


@dataclass(frozen=True)
class Mask:
    """A tensor of truth values outside of the loop, whose elements along an axis say which rows take part in an iteration.

    Attributes:
        value: The tensor.
        axis: The axis of the iterations.
        is_negated: Whether rows take part where it is false.
    """

    value: ir.Value
    axis: int
    is_negated: bool


@dataclass(frozen=True)
class Choice:
    """A value that is one value before the end of a row, and another one from there on (`None`: 0).

    With a mask instead of a bound, it is the first where the mask is true.
    """

    bound: Bound | Mask
    before: ir.Value
    behind: ir.Value | None


class Choices:
    """Finds the values that are chosen by the lengths of rows: in the body of a loop, or in steps that are unrolled."""

    def __init__(self, graph: ir.Graph | None, facts: Facts, iteration: Iteration | None = None) -> None:
        self._facts, self._iteration = facts, iteration
        self._compared_there = frozenset(_comparisons(graph, iteration))
        given = {} if iteration is None else iteration.given
        self._map = facts.answering(IndexMapOf(self._compared_there, given))
        self._known: dict[ir.Value, Choice | None] = {}

    def choice(self, value: ir.Value) -> Choice | None:
        """How a value, [batch, size], is chosen; `None` if it is not."""
        if value not in self._known:
            self._known[value] = self._found(value)
        return self._known[value]

    def _found(self, value: ir.Value) -> Choice | None:
        node, shape = value.producer(), self._facts.shape(value)
        if node is None or shape is None or len(shape) != 2 or len(node.outputs) != 1:
            return None
        for mask, yes, no in selections(node, self._facts):
            condition = _unexpanded(mask)
            found = self._bound(condition, shape[0]) if self._facts.shape(condition) == (shape[0], 1) else None
            if found is not None:
                before, behind = (yes, no) if found[1] else (no, yes)
                if before is not None:
                    return Choice(found[0], before, behind)
        return None

    def _bound(self, condition: ir.Value, batch: DimLike) -> tuple[Bound | Mask, bool] | None:
        """The bound that a condition, [batch, 1], compares with, and whether it holds before or behind the end of a row."""
        mask, is_negated = None, False
        at = self._element(condition, (axis(0), 0))
        while isinstance(at, Read):
            mask = self._mask(at, batch, is_negated) or mask
            node = at.value.producer()
            if node is None or node.domain:
                break
            if node.op_type in _COMPARISONS:
                found = self._compared(node, at.index, batch)
                if found is not None:
                    return found[0], found[1] is not is_negated
                break
            other = opposite(node, self._facts)
            is_negated ^= other is not None
            above = other if other is not None else node.inputs[0] if node.op_type == "Cast" else None
            at = None if above is None else self._element(above, at.index)
        return None if mask is None else (mask, True)

    def _element(self, value: ir.Value, index: _Index) -> Element | None:
        """The element of a value that is broadcast to a position."""
        found, shape = self._map(value), self._facts.shape(value)
        if found is None or shape is None or len(shape) > len(index):
            return None
        own = index[len(index) - len(shape) :]
        element: Element = found.read_at([0 if size == 1 else one for one, size in zip(own, shape, strict=True)])
        return element

    def _mask(self, at: Read, batch: DimLike, is_negated: bool) -> Mask | None:
        """The mask of all iterations of which a condition is an element."""
        one = self._iteration
        if one is None or one.is_reverse or at.value.graph is one.body or one.number not in at.index:
            return None
        place = at.index.index(one.number)
        rest = Read(at.value, (*at.index[:place], 0, *at.index[place + 1 :]))
        shape = self._facts.shape(at.value)
        is_whole = shape is not None and shape[place] == one.runs and self._facts.dtype(at.value) == ir.DataType.BOOL
        return Mask(at.value, place, is_negated) if is_whole and self._is_by_row(rest, batch, place) else None

    def _is_by_row(self, at: Read, batch: DimLike, besides: int | None = None) -> bool:
        """Whether an element of a tensor is the one of the row, and the tensor has one for each row (besides one axis)."""
        shape = self._facts.shape(at.value)
        if shape is None:
            return False
        others = [
            (size, one) for place, (size, one) in enumerate(zip(shape, at.index, strict=True)) if place != besides
        ]
        long = [pair for pair in others if pair[0] != 1]
        return long == ([] if batch == 1 else [(batch, axis(0))]) and all(one == 0 for size, one in others if size == 1)

    def _compared(self, node: ir.Node, index: _Index, batch: DimLike) -> tuple[Bound, bool] | None:
        """The bound of an element of a comparison, and whether the comparison is true before the end of a row."""
        left, right = node.inputs
        if left is None or right is None:
            return None
        for name, run, length in ((node.op_type, left, right), (_MIRRORED[node.op_type], right, left)):
            number, lengths = self._number(run, index), self._lengths(length, index, batch)
            if number is not None and lengths is not None:
                is_before, more = _COMPARISONS[name]
                return Bound(lengths, number - more), is_before
        return None

    def _number(self, value: ir.Value, index: _Index) -> int | None:
        """The number of a step; in a loop that of the first iteration, if it rises by 1."""
        found = self._element(value, index)
        number = found.formula if isinstance(found, Number) else None
        if number is not None and self._iteration is not None:
            number = number - self._iteration.number
        return number if isinstance(number, int) else None

    def _lengths(self, value: ir.Value, index: _Index, batch: DimLike) -> ir.Value | None:
        """A value with one integer for each row, the same in all iterations."""
        at = self._element(value, index)
        if not isinstance(at, Read):
            shape, is_fixed = self._facts.shape(value) or (), self._facts.is_const(value)
            at = Read(value, tuple(0 if size == 1 else axis(0) for size in shape)) if is_fixed else None
        if at is None or self._facts.dtype(at.value) not in _INTEGERS or not self._is_by_row(at, batch):
            return None
        is_inside = self._iteration is not None and at.value.graph is self._iteration.body
        return None if is_inside and not self._facts.is_const(at.value) else at.value


def _comparisons(graph: ir.Graph | None, iteration: Iteration | None) -> Iterator[ir.Value]:
    """The results of the comparisons in a graph, or in the body of a loop and around it."""
    for one in (graph, None if iteration is None else iteration.body):
        yield from (node.outputs[0] for node in one or () if node.op_type in _COMPARISONS and not node.domain)


def _unexpanded(mask: ir.Value) -> ir.Value:
    """The repeated part of a mask."""
    node = mask.producer()
    expands = node is not None and node.op_type == "Expand" and not node.domain
    return node.inputs[0] or mask if expands and node is not None else mask


def selections(node: ir.Node, facts: Facts) -> Iterator[tuple[ir.Value, ir.Value, ir.Value | None]]:
    """Masks by which a node may choose, with what it takes where they are true and where they are not (`None`: 0)."""
    operands = [value for value in node.inputs if value is not None]
    if node.domain:
        return
    if node.op_type == "Where":
        yield operands[0], operands[1], operands[2]
    if node.op_type == "Mul":
        for mask, yes in permutations(operands, 2):
            yield mask, yes, None
    if node.op_type == "Add":
        yield from _sums(operands, facts)


def _sums(operands: list[ir.Value], facts: Facts) -> Iterator[tuple[ir.Value, ir.Value, ir.Value]]:
    for first, second in permutations(operands, 2):
        for mask, yes in permutations(_operands_of(first, "Mul"), 2):
            for rest, no in permutations(_operands_of(second, "Mul"), 2):
                if _is_rest(rest, mask, facts):
                    yield mask, yes, no
            if (difference := _operands_of(yes, "Sub")) and difference[1] is second:
                yield mask, difference[0], second


def _operands_of(value: ir.Value, op_type: str) -> list[ir.Value]:
    """The operands of the node of a type that computes a value; none if another one does."""
    node = value.producer()
    found = [] if node is None or node.domain or node.op_type != op_type else [*node.inputs]
    return [operand for operand in found if operand is not None]


def _is_rest(value: ir.Value, mask: ir.Value, facts: Facts) -> bool:
    """Whether a value is 1 - mask, or converted from the opposite of what the mask is converted from."""
    operands = _operands_of(value, "Sub")
    if operands and operands[1] is mask:
        return facts.fill(operands[0]) == 1
    (one, is_negated), (other, is_other_negated) = _truth(mask, facts), _truth(value, facts)
    return one is not None and one is other and is_negated is not is_other_negated


def _truth(value: ir.Value, facts: Facts) -> tuple[ir.Value | None, bool]:
    """The truth values from which a value is converted, and whether from their opposite."""
    found = next(iter(_operands_of(value, "Cast")), None)
    if found is None or facts.dtype(found) != ir.DataType.BOOL:
        return None, False
    opposites = _operands_of(found, "Not")
    return (opposites[0], True) if opposites else (found, False)


def opposite(node: ir.Node, facts: Facts) -> ir.Value | None:
    """The mask of which a node computes the opposite: Not, or 1 - mask."""
    if node.domain or node.op_type not in ("Not", "Sub"):
        return None
    if node.op_type == "Not":
        return node.inputs[0]
    is_same_shape = facts.shape(node.inputs[1]) == facts.shape(node.outputs[0]) is not None
    return node.inputs[1] if is_same_shape and facts.fill(node.inputs[0]) == 1 else None  # type: ignore[arg-type]
