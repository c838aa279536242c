"""Find constant operands for Reshape, Squeeze and Unsqueeze from one symbolic shape to another."""

from __future__ import annotations

from collections.abc import Sequence

from ortfuse.ir.dims.polynomial import DimLike
from ortfuse.ir.dims.provable_bounds import is_nonzero


def reshape_target(before: Sequence[DimLike] | None, after: Sequence[DimLike] | None) -> list[int] | None:
    """A constant Reshape target (with allowzero=0) that reshapes `before` to `after`, or `None`.

    A dimension that is not an integer is written as 0 if the input has the same one at the same position, and one of the
    others as -1. The -1 is safe only if the product of the others cannot be zero, by which the runtime could not divide.
    """
    if before is None or after is None:
        return None
    target: list[int] = []
    for axis, dim in enumerate(after):
        if isinstance(dim, int):
            if dim == 0 and not (axis < len(before) and before[axis] == 0):
                return None
            target.append(dim)
        else:
            target.append(0 if axis < len(before) and before[axis] == dim else -1)
    missing = [axis for axis, size in enumerate(target) if size == -1]
    if len(missing) > 1:
        return None
    if missing and not all(is_nonzero(dim) for axis, dim in enumerate(after) if axis != missing[0]):
        return None
    return target


def unit_axes(more: Sequence[DimLike], fewer: Sequence[DimLike]) -> tuple[int, ...] | None:
    """The axes of size 1 that a shape has beyond another one; `None` if that is not all the difference."""
    left, found = list(fewer), list[int]()
    for axis, size in enumerate(more):
        if left and size == left[0]:
            del left[0]
        elif size == 1:
            found.append(axis)
        else:
            return None
    return None if left else tuple(found)
