"""Substitute dimensions for symbols in a dimension (`substituted` of `ortfuse.ir.dims`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce

from ortfuse.ir.dims.algebra import broadcast, floor_div, maximum, minimum
from ortfuse.ir.dims.polynomial import Atom, DimLike, rebuild


def substituted(dim: DimLike, sizes: Mapping[str, DimLike]) -> DimLike:
    """The dimension with the given sizes in place of the symbols of these names.

    Raises:
        ZeroDivisionError: a divisor is 0 then.
    """

    def value(atom: Atom) -> DimLike:
        if not atom.kind:
            return sizes.get(atom.name, atom.dim)
        return _FUNCTIONS[atom.kind](*[substituted(argument, sizes) for argument in atom.args])

    return rebuild(dim, value)


_FUNCTIONS: dict[str, Callable[..., DimLike]] = {
    "floordiv": floor_div,
    "min": minimum,
    "max": maximum,
    "broadcast": lambda *sizes: reduce(broadcast, sizes),
}
