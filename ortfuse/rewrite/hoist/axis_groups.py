"""Groups of axes of two shapes that hold the same elements in the same order, as before and behind a Reshape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ortfuse.ir.dims import DimLike, product

Shape = tuple[DimLike, ...]

_MOST_AXES = 6
"""The most axes of both shapes that one group has."""


@dataclass(frozen=True)
class AxisGroup:
    """Axes of one shape that become axes of the other one: none has size 1.

    Attributes:
        before: The axes of the shape before.
        after: The axes of the shape behind.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def is_one_axis(self) -> bool:
        """Whether one axis stays one axis."""
        return len(self.before) == len(self.after) == 1


def axis_groups(before: Sequence[DimLike], after: Sequence[DimLike]) -> list[AxisGroup] | None:
    """Return the smallest groups of axes that become each other; axes of size 1 belong to none.

    `None` if the shapes are not known to hold the same elements, group by group.
    """
    left = [axis for axis, dim in enumerate(before) if dim != 1]
    right = [axis for axis, dim in enumerate(after) if dim != 1]
    groups = []
    while left and right:
        found = _first_group([before[axis] for axis in left], [after[axis] for axis in right])
        if found is None:
            return None
        taken, made = found
        groups.append(AxisGroup(tuple(left[:taken]), tuple(right[:made])))
        left, right = left[taken:], right[made:]
    return None if left or right else groups


def view_cost(before: Sequence[DimLike] | None, after: Sequence[DimLike] | None) -> int:
    """Return how many Reshapes a view counts as: two if it splits axes and merges parts with others, else one."""
    groups = axis_groups(before, after) if before is not None and after is not None else None
    return 2 if any(len(group.before) > 1 and len(group.after) > 1 for group in groups or ()) else 1


def _first_group(before: Sequence[DimLike], after: Sequence[DimLike]) -> tuple[int, int] | None:
    """How many leading sizes on each side have the same product: as few as possible."""
    if before[0] == after[0]:
        return 1, 1
    for axes in range(3, min(len(before) + len(after), _MOST_AXES) + 1):
        for taken in range(max(1, axes - len(after)), min(axes - 1, len(before)) + 1):
            if product(before[:taken]) == product(after[: axes - taken]):
                return taken, axes - taken
    return None


def gaps(groups: Sequence[AxisGroup], rank: int, *, after: bool) -> list[list[int]]:
    """Return the axes of size 1 before the first group, between groups, and behind the last one.

    Those between axes of one group stand in the gap behind it.
    """
    owner = {axis: number for number, group in enumerate(groups) for axis in (group.after if after else group.before)}
    found: list[list[int]] = [[] for _ in range(len(groups) + 1)]
    place = 0
    for axis in range(rank):
        if axis in owner:
            place = owner[axis] + 1
        else:
            found[place].append(axis)
    return found
