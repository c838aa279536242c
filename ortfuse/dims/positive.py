"""Dimensions in the runs in which one of them is not 0 (`positive_from` and `shifted` of `ortfuse.dims`)."""

from __future__ import annotations

from collections.abc import Callable

from ortfuse.dims.algebra import broadcast, floor_div, maximum, minimum
from ortfuse.dims.polynomial import Atom, Dim, DimLike, evaluate, rebuild, symbol, symbols

_MOST_SIZES = 5000
"""The most values that are tried to find the first for which a dimension is positive."""


def positive_from(size: DimLike) -> tuple[str, int] | None:
    """The one symbol of a dimension, and its least value for which the dimension is at least 1; None if there is none.

    Every lower value was tried: where the dimension is positive, the symbol is that value plus something not negative.
    """
    names = symbols(size)
    if len(names) != 1 or not isinstance(size, Dim) or size.fresh:
        return None
    name = names.pop()
    try:
        first = next((n for n in range(_MOST_SIZES) if evaluate(size, {name: n}) >= 1), None)
    except ZeroDivisionError:
        return None
    return None if first is None else (name, first)


def shifted(dim: DimLike, name: str, by: int) -> DimLike:
    """The dimension with ``name + by`` in place of the symbol `name`: what short lengths need, minima and maxima, disappears."""

    def value(atom: Atom) -> DimLike:
        if not atom.kind:
            return symbol(name) + by if atom.name == name else atom.dim
        return _FUNCTIONS[atom.kind](*[shifted(argument, name, by) for argument in atom.args])

    return rebuild(dim, value)


_FUNCTIONS: dict[str, Callable[..., DimLike]] = {
    "floordiv": floor_div,
    "min": minimum,
    "max": maximum,
    "broadcast": broadcast,
}
