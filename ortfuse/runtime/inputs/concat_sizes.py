"""Infer sizes of open dimensions for which the operands of each Concat agree along the other axes.

    concat(x[::2], x[1::2], axis=1)        needs an even number of rows

The runtime refuses others, but leaves out what is empty: of one row, the second part has none, and the elements of the result
that it stands for are whatever was in memory. Such runs cannot be compared with anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import Dim, DimLike, evaluate
from ortfuse.ir.inlinable_functions import looked_into


@dataclass(frozen=True)
class Joined:
    """Two tensors that are joined: their sizes along that axis, and two sizes along another one that must be equal."""

    lengths: tuple[DimLike, DimLike]
    sizes: tuple[DimLike, DimLike]

    def allows(self, sizes: dict[str, int]) -> bool:
        """Whether they can be joined, as far as that can be told; what is empty along that axis fits everywhere."""
        try:
            lengths, (one, other) = (
                [evaluate(dim, sizes) if isinstance(dim, Dim) else dim for dim in dims]
                for dims in (self.lengths, self.sizes)
            )
        except (KeyError, ZeroDivisionError):
            return True
        return one == other or 0 in lengths


def joined_sizes(model: ir.Model) -> list[Joined]:
    """The sizes that must be equal for the operands of Concats in the main graph; none where that is known anyway."""
    flat = looked_into(model)
    nodes = [node for node in flat.graph if node.op_type == "Concat" and not node.domain]
    facts = Facts(flat, as_declared=True) if nodes else None
    return [] if facts is None else list(dict.fromkeys(one for node in nodes for one in _of(node, facts)))


def _of(node: ir.Node, facts: Facts) -> Iterator[Joined]:
    shapes = [facts.shape(value) for value in node.inputs]
    axis, first = node.attributes.get_int("axis"), shapes[0]
    if first is None or axis is None or not -len(first) <= axis < len(first):
        return
    axis %= len(first)
    for other in shapes[1:]:
        if other is not None and len(other) == len(first):
            yield from _pairs(first, other, axis)


def _pairs(first: Sequence[DimLike], other: Sequence[DimLike], axis: int) -> Iterator[Joined]:
    for index, sizes in enumerate(zip(first, other, strict=True)):
        if index != axis and sizes[0] != sizes[1]:
            yield Joined((first[axis], other[axis]), sizes)
