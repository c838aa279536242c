"""Symbolic dimensions: integer polynomials over named symbols, with division, minimum, maximum and broadcasting.

A dimension (`DimLike`) is a plain ``int`` when it is constant and a `Dim` when it is not. Symbols are integers >= 0 (a
dimension of size 0 is legal), so ``batch * seq`` is known to be >= 0 and ``seq + 1`` to be >= 1.

    >>> batch, seq = symbol("batch"), symbol("seq")
    >>> exact_div(batch * seq * 64, batch * seq * 16)
    4
    >>> str(2 * batch * seq + 1)
    '2*batch*seq + 1'
    >>> str(floor_div(6 * seq + 3, 2))
    '3*seq + 1'
    >>> minimum(seq, seq + 1) == seq
    True
    >>> evaluate(maximum(batch, seq), {"batch": 2, "seq": 3})
    3

Anything that is not a polynomial (``seq // 3``, ``min(64, seq)``) is an opaque factor in canonical form, so that equal
expressions still compare equal. Equality is sound but not complete: dimensions that compare equal are equal for all sizes;
dimensions that compare unequal may still be equal, which only costs a rewrite.
"""

from ortfuse.ir.dims.algebra import (
    broadcast,
    ceil_div,
    floor_div,
    is_broadcast_of,
    is_cut_of,
    maximum,
    minimum,
    mod,
    product,
    uncut,
)
from ortfuse.ir.dims.constant_reshape_target import reshape_target, unit_axes
from ortfuse.ir.dims.parser import parse
from ortfuse.ir.dims.polynomial import Dim, DimLike, evaluate, exact_div, fresh, only_atom, symbol, symbols, total
from ortfuse.ir.dims.provable_bounds import (
    at_most,
    bounds,
    is_nonnegative,
    is_nonzero,
    is_positive,
    lower_bound,
    upper_bound,
)
from ortfuse.ir.dims.shift_symbol_to_positive import positive_from, shifted
from ortfuse.ir.dims.substitution import substituted, substituting

__all__ = [
    "Dim",
    "DimLike",
    "at_most",
    "bounds",
    "broadcast",
    "ceil_div",
    "evaluate",
    "exact_div",
    "floor_div",
    "fresh",
    "is_broadcast_of",
    "is_cut_of",
    "is_nonnegative",
    "is_nonzero",
    "is_positive",
    "lower_bound",
    "maximum",
    "minimum",
    "mod",
    "only_atom",
    "parse",
    "positive_from",
    "product",
    "reshape_target",
    "shifted",
    "substituted",
    "substituting",
    "symbol",
    "symbols",
    "total",
    "uncut",
    "unit_axes",
    "upper_bound",
]
