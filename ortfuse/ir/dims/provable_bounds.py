"""Provable bounds of dimensions, given only the bounds of named symbols: integers >= 0, if nothing else is declared.

Import the names from `ortfuse.ir.dims`. This is interval arithmetic over the terms, sharpened by the inequalities that define
the opaque functions: ``min(a, b) <= a``, ``max(a, b) >= a``, ``a - c < c*(a//c) <= a``.
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd

from ortfuse.ir.dims.polynomial import Atom, Dim, DimLike, Monomial, exact_div, split_off

Interval = tuple[int | None, int | None]
"""Lowest and highest possible value, None where there is no bound."""

_SHARPEN_DEPTH = 3
_CACHED = 1 << 15


def bounds(dim: DimLike) -> Interval:
    """The lowest and highest provable value, None where none is known."""
    if isinstance(dim, int):
        return dim, dim
    if dim.bounds is None:
        low, negative = _sharpened(dim, _SHARPEN_DEPTH), _sharpened(-dim, _SHARPEN_DEPTH)
        dim.bounds = low, None if negative is None else -negative
    return dim.bounds


def lower_bound(dim: DimLike) -> int | None:
    """The best provable lower bound of `dim`, or None."""
    return bounds(dim)[0]


def upper_bound(dim: DimLike) -> int | None:
    """The best provable upper bound of `dim`, or None."""
    return bounds(dim)[1]


def is_nonnegative(dim: DimLike) -> bool:
    """Whether ``dim >= 0`` is provable."""
    low = lower_bound(dim)
    return low is not None and low >= 0


def is_positive(dim: DimLike) -> bool:
    """Whether ``dim >= 1`` is provable."""
    low = lower_bound(dim)
    return low is not None and low >= 1


def is_nonzero(dim: DimLike) -> bool:
    """Whether ``dim != 0`` is provable, by its bounds or because no combination of its terms can reach 0."""
    low, high = bounds(dim)
    if (low is not None and low > 0) or (high is not None and high < 0):
        return True
    if isinstance(dim, int):
        return False
    constant = dim.terms[-1][1] if not dim.terms[-1][0] else 0
    divisor = gcd(*[coefficient for monomial, coefficient in dim.terms if monomial])
    return constant % divisor != 0


def at_most(small: DimLike, large: DimLike) -> bool:
    """Whether ``small <= large`` is provable."""
    return is_nonnegative(large - small)


def _interval(dim: Dim) -> Interval:
    low: int | None = 0
    high: int | None = 0
    for monomial, coefficient in dim.terms:
        least, most = _monomial_interval(monomial)
        if coefficient < 0:
            least, most = most, least
        low = None if low is None or least is None else low + coefficient * least
        high = None if high is None or most is None else high + coefficient * most
    return low, high


def _monomial_interval(monomial: Monomial) -> Interval:
    if len(monomial) == 1:
        return _atom_interval(monomial[0])
    low, high = 1, 1
    unbounded = False
    for atom in monomial:
        least, most = _atom_interval(atom)
        if least is None or least < 0:
            return None, None
        low *= least
        unbounded |= most is None
        high *= most or 0
    return low, None if unbounded else high


def _atom_interval(atom: Atom) -> Interval:
    if not atom.kind:
        return atom.low, atom.high
    ranges = [bounds(argument) for argument in atom.args]
    lows, highs = [low for low, _ in ranges], [high for _, high in ranges]
    known_lows = [low for low in lows if low is not None]
    known_highs = [high for high in highs if high is not None]
    if atom.kind == "floordiv":
        return _quotient_interval(ranges[0], ranges[1])
    if atom.kind == "min":
        return min(known_lows) if len(known_lows) == len(lows) else None, min(known_highs, default=None)
    if atom.kind == "max":
        return max(known_lows, default=None), max(known_highs) if len(known_highs) == len(highs) else None
    return (  # broadcast: equal to one of the arguments
        min(known_lows) if len(known_lows) == len(lows) else None,
        max(known_highs) if len(known_highs) == len(highs) else None,
    )


def _quotient_interval(numerator: Interval, denominator: Interval) -> Interval:
    (low, high), (least, most) = numerator, denominator
    if least is None or least < 0:
        return None, None
    least = max(least, 1)  # a divisor of 0 gives no quotient to bound
    if low is not None:
        low = (0 if most is None else low // most) if low >= 0 else low // least
    if high is not None:
        high = high // least if high >= 0 else -1
    return low, high


@lru_cache(_CACHED)
def _sharpened(dim: DimLike, depth: int) -> int | None:
    """The best lower bound: from the intervals, or after replacing up to `depth` functions by their bounds."""
    if isinstance(dim, int):
        return dim
    lows = [_interval(dim)[0]]
    if depth:
        functions = dict.fromkeys(atom for monomial, _ in dim.terms for atom in monomial if atom.kind)
        lows += [_bound_through(dim, atom, depth - 1) for atom in functions]
    return max([low for low in lows if low is not None], default=None)


def _bound_through(dim: Dim, atom: Atom, depth: int) -> int | None:
    """A lower bound of ``dim == others + factor*atom`` from the inequality that defines `atom`."""
    others, factor = split_off(dim, atom)
    low, high = (factor, factor) if isinstance(factor, int) else _interval(factor)
    rising, falling = low is not None and low >= 0, high is not None and high <= 0
    if (atom.kind == "min" and falling) or (atom.kind == "max" and rising):
        lows = [_sharpened(others + factor * argument, depth) for argument in atom.args]
        return max([low for low in lows if low is not None], default=None)
    if atom.kind == "floordiv" and (rising or falling):
        numerator, divisor = atom.args
        # divisor * (numerator // divisor) lies between numerator - divisor + 1 and numerator.
        multiple = numerator - divisor + 1 if rising else numerator
        if isinstance(divisor, int):
            low = _sharpened(others * divisor + factor * multiple, depth)
            return None if low is None else -(-low // divisor)
        times = exact_div(factor, divisor)
        if times is not None and is_nonnegative(divisor):
            return _sharpened(others + times * multiple, depth)
    return None
