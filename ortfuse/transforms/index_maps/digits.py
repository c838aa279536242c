"""The digits of positions that an index map is made of, and maps of one source as strided views.

A formula like ``12*(i // 4) + (i - 4*(i//4))`` depends on two digits of `i`: the number of a block of four, and the place in it.
Each axis of a map is split into its digits, so that all formulas are linear in them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.index_maps import Box, Element, IndexMap, Read, Select, axis, leaves
from ortfuse.analysis.index_maps.box import atom_of, axis_number, has_axes
from ortfuse.analysis.index_maps.element_expressions import at, formulas, simplest
from ortfuse.analysis.index_maps.prove_inequalities import is_within
from ortfuse.analysis.index_maps.reshape_transpose_expand import reshaped_place
from ortfuse.analysis.index_maps.simplify_formulas import simplified
from ortfuse.ir.dims import Dim, DimLike, exact_div, product
from ortfuse.ir.dims.polynomial import Atom, split_off
from ortfuse.transforms.canonicalize.strided_views import View, merged

Shape = tuple[DimLike, ...]

MOST_SPLITS = 4
"""The most ways to split single axes that are tried."""


def strided_view(read: Read, shape: Shape, facts: Facts) -> View | None:
    """Return the strided view of a source that a map is; `None` if it is none, or may read beyond the source."""
    source, box = facts.shape(read.value), Box.of_shape(shape)
    if source is None or len(source) != len(read.index) or 0 in (*source, *shape):
        return None
    if not all(is_within(index, size, box) for index, size in zip(read.index, source, strict=True)):
        return None
    flat: DimLike = 0
    for number, index in enumerate(read.index):
        flat = flat + index * product(source[number + 1 :])
    flat = simplified(flat, box)
    factors: list[tuple[DimLike, DimLike]] = []
    for number, size in enumerate(shape):
        terms, flat = _terms_of_axis(flat, number)
        found = None if terms is None else _factors(terms, size)
        if found is None:
            return None
        factors += found
    return None if has_axes(flat) else View(flat, merged(factors), shape)


def _terms_of_axis(formula: DimLike, number: int) -> tuple[list[tuple[DimLike, DimLike]] | None, DimLike]:
    """Divisors of a position with the factors of the quotients, and what is left of a formula; `None` if it is not linear."""
    terms: list[tuple[DimLike, DimLike]] = []
    for atom in _atoms(formula):
        divisor = _divisor(atom, number)
        if divisor is None:
            continue
        formula, factor = split_off(formula, atom)
        if has_axes(factor):
            return None, formula
        terms.append((divisor, factor))
    return terms, formula


def _atoms(formula: DimLike) -> list[Atom]:
    terms = formula.terms if isinstance(formula, Dim) else ()
    return list(dict.fromkeys(atom for monomial, _ in terms for atom in monomial))


def _divisor(atom: Atom, number: int) -> DimLike | None:
    """The divisor if an atom is a quotient of the position along an axis, 1 if it is that position."""
    if axis_number(atom) == number:
        return 1
    if atom.kind == "floordiv" and atom.args[0] == axis(number):
        return atom.args[1]
    return None


def _factors(terms: Sequence[tuple[DimLike, DimLike]], size: DimLike) -> list[tuple[DimLike, DimLike]] | None:
    """Sizes and strides of the digits of an axis, the slowest first; `None` if a divisor does not divide the next one."""
    sizes = digit_sizes([divisor for divisor, _ in terms], size)
    if sizes is None:
        return None
    found, within = list[tuple[DimLike, DimLike]](), product(sizes)
    for digit in sizes:
        within = exact_div(within, digit) if digit != 1 else within  # type: ignore[assignment]
        stride: DimLike = 0
        for divisor, factor in terms:
            times = exact_div(within, divisor)
            if times is not None:
                stride = stride + factor * times
        found.append((digit, stride))
    return found


def digit_sizes(divisors: Iterable[DimLike], size: DimLike) -> list[DimLike] | None:
    """Return the sizes of the digits of an axis, the slowest first; `None` if some divisor does not divide the next one."""
    found: list[DimLike] = []
    left = size
    ordered = sorted({one for one in divisors if one != 1}, key=_order, reverse=True)
    for divisor in ordered:
        outer = exact_div(left, divisor)
        if outer is None:
            return None
        found.append(outer)
        left = divisor
    return [*found, left]


def _order(size: DimLike) -> tuple[int, int]:
    """An order in which a multiple comes after what it is a multiple of."""
    if not isinstance(size, Dim):
        return 0, size
    monomial, coefficient = size.terms[0]
    return len(monomial), coefficient


def divisors_in(element: Element, number: int) -> set[DimLike]:
    """Return the divisors of the position along an axis in all formulas of an element."""
    found: set[DimLike] = set()
    for formula in formulas(element):
        for atom in _atoms(formula):
            divisor = _divisor(atom, number)
            if divisor is not None:
                found.add(divisor)
    return found


def splits(found: IndexMap) -> Iterator[IndexMap]:
    """Yield the map with axes split, each at the largest of its divisors or at all; then the same of all elements in a row."""
    seen = {found.shape}
    wholes = [found]
    if len(found.shape) > 1 and sum(1 for _ in leaves(found.element)) <= MOST_SPLITS:
        total = product(found.shape)
        row = found.read_at(reshaped_place((axis(0),), (total,), found.shape))
        wholes.append(IndexMap.of((total,), row))
    for one in wholes:
        every = {number: divisors_in(one.element, number) for number in range(len(one.shape))}
        chosen = [
            {number: {divisor for divisor in divisors if _order(divisor) >= _order(least)}}
            for number, divisors in every.items()
            for least in sorted(divisors - {1}, key=_order)
        ]
        for divisors in [*chosen[:MOST_SPLITS], every]:
            split = _split(one, divisors)
            if split is not None and split.shape not in seen:
                seen.add(split.shape)
                yield split


def _split(found: IndexMap, divisors: Mapping[int, Collection[DimLike]]) -> IndexMap | None:
    """The map with each axis split at divisors; `None` if nothing is, or some cannot be."""
    shape: list[DimLike] = []
    place: list[DimLike] = []
    for number, size in enumerate(found.shape):
        digits = digit_sizes(divisors.get(number, ()), size)
        if digits is None:
            return None
        here: DimLike = 0
        for digit in digits:
            here = here * digit + axis(len(shape))
            shape.append(digit)
        place.append(here)
    if len(shape) == len(found.shape):
        return None
    return IndexMap(tuple(shape), simplest(at(found.element, place), Box.of_shape(shape)))


def conditions(element: Element) -> Iterator[DimLike]:
    """Yield the formulas that a choice depends on."""
    if isinstance(element, Select):
        yield element.condition
        yield from conditions(element.then)
        yield from conditions(element.otherwise)


def linear_in_axis(formula: DimLike) -> tuple[int, int, DimLike] | None:
    """Return ``(number, sign, rest)`` if a formula is ``sign * axis(number) + rest`` and the rest has no positions."""
    for atom in _atoms(formula):
        number = axis_number(atom)
        if number is not None:
            rest, factor = split_off(formula, atom_of(number))
            if factor in (1, -1) and not has_axes(rest):
                return number, int(factor), rest  # type: ignore[arg-type]
    return None
