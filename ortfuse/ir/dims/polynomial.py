"""Integer polynomials over named symbols and opaque atoms: the values a dimension can take.

Import the names from `ortfuse.ir.dims`. A constant is always a plain ``int``; a `Dim` always contains a symbol. Terms
are kept sorted and like terms are collected, so equal polynomials compare and hash as equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import TypeAlias, cast

_OVERFLOWING = 1000
"""Added to the size of a polynomial that has a coefficient beyond 64 bits; no real dimension has one."""

Monomial: TypeAlias = "tuple[Atom, ...]"
"""A sorted product of atoms, repeated for powers; ``()`` is the monomial of the constant term."""


class Atom:
    """An indivisible factor of a polynomial: a named symbol, or a function of dimensions that is not a polynomial.

    Atoms are interned, so they compare by identity. Create them with `symbol` and `function`.

    Attributes:
        kind: ``""`` for a symbol, else the function (``floordiv``, ``min``, ``max`` or ``broadcast``).
        name: the symbol's name (``""`` for a function).
        args: the function's arguments (``()`` for a symbol).
        key: sort key; different atoms have different keys.
        size: number of atoms and terms in the atom, including itself.
        fresh: whether it contains an unknown dimension (see `fresh`).
        low: the least size of a symbol.
        high: the largest size of a symbol, None without a bound.
        dim: the polynomial that consists of just this atom.
    """

    __slots__ = ("args", "dim", "fresh", "high", "key", "kind", "low", "name", "size")

    def __init__(self, kind: str, name: str, args: tuple[DimLike, ...], low: int = 0, high: int | None = None) -> None:
        self.kind, self.name, self.args, self.low, self.high = kind, name, args, low, high
        # Symbols sort before functions ("~" sorts late), so that seq comes before seq//2.
        self.key: str = name if not kind else _separated("\0", [f"~{kind}", *map(_order, args)]) + "\1"
        if (low, high) != (0, None):
            self.key += f"\0{low}:{high}"
        self.size: int = 1 + sum(arg.size for arg in args if isinstance(arg, Dim))
        self.fresh: bool = name.startswith(_FRESH) or any(isinstance(arg, Dim) and arg.fresh for arg in args)
        self.dim = _interned((((self,), 1),))

    def __reduce__(self) -> tuple[object, ...]:
        return _intern, (
            self.kind,
            self.name,
            self.args,
            self.low,
            self.high,
        )  # copies and unpickled atoms must stay interned

    def __repr__(self) -> str:
        return f"Atom({self.dim})"


class Dim:
    """A non-constant polynomial with integer coefficients. Immutable, hashable, canonical.

    Equal polynomials are mostly one object, so that what is computed about one is computed once.

    ``+``, ``-`` and ``*`` with integers and other dimensions return a `DimLike`. ``str()`` returns a text that `parse`
    can read. Everything else is a function in `ortfuse.ir.dims`.

    Attributes:
        terms: pairs of monomial and coefficient (never 0), highest degree first.
        size: a measure of complexity: the number of terms and atoms, including nested ones.
        fresh: whether it contains an unknown dimension (see `fresh`).
    """

    __slots__ = ("_hash", "bounds", "fresh", "size", "terms")

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms
        self._hash = hash(terms)
        self.size, self.fresh = len(terms), False
        overflows = False
        for monomial, coefficient in terms:
            overflows = overflows or coefficient >> 64 not in (0, -1)
            for atom in monomial:
                self.size += atom.size
                self.fresh = self.fresh or atom.fresh
        if overflows:
            self.size += _OVERFLOWING
        self.bounds: tuple[int | None, int | None] | None = None  # cache of ortfuse.ir.dims.bounds

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Dim) and self._hash == other._hash and self.terms == other.terms

    def __add__(self, other: DimLike) -> DimLike:
        if other == 0:
            return self
        sums = dict(self.terms)
        for monomial, coefficient in terms_of(other):
            sums[monomial] = sums.get(monomial, 0) + coefficient
        return from_terms(sums)

    __radd__ = __add__

    def __neg__(self) -> DimLike:
        return _interned(tuple([(monomial, -coefficient) for monomial, coefficient in self.terms]))

    def __sub__(self, other: DimLike) -> DimLike:
        if other == 0:
            return self
        sums = dict(self.terms)
        for monomial, coefficient in terms_of(other):
            sums[monomial] = sums.get(monomial, 0) - coefficient
        return from_terms(sums)

    def __rsub__(self, other: DimLike) -> DimLike:
        return -self + other

    def __mul__(self, other: DimLike) -> DimLike:
        if isinstance(other, int):
            if other == 1:
                return self
            return _interned(tuple([(m, c * other) for m, c in self.terms])) if other else 0
        sums: dict[Monomial, int] = {}
        for left, a in self.terms:
            for right, b in other.terms:
                monomial = times(left, right)
                sums[monomial] = sums.get(monomial, 0) + a * b
        return from_terms(sums)

    __rmul__ = __mul__

    def __reduce__(self) -> tuple[object, ...]:
        return _interned, (self.terms,)

    def __repr__(self) -> str:
        return f"Dim({self})"

    def __str__(self) -> str:
        pieces = [_term_text(monomial, coefficient) for monomial, coefficient in self.terms]
        return " + ".join(pieces).replace("+ -", "- ")


DimLike: TypeAlias = int | Dim
"""A dimension: a plain ``int`` when it is constant, else a `Dim`."""

_FRESH = "?"
_CACHED = 1 << 15
_MOST_INTERNED = 1 << 17
"""The most polynomials that are kept to be found again; past that, all are made anew."""
_DIMS: dict[tuple[tuple[Monomial, int], ...], Dim] = {}
_ATOMS: dict[tuple[str, str, tuple[DimLike, ...], int, int | None], Atom] = {}


def _intern(kind: str, name: str, args: tuple[DimLike, ...], low: int = 0, high: int | None = None) -> Atom:
    identity = (kind, name, args, low, high)
    atom = _ATOMS.get(identity)
    return atom if atom is not None else _ATOMS.setdefault(identity, Atom(kind, name, args, low, high))


def _interned(terms: tuple[tuple[Monomial, int], ...]) -> Dim:
    """The polynomial with these terms, which are sorted."""
    dim = _DIMS.get(terms)
    if dim is None:
        if len(_DIMS) >= _MOST_INTERNED:
            _DIMS.clear()
        dim = _DIMS[terms] = Dim(terms)
    return dim


def symbol(name: str, low: int = 0, high: int | None = None) -> Dim:
    """The dimension called `name`: some integer >= `low`, and <= `high` unless that is None."""
    return _intern("", name, (), low, high).dim


def fresh(number: int) -> Dim:
    """The unknown dimension with this number, written ``?number``: an integer >= 0 about which nothing else is known."""
    return symbol(f"{_FRESH}{number}")


def function(kind: str, args: tuple[DimLike, ...]) -> Dim:
    """A function as an opaque dimension; `args` must be in canonical form (see `ortfuse.ir.dims.algebra`)."""
    return _intern(kind, "", args).dim


def times(left: Monomial, right: Monomial) -> Monomial:
    """The product of two monomials."""
    if not left or not right:
        return left or right
    return tuple(sorted(left + right, key=_atom_key))


def terms_of(dim: DimLike) -> tuple[tuple[Monomial, int], ...]:
    """The terms of a dimension, which may be a constant."""
    if isinstance(dim, Dim):
        return dim.terms
    return (((), int(dim)),)


def from_terms(terms: dict[Monomial, int]) -> DimLike:
    """The sum of ``coefficient * monomial``."""
    items = [item for item in terms.items() if item[1]]
    if len(items) <= 1:
        if not items:
            return 0
        monomial, coefficient = items[0]
        if not monomial:
            return coefficient
        return monomial[0].dim if coefficient == 1 and len(monomial) == 1 else _interned(tuple(items))
    items.sort(key=_term_key)
    return _interned(tuple(items))


def total(dims: Iterable[DimLike]) -> DimLike:
    """The sum of dimensions, in time linear in their terms: adding one after the other copies what was added before."""
    sums: dict[Monomial, int] = {}
    for dim in dims:
        for monomial, coefficient in terms_of(dim):
            sums[monomial] = sums.get(monomial, 0) + coefficient
    return from_terms(sums)


def exact_div(a: DimLike, b: DimLike) -> DimLike | None:
    """The polynomial q with ``a == q * b``, or None if there is none or `b` is 0."""
    if isinstance(b, int):
        if b == 0:
            return None
        if isinstance(a, int):
            return a // b if a % b == 0 else None
        if any(coefficient % b for _, coefficient in a.terms):
            return None
        return from_terms({monomial: coefficient // b for monomial, coefficient in a.terms})
    if a == b:
        return 1
    quotient: dict[Monomial, int] = {}
    lead, lead_coefficient = b.terms[0]
    while a != 0:
        monomial, coefficient = terms_of(a)[0]
        factor = _monomial_quotient(monomial, lead)
        if factor is None or coefficient % lead_coefficient:
            return None
        quotient[factor] = coefficient // lead_coefficient
        a = a - b * from_terms({factor: quotient[factor]})
    return from_terms(quotient)


def only_atom(dim: DimLike) -> Atom | None:
    """The atom, if `dim` consists of just one atom, else None."""
    if isinstance(dim, Dim) and len(dim.terms) == 1:
        monomial, coefficient = dim.terms[0]
        if coefficient == 1 and len(monomial) == 1:
            return monomial[0]
    return None


@lru_cache(_CACHED)
def split_off(dim: DimLike, atom: Atom) -> tuple[DimLike, DimLike]:
    """``(others, factor)`` with ``dim == others + factor*atom``, where `others` does not contain the atom."""
    if not isinstance(dim, Dim):
        return dim, 0
    others: dict[Monomial, int] = {}
    factor: dict[Monomial, int] = {}
    for monomial, coefficient in dim.terms:
        if atom in monomial:
            place = monomial.index(atom)
            factor[monomial[:place] + monomial[place + 1 :]] = coefficient
        else:
            others[monomial] = coefficient
    return (from_terms(others), from_terms(factor)) if factor else (dim, 0)


def symbols(dim: DimLike) -> set[str]:
    """The names of all symbols in a dimension, including those inside functions."""
    if isinstance(dim, int):
        return set()
    found: set[str] = set()
    for monomial, _ in dim.terms:
        for atom in monomial:
            if not atom.kind:
                found.add(atom.name)
            for argument in atom.args:
                found |= symbols(argument)
    return found


def rebuild(dim: DimLike, atom_value: Callable[[Atom], DimLike]) -> DimLike:
    """The dimension with every atom replaced by ``atom_value(atom)``."""
    if isinstance(dim, int):
        return dim
    sums: dict[Monomial, int] = {}
    for monomial, coefficient in dim.terms:
        if len(monomial) == 1:
            product = atom_value(monomial[0])
            if coefficient == 1 and len(dim.terms) == 1:
                return product
        else:
            product = 1
            for atom in monomial:
                product = atom_value(atom) * product
        for found, times_found in terms_of(product):
            sums[found] = sums.get(found, 0) + coefficient * times_found
    return from_terms(sums)


def evaluate(dim: DimLike, sizes: Mapping[str, int]) -> int:
    """The value of a dimension for the given sizes of its symbols.

    Raises:
        KeyError: a symbol has no size.
        ZeroDivisionError: a divisor is 0 for these sizes.
    """

    def value(atom: Atom) -> int:
        if not atom.kind:
            return sizes[atom.name]
        return _FUNCTIONS[atom.kind]([evaluate(argument, sizes) for argument in atom.args])

    return cast(int, rebuild(dim, value))


def _broadcast_value(sizes: list[int]) -> int:
    return next((size for size in sizes if size != 1), 1)


_FUNCTIONS: dict[str, Callable[[list[int]], int]] = {
    "floordiv": lambda args: args[0] // args[1],
    "min": min,
    "max": max,
    "broadcast": _broadcast_value,
}


def _monomial_quotient(a: Monomial, b: Monomial) -> Monomial | None:
    rest = list(a)
    for atom in b:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def _atom_key(atom: Atom) -> str:
    return atom.key


def _term_key(term: tuple[Monomial, int]) -> tuple[int, list[str]]:
    # Degree first, then the atoms: an admissible monomial order, which exact division relies on.
    return -len(term[0]), [atom.key for atom in term[0]]


def _order(dim: DimLike) -> str:
    if isinstance(dim, int):
        return str(dim)
    return _separated("\2", [_separated("\3", [str(c), *[atom.key for atom in m]]) for m, c in dim.terms])


def _separated(separator: str, parts: list[str]) -> str:
    return separator.join(parts)


def _term_text(monomial: Monomial, coefficient: int) -> str:
    if not monomial:
        return str(coefficient)
    factors = [_atom_text(atom, alone=len(monomial) == 1 and coefficient == 1) for atom in monomial]
    if coefficient == -1:
        return "-" + "*".join(factors)
    return "*".join(factors if coefficient == 1 else [str(coefficient), *factors])


def _atom_text(atom: Atom, *, alone: bool) -> str:
    if not atom.kind:
        return atom.name
    if atom.kind != "floordiv":
        return f"{atom.kind}({', '.join(map(str, atom.args))})"
    text = "//".join([_operand_text(argument) for argument in atom.args])
    return text if alone else f"({text})"


def _operand_text(dim: DimLike) -> str:
    plain = isinstance(dim, int) and dim >= 0
    simple = only_atom(dim)
    return str(dim) if plain or (simple is not None and simple.kind != "floordiv") else f"({dim})"
