"""Exact arithmetic on the symbolic elements of small tensors; None where a result is not provable."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import onnx_ir as ir

from ortfuse.analysis.transfer.value_fact import FLOATS, INTEGERS, Element, Quotient
from ortfuse.ir.dims import (
    Dim,
    DimLike,
    at_most,
    ceil_div,
    exact_div,
    floor_div,
    is_nonnegative,
    is_nonzero,
    maximum,
    minimum,
    mod,
)

_LARGEST_POWER = 3
_LARGEST_INTEGER = 2**53

Binary = Callable[[Element, Element], Element]


def add(a: Element, b: Element) -> Element:
    """``a + b``."""
    if a is None or b is None:
        return None
    if isinstance(a, Quotient) or isinstance(b, Quotient):
        return _add_quotients(_ratio(a), _ratio(b))
    return a + b


def subtract(a: Element, b: Element) -> Element:
    """``a - b``."""
    return add(a, negate(b))


def multiply(a: Element, b: Element) -> Element:
    """``a * b``."""
    if a is None or b is None:
        return None
    if isinstance(a, Quotient) or isinstance(b, Quotient):
        a, b = _ratio(a), _ratio(b)
        return quotient(a.numerator * b.numerator, a.denominator * b.denominator) if a.dyadic and b.dyadic else None
    return a * b


def divide_float(a: Element, b: Element) -> Element:
    """``a / b`` of floats with a constant divisor."""
    if a is None or b is None:
        return None
    a, b = _ratio(a), _ratio(b)
    if not isinstance(b.numerator, int) or b.numerator <= 0 or not (a.dyadic and b.dyadic):
        return None
    power_of_two = b.numerator & (b.numerator - 1) == 0
    if not power_of_two and (a.denominator != 1 or b.denominator != 1):
        return None
    return quotient(a.numerator * b.denominator, a.denominator * b.numerator)


def divide_integer(a: Element, b: Element) -> Element:
    """``a / b`` of integers, rounded towards zero."""
    if not isinstance(a, int | Dim) or not isinstance(b, int | Dim) or b == 0:
        return None
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) // abs(b) * (1 if (a >= 0) == (b >= 0) else -1)
    exact = exact_div(a, b)
    if exact is not None:
        return exact
    if not is_nonnegative(b):
        return None
    # Positive quotients are rounded down, negative ones up; each of the two parts is 0 where the other applies.
    return floor_div(a, b) if is_nonnegative(a) else maximum(floor_div(a, b), 0) + minimum(ceil_div(a, b), 0)


def modulo(a: Element, b: Element) -> Element:
    """``a mod b`` of integers, with the sign of the divisor."""
    return mod(a, b) if isinstance(a, int | Dim) and isinstance(b, int | Dim) and b != 0 else None


def remainder(a: Element, b: Element) -> Element:
    """``a mod b`` of integers with the sign of the dividend; known only if the sign makes no difference."""
    if not isinstance(a, int | Dim) or not isinstance(b, int | Dim):
        return None
    return modulo(a, b) if is_nonnegative(a) and is_nonnegative(b) else None


def power(a: Element, b: Element) -> Element:
    """``a ** b`` for small constant b."""
    if not isinstance(a, int | Dim) or not isinstance(b, int) or not 0 <= b <= _LARGEST_POWER:
        return None
    result: DimLike = 1
    for _ in range(b):
        result = result * a
    return result


def negate(a: Element) -> Element:
    """``-a``."""
    if isinstance(a, Quotient):
        return Quotient(-a.numerator, a.denominator)
    return None if a is None else -a


def absolute(a: Element) -> Element:
    """``|a|``."""
    if not isinstance(a, int | Dim):
        return None
    if is_nonnegative(a):
        return a
    return -a if is_nonnegative(-a) else None


def floor(a: Element) -> Element:
    """The largest integer that is at most `a`."""
    return floor_div(a.numerator, a.denominator) if isinstance(a, Quotient) else a


def ceil(a: Element) -> Element:
    """The smallest integer that is at least `a`."""
    return ceil_div(a.numerator, a.denominator) if isinstance(a, Quotient) else a


def round_even(a: Element) -> Element:
    """`a` rounded to the nearest integer; known only if `a` is an integer."""
    return None if isinstance(a, Quotient) else a


def truncate(a: Element) -> Element:
    """`a` rounded towards zero."""
    if not isinstance(a, Quotient):
        return a
    if is_nonnegative(a.numerator):
        return floor(a)
    return ceil(a) if is_nonnegative(-a.numerator) else None


def smallest(*elements: Element) -> Element:
    """The minimum of one or more elements."""
    numbers = [element for element in elements if isinstance(element, int | Dim)]
    return minimum(*numbers) if len(numbers) == len(elements) else None


def largest(*elements: Element) -> Element:
    """The maximum of one or more elements."""
    numbers = [element for element in elements if isinstance(element, int | Dim)]
    return maximum(*numbers) if len(numbers) == len(elements) else None


def total(*elements: Element) -> Element:
    """The sum of one or more elements."""
    return reduce(add, elements)


def product(*elements: Element) -> Element:
    """The product of one or more elements."""
    return reduce(multiply, elements)


def equal(a: Element, b: Element) -> Element:
    """1 if ``a == b``, 0 if not."""
    if a is None or b is None:
        return None
    if a == b:
        return 1
    if isinstance(a, Quotient) or isinstance(b, Quotient):
        return None
    return 0 if is_nonzero(a - b) else None


def less(a: Element, b: Element) -> Element:
    """1 if ``a < b``, 0 if not."""
    if not isinstance(a, int | Dim) or not isinstance(b, int | Dim):
        return None
    if at_most(b, a):
        return 0
    return 1 if at_most(a + 1, b) else None


def less_or_equal(a: Element, b: Element) -> Element:
    """1 if ``a <= b``, 0 if not."""
    return logical_not(less(b, a))


def greater(a: Element, b: Element) -> Element:
    """1 if ``a > b``, 0 if not."""
    return less(b, a)


def greater_or_equal(a: Element, b: Element) -> Element:
    """1 if ``a >= b``, 0 if not."""
    return logical_not(less(a, b))


def logical_and(a: Element, b: Element) -> Element:
    """1 if both are 1; a 0 on either side is decisive."""
    if a == 0 or b == 0:
        return 0
    return 1 if a == 1 and b == 1 else None


def logical_or(a: Element, b: Element) -> Element:
    """1 if either is 1; a 1 on either side is decisive."""
    if a == 1 or b == 1:
        return 1
    return 0 if a == 0 and b == 0 else None


def logical_xor(a: Element, b: Element) -> Element:
    """1 if exactly one of them is 1."""
    return a ^ b if isinstance(a, int) and isinstance(b, int) else None


def logical_not(a: Element) -> Element:
    """``1 - a`` of a truth value."""
    return 1 - a if isinstance(a, int) else None


def select(condition: Element, a: Element, b: Element) -> Element:
    """`a` where the condition is 1, `b` where it is 0."""
    if isinstance(condition, int):
        return a if condition else b
    return a if a == b else None


def truth(a: Element) -> Element:
    """1 if `a` is not zero, 0 if it is."""
    return logical_not(equal(a, 0))


def quotient(numerator: DimLike, denominator: int) -> Element:
    """``numerator / denominator`` in lowest terms."""
    exact = exact_div(numerator, denominator)
    if exact is not None:
        return exact
    while denominator % 2 == 0:
        half = exact_div(numerator, 2)
        if half is None:
            break
        numerator, denominator = half, denominator // 2
    return Quotient(numerator, denominator)


def cast(a: Element, source: ir.DataType | None, target: ir.DataType | None) -> Element:
    """`a` converted from one element type to another; None if the target type might not be able to hold it."""
    if target == ir.DataType.BOOL:
        return truth(a)
    if target in FLOATS:
        return fitting(a, target) if source in INTEGERS or source in FLOATS else None
    if target not in INTEGERS:
        return None
    return fitting(truncate(a), target)


def fitting(element: Element, dtype: ir.DataType | None) -> Element:
    """The element if a tensor of that type can hold it, else None.

    Sizes and products of sizes are assumed to be at most 2**20 where they are computed with 32 bits, 2**16 in float32 and 2**32
    elsewhere. A result with factors so large that it might wrap around is unknown.
    """
    if isinstance(element, Quotient):
        return element if fitting(element.numerator, dtype) is not None else None
    low, high, size = _RANGES.get(dtype, _WIDEST)
    if isinstance(element, int):
        return element if low <= element <= high else None
    if not isinstance(element, Dim) or dtype in _NARROW:
        return None
    reach = sum(abs(coefficient) * (size if monomial else 1) for monomial, coefficient in element.terms)
    return element if reach <= high and (low < 0 or is_nonnegative(element)) else None


_NARROW = frozenset({ir.DataType.INT8, ir.DataType.INT16, ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.BOOL})
"""Types for which no size is assumed to fit."""

_WIDEST = (-_LARGEST_INTEGER, _LARGEST_INTEGER, 2**32)
_RANGES: dict[ir.DataType | None, tuple[int, int, int]] = {
    ir.DataType.BOOL: (0, 1, 1),
    ir.DataType.FLOAT: (-(2**24), 2**24, 2**16),
}
"""The lowest and the highest integer of a type, and the largest size that is assumed."""

for _bits in (8, 16, 32, 64):
    _size = 2**32 if _bits == 64 else 2**20
    _RANGES[ir.DataType[f"INT{_bits}"]] = (-(2 ** (_bits - 1)), 2 ** (_bits - 1) - 1, _size)
    _RANGES[ir.DataType[f"UINT{_bits}"]] = (0, 2**_bits - 1, _size)


def _ratio(a: DimLike | Quotient) -> Quotient:
    return a if isinstance(a, Quotient) else Quotient(a, 1)


def _add_quotients(a: Quotient, b: Quotient) -> Element:
    if not (a.dyadic and b.dyadic):
        return None
    numerator = a.numerator * b.denominator + b.numerator * a.denominator
    return quotient(numerator, a.denominator * b.denominator)
