"""Formulas of positions in simplest form, so that formulas that are equal on a box are mostly written alike.

Remainders are written ``x - s*(x//s)``. A quotient is taken apart as far as can be proved for the box:

    (3*i + j) // 3 = i                 j < 3
    (6*i + j) // 2 = 3*i + j//2
    (6*i + j) // 12 = i // 2           j < 6
    (i // 2) // 3 = i // 6
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import gcd

from ortfuse.analysis.index_maps.box import Box, axis_number, has_axes, shifted
from ortfuse.analysis.index_maps.prove_inequalities import is_within
from ortfuse.ir.dims import Dim, DimLike, exact_div, floor_div, substituted, symbol, total
from ortfuse.ir.dims.polynomial import Atom, Monomial, from_terms, rebuild, terms_of

_CACHED = 1 << 15


@lru_cache(_CACHED)
def simplified(formula: DimLike, box: Box) -> DimLike:
    """Return a formula in simplest form for the positions of a box."""
    if isinstance(formula, int):
        return formula

    def value(atom: Atom) -> DimLike:
        number = axis_number(atom)
        if number is not None:
            found = box.only(number)
            return atom.dim if found is None else found
        if not atom.kind or not has_axes(atom.dim):
            return _without_minimum(atom, box) if atom.kind else atom.dim
        return quotient(simplified(atom.args[0], box), simplified(atom.args[1], box), box)

    return rebuild(formula, value)


def _without_minimum(atom: Atom, box: Box) -> DimLike:
    """A function of sizes, perhaps without the cases for sizes that the box excludes: min(1, s) is 1 if s is not 0."""
    found = shifted(atom.dim, box)
    if found is atom.dim or (isinstance(found, Dim) and found.size >= atom.dim.size):
        return atom.dim
    return substituted(found, {name: symbol(name) - (least - symbol(name)) for name, least in box.least.items()})


def quotient(number: DimLike, divisor: DimLike, box: Box) -> DimLike:
    """Return ``number // divisor`` in simplest form; the divisor is at least 1."""
    exact = exact_div(number, divisor)
    if exact is not None:
        return exact
    whole, rest = _divided(number, divisor)
    for more in (0, -1, 1):
        if is_within(rest - more * divisor, divisor, box):
            return whole + more
    found = _by_common_factor(rest, divisor, box)
    if found is None:
        found = _of_quotient(rest, divisor, box)
    return whole + (floor_div(rest, divisor) if found is None else found)


def remainder(number: DimLike, divisor: DimLike, box: Box) -> DimLike:
    """Return ``number mod divisor`` in simplest form; the divisor is at least 1."""
    return number - divisor * quotient(number, divisor, box)


def _divided(number: DimLike, divisor: DimLike) -> tuple[DimLike, DimLike]:
    """``(whole, rest)`` with ``number == whole*divisor + rest``, term by term."""
    (lead, by), *others = terms_of(divisor)
    whole: list[DimLike] = []
    rest = number
    for monomial, coefficient in terms_of(number):
        factor = _without(monomial, lead)
        if factor is None:
            continue
        times = coefficient // by if not monomial or coefficient > 0 else -(-coefficient // by)
        if times:
            whole.append(from_terms({factor: times}))
    quotients = total(whole)
    rest = number - quotients * divisor
    return (quotients, rest) if not others or _is_shorter(rest, number) else (0, number)


def _is_shorter(one: DimLike, other: DimLike) -> bool:
    return len(terms_of(one)) < len(terms_of(other))


def _without(monomial: Monomial, part: Monomial) -> Monomial | None:
    left = list(monomial)
    for atom in part:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def _by_common_factor(number: DimLike, divisor: DimLike, box: Box) -> DimLike | None:
    """``(g*y + z) // (g*c) = y // c`` for 0 <= z < g."""
    for factor in _common_factors(number, divisor):
        whole, rest = _divided(number, factor)
        other = exact_div(divisor, factor)
        if other is not None and whole != 0 and is_within(rest, factor, box):
            return quotient(whole, other, box)
    return None


def _common_factors(number: DimLike, divisor: DimLike) -> Iterator[DimLike]:
    """Factors that the divisor has in common with single terms of a number, the largest first."""
    if len(terms_of(divisor)) > 1 or not isinstance(number, Dim):
        return
    (whole, by), *_ = terms_of(divisor)
    found: dict[DimLike, int] = {}
    for monomial, coefficient in number.terms:
        if not monomial:
            continue
        left, shared = list(monomial), []
        for atom in whole:
            if atom in left:
                left.remove(atom)
                shared.append(atom)
        factor = from_terms({tuple(shared): gcd(by, coefficient)})
        if factor != 1:
            found[factor] = max(found.get(factor, 0), len(shared))
    yield from sorted(found, key=lambda one: (found[one], terms_of(one)[0][1]), reverse=True)


def _of_quotient(number: DimLike, divisor: DimLike, box: Box) -> DimLike | None:
    """``(y//t + w) // s = (y + t*w) // (t*s)``."""
    for monomial, coefficient in number.terms if isinstance(number, Dim) else ():
        if len(monomial) == 1 and coefficient == 1 and monomial[0].kind == "floordiv" and has_axes(monomial[0].dim):
            numerator, inner = monomial[0].args
            others = number - monomial[0].dim
            return quotient(numerator + inner * others, inner * divisor, box)
    return None
