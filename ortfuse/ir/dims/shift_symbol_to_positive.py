"""Find the least value of a symbol for which a dimension is positive, and substitute the shifted symbol."""

from __future__ import annotations

from ortfuse.ir.dims.polynomial import Dim, DimLike, evaluate, symbol, symbols
from ortfuse.ir.dims.substitution import substituted

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
    return substituted(dim, {name: symbol(name) + by})
