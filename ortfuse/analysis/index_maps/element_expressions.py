"""The element of a tensor at a position: an element of another tensor, a number, or one of two by a condition."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any, TypeAlias

import onnx_ir as ir

from ortfuse.analysis.index_maps.box import Box, axis, has_axes
from ortfuse.analysis.index_maps.prove_inequalities import is_never_negative
from ortfuse.analysis.index_maps.simplify_formulas import simplified
from ortfuse.analysis.transfer.transfer_function_registry import UnknownError
from ortfuse.analysis.transfer.value_fact import INTEGERS
from ortfuse.ir.dims import Dim, DimLike, floor_div, substituting

MOST_PIECES = 48
"""The most elements that a choice may be between."""


@dataclass(frozen=True)
class Read:
    """An element of a value.

    Attributes:
        value: The value.
        index: The position along each of its axes.
    """

    value: ir.Value
    index: tuple[DimLike, ...]


@dataclass(frozen=True)
class Number:
    """An integer (a truth value is 0 or 1), as a formula of the position."""

    formula: DimLike


@dataclass(frozen=True)
class Fill:
    """A number of another type, the same at each position: its bytes, so that signs of zeros and NaNs count."""

    dtype: ir.DataType
    content: bytes


@dataclass(frozen=True)
class Select:
    """One of two elements: the first where a formula is at least 0."""

    condition: DimLike
    then: Element
    otherwise: Element


Element: TypeAlias = "Read | Number | Fill | Select"
Leaf: TypeAlias = "Read | Number | Fill"


def leaves(element: Element) -> Iterator[Leaf]:
    """Yield the elements that a choice is between."""
    waiting = [element]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Select):
            waiting += [one.otherwise, one.then]
        else:
            yield one


def formulas(element: Element) -> Iterator[DimLike]:
    """Yield all conditions, indices and integers of an element."""
    if isinstance(element, Select):
        yield element.condition
        yield from formulas(element.then)
        yield from formulas(element.otherwise)
    elif isinstance(element, Read):
        yield from element.index
    elif isinstance(element, Number):
        yield element.formula


def at(element: Element, index: Sequence[DimLike]) -> Element:
    """Return the element at another position: `index` in place of the axes."""
    return _moved(element, substituting({f"@{number}": formula for number, formula in enumerate(index)}))


def _moved(element: Element, moved: Callable[[DimLike], DimLike]) -> Element:
    if isinstance(element, Read):
        return Read(element.value, tuple([moved(formula) for formula in element.index]))
    if isinstance(element, Number):
        return Number(moved(element.formula))
    if isinstance(element, Fill):
        return element
    return Select(moved(element.condition), _moved(element.then, moved), _moved(element.otherwise, moved))


def lifted(function: Callable[..., Element], *operands: Element) -> Element:
    """Apply a function of elements that are no choices to elements that may be.

    Raises:
        UnknownError: The result would be a choice between too many.
    """
    pieces = 1
    for operand in operands:
        pieces *= sum(1 for _ in leaves(operand))
    if pieces > MOST_PIECES:
        raise UnknownError
    return _lifted(function, operands)


def _lifted(function: Callable[..., Element], operands: tuple[Element, ...]) -> Element:
    for place, operand in enumerate(operands):
        if isinstance(operand, Select):
            branches = [
                _lifted(function, (*operands[:place], branch, *operands[place + 1 :]))
                for branch in (operand.then, operand.otherwise)
            ]
            return Select(operand.condition, *branches)
    return function(*operands)


def simplest(element: Element, box: Box) -> Element:
    """Return an element in simplest form for the positions of a box."""
    if isinstance(element, Read):
        return Read(element.value, tuple([simplified(formula, box) for formula in element.index]))
    if isinstance(element, Number):
        return Number(simplified(element.formula, box))
    if isinstance(element, Fill):
        return element
    condition = _plainest(simplified(element.condition, box))
    if is_never_negative(condition, box):
        return simplest(element.then, box)
    if is_never_negative(-condition - 1, box):
        return simplest(element.otherwise, box)
    inside, outside = box.where(condition), box.where(-condition - 1)
    then, otherwise = simplest(element.then, inside), simplest(element.otherwise, outside)
    return _merged(Select(condition, then, otherwise), inside, outside)


def _plainest(condition: DimLike) -> DimLike:
    """A formula that is at least 0 at the same positions: without a quotient or a common factor, if it has just one of them.

    x // s >= r is x >= s*r, and 4*i - 3 >= 0 is i >= 1.
    """
    if not isinstance(condition, Dim):
        return condition
    for monomial, sign in condition.terms:
        if len(monomial) != 1 or monomial[0].kind != "floordiv" or abs(sign) != 1 or not has_axes(monomial[0].dim):
            continue
        rest, (numerator, divisor) = condition - sign * monomial[0].dim, monomial[0].args
        if not has_axes(rest):
            past = divisor * rest
            return _plainest(numerator + past if sign > 0 else past + divisor - 1 - numerator)
    factors = [abs(coefficient) for monomial, coefficient in condition.terms if monomial]
    factor = gcd(*factors)
    return condition if factor == 1 else floor_div(condition, factor)


def _merged(found: Select, inside: Box, outside: Box) -> Element:
    """One of the two elements if it is the other where that is chosen."""
    if found.then == found.otherwise:
        return found.then
    if not isinstance(found.then, Select) and not isinstance(found.otherwise, Select):
        if simplest(found.otherwise, inside) == found.then:
            return found.otherwise
        if simplest(found.then, outside) == found.otherwise:
            return found.then
    return found


def number_of(element: Element) -> DimLike:
    """Return the formula of an element that is an integer.

    Raises:
        UnknownError: It is another element.
    """
    if not isinstance(element, Number):
        raise UnknownError
    return element.formula


def fill_of(dtype: ir.DataType, number: Any) -> Element:
    """Return the element of a tensor that holds one number of NumPy, which is of its type."""
    if dtype in INTEGERS:
        return Number(int(number))
    return Fill(dtype, number.tobytes())


@dataclass(frozen=True)
class IndexMap:
    """The elements of a tensor, as a function of their position.

    Attributes:
        shape: The shape of the tensor.
        element: The element at `axis(0), axis(1), ...`, in simplest form.
    """

    shape: tuple[DimLike, ...]
    element: Element

    @classmethod
    def of(cls, shape: Sequence[DimLike], element: Element) -> IndexMap:
        """Return the map of a tensor with this element at each position."""
        return cls(tuple(shape), simplest(element, Box.of_shape(shape)))

    @classmethod
    def identity(cls, value: ir.Value, shape: Sequence[DimLike]) -> IndexMap:
        """Return the map of a value whose elements are its own."""
        box = Box.of_shape(shape)
        index = tuple([simplified(axis(number), box) for number in range(len(shape))])
        return cls(tuple(shape), Read(value, index))

    @property
    def sources(self) -> tuple[ir.Value, ...]:
        """The values of which elements are read, each once."""
        return tuple(dict.fromkeys(leaf.value for leaf in leaves(self.element) if isinstance(leaf, Read)))

    @property
    def structure(self) -> Hashable:
        """The map without the identity of its sources, of which each is a number."""
        numbers = {value: number for number, value in enumerate(self.sources)}

        def of(element: Element) -> Hashable:
            if isinstance(element, Read):
                return numbers[element.value], element.index
            if isinstance(element, Select):
                return element.condition, of(element.then), of(element.otherwise)
            return element

        return self.shape, of(self.element)

    def is_identity_of(self, value: ir.Value, shape: Sequence[DimLike] | None) -> bool:
        """Return whether a tensor provably equals a value of this shape, unless both have no elements."""
        return shape is not None and self == IndexMap.identity(value, shape)

    def read_at(self, index: Sequence[DimLike]) -> Element:
        """Return the element at a position that is given by formulas."""
        return at(self.element, index)
