"""Linear forms: a value as a sum of products of other values with parts of constant matrices, plus constant vectors.

    Gemm(x, W, b) + MatMul(h, R)   =   x W + h R + b          its columns 8 to 16   =   x W[:, 8:16] + h R[:, 8:16] + b[8:16]

One form covers all spellings of an exporter: one product or several, of [x, h] joined or apart, for one step or for
all, split before or after a sum. Nothing is computed: forms are compared by the constants that they name, and the
numbers are read only for what is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import parameter
from ortfuse.ir.dims import DimLike
from ortfuse.ir.traits import RESHAPES

_DEEPEST = 40
"""The most nodes that a form leads through."""

_MOST_TERMS = 64
"""A sum of more terms is taken as it is."""


@dataclass(frozen=True)
class Source:
    """A value, or, given an axis, its element at an index along that axis: a number, or the iteration number of a loop."""

    value: ir.Value
    axis: int | None = None
    index: DimLike = 0


@dataclass(frozen=True)
class Block:
    """Columns of a constant matrix, whose rows belong to columns of a source, times a factor; no matrix: the source itself."""

    matrix: ir.Value | None
    transposed: bool
    rows: tuple[int, int]
    columns: tuple[int, int]
    factor: float = 1.0

    def array(self, facts: Facts) -> np.ndarray[Any, Any]:
        """The numbers, [rows, columns] in float64."""
        whole = facts.const(self.matrix)
        assert whole is not None
        found = (whole.T if self.transposed else whole)[slice(*self.rows), slice(*self.columns)]
        return np.asarray(found, np.float64) * self.factor


@dataclass(frozen=True)
class Offset:
    """Columns of a constant vector (or of equal rows, or of one number), times a factor."""

    value: ir.Value
    columns: tuple[int, int]
    factor: float = 1.0

    def array(self, facts: Facts) -> np.ndarray[Any, Any]:
        """The numbers, a vector in float64."""
        first, last = self.columns
        row = np.asarray(equal_row(facts.const(self.value)), np.float64)
        return np.asarray(np.full(last - first, row[0]) if row.size == 1 else row[first:last]) * self.factor


@dataclass(frozen=True)
class Form:
    """The sum of sources times blocks, and of offsets."""

    terms: tuple[tuple[Source, Block], ...] = ()
    offsets: tuple[Offset, ...] = ()

    def __add__(self, other: Form) -> Form:
        return Form(self.terms + other.terms, self.offsets + other.offsets)

    def times(self, factor: float) -> Form:
        """The form times a number."""
        if factor == 1:
            return self
        terms = tuple((source, replace(block, factor=block.factor * factor)) for source, block in self.terms)
        return Form(terms, tuple(replace(one, factor=one.factor * factor) for one in self.offsets))

    def offset(self, size: int, facts: Facts) -> np.ndarray[Any, Any]:
        """The sum of the offsets, a vector in float64."""
        return sum((one.array(facts) for one in self.offsets), np.zeros(size))


Part: TypeAlias = tuple[ir.Value, int, int]
"""Columns of a value: of its last axis, from the first to before the last."""


class Forms:
    """Finds the forms of values. `elements` says of values in the body of a loop which elements of others they are."""

    def __init__(self, facts: Facts, elements: Mapping[ir.Value, Source] | None = None) -> None:
        self.facts, self.elements = facts, elements or {}
        self._known: dict[tuple[Part, Source | None], Form | None] = {}

    def form(self, part: Part, at: Source | None = None, depth: int = 0) -> Form | None:
        """The form of columns of a value, or of its element `at` an index; `None` if it is too deep to say."""
        if depth > _DEEPEST:
            return None
        key = (part, at)
        if key not in self._known:
            self._known[key] = self._found(part, at, depth)
        return self._known[key]

    def _found(self, part: Part, at: Source | None, depth: int) -> Form | None:
        value, first, last = part
        if self.facts.is_const(value):
            return self._offset(part)
        at = Source(value) if at is None else replace(at, value=value)
        node = value.producer()
        if at.axis is None and (element := self.elements.get(value)) is not None and self._is_computed_before(element):
            return self.form((element.value, first, last), element, depth + 1)
        found = None if node is None or node.domain else self._of_node(node, part, at, depth + 1)
        if found is None or len(found.terms) > _MOST_TERMS:
            found = Form(((self.source(at), Block(None, False, (first, last), (first, last))),))
        return found

    def source(self, at: Source) -> Source:
        """The value that a source is an element of, if a node does nothing but to take that element."""
        if at.axis is not None:
            return at
        return self._element(at.value) or at

    def unit_part(self, value: ir.Value) -> tuple[Source, int] | None:
        """The element of another value that a value is, and where it has an axis of size 1 more than that."""
        shape, above = self.facts.shape(value), value
        while (node := above.producer()) is not None and self._keeps_order(node):
            if (element := self._element(above)) is not None:
                break
            if node.inputs[0] is None:
                return None
            above = node.inputs[0]
        else:
            taken, before = self._taken(above), self.facts.shape(above)
            if taken is None or before is None or before[taken[1]] != 1:
                return None
            element = Source(*taken)
        whole = self.facts.shape(element.value)
        if shape is None or whole is None or element.axis is None:
            return None
        own = whole[: element.axis] + whole[element.axis + 1 :]
        places = [place for place, size in enumerate(shape) if size == 1 and shape[:place] + shape[place + 1 :] == own]
        return (element, places[0]) if places else None

    def _keeps_order(self, node: ir.Node) -> bool:
        """Whether a node moves nothing but axes of size 1."""
        if node.domain or node.op_type != "Transpose":
            return not node.domain and node.op_type in RESHAPES
        perm, shape = parameter(node, "perm", self.facts), self.facts.shape(node.inputs[0])
        if shape is None or not isinstance(perm, tuple | list):
            return False
        held = [axis for axis in perm if shape[axis] != 1]
        return held == sorted(held)

    def part(self, part: Part) -> Part | None:
        """The columns of another value that columns of a value are, if a node does nothing but to take or join columns."""
        return self._columns_of(part) or self._block_of_columns(*part)

    def _columns_of(self, part: Part) -> Part | None:
        """The columns of an operand of a Concat, or of the input of a Split or Slice, that columns of its result are."""
        value, first, last = part
        node, rank = value.producer(), self.facts.rank(value)
        if node is None or node.domain or not rank:
            return None
        if node.op_type == "Concat" and parameter(node, "axis", self.facts) == rank - 1:
            return self._operand_with(node, first, last)
        taken = self._taken(value)
        if taken is not None and taken[1] == rank - 1:
            return taken[0], first + taken[2], last + taken[2]
        return None

    def _operand_with(self, node: ir.Node, first: int, last: int) -> Part | None:
        """The operand of a Concat of the last axis that has all of these columns."""
        start = 0
        for operand in node.inputs:
            size = self.columns(operand)
            if operand is None or size is None:
                return None
            if start <= first and last <= start + size:
                return operand, first - start, last - start
            start += size
        return None

    def _is_computed_before(self, element: Source) -> bool:
        """Whether an element is taken of what was computed for all of them at once."""
        rank = self.facts.rank(element.value)
        return rank is not None and element.axis != rank - 1 and _is_linear(element.value.producer())

    def _block_of_columns(self, value: ir.Value, first: int, last: int) -> Part | None:
        """The columns behind [.., k * n] reshaped to [.., k, n], of which one row is taken."""
        element = self._element(value)
        above = None if element is None else element.value.producer()
        if element is None or above is None or above.op_type != "Reshape" or above.inputs[0] is None:
            return None
        before, after = self.facts.shape(above.inputs[0]), self.facts.shape(element.value)
        if before is None or after is None or element.axis != len(after) - 2 or len(before) != len(after) - 1:
            return None
        if before[:-1] != after[:-2] or not isinstance(before[-1], int) or not isinstance(after[-1], int):
            return None
        if not isinstance(element.index, int):
            return None
        start = element.index * after[-1]
        return above.inputs[0], start + first, start + last

    def columns(self, value: ir.Value | None) -> int | None:
        """The size of the last axis, if it is known."""
        shape = self.facts.shape(value)
        return shape[-1] if shape and isinstance(shape[-1], int) else None

    def _of_node(self, node: ir.Node, part: Part, at: Source, depth: int) -> Form | None:
        """The form of a node's result, `None` if it is not linear."""
        whole = self.part(part) if at.axis is None else self._columns_of(part)
        if whole is not None:
            return self.form(whole, at, depth)
        element = self._element(part[0]) if at.axis is None else None
        if element is not None and self._is_computed_before(element):
            return self.form((element.value, *part[1:]), element, depth)
        if node.op_type in ("Add", "Sub", "Sum", "Neg"):
            signs = (
                (1.0, -1.0)
                if node.op_type == "Sub"
                else (-1.0,)
                if node.op_type == "Neg"
                else (1.0,) * len(node.inputs)
            )
            return self._sum(zip(node.inputs, signs, strict=True), part, at, depth)
        if node.op_type in ("Mul", "Div"):
            return self._scaled(node, part, at, depth)
        return self._product(node, part, at, depth)

    def _sum(self, operands: Any, part: Part, at: Source, depth: int) -> Form | None:
        rank, total = self.facts.rank(part[0]), Form()
        for operand, sign in operands:
            if operand is None or not (self.facts.is_const(operand) or self._fits(operand, part[0], rank)):
                return None
            found = self.form((operand, *part[1:]), at, depth)
            if found is None:
                return None
            total += found.times(sign)
        return total

    def _fits(self, operand: ir.Value, result: ir.Value, rank: int | None) -> bool:
        """Whether an operand is not repeated along an axis to give the result."""
        mine, whole = self.facts.shape(operand), self.facts.shape(result)
        return mine is not None and whole is not None and len(mine) == rank and mine == whole

    def _scaled(self, node: ir.Node, part: Part, at: Source, depth: int) -> Form | None:
        left, right = node.inputs[0], node.inputs[1]
        number = self.facts.scalar(right)
        if number is None and node.op_type == "Mul":
            left, right, number = right, left, self.facts.scalar(left)
        if left is None or not number or not self._fits(left, part[0], self.facts.rank(part[0])):
            return None
        found = self.form((left, *part[1:]), at, depth)
        return None if found is None else found.times(float(number) if node.op_type == "Mul" else 1 / float(number))

    def _product(self, node: ir.Node, part: Part, at: Source, depth: int) -> Form | None:
        """The form of a MatMul or Gemm with a constant matrix."""
        if node.op_type not in ("MatMul", "Gemm") or node.inputs[0] is None:
            return None
        matrix, transposed, factor, added = node.inputs[1], False, 1.0, None
        if node.op_type == "Gemm":
            options = [parameter(node, name, self.facts) for name in ("transA", "transB", "alpha", "beta")]
            if options[0] != 0 or options[1] not in (0, 1) or not all(isinstance(one, float | int) for one in options):
                return None
            transposed, factor = bool(options[1]), float(options[2])
            addend = node.inputs[2] if len(node.inputs) > 2 else None
            if addend is not None:
                added = self._sum([(addend, float(options[3]))], part, at, depth)
                if added is None:
                    return None
        if matrix is None or not self.facts.is_const(matrix) or self.facts.rank(matrix) != 2:
            return None
        columns, terms = (part[1], part[2]), []
        for source, own, rows in self._operands(node.inputs[0], at):
            if own[1] - own[0] != rows[1] - rows[0] or own[0]:
                return None
            terms.append((source, Block(matrix, transposed, rows, columns, factor)))
        return (Form(tuple(terms)) + (added or Form())) if terms else None

    def _operands(self, value: ir.Value, at: Source) -> list[tuple[Source, tuple[int, int], tuple[int, int]]]:
        """The sources that are joined along the last axis to be multiplied, with their columns and the rows they meet."""
        node, rank, size = value.producer(), self.facts.rank(value), self.columns(value)
        if size is None or not rank:
            return []
        values = [value]
        if node is not None and node.op_type == "Concat" and parameter(node, "axis", self.facts) == rank - 1:
            values = [operand for operand in node.inputs if operand is not None]
        sizes = [self.columns(operand) or 0 for operand in values]
        ends = [*accumulate(sizes)]
        found = [self.source(replace(at, value=operand)) for operand in values]
        return (
            [(one, (0, n), (end - n, end)) for one, n, end in zip(found, sizes, ends, strict=True)]
            if all(sizes)
            else []
        )

    def _offset(self, part: Part) -> Form | None:
        """A constant as an offset, if all its rows are equal."""
        value, first, last = part
        row = equal_row(self.facts.const(value))
        return None if row is None or (row.size != 1 and last > row.size) else Form((), (Offset(value, (first, last)),))

    def _element(self, value: ir.Value) -> Source | None:
        """The element that a value is of another one: by Gather of one index, or by Squeeze of a Split or Slice of size 1."""
        if value in self.elements:
            return self.elements[value]
        node = value.producer()
        if node is None or node.domain or not node.inputs or node.inputs[0] is None:
            return None
        if node.op_type == "Gather":
            index, axis = self.facts.scalar(node.inputs[1]), parameter(node, "axis", self.facts)
            size = self._size(node.inputs[0], axis)
            if not isinstance(index, int) or self.facts.rank(node.inputs[1]) != 0 or not isinstance(axis, int):
                return None
            if index < 0:
                return None if size is None else Source(node.inputs[0], axis, index + size)
            return Source(node.inputs[0], axis, index)
        if node.op_type in ("Squeeze", "Reshape"):
            taken, before, after = (
                self._taken(node.inputs[0]),
                self.facts.shape(node.inputs[0]),
                self.facts.shape(value),
            )
            if taken is None or before is None or after is None or before[taken[1]] != 1:
                return None
            return (
                Source(taken[0], taken[1], taken[2]) if before[: taken[1]] + before[taken[1] + 1 :] == after else None
            )
        return None

    def _taken(self, value: ir.Value) -> tuple[ir.Value, int, int] | None:
        """The value, axis and first element of which a value is a part: an output of a Split, or a Slice along one axis."""
        node = value.producer()
        if node is None or node.domain or not node.inputs or node.inputs[0] is None:
            return None
        if node.op_type == "Split":
            axis = parameter(node, "axis", self.facts)
            sizes = [self._size(output, axis) for output in node.outputs]
            before = sizes[: value.index() or 0]
            return (
                None
                if None in before or not isinstance(axis, int)
                else (node.inputs[0], axis, sum(n or 0 for n in before))
            )
        return self._cut_out(node, value) if node.op_type == "Slice" else None

    def _cut_out(self, node: ir.Node, value: ir.Value) -> tuple[ir.Value, int, int] | None:
        """Return the input and range of a Slice, if it leaves all axes but one whole."""
        source, before, after = node.inputs[0], self.facts.shape(node.inputs[0]), self.facts.shape(value)
        starts, axes, steps = (parameter(node, name, self.facts) for name in ("starts", "axes", "steps"))
        if source is None or before is None or after is None or not _are_integers(starts):
            return None
        axes = range(len(starts)) if axes is None else axes
        if not _are_integers(axes) or not (steps is None or (_are_integers(steps) and {*steps} == {1})):
            return None
        cut = [(axis, start) for axis, start in zip(axes, starts, strict=True) if before[axis] != after[axis]]
        if len(cut) != 1:
            return None
        ((axis, start),) = cut
        size, rest = before[axis], after[axis]
        if start < 0:
            start = start + size if isinstance(size, int) else -1
        inside = start >= 0 and (not isinstance(size, int) or start <= size)
        return (source, axis, start) if inside and isinstance(rest, int) and rest > 0 else None

    def _size(self, value: ir.Value | None, axis: Any) -> int | None:
        shape = self.facts.shape(value)
        found = (
            shape[axis] if shape is not None and isinstance(axis, int) and -len(shape) <= axis < len(shape) else None
        )
        return found if isinstance(found, int) else None


def _is_linear(node: ir.Node | None) -> bool:
    return node is not None and not node.domain and node.op_type in ("MatMul", "Add", "Sub")


def _are_integers(numbers: Any) -> bool:
    return isinstance(numbers, tuple | list | range) and all(isinstance(number, int) for number in numbers)


def equal_row(array: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any] | None:
    """The one row of a constant, or the row that all its rows are."""
    if array is None or array.size == 0 or array.dtype.kind != "f":
        return None
    rows = array.reshape(-1, array.shape[-1]) if array.ndim else array.reshape(1, 1)
    return rows[0] if len(rows) == 1 or bool((rows == rows[0]).all()) else None
