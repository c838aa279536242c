"""Boxes: the positions that a statement about elements is made for, as a range of each axis and further inequalities.

The axes of a tensor are the variables `axis(0)`, `axis(1)`, ... in formulas of `ortfuse.ir.dims`. A statement holds for every
position of a box. A box is taken to have positions: about an empty tensor every statement is true.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from ortfuse.ir.dims import DimLike, at_most, evaluate, substituted, symbol, symbols
from ortfuse.ir.dims.polynomial import Atom, Dim, only_atom, split_off

_AXIS = "@"
_CACHED = 1 << 15
_MOST_TRIED = 64
"""The largest value that is tried for a symbol to find its least one."""


@lru_cache(_CACHED)
def axis(number: int) -> Dim:
    """The position along an axis, as a variable of formulas."""
    return symbol(f"{_AXIS}{number}")


@lru_cache(_CACHED)
def axes(count: int) -> tuple[DimLike, ...]:
    """The positions along the first axes."""
    return tuple([axis(number) for number in range(count)])


@lru_cache(_CACHED)
def axis_number(atom: Atom) -> int | None:
    """The axis that a variable stands for; `None` for another variable."""
    return int(atom.name[1:]) if not atom.kind and atom.name.startswith(_AXIS) else None


@lru_cache(_CACHED)
def has_axes(formula: DimLike) -> bool:
    """Whether a formula depends on the position."""
    return isinstance(formula, Dim) and any(name.startswith(_AXIS) for name in symbols(formula))


@dataclass(frozen=True)
class Box:
    """Positions.

    Attributes:
        lows: The lowest position along each axis.
        ends: The first one past the highest.
        known: Formulas that are at least 0 at all of these positions.
    """

    lows: tuple[DimLike, ...]
    ends: tuple[DimLike, ...]
    known: tuple[DimLike, ...] = ()

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.lows, self.ends, self.known))

    @classmethod
    def of_shape(cls, shape: Sequence[DimLike]) -> Box:
        """All positions of a tensor."""
        return cls((0,) * len(shape), tuple(shape))

    def where(self, formula: DimLike) -> Box:
        """The positions at which a formula is at least 0, or more."""
        for number in range(len(self.lows)):
            rest, factor = split_off(formula, atom_of(number))
            if has_axes(rest) or factor not in (1, -1):
                continue
            return self._from(number, -rest) if factor == 1 else self._up_to(number, rest + 1)
        return replace(self, known=(*self.known, formula))

    def _from(self, number: int, low: DimLike) -> Box:
        old = self.lows[number]
        if at_most(low, old):
            return self
        known = self.known if at_most(old, low) else (*self.known, axis(number) - old)
        return replace(self, lows=_with(self.lows, number, low), known=known)

    def _up_to(self, number: int, end: DimLike) -> Box:
        old = self.ends[number]
        if at_most(old, end):
            return self
        known = self.known if at_most(end, old) else (*self.known, old - 1 - axis(number))
        return replace(self, ends=_with(self.ends, number, end), known=known)

    def only(self, number: int) -> DimLike | None:
        """The position along an axis if it is the same everywhere."""
        if number >= len(self.lows) or self.ends[number] - self.lows[number] != 1:
            return None
        return self.lows[number]

    @cached_property
    def least(self) -> Mapping[str, DimLike]:
        """Symbols that are not as small as 0 if the box has positions, written as their least value and a rest."""
        found: dict[str, int] = {}
        sizes: list[DimLike] = [end - low for low, end in zip(self.lows, self.ends, strict=True)]
        for size in [*sizes, *self.ends]:
            if isinstance(size, Dim):
                for atom in _symbols_in(size):
                    least = _least(size, atom.name)
                    if least > max(atom.low, found.get(atom.name, 0)):
                        found[atom.name] = least
        return {name: symbol(name) + least for name, least in found.items()}


def _symbols_in(formula: Dim) -> Iterator[Atom]:
    return (atom for monomial, _ in formula.terms for atom in monomial if not atom.kind)


def _least(size: Dim, name: str) -> int:
    """The least value of a symbol with which a size is at least 1; 0 where that is not seen."""
    if symbols(size) == {name}:
        try:
            return next((n for n in range(_MOST_TRIED) if evaluate(size, {name: n}) >= 1), 0)
        except ZeroDivisionError:
            return 0
    # A product of symbols is positive only if all of them are.
    single = len(size.terms) == 1 and all(not atom.kind for atom in size.terms[0][0])
    return 1 if single else 0


def shifted(formula: DimLike, box: Box) -> DimLike:
    """The formula with each symbol that cannot be 0 written as its least value and a rest that can."""
    return substituted(formula, box.least) if box.least and isinstance(formula, Dim) else formula


@lru_cache(_CACHED)
def atom_of(number: int) -> Atom:
    """The variable of an axis as an atom."""
    found = only_atom(axis(number))
    assert found is not None
    return found


def _with(numbers: tuple[DimLike, ...], place: int, number: DimLike) -> tuple[DimLike, ...]:
    return (*numbers[:place], number, *numbers[place + 1 :])
