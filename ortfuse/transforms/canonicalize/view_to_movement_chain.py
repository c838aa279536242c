"""The shortest chain of nodes that shows a view of a tensor: split its axes, cut them, order them, repeat some, merge axes.

    Reshape -> Slice or Gather -> Transpose -> Expand or Tile -> Reshape

Each of these is at most once in a chain, and left out where it does nothing. The chains differ in how the first Reshape
splits the axes. A few ways are tried: those of the input and those that the result needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Any, TypeAlias

import numpy as np

from ortfuse.ir.dims import Dim, DimLike, at_most, evaluate, exact_div, floor_div, product, symbols
from ortfuse.transforms.canonicalize.strided_views import Factor, Shape, View

BEFORE_FIRST, PAST_LAST = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)

Step: TypeAlias = tuple[str, Any]
"""An operator, and its target, bounds, axis and index, permutation, shape or repeats."""

Item: TypeAlias = tuple["_Axis | None", DimLike]
"""An axis of the input (`None`: one of size 1), and how often it is repeated as a whole."""


@dataclass(frozen=True)
class _Axis:
    """An axis of the input once that is split, and what is taken of it.

    Attributes:
        number: Its place; -1 for an axis of size 1 that is there for the result alone.
        size: Its size.
        start: The first element taken.
        count: How many are.
        step: How far apart.
    """

    number: int
    size: DimLike
    start: DimLike
    count: DimLike
    step: int

    @property
    def is_whole(self) -> bool:
        return (self.start, self.count, self.step) == (0, self.size, 1)


ONE = _Axis(-1, 1, 0, 1, 1)


@dataclass
class _Chain:
    """A chain that is being made, and the shape so far."""

    shape: Shape
    steps: list[Step] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)

    def add(self, op_type: str, how: Any, shape: Shape) -> None:
        """One more node."""
        self.steps.append((op_type, how))
        self.shapes.append(self.shape)
        self.shape = shape

    def reshape(self, shape: Shape) -> None:
        """A Reshape, if it is needed."""
        if shape != self.shape:
            self.add("Reshape", shape, shape)


def symbolic_chains(view: View, source: Shape) -> Iterator[tuple[list[Step], list[Shape]]]:
    """Yield chains of nodes that show the view of a tensor of this shape, and the shape before each node.

    Sizes and bounds need not be numbers. The target of a Reshape is its shape, without 0 or -1 in another meaning.
    """
    for split in dict.fromkeys(_splits(view, source)):
        found = _placed(view, split)
        if found is None:
            continue
        axes, order = found
        cut = [axis for axis in axes if not axis.is_whole]
        repeats = any(item[0] is None for item in order)
        for dropped in (False, True) if len(cut) == 1 and cut[0].count == 1 else (False,):
            for tiles in (False, True) if repeats else (False,):
                chain = _Chain(source)
                _extend(chain, view.shape, axes, _tiled(order) if tiles else order, dropped=dropped, tiles=tiles)
                yield chain.steps, chain.shapes


# How the axes of the input are split


def _splits(view: View, source: Shape) -> Iterator[Shape]:
    """Shapes to begin with: that of the input, those whose axes are the factors of the view, and all elements in a row."""
    yield source
    groups = view.groups()
    for factors in (view.factors, [factor for group in groups or () for factor in group]):
        found = _split_at([stride for _, stride in factors if stride != 0], product(source))
        if found is not None:
            yield found
    yield (product(source),)


def _split_at(strides: Sequence[DimLike], total: DimLike) -> Shape | None:
    """A shape of so many elements with an axis of each stride."""
    shape, outer = [], total
    for stride in sorted(
        (-stride if _typical(stride) < 0 else stride for stride in strides), key=_typical, reverse=True
    ):
        size = exact_div(outer, stride)
        if size is None:
            return None
        shape.append(size)
        outer = stride
    return tuple(size for size in (*shape, outer) if size != 1)


def _typical(size: DimLike) -> int:
    """A size, with large primes for symbols: what is larger by this order need not be, but it is only tried."""
    return evaluate(size, {name: 10007 + 2 * number for number, name in enumerate(sorted(symbols(size)))})


def _placed(view: View, split: Shape) -> tuple[list[_Axis], list[Item]] | None:
    """Return the slice of each axis, and the axes and repetitions in the order of the view; `None` if there are none."""
    strides = [product(split[axis + 1 :]) for axis in range(len(split))]
    rest, first = view.offset, list[DimLike]()
    for stride in strides:
        first.append(0 if rest == 0 or _is_below(rest, stride) else floor_div(rest, stride))
        rest = rest - first[-1] * stride
    axes = [_Axis(number, size, first[number], 1, 1) for number, size in enumerate(split)]
    untaken = dict(enumerate(strides))
    order: list[Item] = []
    for size, stride in view.factors:
        pieces = [] if stride == 0 else _pieces((size, stride), axes, untaken)
        if pieces is None:
            return None
        axes = [next((piece for piece in pieces if piece.number == axis.number), axis) for axis in axes]
        order += [(piece, 1) for piece in pieces] if pieces else [(None, size)]
    if rest != 0 or not all(_is_within(axes[number].start, axes[number].size) for number in untaken):
        return None
    return axes, order


def _is_below(place: DimLike, stride: DimLike) -> bool:
    """Whether a place is less than a stride, unless that is 0: then the tensor has no elements, and any place will do."""
    if not isinstance(place, int) or not isinstance(stride, Dim):
        return False
    return 0 <= place < gcd(*[coefficient for _, coefficient in stride.terms])


def _is_within(place: DimLike, size: DimLike) -> bool:
    return at_most(0, place) and at_most(place + 1, size)


def _pieces(factor: Factor, axes: Sequence[_Axis], untaken: dict[int, DimLike]) -> list[_Axis] | None:
    """The axes that a factor is made of, outermost first. They are no longer among those `untaken`, with their strides."""
    found: list[_Axis] = []
    (count, stride), fits = factor, False
    while not fits:
        steps = ((axis, exact_div(stride, untaken[axis.number])) for axis in axes if axis.number in untaken)
        axis, step = next(((axis, step) for axis, step in steps if axis.size != 1 and isinstance(step, int)), (ONE, 0))
        if not step:
            return None
        fits = _fits(axis, count, step)
        inner = count if fits else axis.size if abs(step) == 1 else exact_div(axis.size, abs(step))
        outer = None if inner is None or inner == 1 else exact_div(count, inner)
        if inner is None or outer is None or not _fits(axis, inner, step):
            return None
        del untaken[axis.number]
        found.insert(0, _Axis(axis.number, axis.size, axis.start, inner, step))
        count, stride = outer, stride * inner
    return found


def _fits(axis: _Axis, count: DimLike, step: int) -> bool:
    """Whether so many elements from the first on are within an axis."""
    if count == axis.size and step in (1, -1):
        return axis.start == (0 if step == 1 else axis.size - 1)
    last = axis.start + step * (count - 1)
    return isinstance(count, int) and _is_within(axis.start, axis.size) and _is_within(last, axis.size)


# How the nodes are made


def _tiled(order: Sequence[Item]) -> list[Item]:
    """The same, with the axes repeated as a whole that stand behind a repetition."""
    found: list[Item] = []
    for axis, count in order:
        if found and found[-1][0] is None and axis is not None:
            found[-1] = axis, found[-1][1]
        else:
            found.append((axis, count))
    return found


def _extend(chain: _Chain, after: Shape, axes: list[_Axis], order: list[Item], *, dropped: bool, tiles: bool) -> None:
    """Add the nodes that split, cut, order, repeat and merge."""
    source = chain.shape
    order = _as_in_result(order, after)
    numbers = [axis.number for axis, _ in order if axis is not None]
    in_order = numbers == sorted(numbers)
    gone = next((axis for axis in axes if not axis.is_whole), None) if dropped else None
    left = [axis for axis in axes if axis is not gone]
    if tuple(axis.size for axis in axes) != source:
        left = _with_ones(left, [axis for axis, _ in order], in_order=in_order)
    split = left if gone is None else _inserted(left, gone)
    chain.reshape(tuple(axis.size for axis in split))
    _cut(chain, split, gone)
    if not in_order:
        _turn(chain, left, [axis for axis, _ in order])
    if any(count != 1 for _, count in order):
        _repeat(chain, order, tiles=tiles)
    chain.reshape(after)


def _size(axis: _Axis | None) -> DimLike:
    return 1 if axis is None else axis.count


def _as_in_result(order: list[Item], after: Shape) -> list[Item]:
    """The order with axes of size 1 where the result has some, if its others are those of the order."""
    sizes = [_size(axis) * count for axis, count in order]
    if sizes != [size for size in after if size != 1]:
        return order
    rest = iter(order)
    return [(None, 1) if size == 1 else next(rest) for size in after]


def _with_ones(axes: list[_Axis], wanted: Sequence[_Axis | None], *, in_order: bool) -> list[_Axis]:
    """The axes with further ones of size 1, as many as are wanted, and where they are unless the order changes."""
    short = [axis for axis in axes if axis.count == 1]
    if not in_order:
        return axes + [ONE] * (sum(axis is None for axis in wanted) - len(short))
    rest, found = list(reversed(axes)), list[_Axis]()
    for axis in wanted:
        if axis is None:
            found.append(rest.pop() if rest and rest[-1].count == 1 else ONE)
        else:
            while rest and rest[-1].count == 1:
                found.append(rest.pop())
            found.append(rest.pop())
    return found + rest[::-1]


def _inserted(axes: list[_Axis], axis: _Axis) -> list[_Axis]:
    """The axes with one more, at its place."""
    place = next((index for index, other in enumerate(axes) if other.number > axis.number), len(axes))
    return [*axes[:place], axis, *axes[place:]]


def _cut(chain: _Chain, split: Sequence[_Axis], gone: _Axis | None) -> None:
    """Take of each axis what is to be taken of it, and all but one element of that which is to be `gone`."""
    if gone is not None:
        place = split.index(gone)
        chain.add("Gather", (place, gone.start), chain.shape[:place] + chain.shape[place + 1 :])
        return
    cut = [(place, axis) for place, axis in enumerate(split) if not axis.is_whole]
    if not cut:
        return
    starts, ends, axes, steps = [], [], [], []
    for place, axis in cut:
        end = axis.start + axis.step * axis.count
        backwards = axis.step < 0 and not at_most(0, end)
        starts.append(_bound(axis.start, axis.size))
        ends.append(BEFORE_FIRST if backwards else _bound(end, axis.size))
        axes.append(place)
        steps.append(axis.step)
    taken = ([*numbers] for numbers in (starts, ends, axes, steps if any(step != 1 for step in steps) else ()))
    bounds = [numbers for numbers in taken if numbers]
    chain.add("Slice", bounds, tuple(axis.count for axis in split))


def _bound(place: DimLike, size: DimLike) -> DimLike:
    """A place on an axis as a bound of a Slice: a number, if it is counted from the end or is the end."""
    if isinstance(place, int):
        return place
    if place == size:
        return PAST_LAST
    from_end = place - size
    return from_end if isinstance(from_end, int) and from_end < 0 else place


def _turn(chain: _Chain, left: Sequence[_Axis], wanted: Sequence[_Axis | None]) -> None:
    """Put axes in order, with those of size 1 where they are wanted if they are as many; else behind."""
    short = [place for place, axis in enumerate(left) if axis.count == 1]
    places = {axis.number: place for place, axis in enumerate(left) if axis.count != 1}
    perm: list[int] = []
    for axis in wanted:
        if axis is not None:
            perm.append(places[axis.number])
        elif short:
            perm.append(short.pop(0))
    perm += short
    chain.add("Transpose", perm, tuple(chain.shape[place] for place in perm))


def _repeat(chain: _Chain, order: Sequence[Item], *, tiles: bool) -> None:
    """Repeat axes. An Expand adds the first ones by itself."""
    before = tuple(_size(axis) for axis, _ in order)
    after = tuple(_size(axis) * count for axis, count in order)
    added = next((place for place, (axis, _) in enumerate(order) if axis is not None), 0)
    if tiles or chain.shape != before[added:]:
        chain.reshape(before)
    counts = [count for _, count in order]
    chain.add("Tile" if tiles else "Expand", counts, after)
