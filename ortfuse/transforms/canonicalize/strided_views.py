"""Views: the result of data movement on the elements of a tensor, by their offsets in row-major order.

A view is an offset and factors: pairs of a size and a stride, from the slowest to the fastest. Element (i, j, ...) of the view
is element `offset + i * stride + j * stride + ...` of the tensor. A stride of 0 repeats.

    x of [2, 3]         offset 0, factors (6, 1)
    transpose(x)        offset 0, factors (3, 1) (2, 3)
    x[:, ::-1]          offset 2, factors (2, 3) (3, -1)
    x[1:]               offset 3, factors (3, 1)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ortfuse.ir.dims import DimLike, exact_div

Shape: TypeAlias = tuple[DimLike, ...]
Factor: TypeAlias = tuple[DimLike, DimLike]
"""A size and a stride."""


@dataclass(frozen=True)
class View:
    """Elements of a tensor in some order.

    Attributes:
        offset: The place of the first.
        factors: Sizes and strides, as few as possible.
        shape: The shape in which they are.
    """

    offset: DimLike
    factors: tuple[Factor, ...]
    shape: Shape

    def groups(self) -> list[list[Factor]] | None:
        """The factors that make up each axis; `None` if no factor ends where an axis does."""
        rest, groups = list(reversed(self.factors)), []
        for size in self.shape:
            group: list[Factor] = []
            while size != 1:
                if not rest:
                    return None
                whole, stride = rest.pop()
                left = exact_div(size, whole)
                if left is None:
                    inner = exact_div(whole, size)
                    if inner is None:
                        return None
                    rest.append((inner, stride))
                    whole, stride, left = size, stride * inner, 1
                group.append((whole, stride))
                size = left
            groups.append(group)
        return None if rest else groups


def merged(factors: Sequence[Factor]) -> tuple[Factor, ...]:
    """Fewer factors of the same effect."""
    found: list[Factor] = []
    for size, stride in factors:
        if size == 1:
            continue
        if found and found[-1][1] == stride * size:
            found[-1] = found[-1][0] * size, stride
        else:
            found.append((size, stride))
    return tuple(found)
