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

    return dim if isinstance(dim, int) else substituting(sizes)(dim)


def substituting(sizes: Mapping[str, DimLike]) -> Callable[[DimLike], DimLike]:
    """Return the function that puts sizes in place of the symbols of these names; it computes each atom once.

    Raises:
        ZeroDivisionError: the function raises it if a divisor is 0 then.
    """
    known: dict[Atom, DimLike] = {}

    def value(atom: Atom) -> DimLike:
        if not atom.kind:
            return sizes.get(atom.name, atom.dim)
        found = known.get(atom)
        if found is None:
            found = known[atom] = _FUNCTIONS[atom.kind](*[rebuild(argument, value) for argument in atom.args])
        return found

    return lambda dim: rebuild(dim, value)


_FUNCTIONS: dict[str, Callable[..., DimLike]] = {
    "floordiv": floor_div,
    "min": minimum,
    "max": maximum,
    "broadcast": lambda *sizes: reduce(broadcast, sizes),
}
