"""Nodes that compute a size from others, by its formula."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import onnx_ir as ir

from ortfuse.ir.dims import DimLike
from ortfuse.ir.dims.polynomial import Atom

_OPERATORS = {"min": "Min", "max": "Max", "floordiv": "Div"}
"""The operators of functions of sizes, which are never negative."""


class _Adds(Protocol):
    def add(self, op_type: str, inputs: Sequence[ir.Value | None]) -> ir.Value:
        """The output of a new node."""

    def ints(self, numbers: int | Sequence[int]) -> ir.Value:
        """A constant of int64."""


def size_of(size: DimLike, known: Mapping[str, ir.Value], nodes: _Adds) -> ir.Value | None:
    """int64 [1], a size.

    Args:
        size: Its formula.
        known: int64 [1], the values of symbols.
        nodes: Adds nodes.

    Returns:
        `None` if a symbol is not known, or there is no operator for a function.
    """
    if isinstance(size, int):
        return nodes.ints([size])
    found: ir.Value | None = None
    for monomial, coefficient in size.terms:
        product = nodes.ints([coefficient]) if coefficient != 1 or not monomial else None
        for atom in monomial:
            factor = _atom(atom, known, nodes)
            if factor is None:
                return None
            product = factor if product is None else nodes.add("Mul", [product, factor])
        found = product if found is None else nodes.add("Add", [found, product])
    return found


def _atom(atom: Atom, known: Mapping[str, ir.Value], nodes: _Adds) -> ir.Value | None:
    if not atom.kind:
        return known.get(atom.name)
    operator = _OPERATORS.get(atom.kind)
    operands = [size_of(one, known, nodes) for one in atom.args]
    return None if operator is None or None in operands else nodes.add(operator, operands)
