"""The question which elements of which values a value consists of, and the table of functions that answer it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.index_maps.box import Box, axes
from ortfuse.analysis.index_maps.constant_to_index_formula import element_of_array, element_of_integers
from ortfuse.analysis.index_maps.element_expressions import (
    MOST_PIECES,
    Element,
    IndexMap,
    Number,
    Read,
    formulas,
    leaves,
)
from ortfuse.analysis.index_maps.prove_inequalities import highest, lowest
from ortfuse.analysis.ranges.queries import NOT_KNOWN, Asking, Question, Values
from ortfuse.analysis.transfer.symbolic_element_arithmetic import fitting
from ortfuse.analysis.transfer.transfer_function_registry import UnknownError
from ortfuse.analysis.transfer.value_fact import INTEGERS, Fact
from ortfuse.ir.dims import Dim, DimLike
from ortfuse.ir.operator_registry import Facet
from ortfuse.ir.traits import BROADCASTS, ELEMENTWISE, has

MOST_CONSTANT = 1 << 14
"""Constants with at most this many elements are read to see how their numbers rise."""

MAX_RANK = 9
"""The most axes of a tensor that is looked at."""

MOST_BETWEEN = 256
"""The most values that are looked at to see which of them are computed from given ones."""

LONGEST_FORMULA = 64
"""The most variables, numbers and operations of a formula."""


class Moving(Asking):
    """A node with the index maps of its operands, for the function that gives the element of an output at each position."""

    __slots__ = ("__dict__",)

    @cached_property
    def shape_after(self) -> tuple[DimLike, ...]:
        """The shape of the output.

        Raises:
            UnknownError: Its rank is unknown.
        """
        shape = self.result.shape
        if shape is None:
            raise UnknownError
        return shape

    @cached_property
    def box(self) -> Box:
        """The positions of the output."""
        return Box.of_shape(self.shape_after)

    @property
    def place(self) -> tuple[DimLike, ...]:
        """The position of the element that is asked for."""
        return axes(len(self.shape_after))

    def map_of(self, index: int) -> IndexMap:
        """The index map of an operand.

        Raises:
            UnknownError: It is absent, or its rank is unknown.
        """
        found: IndexMap | None = self.ask(self.operand(index))
        if found is None:
            raise UnknownError
        return found

    def at(self, index: int, place: Sequence[DimLike]) -> Element:
        """The element of an operand at a position."""
        return self.map_of(index).read_at(place)

    def broadcast_at(self, index: int) -> Element:
        """The element of an operand that is broadcast to the output.

        Raises:
            UnknownError: It is not known along which axes it is repeated.
        """
        before, after = self.known_shape(index), self.shape_after
        more = len(after) - len(before)
        if more < 0:
            raise UnknownError
        return self.at(index, [self._repeated(dim, more + number) for number, dim in enumerate(before)])

    def _repeated(self, dim: DimLike, number: int) -> DimLike:
        if dim == 1:
            return 0
        if dim != self.shape_after[number]:
            raise UnknownError
        return self.place[number]

    def number_at(self, formula: DimLike) -> Element:
        """An integer, if the element type of the output can hold all that a formula may be.

        Raises:
            UnknownError: It may not.
        """
        for bound in (lowest(formula, self.box), highest(formula, self.box)):
            if bound is None or fitting(bound, self.result.dtype) is None:
                raise UnknownError
        return Number(formula)


Moves: TypeAlias = Callable[[Moving], Element]

ELEMENT_MAPS: Facet[Moves] = Facet("index_map", "which element of which operand each element of an output is")

element_map = ELEMENT_MAPS.register
"""Register the decorated function for the given operators."""


@dataclass(frozen=True)
class Taken:
    """The elements of a value at an index along an axis; without an axis the value itself."""

    value: ir.Value
    axis: int | None = None
    index: DimLike = 0


class IndexMapOf(Question):
    """Return the index map of a value: down to values that no operator with a known map computes, or to some that are given.

    Args:
        sources: Values that are taken as they are.
        given: What values are by the caller's knowledge, such as the inputs of the body of a loop: integers, or elements.
        within: The graph outside of which all values are taken as they are, constants apart.
        others: The maps of values without sources, with the values whose maps depend on the sources; all others' do not.
    """

    def __init__(
        self,
        sources: frozenset[ir.Value] = frozenset(),
        given: Mapping[ir.Value, Number | Taken] | None = None,
        within: ir.Graph | None = None,
        others: tuple[Callable[[ir.Value], IndexMap | None], Collection[ir.Value]] | None = None,
    ) -> None:
        self._sources, self._given, self._within, self._others = sources, given or {}, within, others

    def answer(self, value: ir.Value, values: Values) -> IndexMap | None:
        """The map; `None` if the rank of the value is unknown or high."""
        if self._others is not None and value not in self._others[1]:
            return self._others[0](value)
        fact = values.analysis.fact(value)
        if fact.shape is None or len(fact.shape) > MAX_RANK:
            return None
        found: Element | None = None
        if value in self._given:
            found = self._known(self._given[value], len(fact.shape), values)
        elif value not in self._sources:
            if self._sources and self._within is None and fact.integers() is not None:
                found = self._of_sources(value, values)
            found = _of_integers(fact) if found is None else found
            found = self._of_constant(fact) if found is None and fact.is_constant else found
            if found is None and self._within in (None, value.graph):
                found = self._computed(value, values)
        if found is None:
            return IndexMap.identity(value, fact.shape)
        return IndexMap.of(fact.shape, found)

    def _known(self, one: Number | Taken, rank: int, values: Values) -> Element | None:
        """The element of a value of which the caller knows what it is."""
        if isinstance(one, Number):
            return one
        whole: IndexMap | None = values.answers(self, [one.value])[0]
        place = axes(rank)
        if one.axis is not None:
            place = (*place[: one.axis], one.index, *place[one.axis :])
        return None if whole is None or len(whole.shape) != len(place) else whole.read_at(place)

    def _of_sources(self, value: ir.Value, values: Values) -> Element | None:
        """The elements of known integers if they are those of sources."""
        found = self._computed(value, values)
        is_read = found is not None and all(
            isinstance(leaf, Read) and leaf.value in self._sources for leaf in leaves(found)
        )
        return found if is_read else None

    def _of_constant(self, fact: Fact) -> Element | None:
        if fact.tensor is not None and fact.tensor.size > MOST_CONSTANT:
            return None
        array: Any = fact.array()
        if array is None and fact.tensor is not None:
            array = fact.tensor.numpy()
        return None if array is None or fact.dtype is None else element_of_array(np.asarray(array), fact.dtype)

    def _computed(self, value: ir.Value, values: Values) -> Element | None:
        node = value.producer()
        function = None if node is None else ELEMENT_MAPS.of(node)
        if function is None or node is None:
            return None
        moving = Moving(node, value, self, values)
        try:
            found = function(moving)
            if sum(1 for _ in leaves(found)) > MOST_PIECES or any(
                isinstance(formula, Dim) and formula.size > LONGEST_FORMULA for formula in formulas(found)
            ):
                return None
        except NOT_KNOWN:
            return None
        return found


def _of_integers(fact: Fact) -> Element | None:
    """The element of a small tensor of integers that are all known."""
    known = fact.integers() if not fact.is_constant else None
    if not known or None in known or fact.shape is None:
        return None
    numbers = [number for number in known if number is not None]
    return element_of_integers(numbers, fact.shape)


def values_between(sources: Collection[ir.Value], value: ir.Value) -> Collection[ir.Value] | None:
    """Return the values asked about for the map of a value that may read sources, and these; `None` if they are too many."""
    users: dict[ir.Value, list[ir.Value]] = {value: []}
    waiting = [value]
    while waiting:
        one = waiting.pop()
        node = None if one in sources else one.producer()
        if node is None or ELEMENT_MAPS.of(node) is None:
            continue
        for operand in node.inputs:
            if operand is not None and operand not in users:
                users[operand] = []
                waiting.append(operand)
            if operand is not None:
                users[operand].append(one)
        if len(users) > MOST_BETWEEN:
            return None
    found = {source for source in sources if source in users}
    waiting = list(found)
    while waiting:
        fresh = [user for user in users[waiting.pop()] if user not in found]
        found.update(fresh)
        waiting += fresh
    return found


def moves_elements(node: ir.Node, dtype_of: Callable[[ir.Value], ir.DataType | None]) -> bool:
    """Return whether an operator may have an index map for these element types: arithmetic has one for integers alone."""
    if ELEMENT_MAPS.of(node) is None or not node.outputs:
        return False
    dtype, name = dtype_of(node.outputs[0]), node.op_type
    if dtype in INTEGERS or name == "Where" or not has(node, _COMPUTES):
        return True
    if name in ("Cast", "CastLike"):
        return node.inputs[0] is not None and dtype_of(node.inputs[0]) == dtype
    return len(node.inputs) == 1 and name in ("Max", "Min", "Mean")


_COMPUTES = ELEMENTWISE | BROADCASTS
"""Operators that compute elements, unless these are integers."""
