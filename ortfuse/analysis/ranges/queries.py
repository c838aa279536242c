"""Queries about the numbers in a value (ranges, norms, bounds), evaluated on demand, and the cache of their answers.

The function for an operator asks about the operands as if all answers were available. If one is not, `MissingAnswerError` is
raised, that question is answered first, and the function is called again: there is no recursion, so graphs may be deep, and
nothing is computed that nobody asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.propagation import Analysis
from ortfuse.analysis.ranges.range import (
    LARGEST_CONSTANT,
    Range,
    anything,
    of_array,
    of_sizes,
    whatever_fits,
)
from ortfuse.analysis.transfer.transfer_function_registry import Op, UnknownError
from ortfuse.analysis.transfer.value_fact import INTEGERS, Fact
from ortfuse.ir.operator_registry import Facet
from ortfuse.ir.traits import BROADCASTS, ELEMENTWISE, PRODUCT, RANGED, REDUCES, RESHAPES, SUM

NOT_KNOWN = (UnknownError, ArithmeticError, LookupError, ValueError, TypeError)
"""The errors of a function that needs something unknown, or whose node violates its operator's specification."""


class MissingAnswerError(Exception):
    """Raised if other questions have to be answered first."""

    def __init__(self, open_questions: list[tuple[Question, ir.Value]]) -> None:
        self.open_questions = open_questions


class Question(ABC):
    """A question that can be asked about any value."""

    @abstractmethod
    def answer(self, value: ir.Value, values: Values) -> Any:
        """The answer for a value.

        Raises:
            MissingAnswerError: other answers are needed first.
        """


class Values:
    """The cache of answers. An answer is kept only as long as all the answers it was derived from."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self._known: dict[Question, dict[ir.Value, Any]] = {}

    def ask(self, question: Question, value: ir.Value) -> Any:
        """The answer to a question."""
        waiting = [(question, value)]
        while waiting:
            asked, about = waiting[-1]
            known = self._known.setdefault(asked, {})
            if about not in known:
                try:
                    known[about] = asked.answer(about, self)
                except MissingAnswerError as missing:
                    waiting += missing.open_questions
                    continue
            waiting.pop()
        return self._known[question][value]

    def answers(self, question: Question, about: Sequence[ir.Value]) -> list[Any]:
        """The answers for several values, all of which must already be available.

        Raises:
            MissingAnswerError: some are not.
        """
        known = self._known.get(question, {})
        missing = [(question, value) for value in about if value not in known]
        if missing:
            raise MissingAnswerError(missing)
        return [known[value] for value in about]

    def forget(self, value: ir.Value, dependents: Callable[[ir.Value], Iterable[ir.Node]]) -> None:
        """Drop the answers about a value, and everything derived from them."""
        stores = [known for known in self._known.values() if known]
        if not stores:
            return
        for known in stores:
            known.pop(value, None)
        waiting = [value]
        while waiting:
            for node in dependents(waiting.pop()):
                for output in node.outputs:
                    if sum([known.pop(output, stores) is not stores for known in stores]):
                        waiting.append(output)

    def forget_one(self, value: ir.Value) -> None:
        """Drop the answers about a value that is no longer used."""
        for known in self._known.values():
            known.pop(value, None)

    def forget_answers(self, question: Question) -> None:
        """Drop all answers to a question."""
        self._known.pop(question, None)

    def forget_all(self) -> None:
        """Drop all answers."""
        self._known.clear()

    def constant(self, fact: Fact) -> np.ndarray[Any, Any] | None:
        """The constant of a fact, if it is small enough to be read."""
        array = fact.array()
        if array is None and fact.tensor is not None and fact.tensor.size <= LARGEST_CONSTANT:
            array = fact.tensor.numpy()
        return array


class Asking(Op):
    """A node with the information on its operands, for the functions that answer a question about its outputs.

    Attributes:
        question: the question.
        values: the cache of answers.
        output: the value that the question is about.
    """

    __slots__ = ("output", "question", "values")

    def __init__(self, node: ir.Node, output: ir.Value, question: Question, values: Values) -> None:
        analysis = values.analysis
        facts = [None if value is None else analysis.fact(value) for value in node.inputs]
        version = node.version if node.version is not None else analysis.imports_of(node).get(node.domain, 1)
        super().__init__(node, version, facts, analysis)
        self.output, self.question, self.values = output, question, values

    @property
    def result(self) -> Fact:
        """The fact of the output."""
        return self.analysis.fact(self.output)

    @property
    def result_dtype(self) -> ir.DataType:
        """The element type of the output.

        Raises:
            UnknownError: it is not known.
        """
        dtype = self.result.dtype
        if dtype is None:
            raise UnknownError
        return dtype

    def operand(self, index: int) -> ir.Value:
        """An operand.

        Raises:
            UnknownError: it is absent.
        """
        value = self.node.inputs[index] if index < len(self.node.inputs) else None
        if value is None:
            raise UnknownError
        return value

    def ask(self, value: ir.Value, question: Question | None = None) -> Any:
        """The answer to a question about any value; by default the same question that is asked about the output."""
        return self.values.answers(question or self.question, [value])[0]

    def range(self, index: int) -> Range:
        """The range of an operand.

        Raises:
            UnknownError: it is unknown, or the operand is absent.
        """
        found: Range | None = self.ask(self.operand(index))
        if found is None:
            raise UnknownError
        return found

    def range_or_anything(self, index: int) -> Range:
        """The range of an operand; if unknown, everything that its element type can hold."""
        found: Range | None = self.ask(self.operand(index))
        dtype = self.fact(index).dtype
        if found is not None:
            return found
        if dtype is None:
            raise UnknownError
        return anything(dtype)

    def ranges(self) -> list[Range]:
        """The ranges of all operands.

        Raises:
            UnknownError: one of them is unknown.
        """
        found = self.values.answers(self.question, [value for value in self.node.inputs if value is not None])
        if None in found:
            raise UnknownError
        return found


Answer: TypeAlias = "Callable[[Asking], Range | None]"

RANGES: Facet[Answer] = Facet("range", "the numbers that the elements of an output can be")

BY_ELEMENT: Facet[Answer] = Facet("range_by_element", "`range`, if it may be given part of each operand's elements")
"""The function of `RANGES` again, if it may be given part of each operand's elements, as long as the parts correspond."""


def ranges(*operators: str, by_element: bool = False) -> Callable[[Answer], Answer]:
    """Register the decorated function for the given operators."""

    def register(function: Answer) -> Answer:
        for facet in (RANGES, BY_ELEMENT) if by_element else (RANGES,):
            facet.register(*operators)(function)
        return function

    return register


Assumption: TypeAlias = "Callable[[Asking, Range | None], Range | None]"
"""Replaces what is provable about a node's output by an assumption. The result is not a fact."""


class RangeOf(Question):
    """Return the range of the elements."""

    def __init__(self, assuming: Assumption | None = None) -> None:
        self._assuming = assuming

    def answer(self, value: ir.Value, values: Values) -> Range | None:
        """The range of a value, None if nothing is known."""
        fact = values.analysis.fact(value)
        if fact.is_constant:
            array = values.constant(fact)
            return whatever_fits(fact.dtype) if array is None else of_array(array)
        dtype = fact.dtype
        if dtype in INTEGERS:
            elements = fact.integers()
            known = [element for element in elements or () if element is not None]
            if elements and len(known) == len(elements):
                return of_sizes(known, dtype)
        found = self._computed(value, values)
        return whatever_fits(dtype) if found is None else found

    def _computed(self, value: ir.Value, values: Values) -> Range | None:
        node = value.producer()
        if node is None:
            return None
        function = RANGES.of(node)
        if function is None and (node.domain or self._assuming is None):
            return None
        asking = Asking(node, value, self, values)
        found = None
        with suppress(*NOT_KNOWN):
            found = None if function is None else function(asking)
        return found if self._assuming is None else self._assuming(asking, found)

    @cached_property
    def first_column(self) -> EndColumn:
        """The same question about the elements at index 0 of the last axis."""
        return EndColumn(self)

    @cached_property
    def last_column(self) -> EndColumn:
        """The same question about the elements at the last index of the last axis."""
        return EndColumn(self, last=True)


class EndColumn(Question):
    """Return the range of the elements at the first (or last) index of the last axis (for a scalar, of its one element).

    An elementwise operator computes within a column, since broadcasting aligns the last axes. For other operators, the module
    `columns` tells which of them take this column of their result from that of their operands. In all other cases the
    range of the whole value is used.
    """

    def __init__(self, whole: RangeOf, *, last: bool = False) -> None:
        self.whole, self.last = whole, last

    def answer(self, value: ir.Value, values: Values) -> Range | None:
        """The range of this column of a value, None if nothing is known."""
        fact = values.analysis.fact(value)
        if fact.is_constant:
            array = values.constant(fact)
            if array is not None:
                return of_array(array[..., -1 if self.last else 0] if array.ndim and array.size else array)
        node = value.producer()
        function = None if node is None else COLUMNS.of(node) or BY_ELEMENT.of(node)
        if function is not None and node is not None:
            try:
                found = function(Asking(node, value, self, values))
            except NOT_KNOWN:
                found = None
            if found is not None:
                return found
        whole: Range | None = values.answers(self.whole, [value])[0]
        return whole


COLUMNS: Facet[Answer] = Facet("end_column", "the numbers in the first and the last column of an output")
"""The functions for the first and the last column of outputs, for operators that are not elementwise."""

columns = COLUMNS.register
"""Register the decorated function for the first and the last column of the outputs of the given operators."""


class FillOf(Question):
    """Return the single number that all elements equal."""

    def __init__(self, range_of: RangeOf) -> None:
        self._range_of = range_of

    def answer(self, value: ir.Value, values: Values) -> int | float | None:
        """The number; None if there are several or it is unknown."""
        fact = values.analysis.fact(value)
        if fact.is_constant and (array := values.constant(fact)) is not None and array.dtype.kind in "fiubV":
            # Finding two different numbers near the start saves reading all of them.
            sample = array.reshape(-1)[:2]
            if sample.size == 2 and sample[0] != sample[1]:
                return None
        if _is_varied(value, values):
            return None
        found: Range | None = values.answers(self._range_of, [value])[0]
        levels = None if found is None else found.levels
        return next(iter(levels)) if levels is not None and len(levels) == 1 else None


def _is_varied(value: ir.Value, values: Values) -> bool:
    """Whether a value is computed or moved, by operators that need the range of their operand, from one of unknown range.

    Told without asking for ranges, because most of the values that anyone asks about are of this kind.
    """
    pending, seen = deque([value]), {value}
    while pending:
        value = pending.popleft()
        fact, node = values.analysis.fact(value), value.producer()
        if fact.is_constant or fact.dtype in INTEGERS:
            continue
        if node is None or RANGES.of(node) is None:
            return True
        if node.op_type in _KEEPS_VARIETY and len(seen) < _MOST_LOOKED_AT:
            operands = node.inputs[: 2 if node.op_type in BROADCASTS else 1]
            found = dict.fromkeys(operand for operand in operands if operand is not None and operand not in seen)
            pending.extend(found)
            seen.update(found)
    return False


_MOST_LOOKED_AT = 24
"""After so many values that others are computed from, their ranges are asked for."""

_KEEPS_VARIETY = SUM | PRODUCT | RESHAPES | REDUCES | ELEMENTWISE & RANGED | {"Transpose", "Expand", "Cast", "Pow"}


def is_last(op: Asking) -> bool:
    """Whether the question is about the last column."""
    return isinstance(op.question, EndColumn) and op.question.last
