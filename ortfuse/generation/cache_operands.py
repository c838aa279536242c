"""How keys and values of attention are read from a cache: layout, last tokens, repeated heads, and a first or last key of zeros.

The index map of the operand tells it, whatever nodes move the elements. A key and a value of zeros, whose column of the mask is
the same for all queries, is what is left of a sink: a number for each head in the denominator of the softmax.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.index_maps import Element, Fill, IndexMap, Read, axis, leaves
from ortfuse.analysis.index_maps.element_expressions import at, lifted
from ortfuse.analysis.transfer.transfer_function_registry import UnknownError
from ortfuse.generation.decoder_interface import Cache
from ortfuse.ir.dims import DimLike, at_most, floor_div

Extra = Literal["", "first", "last"]
"""The place of a key of zeros besides those of the cache."""


@dataclass(frozen=True)
class Keys:
    """Which keys attention sees.

    Attributes:
        extra: Where a key of zeros stands besides those of the cache.
        seen: How many of the last tokens are there, the new ones included; `None` for all.
    """

    extra: Extra = ""
    seen: DimLike | None = None


@dataclass(frozen=True)
class CacheOperand:
    """Keys or values of attention.

    Attributes:
        cache: The cache.
        new: What is appended: in the layout of the cache, or [batch, sequence, heads * size] and the like as attention takes it.
        layout: The axes of the cache that are batch, heads, length and size; `None` where attention appends itself.
        repeats: How many heads of queries share one of the cache; 1 where attention tells by its attributes.
        extra: Where a key of zeros stands.
        seen: How many keys attention sees, the last ones of the past and the new; `None` for all.
    """

    cache: Cache
    new: ir.Value
    layout: tuple[int, int, int, int] | None
    repeats: int
    extra: Extra
    seen: DimLike | None = None

    @property
    def keys(self) -> Keys:
        """Which keys a mask has columns for."""
        return Keys(self.extra, self.seen)


def read_last(past: ir.Value, new: ir.Value, caches: Mapping[ir.Value, Cache], facts: Facts) -> CacheOperand | None:
    """How attention that appends itself reads the last tokens of a cache [batch, heads, length, size]; `None` if it does not.

    Args:
        past: What it appends to.
        new: What it appends.
        caches: The caches by their input.
        facts: The facts of the model.
    """
    found, added = facts.index_map(past, list(caches)), facts.shape(new)
    if found is None or added is None or not isinstance(found.element, Read) or len(found.shape) != 4:
        return None
    read = found.element
    cache, whole = caches.get(read.value), facts.shape(read.value)
    if cache is None or whole is None or len(whole) != 4 or cache.axis != 2:
        return None
    wanted = [axis(0), axis(1), axis(2) + whole[2] - found.shape[2], axis(3)]
    place = [axis(number) if whole[number] != 1 else 0 for number in range(4)]
    if [*found.shape[:2], found.shape[3]] != [*whole[:2], whole[3]] or read.index[2] != wanted[2]:
        return None
    if any(read.index[number] != place[number] for number in (0, 1, 3)):
        return None
    return CacheOperand(cache, new, None, 1, "", found.shape[2] + (added[2] if len(added) == 4 else added[1]))


def read_operand(value: ir.Value, caches: Mapping[ir.Value, Cache], facts: Facts) -> CacheOperand | str:
    """How an operand [batch, heads, total, size] of attention is read from a cache, or why it is none.

    Args:
        value: The operand.
        caches: The caches by their output, to which a Concat appends or another attention.
        facts: The facts of the model.
    """
    found = followed(value, caches, facts)
    if found is None or len(found.shape) != 4:
        return "keys or values are no tensor [batch, heads, length, size]"
    reads = {leaf for leaf in leaves(found.element) if isinstance(leaf, Read)}
    others = [leaf for leaf in leaves(found.element) if not isinstance(leaf, Read)]
    if len(reads) != 1 or not all(one.value in caches for one in reads):
        computing = computing_between(caches.keys(), value, facts)
        if computing:
            return COMPUTED.format(computing)
    if len(reads) != 1:
        return "keys or values are more than the elements of one cache"
    read = reads.pop()
    cache = caches.get(read.value)
    if cache is None:
        return "keys or values are not those of a cache alone"
    if any(not isinstance(leaf, Fill) or any(leaf.content) for leaf in others):
        return "other elements than zeros stand among the keys or values"
    present = facts.shape(cache.present)
    if present is None or len(present) != 4 or len(read.index) != 4:
        return "its cache does not have the axes of batch, heads, length and size"
    length = present[cache.axis]
    extra: Extra = ""
    seen = found.shape[2] - bool(others)
    if not at_most(seen, length):
        return "more than one key is added to those of the cache"
    wanted = axis(2) + (length - seen)
    if others:
        extra = "first" if read.index[cache.axis] == wanted - 1 else "last"
        wanted = wanted - 1 if extra == "first" else wanted
    if read.index[cache.axis] != wanted:
        return "keys or values are in another order than that of the cache"
    layout = {2: cache.axis}
    for place in (3, 0):
        at = [number for number, index in enumerate(read.index) if index == axis(place)]
        if not at and found.shape[place] == 1:  # any axis of one element, the one of its own place first
            free = [number for number in (place, *range(4)) if number not in layout.values()]
            at = [number for number in free if present[number] == 1][:1]
        if len(at) != 1:
            return "the layout of its cache is not one of batch, heads, length and size"
        layout[place] = at[0]
    (layout[1],) = {0, 1, 2, 3} - set(layout.values())
    groups, heads = present[layout[1]], found.shape[1]
    if not isinstance(groups, int) or not isinstance(heads, int) or heads % groups:
        return "the number of its heads is unknown"
    repeats = heads // groups
    if read.index[layout[1]] != floor_div(axis(1), repeats) and not (groups == 1 and read.index[layout[1]] == 0):
        return "heads of the cache are in another order than those of the queries"
    new = appended(cache)
    if new is None:
        return "nothing is appended to its cache"
    fewer = None if seen == length else seen
    return CacheOperand(cache, new, (layout[0], layout[1], layout[2], layout[3]), repeats, extra, fewer)


COMPUTED = "{} computes its keys or values from what the cache holds, as of latents"
"""Why attention does not read a cache, with the operator."""


def computing_between(caches: Collection[ir.Value], value: ir.Value, facts: Facts) -> str:
    """The operator that computes elements of a value from elements of caches; "" if there is none, or several in a row."""
    for computed in _read(value, caches, facts) - set(caches):
        node = computed.producer()
        if node is None or node.op_type == "Cast":
            continue
        for operand in node.inputs:
            if operand is not None and not _read(operand, caches, facts).isdisjoint(caches):
                return node.op_type
    return ""


def _read(value: ir.Value, caches: Collection[ir.Value], facts: Facts) -> set[ir.Value]:
    """The values that the elements of a value are elements of."""
    found = None if facts.is_const(value) else facts.index_map(value, list(caches))
    return set() if found is None else {one.value for one in leaves(found.element) if isinstance(one, Read)}


def followed(value: ir.Value, caches: Mapping[ir.Value, Cache], facts: Facts) -> IndexMap | None:
    """The elements of an operand, followed to the caches through casts from float16 to float32, which keep each number."""
    found = facts.index_map(value, list(caches))
    while found is not None:
        ends = {leaf.value: narrow(leaf.value, facts) for leaf in leaves(found.element) if isinstance(leaf, Read)}
        wide, source = next(((one, source) for one, source in ends.items() if source is not None), (None, None))
        above = None if source is None or wide in caches else facts.index_map(source, list(caches))
        if above is None:
            return found
        try:
            element = lifted(functools.partial(_instead_of, wide, above.element), found.element)
        except UnknownError:
            return found
        found = IndexMap.of(found.shape, element)
    return found


def _instead_of(value: ir.Value | None, element: Element, leaf: Element) -> Element:
    """An element of a value at the index of a leaf that reads another; any other leaf as it is."""
    return at(element, leaf.index) if isinstance(leaf, Read) and leaf.value is value else leaf


def narrow(value: ir.Value, facts: Facts) -> ir.Value | None:
    """The float16 numbers of which a value is the same in float32; `None` if it is no such."""
    cast = value.producer()
    source = cast.inputs[0] if cast is not None and cast.op_type == "Cast" and not cast.domain else None
    if source is None or (facts.dtype(source), facts.dtype(value)) != (ir.DataType.FLOAT16, ir.DataType.FLOAT):
        return None
    return source


def narrow_queries(queries: ir.Value, facts: Facts) -> tuple[ir.Value | None, float]:
    """The float16 numbers of which queries are a positive multiple in float32, and the factor; `None` if there are none."""
    product = queries.producer()
    if product is not None and (product.domain, product.op_type) == ("", "Mul"):
        for one, other in (product.inputs, reversed(product.inputs)):
            factor = facts.scalar(other)
            source = narrow(one, facts) if one is not None and factor is not None and factor > 0 else None
            if source is not None and factor is not None and facts.shape(one) == facts.shape(queries):
                return source, float(factor)
    return narrow(queries, facts), 1.0


def appended(cache: Cache) -> ir.Value | None:
    """The value that a Concat or attention appends to a cache."""
    producer = cache.present.producer()
    if producer is None:
        return None
    is_value = producer.op_type != "Concat" and cache.present is producer.outputs[2]
    return producer.inputs[2 if is_value else 1]
