"""Inputs that are handed on by outputs with new tokens behind them, in whatever layout: which output belongs to which input.

    present[..., t, ...] = past[..., t + shift, ...]    for the tokens of the past, and something new behind them

The shift is 0, or so that the last tokens are kept, as sliding windows need no more of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.index_maps import Box, Element, Read, axis, leaves
from ortfuse.analysis.index_maps.box import has_axes
from ortfuse.generation.cache_elements import Elements
from ortfuse.ir.dims import DimLike, is_positive, minimum, symbols, upper_bound


@dataclass(frozen=True)
class CachePair:
    """A cache.

    Attributes:
        past: The input.
        present: The output.
        axis: The axis of the tokens.
        kept: How many of the last tokens are handed out at most; `None` for all.
    """

    past: ir.Value
    present: ir.Value
    axis: int
    kept: int | None


def find_cache_pairs(inputs: Sequence[ir.Value], outputs: Sequence[ir.Value], facts: Facts) -> Iterator[CachePair]:
    """Yield caches among inputs and outputs of floating-point numbers.

    One index of each output is followed: the first one along axes of fixed sizes, any along those of open ones.
    """
    pasts = {value for value in inputs if may_be_cache(value, facts)}
    elements = Elements(facts, pasts)
    for output in outputs:
        if pasts and may_be_cache(output, facts):
            found = _pair(output, pasts, elements, facts)
            if found is not None:
                pasts.discard(found.past)
                yield found


def find_moved(
    inputs: Sequence[ir.Value], outputs: Sequence[ir.Value], facts: Facts
) -> tuple[ir.Value, ir.Value] | None:
    """An input and an output that has elements of it, and is no cache in a known form; `None` if there is none."""
    pasts = {value for value in inputs if may_be_cache(value, facts)}
    elements = Elements(facts, pasts)
    for output in outputs:
        if pasts and may_be_cache(output, facts):
            for leaf in leaves(_followed(output, elements, facts)):
                if isinstance(leaf, Read) and leaf.value in pasts:
                    return leaf.value, output
    return None


def _followed(output: ir.Value, elements: Elements, facts: Facts) -> Element:
    """The element of an output at its first index along axes of fixed sizes."""
    shape = facts.shape(output) or ()
    return elements.at(output, _first(shape), Box.of_shape(shape))


def _first(shape: Sequence[DimLike]) -> tuple[DimLike, ...]:
    return tuple([0 if isinstance(dim, int) else axis(number) for number, dim in enumerate(shape)])


def may_be_cache(value: ir.Value, facts: Facts) -> bool:
    """Whether a value has numbers, three axes or more, and one that is not fixed."""
    kind, shape = facts.dtype(value), facts.shape(value)
    is_open = shape is not None and any(not isinstance(dim, int) for dim in shape)
    return kind is not None and kind.is_floating_point() and is_open and len(shape or ()) > 2


def _pair(output: ir.Value, pasts: Collection[ir.Value], elements: Elements, facts: Facts) -> CachePair | None:
    after = facts.shape(output)
    assert after is not None
    index, element = _first(after), _followed(output, elements, facts)
    reads = [leaf for leaf in leaves(element) if isinstance(leaf, Read) and leaf.value in pasts]
    if len(reads) != 1:
        return None
    (read,) = reads
    before = facts.shape(read.value)
    if before is None or len(before) != len(after) or facts.dtype(read.value) != facts.dtype(output):
        return None
    along = _grown_axis(before, after)
    if along is None:
        return None
    shift = read.index[along] - index[along]
    others = [
        one == other for number, (one, other) in enumerate(zip(read.index, index, strict=True)) if number != along
    ]
    if has_axes(shift) or not all(others):
        return None
    whole = after[along] + shift
    kept = _kept(after[along], whole)
    if kept == 0 or not is_positive(whole - before[along] + 1):
        return None
    return CachePair(read.value, output, along, kept)


def _grown_axis(before: Sequence[DimLike], after: Sequence[DimLike]) -> int | None:
    """The axis of the tokens: after a step there are others than before, as many more as it has or the last ones of all.

    Another axis may have a name that says nothing, such as the rows of all sequences and heads. It has as many elements as that
    of the output, which is the next input.
    """
    differ = [number for number, (one, other) in enumerate(zip(before, after, strict=True)) if one != other]
    if any(symbols(before[number]) != {str(before[number])} for number in differ):
        return None
    found = [number for number in differ if symbols(before[number]) <= symbols(after[number])]
    return found[0] if len(found) == 1 else None


def _kept(length: DimLike, whole: DimLike) -> int | None:
    """How many of the last tokens a length is, at most, of a whole; `None` for all of them, and 0 if it is something else."""
    if length == whole:
        return None
    most = upper_bound(length)
    return most if most is not None and minimum(most, whole) == length else 0
