"""Chooses sizes for a model's open dimensions: all 1, odd, larger, and others if the model cannot run on those.

Models have undeclared conditions on sizes: two names for the same length, a length that is the sum of two others, tables of
limited length, images that must be large enough. What a model accepts is found by trying.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ortfuse.dims import Dim, evaluate, symbols
from ortfuse.execution.inputs import InputSpec

Sizes = dict[str, int]

LEADING = {"ones": (1,), "odd": (3, 5), "larger": (2, 4)}
OTHERS = {"ones": (1,), "odd": (7, 5, 9, 11), "larger": (32, 24, 40, 48)}
"""The sizes tried first: for open dimensions that lead an input (batches), and for the others; each used in turn."""

GROWN = (32, 64, 128, 224, 1024, 4096)
"""Tried for all other dimensions if no smaller size works; the last ones are for audio samples."""

MOST_RELATED = 3
"""If there are more open dimensions than this, none is tried as the sum of two others."""

MOST_TRIES = 40


@dataclass(frozen=True)
class OpenDim:
    """A symbol in the inputs' shapes, its name in messages, and whether it is the first dimension of an input."""

    symbol: str
    label: str
    leading: bool


Relation = Callable[[Sizes], Sizes]
"""Adjusts sizes to satisfy a condition."""


def open_dims(specs: Sequence[InputSpec]) -> list[OpenDim]:
    """The symbols in order of appearance: first in shapes, then in elements."""
    places: dict[str, list[tuple[InputSpec, int]]] = {}
    for spec in specs:
        for axis, dim in enumerate(spec.shape):
            for symbol in sorted(symbols(dim)):
                places.setdefault(symbol, []).append((spec, axis))
    for spec in specs:
        for element in spec.elements or ():
            for symbol in sorted(symbols(element)):
                places.setdefault(symbol, [])
    return [
        OpenDim(
            symbol,
            _label(symbol, *found[0]) if found else symbol,
            any(axis == 0 and len(spec.shape) > 1 for spec, axis in found),
        )
        for symbol, found in places.items()
    ]


def _label(symbol: str, spec: InputSpec, axis: int) -> str:
    dim = spec.shape[axis]
    return f"{spec.name}[{axis}]" if isinstance(dim, Dim) and dim.fresh else symbol


def describe(dims: Iterable[OpenDim], sizes: Mapping[str, int]) -> str:
    """The sizes as text."""
    return ", ".join(f"{dim.label}={sizes[dim.symbol]}" for dim in dims) or "fixed shapes"


def wanted(dims: Sequence[OpenDim]) -> list[Sizes]:
    """All 1, odd sizes, larger sizes; a single empty set if there are no open dimensions."""
    if not dims:
        return [{}]
    return [_cycled(dims, LEADING[kind], OTHERS[kind]) for kind in LEADING]


def _cycled(dims: Iterable[OpenDim], leading: Iterable[int], others: Iterable[int]) -> Sizes:
    first, rest = itertools.cycle(leading), itertools.cycle(others)
    return {dim.symbol: next(first if dim.leading else rest) for dim in dims}


def uniform(dims: Iterable[OpenDim], leading: int, others: int) -> Sizes:
    """One size for all leading dimensions, and one for all others."""
    return _cycled(dims, (leading,), (others,))


class Search:
    """Searches for sizes that a model accepts; what works for one set of sizes is tried first for the next."""

    def __init__(self, specs: Sequence[InputSpec]) -> None:
        self._specs = specs
        self._dims = open_dims(specs)
        self._others = [dim.symbol for dim in self._dims if not dim.leading]
        self._relations: list[Relation] = [dict, self._tied, *self._sums()]
        self._tried: set[tuple[int, ...]] = set()
        self._last: Relation = dict

    def candidates(self, sizes: Sizes, fixed: Sizes | None = None) -> Iterator[Sizes]:
        """`sizes`, then nearby sizes that leave the `fixed` ones unchanged, without duplicates.

        The caller stops as soon as one is accepted, and calls `accepted`.
        """
        makers = itertools.product(self._scaled(sizes), tuple(self._relations))
        for tries, (scaled, relation) in enumerate(makers):
            if tries == MOST_TRIES:
                return
            made = relation(scaled) | (fixed or {})
            key = tuple(made.values())
            if key not in self._tried and self._not_empty(made):
                self._tried.add(key)
                self._last = relation
                yield made

    def accepted(self) -> None:
        """Record that the model ran on the last candidate."""
        self._relations.remove(self._last)
        self._relations.insert(0, self._last)

    def _scaled(self, sizes: Sizes) -> Iterator[Sizes]:
        yield sizes
        shrunk = sizes
        while any(shrunk[symbol] > 1 for symbol in self._others):
            shrunk = {**shrunk, **{symbol: (shrunk[symbol] + 1) // 2 for symbol in self._others}}
            yield shrunk
        if self._others:
            yield from ({**sizes, **dict.fromkeys(self._others, size)} for size in GROWN)

    def _tied(self, sizes: Sizes) -> Sizes:
        """One size for all leading dimensions and one for all others, since different names may mean the same length."""
        first = {dim.leading: sizes[dim.symbol] for dim in reversed(self._dims)}
        return {dim.symbol: first[dim.leading] for dim in self._dims}

    def _sums(self) -> Iterator[Relation]:
        """Candidates in which one dimension is the sum of two others, as for a cache and what is appended to it."""
        if len(self._others) > MOST_RELATED:
            return
        for total in reversed(self._others):
            for one, two in itertools.combinations([symbol for symbol in self._others if symbol != total], 2):
                yield functools.partial(_summed, total, one, two)

    def _not_empty(self, sizes: Sizes) -> bool:
        dims = (dim for spec in self._specs for dim in spec.shape if isinstance(dim, Dim))
        try:
            return all(evaluate(dim, sizes) > 0 for dim in dims)
        except ZeroDivisionError:
            return False


def _summed(total: str, one: str, two: str, sizes: Sizes) -> Sizes:
    return {**sizes, total: sizes[one] + sizes[two]}
