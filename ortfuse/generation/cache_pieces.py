"""The elements of a cache that attention reads, as keys or values [batch, heads, length, size], and whether steps hand it on.

    K[b, h, t, d] = past[f(b, h, t, d)]            for the tokens of the past
                  = new[b, h, t - length, d]       behind them

If present[f(b, h, t, d)] = K[b, h, t + shift, d], with f for its own length, then K of the next step starts with K of this
one: a cache of this attention's own, [batch, heads, length, size], may take the place of its piece of the whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.index_maps import Box, Element, Fill, Read, Select, axes, axis, leaves
from ortfuse.analysis.index_maps.element_expressions import at as moved
from ortfuse.analysis.index_maps.element_expressions import simplest
from ortfuse.analysis.index_maps.simplify_formulas import simplified
from ortfuse.generation.cache_elements import Elements
from ortfuse.generation.cache_operands import Extra, narrow
from ortfuse.generation.decoder_interface import Cache
from ortfuse.ir.dims import Dim, DimLike, floor_div, substituted

Index = tuple[DimLike, ...]


@dataclass(frozen=True)
class Piece:
    """Keys or values of one attention.

    Attributes:
        cache: The cache that it is a piece of.
        read: The element of the cache at `axis(0)` to `axis(3)` of [batch, groups, past tokens, size], or a choice of several.
        new: The element of what is appended, [batch, groups, new tokens, size].
        batch: The number of sequences.
        groups: Heads.
        size: The size of a head.
        past: How many tokens the cache has.
        added: How many are new.
        repeats: How many heads of queries share one.
        extra: Where a key of zeros stands.
        is_wide: Whether attention reads float16 numbers in float32.
    """

    cache: Cache
    read: Element
    new: Element
    batch: DimLike
    groups: int
    size: int
    past: DimLike
    added: DimLike
    repeats: int
    extra: Extra
    is_wide: bool = False

    @property
    def is_apart(self) -> bool:
        """Whether attention is given all keys or values, and does not append itself."""
        return bool(self.extra) or self.is_wide

    @property
    def new_box(self) -> Box:
        """The positions of what is appended."""
        return Box.of_shape((self.batch, self.groups, self.added, self.size))


class PieceReader:
    """Reads the pieces of caches.

    Args:
        facts: The facts of the model.
        caches: The caches by their input.
    """

    def __init__(self, facts: Facts, caches: Mapping[ir.Value, Cache]) -> None:
        self._facts, self._caches = facts, caches
        self._elements = Elements(facts, caches.keys())

    def reads(self, node: ir.Node) -> set[Cache]:
        """The caches that are moved, stacked or cut of which attention may read keys or values."""
        found = set()
        for number in (1, 2, 4, 5):
            value = node.inputs[number] if len(node.inputs) > number else None
            value = value if value is None else narrow(value, self._facts) or value
            shape = None if value is None else self._facts.shape(value)
            if value is not None and shape is not None:
                element = self._elements.at(value, axes(len(shape)), Box.of_shape(shape))
                found |= {self._caches[one.value] for one in leaves(element) if _is_of(one, self._caches)}  # type: ignore[union-attr]
        return found

    def pieces(self, node: ir.Node) -> tuple[Piece | str, Piece | str]:
        """Keys and values of attention as pieces of caches, of as many heads each, or why they are none."""
        keys, values = self._piece(node, 1), self._piece(node, 2)
        if isinstance(keys, Piece) and isinstance(values, Piece) and keys.repeats != values.repeats:
            common = math.gcd(keys.repeats, values.repeats)
            return self._piece(node, 1, common), self._piece(node, 2, common)
        return keys, values

    def _piece(self, node: ir.Node, number: int, repeats: int = 0) -> Piece | str:
        """Keys (1) or values (2) of attention, of which `repeats` heads are alike; as many as there are by default."""
        past = node.inputs[number + 3] if len(node.inputs) > number + 3 else None
        new = node.inputs[number]
        assert new is not None
        small = narrow(new, self._facts) if past is None else None
        found = self._of_one(node, small or new, repeats) if past is None else self._of_two(past, new, repeats)
        if isinstance(found, Piece):
            found = replace(found, is_wide=small is not None)
            return self._why_not_handed_on(found) or found
        return found

    def _of_two(self, past: ir.Value, new: ir.Value, repeats: int) -> Piece | str:
        """Read attention that appends itself."""
        before, added = self._facts.shape(past), self._facts.shape(new)
        if before is None or added is None:
            return "the shape of its keys or values is unknown"
        batch, groups, length, size = before
        if not isinstance(groups, int) or not isinstance(size, int):
            return "the number or size of its heads is unknown"
        count = added[2] if len(added) == 4 else added[1]
        place = axes(4) if len(added) == 4 else _in_a_row(size)
        read = self._elements.at(past, axes(4), Box.of_shape(before))
        fresh = self._elements.at(new, place, Box.of_shape((batch, groups, count, size)))
        return self._checked(read, fresh, (batch, groups, length, size), count, "", repeats)

    def _of_one(self, node: ir.Node, value: ir.Value, repeats: int) -> Piece | str:
        """Read attention that is given all keys or values."""
        shape = self._facts.shape(value)
        if shape is not None and len(shape) == 3:
            count, width = node.attributes.get_int("kv_num_heads", 0) or 0, shape[2]
            each = width // count if count and isinstance(width, int) else 0
            shape, place = (shape[0], count, shape[1], each), _in_a_row(each)
        else:
            place = axes(4)
        if shape is None or len(shape) != 4:
            return "the shape of its keys or values is unknown"
        batch, heads, total, size = shape
        if not isinstance(heads, int) or not isinstance(size, int) or not heads or not size:
            return "the number or size of its heads is unknown"
        whole = self._elements.at(value, place, Box.of_shape(shape))
        reads = {leaf for leaf in leaves(whole) if _is_of(leaf, self._caches)}
        if len({leaf.value for leaf in reads if isinstance(leaf, Read)}) != 1:
            return "its keys or values are not those of one cache"
        cache = self._caches[next(leaf.value for leaf in reads if isinstance(leaf, Read))]
        length = (self._facts.shape(cache.past) or ())[cache.axis]
        extra = self._extra(value, place, (batch, heads, total, size))
        total = total - bool(extra)
        if extra == "first":
            place = tuple([substituted(one, {"@2": axis(2) + 1}) for one in place])
        behind = tuple([substituted(one, {"@2": axis(2) + length}) for one in place])
        read = self._elements.at(value, place, Box.of_shape((batch, heads, length, size)))
        fresh = self._elements.at(value, behind, Box.of_shape((batch, heads, total - length, size)))
        return self._checked(read, fresh, (batch, heads, length, size), total - length, extra, repeats)

    def _extra(self, value: ir.Value, place: Index, shape: tuple[DimLike, ...]) -> Extra:
        """The place of a key of zeros."""
        batch, heads, total, size = shape
        for low, extra in ((0, "first"), (total - 1, "last")):
            box = Box((0, 0, low, 0), (batch, heads, low + 1, size))
            found = self._elements.at(value, place, box)
            if isinstance(found, Fill) and not any(found.content):
                return "first" if extra == "first" else "last"
        return ""

    def _checked(
        self,
        read: Element,
        new: Element,
        shape: tuple[DimLike, int, DimLike, int],
        added: DimLike,
        extra: Extra,
        wanted: int,
    ) -> Piece | str:
        """A piece of these elements, for one of each head that is repeated."""
        batch, heads, length, size = shape
        values = {leaf.value if isinstance(leaf, Read) else None for leaf in leaves(read)}
        past = values.pop()
        if past is None or values or past not in self._caches:
            return "its keys or values are not those of a cache alone"
        if any(_is_of(leaf, self._caches) for leaf in leaves(new)):
            return "its keys or values repeat others of a cache"
        cache = self._caches[past]
        if length != (self._facts.shape(cache.past) or ())[cache.axis]:
            return "it reads some tokens of its cache alone"
        for repeats in [wanted] if wanted else range(heads, 0, -1):
            if heads % repeats == 0:
                reduced = [
                    _of_group(one, repeats, (batch, heads, count, size))
                    for one, count in ((read, length), (new, added))
                ]
                if None not in reduced:
                    break
        one, fresh = reduced
        if one is None or fresh is None:
            return "its keys and values are read differently"
        return Piece(cache, one, fresh, batch, heads // repeats, size, length, added, repeats, extra)

    def _why_not_handed_on(self, piece: Piece) -> str:
        """Why what a step hands out is not what the next one has to read; "" if it is."""
        cache = piece.cache
        after, length = (self._facts.shape(cache.present) or ())[cache.axis], piece.past
        shift = length + piece.added - after
        if not isinstance(length, Dim) and length != after:
            return "the length of its cache is fixed"
        behind = tuple([axis(2) + shift if number == 2 else axis(number) for number in range(4)])
        box = Box.of_shape((piece.batch, piece.groups, after, piece.size))
        inside, outside = box.where(length - shift - 1 - axis(2)), box.where(axis(2) - length + shift)
        wanted: tuple[tuple[Box, Element], ...] = (
            (inside, moved(piece.read, behind)),
            (outside, moved(piece.new, (axis(0), axis(1), axis(2) + shift - length, axis(3)))),
        )
        for part, element in wanted:
            if simplest(self._next(piece.read, cache, length, part), part) != simplest(element, part):
                return "what is handed out is not what it attends to, or in another order"
        return ""

    def _next(self, read: Element, cache: Cache, length: DimLike, box: Box) -> Element:
        """The element that the next step reads where this one reads `read`, as an element of what this one hands out."""
        if isinstance(read, Select):
            condition = simplified(read.condition, box)
            then = self._next(read.then, cache, length, box.where(condition))
            return Select(condition, then, self._next(read.otherwise, cache, length, box.where(-condition - 1)))
        assert isinstance(read, Read)
        after, index = (self._facts.shape(cache.present) or ())[cache.axis], read.index
        if isinstance(length, Dim):
            index = tuple([substituted(one, {str(length): after}) for one in index])
        return self._elements.at(cache.present, index, box)


def _in_a_row(size: int) -> Index:
    """The index of the element of [batch, heads, length, size] in [batch, length, heads * size]."""
    return axis(0), axis(2), size * axis(1) + axis(3)


def _is_of(leaf: Element, caches: Mapping[ir.Value, Cache]) -> bool:
    return isinstance(leaf, Read) and leaf.value in caches


def _of_group(element: Element, repeats: int, shape: tuple[DimLike, int, DimLike, int]) -> Element | None:
    """The element of the first head of each group, if it is that of all heads of the group."""
    if repeats == 1:
        return element
    batch, heads, length, size = shape
    box, few = Box.of_shape(shape), Box.of_shape((batch, heads // repeats, length, size))
    first = moved(element, (axis(0), repeats * axis(1), axis(2), axis(3)))
    again = moved(first, (axis(0), simplified(floor_div(axis(1), repeats), box), axis(2), axis(3)))
    return simplest(first, few) if simplest(again, box) == simplest(element, box) else None
