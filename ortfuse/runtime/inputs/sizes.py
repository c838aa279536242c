"""Choose sizes for a model's open dimensions: all 1, odd, larger, a batch of one, and others if none of these run.

Models have undeclared conditions on sizes: two names for the same length, a length that is the sum of two others, a state whose
batch is not its first dimension, tables of limited length, images and samples that must be large enough. Accepted sizes
are found by trying.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ortfuse.errors import VerificationError
from ortfuse.ir.dims import Dim, DimLike, bounds, evaluate, only_atom, symbols
from ortfuse.runtime.inputs.broadcast_sizes import Matched
from ortfuse.runtime.inputs.concat_sizes import Joined
from ortfuse.runtime.inputs.random_inputs import InputSpec

Sizes = dict[str, int]

LEADING = {"ones": (1,), "odd": (3, 5), "larger": (2, 4), "single": (1,)}
OTHERS = {"ones": (1,), "odd": (7, 5, 9, 11), "larger": (32, 24, 40, 48), "single": (6, 10, 8, 12)}
"""The sizes tried first: for open dimensions that lead an input (batches), and for the others; each used in turn."""

GROWN = (32, 64, 128, 224, 1024, 4096, 16_000, 48_000, 160_000)
"""Tried for all other dimensions if no smaller size works; the last ones are for audio samples."""

SPATIAL = {"ones": (32,), "odd": (33, 47), "larger": (96, 64), "single": (64, 48)}
"""The sizes tried first for height and width of images: smaller ones leave nothing of them after a few layers."""

TILE = 32
"""Images are mostly halved up to five times: sizes that are a multiple of this can be halved so often."""

MOST_RELATED = 3
"""If there are more kinds of open dimensions than this, none is tried as related to others."""

MOST_TRIES = 80


@dataclass(frozen=True)
class OpenDim:
    """A symbol in the inputs' shapes.

    Attributes:
        symbol: The symbol.
        label: Its name in messages.
        leading: Whether it is the first dimension of an input.
        kind: The type and number of dimensions of the first input that has it, and its position there: what is alike in
            all of these (the caches of all layers) is likely to be of the same size.
        spatial: Whether it is the height or width of images.
        low: The least size that is declared.
        high: The largest size that is declared; `None` without one.
    """

    symbol: str
    label: str
    leading: bool
    kind: tuple[object, ...] = ()
    spatial: bool = False
    low: int = 0
    high: int | None = None

    def within(self, size: int) -> int:
        """The nearest size within the declared bounds."""
        return max(self.low, size if self.high is None else min(size, self.high))


Relation = Callable[[Sizes], Sizes]
"""Adjusts sizes to satisfy a condition."""


def open_dims(specs: Sequence[InputSpec]) -> list[OpenDim]:
    """The symbols in order of appearance: first in shapes, then in elements."""
    places: dict[str, list[tuple[InputSpec, int]]] = {}
    bounded = {name: bounds(dim) for spec in specs for dim in spec.shape for name, dim in _alone(dim)}
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
            _kind(*found[0]) if found else (symbol,),
            any(axis >= len(spec.shape) - 2 and spec.role.image for spec, axis in found),
            bounded.get(symbol, (0, None))[0] or 0,
            bounded.get(symbol, (0, None))[1],
        )
        for symbol, found in places.items()
    ]


def _alone(dim: DimLike) -> Iterator[tuple[str, DimLike]]:
    """The symbol that a dimension consists of, by name."""
    atom = only_atom(dim)
    if atom is not None and not atom.kind:
        yield atom.name, dim


def obeys(dims: Iterable[OpenDim], sizes: Mapping[str, int]) -> bool:
    """Whether sizes are within the bounds that are declared of them."""
    return all(dim.within(sizes[dim.symbol]) == sizes[dim.symbol] for dim in dims if dim.symbol in sizes)


def _kind(spec: InputSpec, axis: int) -> tuple[object, ...]:
    alike = spec.dtype.is_floating_point() and len(spec.shape) > MOST_RELATED
    return (spec.dtype, len(spec.shape), axis) if alike else (spec.name, axis)


def _label(symbol: str, spec: InputSpec, axis: int) -> str:
    dim = spec.shape[axis]
    return f"{spec.name}[{axis}]" if isinstance(dim, Dim) and dim.fresh else symbol


def describe(dims: Iterable[OpenDim], sizes: Mapping[str, int]) -> str:
    """The sizes as text."""
    return ", ".join(f"{dim.label}={sizes[dim.symbol]}" for dim in dims) or "fixed shapes"


def wanted(dims: Sequence[OpenDim]) -> list[Sizes]:
    """All 1, odd sizes, larger sizes, one batch of other sizes; a single empty set if there are no open dimensions."""
    made = [_cycled(dims, LEADING[kind], OTHERS[kind], SPATIAL[kind]) for kind in LEADING]
    return [sizes for number, sizes in enumerate(made) if sizes not in made[:number]]


def fixed_sizes(dims: Sequence[OpenDim], sizes: Mapping[str, int]) -> Sizes:
    """Sizes by symbol instead of by the name that messages use.

    Raises:
        VerificationError: There is no open dimension of a name.
    """
    symbols = {dim.label: dim.symbol for dim in dims}
    for name in sizes:
        if name not in symbols:
            there = f"write one of {', '.join(symbols)}" if symbols else "all their sizes are fixed"
            raise VerificationError(f"size of '{name}': the inputs have no open dimension of that name; {there}")
    for dim in dims:
        if dim.label in sizes and dim.within(sizes[dim.label]) != sizes[dim.label]:
            declared = f"it is declared to be within {dim.low}:{dim.high}"
            raise VerificationError(f"size of '{dim.label}': {declared}, which {sizes[dim.label]} is not")
    return {symbols[name]: size for name, size in sizes.items()}


def _cycled(dims: Iterable[OpenDim], leading: Iterable[int], others: Iterable[int], spatial: Iterable[int]) -> Sizes:
    first, rest, images = itertools.cycle(leading), itertools.cycle(others), itertools.cycle(spatial)
    return {dim.symbol: dim.within(next(images if dim.spatial else first if dim.leading else rest)) for dim in dims}


def uniform(dims: Iterable[OpenDim], leading: int, others: int) -> Sizes:
    """One size for all leading dimensions, and one for all others."""
    return _cycled(dims, (leading,), (others,), (others,))


class Search:
    """Search for sizes that a model accepts; what works for one set of sizes is tried first for the next."""

    def __init__(
        self,
        specs: Sequence[InputSpec],
        joined: Sequence[Joined] = (),
        matched: Callable[[], Sequence[Matched]] = tuple,
    ) -> None:
        self.specs = specs
        self._joined = joined
        self._matched = matched  # not asked for models that run on the usual sizes
        self._dims = open_dims(specs)
        self._others = [dim.symbol for dim in self._dims if not dim.leading]
        self._relations: list[Relation] = [dict, self._fitted, self._tied, *self._sums()]
        self._unlikely: list[Relation] = list(self._batches())
        self._least = 0
        self._rounds = 0
        self._tried: set[tuple[int, ...]] = set()
        self._last: Relation = dict

    def candidates(self, sizes: Sizes, fixed: Sizes | None = None) -> Iterator[Sizes]:
        """`sizes`, then nearby sizes that leave the `fixed` ones unchanged (which alone may be 0), without duplicates.

        The caller stops as soon as one is accepted, and calls `accepted`.
        """
        scaled_sizes = [self._within(scaled) for scaled in self._scaled(sizes)]
        makers = [*itertools.product(scaled_sizes, self._relations), *itertools.product(scaled_sizes, self._unlikely)]
        for tries, (scaled, relation) in enumerate(makers):
            if tries == MOST_TRIES:
                return
            made = relation(scaled) | (fixed or {})
            key = tuple(made.values())
            if key in self._tried or not obeys(self._dims, made):
                continue
            if self._not_empty(made, fixed or {}) and self._joins(made):
                self._tried.add(key)
                self._last = relation
                self._size = max((scaled[symbol] for symbol in self._others), default=0)
                self._is_grown = self._size > max((sizes[symbol] for symbol in self._others), default=0)
                yield made

    def _within(self, sizes: Sizes) -> Sizes:
        """Sizes within their declared bounds."""
        return {dim.symbol: dim.within(sizes[dim.symbol]) for dim in self._dims}

    def accepted(self) -> None:
        """Record that the model ran on the last candidate."""
        for relations in (self._relations, self._unlikely):
            if self._last in relations:
                relations.remove(self._last)
        self._relations.insert(0, self._last)
        self._rounds += 1
        self._least = self._least or (self._size if self._is_grown else 0)

    def _scaled(self, sizes: Sizes) -> Iterator[Sizes]:
        yield sizes
        # A batch is often declared open, although the model runs with one element only.
        yield {**sizes, **{dim.symbol: 1 for dim in self._dims if dim.leading}}
        spatial = [dim.symbol for dim in self._dims if dim.spatial]
        if spatial:
            yield {**sizes, **{symbol: -(-sizes[symbol] // TILE) * TILE for symbol in spatial}}
        shrunk = sizes
        while any(shrunk[symbol] > 1 for symbol in self._others):
            shrunk = {**shrunk, **{symbol: (shrunk[symbol] + 1) // 2 for symbol in self._others}}
            yield shrunk
        if self._others:
            # What had to grow once has to grow again; multiples of what was accepted are most likely to be, too.
            grown = ((self._rounds + 1) * self._least,) if self._least else ()
            yield from ({**sizes, **dict.fromkeys(self._others, size)} for size in (*grown, *GROWN))

    def _fitted(self, sizes: Sizes) -> Sizes:
        """Sizes with which what the model says must match does so."""
        leading = [dim.symbol for dim in self._dims if dim.leading]
        for one in self._matched():
            sizes = one.fitted(sizes, [*self._others, *leading])
        return sizes

    def _tied(self, sizes: Sizes) -> Sizes:
        """One size for all leading dimensions and one for all others, since different names may mean the same length."""
        first = {dim.leading: sizes[dim.symbol] for dim in reversed(self._dims)}
        return {dim.symbol: first[dim.leading] for dim in self._dims}

    def _groups(self) -> list[list[str]]:
        """The symbols of each kind of dimension; none if there are too many kinds."""
        kinds: dict[tuple[object, ...], list[str]] = {}
        for dim in self._dims:
            if not dim.leading:
                kinds.setdefault(dim.kind, []).append(dim.symbol)
        return list(kinds.values()) if len(kinds) <= MOST_RELATED else []

    def _sums(self) -> Iterator[Relation]:
        """Candidates in which one kind of dimension is the sum of two others, as for a cache and what is appended to it."""
        groups = self._groups()
        for total in reversed(groups):
            for one, two in itertools.combinations([group for group in groups if group is not total], 2):
                yield functools.partial(_summed, total, one, two)

    def _batches(self) -> Iterator[Relation]:
        """Candidates in which one kind of dimension is a batch, as for a state that has the layers first."""
        groups, batch = self._groups(), next((dim.symbol for dim in self._dims if dim.leading), None)
        if batch is not None and len(groups) > 1:
            yield from (functools.partial(_equated, group, batch) for group in reversed(groups))

    def _joins(self, sizes: Sizes) -> bool:
        """Whether what the model joins is alike along the other axes."""
        return all(one.allows(sizes) for one in self._joined)

    def _not_empty(self, sizes: Sizes, fixed: Sizes) -> bool:
        """Whether no dimension is below 1, but for those that are to be 0."""
        empty = {symbol for symbol, size in fixed.items() if not size}
        dims = (dim for spec in self.specs for dim in spec.shape if isinstance(dim, Dim))
        try:
            return all(evaluate(dim, sizes) >= (0 if symbols(dim) & empty else 1) for dim in dims)
        except ZeroDivisionError:
            return False


def _equated(group: Sequence[str], other: str, sizes: Sizes) -> Sizes:
    return {**sizes, **dict.fromkeys(group, sizes[other])}


def _summed(total: Sequence[str], one: Sequence[str], two: Sequence[str], sizes: Sizes) -> Sizes:
    groups = {symbol: sizes[group[0]] for group in (one, two) for symbol in group}
    return {**sizes, **groups, **dict.fromkeys(total, sizes[one[0]] + sizes[two[0]])}
