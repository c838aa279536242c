"""Index maps of integers and truth values: Range, CumSum, arithmetic and comparisons on formulas of the position."""

from __future__ import annotations

from collections.abc import Callable

from ortfuse.analysis.index_maps.box import has_axes
from ortfuse.analysis.index_maps.concat_pad_where import chosen_if
from ortfuse.analysis.index_maps.element_expressions import Element, Number, Read, Select, lifted, number_of
from ortfuse.analysis.index_maps.index_map_query import Moving, element_map
from ortfuse.analysis.index_maps.prove_inequalities import is_never_negative
from ortfuse.analysis.transfer.transfer_function_registry import UnknownError
from ortfuse.analysis.transfer.value_fact import INTEGERS
from ortfuse.ir.dims import DimLike, floor_div, mod

TRUE, FALSE = Number(1), Number(0)


def _demand_integers(op: Moving) -> None:
    if op.result_dtype not in INTEGERS:
        raise UnknownError


@element_map("Range")
def range_(op: Moving) -> Element:
    """Evenly rising integers."""
    _demand_integers(op)
    start, step = (number_of(op.at(index, (0,) * len(op.known_shape(index)))) for index in (0, 2))
    return op.number_at(start + step * op.place[0])


@element_map("CumSum")
def cum_sum(op: Moving) -> Element:
    """Multiples of a number that is the same along the axis."""
    _demand_integers(op)
    (along,), place = op.constants(1), op.place
    axis = along + len(place) if along < 0 else along
    formula = number_of(op.at(0, (*place[:axis], 0, *place[axis + 1 :])))
    if op.at(0, place) != Number(formula):
        raise UnknownError
    count = op.shape_after[axis] - place[axis] if op.attr_int("reverse", 0) else place[axis] + 1
    return op.number_at(formula * (count - op.attr_int("exclusive", 0)))


def _elementwise(op: Moving, function: Callable[..., Element]) -> Element:
    """A function of elements of all operands, which are broadcast."""
    return lifted(function, *(op.broadcast_at(index) for index in range(len(op.inputs))))


def _arithmetic(function: Callable[..., DimLike]) -> Callable[[Moving], Element]:
    """Return the map of an operator on integers."""

    def computed(op: Moving) -> Element:
        _demand_integers(op)
        return _elementwise(op, lambda *operands: op.number_at(function(*map(number_of, operands))))

    return computed


element_map("Neg")(_arithmetic(lambda a: -a))


def _with_neutral(
    function: Callable[[DimLike, DimLike], DimLike], neutral: int, *, left: bool
) -> Callable[[Moving], Element]:
    """Return the map of an operator on integers that leaves an element as it is if the other one is neutral."""

    def computed(op: Moving) -> Element:
        _demand_integers(op)

        def of(a: Element, b: Element) -> Element:
            if b == Number(neutral) and isinstance(a, Read):
                return a
            if left and a == Number(neutral) and isinstance(b, Read):
                return b
            return op.number_at(function(number_of(a), number_of(b)))

        return _elementwise(op, of)

    return computed


element_map("Add")(_with_neutral(lambda a, b: a + b, 0, left=True))
element_map("Sub")(_with_neutral(lambda a, b: a - b, 0, left=False))
element_map("Mul")(_with_neutral(lambda a, b: a * b, 1, left=True))


@element_map("Div")
def div(op: Moving) -> Element:
    """Quotients, rounded towards 0."""
    _demand_integers(op)

    def of(a: Element, b: Element) -> Element:
        if b == Number(1):
            return a
        number, divisor = number_of(a), _divisor(op, b)
        if is_never_negative(number, op.box):
            return op.number_at(floor_div(number, divisor))
        return Select(number, op.number_at(floor_div(number, divisor)), op.number_at(-floor_div(-number, divisor)))

    return _elementwise(op, of)


@element_map("Mod")
def modulo(op: Moving) -> Element:
    """Remainders with the sign of the divisor."""
    _demand_integers(op)
    if op.attr_int("fmod", 0):
        raise UnknownError
    return _elementwise(op, lambda a, b: op.number_at(mod(number_of(a), _divisor(op, b))))


def _divisor(op: Moving, element: Element) -> DimLike:
    """A positive divisor that is the same everywhere."""
    found = number_of(element)
    if has_axes(found) or not is_never_negative(found - 1, op.box):
        raise UnknownError
    return found


@element_map("Abs")
def absolute(op: Moving) -> Element:
    """Numbers without their sign."""
    _demand_integers(op)
    return _elementwise(op, lambda a: Select(number_of(a), a, op.number_at(-number_of(a))))


def _extreme(sign: int) -> Callable[[Moving], Element]:
    """Return the map of Max (1) or Min (-1)."""

    def computed(op: Moving) -> Element:
        if len(op.node.inputs) == 1:
            return op.at(0, op.place)
        _demand_integers(op)

        def of(*operands: Element) -> Element:
            found = operands[0]
            for other in operands[1:]:
                found = lifted(
                    lambda a, b: a if a == b else Select(sign * (number_of(a) - number_of(b)), a, b), found, other
                )
            return found

        return _elementwise(op, of)

    return computed


element_map("Max")(_extreme(1))
element_map("Min")(_extreme(-1))


@element_map("Mean")
def mean(op: Moving) -> Element:
    """The elements of one operand."""
    if len(op.node.inputs) > 1:
        raise UnknownError
    return op.at(0, op.place)


@element_map("Cast", "CastLike")
def cast(op: Moving) -> Element:
    """The same integers, or whether they are not 0; the same elements if the type is the same."""
    before, after = op.dtype(0), op.result_dtype
    if before == after:
        return op.at(0, op.place)
    if before not in INTEGERS or after not in INTEGERS:
        raise UnknownError
    if after.name == "BOOL":
        return _elementwise(op, lambda a: chosen_if([number_of(a), -number_of(a)], FALSE, TRUE))
    return _elementwise(op, lambda a: op.number_at(number_of(a)))


def _comparison(function: Callable[[DimLike, DimLike], tuple[DimLike, ...]]) -> Callable[[Moving], Element]:
    """Return the map of a comparison, from formulas that are all at least 0 if it holds."""

    def computed(op: Moving) -> Element:
        return _elementwise(op, lambda a, b: chosen_if(function(number_of(a), number_of(b)), TRUE, FALSE))

    return computed


element_map("Equal")(_comparison(lambda a, b: (a - b, b - a)))
element_map("Less")(_comparison(lambda a, b: (b - a - 1,)))
element_map("LessOrEqual")(_comparison(lambda a, b: (b - a,)))
element_map("Greater")(_comparison(lambda a, b: (a - b - 1,)))
element_map("GreaterOrEqual")(_comparison(lambda a, b: (a - b,)))


@element_map("Not")
def negation(op: Moving) -> Element:
    """The other truth values."""
    return _elementwise(op, lambda a: Select(number_of(a) - 1, FALSE, TRUE))


def _logical(decisive: Element, neutral: Element) -> Callable[[Moving], Element]:
    """Return the map of And or Or."""

    def computed(op: Moving) -> Element:
        def of(a: Element, b: Element) -> Element:
            if decisive in (a, b):
                return decisive
            if neutral in (a, b):
                return b if a == neutral else a
            if a == b:
                return a
            first, second = number_of(a), number_of(b)
            both = (first - 1, second - 1) if decisive == FALSE else (-first, -second)
            return chosen_if(both, neutral, decisive)

        return _elementwise(op, of)

    return computed


element_map("And")(_logical(FALSE, TRUE))
element_map("Or")(_logical(TRUE, FALSE))


@element_map("Xor")
def exclusive_or(op: Moving) -> Element:
    """Whether exactly one is true."""

    def of(a: Element, b: Element) -> Element:
        if FALSE in (a, b):
            return b if a == FALSE else a
        first, second = number_of(a), number_of(b)
        return Select(first - 1, Select(second - 1, FALSE, TRUE), Select(second - 1, TRUE, FALSE))

    return _elementwise(op, of)
