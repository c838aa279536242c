"""Count the elements that a Transpose moves: as a formula, or as a number for typical sizes."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import DimLike, evaluate, product, symbols

_USUAL = 16
"""The size of an axis about which nothing is known."""


def elements(value: ir.Value, facts: Facts) -> DimLike | None:
    """The number of elements; `None` if not even the rank is known."""
    shape = facts.shape(value)
    return None if shape is None else product(shape)


def typical_elements(value: ir.Value | None, facts: Facts) -> int:
    """The number of elements where each symbol has a usual size."""
    shape = facts.shape(value)
    count = 1 if shape is None else product(shape)
    try:
        return max(1, evaluate(count, dict.fromkeys(symbols(count), _USUAL)))
    except ZeroDivisionError:
        return 1


def moves_only_ones(value: ir.Value, order: tuple[int, ...], facts: Facts) -> bool:
    """Whether a Transpose moves only axes of size 1, past which all others keep their order."""
    shape = facts.shape(value)
    if shape is None or len(shape) != len(order):
        return False
    longer = [axis for axis in order if shape[axis] != 1]
    return longer == sorted(longer)


def moved_ones(before: Sequence[DimLike] | None, after: Sequence[DimLike] | None) -> tuple[int, ...] | None:
    """The order of the Transpose that a Reshape amounts to which only moves axes of size 1; `None` for other Reshapes."""
    if before is None or after is None or len(before) != len(after):
        return None
    longer = iter([axis for axis, size in enumerate(before) if size != 1])
    ones = iter([axis for axis, size in enumerate(before) if size == 1])
    if [size for size in before if size != 1] != [size for size in after if size != 1]:
        return None
    return tuple(next(ones if size == 1 else longer) for size in after)
