"""Pattern element for any data movement that is equivalent to an einops-like expression."""

from __future__ import annotations

from collections.abc import Sequence

from ortfuse.errors import PatternError
from ortfuse.ir.traits import RESHAPES
from ortfuse.rewrite.pattern.axis_names import axes_of
from ortfuse.rewrite.pattern.language import Pattern, bare

_MOVES = frozenset({*RESHAPES, "Transpose"})
MOST_MOVES = 6
"""The most nodes that a rearrangement may consist of: TorchScript takes pixels apart by as many."""


class Rearrange(Pattern):
    """`inner`, of shape `before`, rearranged to the shape `after`; names only in `after` are axes of repeated elements."""

    _has_label = True

    def __init__(self, before: str, after: str, inner: Pattern) -> None:
        self.before, self.after, self.inner = axes_of(before), axes_of(after), inner
        old, new = list(self.before.names()), list(self.after.names())
        if len({*old}) < len(old) or len({*new}) < len(new) or {*old} - {*new}:
            raise PatternError(f"{self}: a name stands twice on one side, or is lost")
        for shape in (self.before, self.after):
            if shape.leading is not None or any(axis.may_be_one or axis.is_open for axis in shape.axes):
                raise PatternError(f"{self}: every axis must be named")
            if any(isinstance(factor, int) and axis.factors != (1,) for axis in shape.axes for factor in axis.factors):
                raise PatternError(f"{self}: of numbers there can only be axes of 1; give the others a name")
        self.repeated = frozenset(new) - frozenset(old)

    @property
    def makes(self) -> tuple[str, ...]:
        """The operators that a replacement may use for it."""
        splits = any(len(axis.factors) > 1 for axis in (*self.before.axes, *self.after.axes))
        old, new = (
            [name for name in shape.names() if name not in self.repeated] for shape in (self.before, self.after)
        )
        ones = len(self.after.axes) - len(self.before.axes)
        found = {"Reshape": splits, "Transpose": old != new, "Unsqueeze": ones > 0, "Squeeze": ones < 0}
        return tuple(name for name, wanted in found.items() if wanted and not (splits and name.endswith("squeeze")))

    @property
    def heads(self) -> frozenset[str] | None:
        return _MOVES | {"Expand", "Tile"} if self.repeated else _MOVES

    def children(self) -> Sequence[Pattern]:
        return (self.inner,)

    def __str__(self) -> str:
        return f"rearrange({self.before} -> {self.after}, {bare(self.inner)})"
