"""Inequalities between formulas of positions, proved for all positions of a box.

Positions are replaced by the ends of their ranges, and quotients by ``x - s + 1 <= s*(x//s) <= x``, until the dimensions algebra
decides (`ortfuse.ir.dims.bounds`). All divisors are taken to be at least 1: they are sizes of tensors that have elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from ortfuse.analysis.index_maps.box import Box, axis_number, has_axes, shifted
from ortfuse.ir.dims import Dim, DimLike, exact_div, floor_div, is_nonnegative
from ortfuse.ir.dims.polynomial import Atom, Monomial, split_off

_DEPTH = 6
"""The most variables and quotients that are replaced one after the other."""

_CACHED = 1 << 15


@lru_cache(_CACHED)
def is_never_negative(formula: DimLike, box: Box) -> bool:
    """Return whether a formula is at least 0 at all positions of a box."""
    if isinstance(formula, int):
        return formula >= 0
    least = _least_number(formula, box)
    if least is not None and (least[0] >= 0 or (least[1] and not box.known)):
        return least[0] >= 0
    if _is_nonnegative(formula, box):
        return True
    return any(_reaches(formula - known, box) for known in (0, *box.known))


def _least_number(formula: Dim, box: Box) -> tuple[int, bool] | None:
    """A number that a formula is never below, and whether it is that at some position; `None` without numbers for all sizes."""
    least, is_reached = 0, True
    for monomial, coefficient in formula.terms:
        ends = _numbers(monomial, box)
        if ends is None:
            return None
        least += coefficient * (ends[0] if coefficient > 0 else ends[1])
        is_reached = is_reached and len(monomial) < 2 and not any(atom.kind for atom in monomial)
    return least, is_reached


def _numbers(monomial: Monomial, box: Box) -> tuple[int, int] | None:
    """The least and the largest number that a product may be; `None` unless it is a number, a position or a quotient of some."""
    if not monomial:
        return 1, 1
    if len(monomial) > 1:
        return None
    number = axis_number(monomial[0])
    if number is not None and number < len(box.lows):
        low, end = box.lows[number], box.ends[number]
        return (low, end - 1) if isinstance(low, int) and isinstance(end, int) and low < end else None
    if monomial[0].kind != "floordiv":
        return None
    numerator, divisor = monomial[0].args
    if not isinstance(divisor, int) or not isinstance(numerator, Dim):
        return None
    least, most = _least_number(numerator, box), _least_number(-numerator, box)  # type: ignore[arg-type]
    return None if least is None or most is None else (least[0] // divisor, -most[0] // divisor)


def is_within(formula: DimLike, end: DimLike, box: Box) -> bool:
    """Return whether a formula is at least 0 and less than `end` at all positions of a box."""
    return is_never_negative(formula, box) and is_never_negative(end - 1 - formula, box)


@lru_cache(_CACHED)
def lowest(formula: DimLike, box: Box) -> DimLike | None:
    """Return a formula without positions that another one is never below; `None` if none is found."""
    return next(_lower_bounds(formula, box, _DEPTH), None)


def highest(formula: DimLike, box: Box) -> DimLike | None:
    """Return a formula without positions that another one is never above; `None` if none is found."""
    found = lowest(-formula, box)
    return None if found is None else -found


def _is_nonnegative(formula: DimLike, box: Box) -> bool:
    return is_nonnegative(formula) or (bool(box.least) and is_nonnegative(shifted(formula, box)))


def _reaches(formula: DimLike, box: Box) -> bool:
    return any(_is_nonnegative(bound, box) for bound in _lower_bounds(formula, box, _DEPTH))


def _lower_bounds(formula: DimLike, box: Box, depth: int) -> Iterator[DimLike]:
    """Lower bounds without positions. They are those of a multiple of the formula, which has the same sign, if that helps."""
    atom = _next_atom(formula)
    if atom is None:
        yield formula
    elif depth:
        others, factor = split_off(formula, atom)
        if isinstance(factor, int) or not has_axes(factor):
            for bound in _replaced(others, factor, atom, box, depth - 1):
                yield from _lower_bounds(bound, box, depth - 1)


def _next_atom(formula: DimLike) -> Atom | None:
    """A quotient of positions, the largest first, or else a position."""
    found = [
        atom
        for monomial, _ in (formula.terms if isinstance(formula, Dim) else ())
        for atom in monomial
        if has_axes(atom.dim)
    ]
    return max(found, key=lambda atom: (atom.size, atom.key), default=None)


def _replaced(others: DimLike, factor: DimLike, atom: Atom, box: Box, depth: int) -> Iterator[DimLike]:
    """Lower bounds of ``others + factor*atom`` without the atom."""
    rising = _is_nonnegative(factor, box)
    if not rising and not _is_nonnegative(-factor, box):
        return
    number = axis_number(atom)
    if number is not None and number < len(box.lows):
        yield others + factor * (box.lows[number] if rising else box.ends[number] - 1)
    elif atom.kind == "floordiv":
        numerator, divisor = atom.args
        times = exact_div(factor, divisor)
        if times is not None:
            yield others + times * (numerator - divisor + 1 if rising else numerator)
        inner = next(_lower_bounds(numerator if rising else -numerator, box, depth), None)
        if inner is not None:
            yield others + factor * floor_div(inner if rising else -inner, divisor)
