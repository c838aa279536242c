"""Facts made more precise by other facts of the same value, and unknown sizes that are called otherwise."""

from __future__ import annotations

from collections.abc import Mapping

from ortfuse.analysis.equal_sizes import with_sizes
from ortfuse.analysis.transfer.value_fact import INTEGERS, Element, Fact, Shape
from ortfuse.ir.dims import Dim, DimLike, symbols


def refined(fact: Fact, other: Fact) -> Fact:
    """`fact` refined by `other`, a fact of the same value; `fact` itself if `other` adds nothing.

    Constants are not taken over: a rewrite may round differently.
    """
    dtype = fact.dtype if fact.dtype is not None else other.dtype
    # Read before comparing: a constant whose elements were not yet asked for would look less precise.
    shape, elements = fact.shape, fact.elements()
    if shape is None:
        shape = other.shape
    elif other.shape is not None and len(shape) == len(other.shape) and shape != other.shape:
        better = tuple([_better(mine, theirs) for mine, theirs in zip(shape, other.shape, strict=True)])
        shape = better if better != shape else shape
    found = other.integers() if dtype in INTEGERS else None
    if elements is None:
        elements = found
    elif found is not None and elements is not None and len(found) == len(elements) and found != elements:
        merged = tuple([_better_element(mine, theirs) for mine, theirs in zip(elements, found, strict=True)])
        elements = merged if merged != elements else elements
    if dtype == fact.dtype and shape is fact.shape and elements is fact.elements():
        return fact
    return fact.with_changes(dtype, shape, elements)


def renamed_sizes(old: Shape | None, new: Shape | None) -> dict[str, DimLike]:
    """The unknown sizes of a shape that another shape of the same value calls otherwise: those by name."""
    if old is None or new is None or len(old) != len(new):
        return {}
    pairs = [(before, after) for before, after in zip(old, new, strict=True) if before != after]
    return {str(one): other for one, other in pairs if _is_unknown(one) and _is_unknown(other)}


def _is_unknown(dim: DimLike) -> bool:
    """Whether a dimension is a symbol about which nothing is known."""
    name = str(dim)
    return name.startswith("?") and name[1:].isdecimal()


def renamed(fact: Fact, sizes: Mapping[str, DimLike]) -> Fact:
    """A fact with other names for unknown sizes; the same if it has none of them."""
    elements = None if fact.is_constant else fact.known_elements
    dims = [dim for dim in (*(fact.shape or ()), *(elements or ())) if isinstance(dim, Dim) and dim.fresh]
    if not any(symbols(dim) & sizes.keys() for dim in dims):
        return fact
    new = {dim: with_sizes(dim, sizes) for dim in dims}
    shape = (
        None
        if fact.shape is None
        else tuple([new.get(dim, dim) if isinstance(dim, Dim) else dim for dim in fact.shape])
    )
    found = (
        None if elements is None else tuple([new.get(one, one) if isinstance(one, Dim) else one for one in elements])
    )
    return fact.with_changes(fact.dtype, shape, found)


def _better(mine: DimLike, theirs: DimLike) -> DimLike:
    """The more informative of two dimensions that are equal in every run; `mine` if neither is."""
    return theirs if _complexity(theirs) < _complexity(mine) else mine


def _complexity(dim: DimLike) -> tuple[bool, int]:
    return (dim.fresh, dim.size) if isinstance(dim, Dim) else (False, 0)


def _better_element(mine: Element, theirs: DimLike | None) -> Element:
    if mine is None or theirs is None:
        return theirs if mine is None else mine
    return _better(mine, theirs) if isinstance(mine, int | Dim) else mine
