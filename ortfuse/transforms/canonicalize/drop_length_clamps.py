"""Drop clamps of lengths in models that fail whenever the clamp takes effect: min(64, length) becomes length.

torch.export writes a slice of a table of 64 positions with the length min(64, length). If the result is broadcast with
a tensor of the full length, the two must be the same size (neither is 1 unless both are). Otherwise the runtime fails,
whatever the other sizes are. So in every run that completes the length is at most 64, and so is every length that is
provably no larger. For example, a table of masks requires past + new to be at most 64. Then min(64, past), its first
row that is read, is past.

Transforms: Min of an integer of at least 2 and a length, in the main graph, where a node of the main graph that the outputs
depend on requires equal sizes.

Does not handle:  subgraphs and functions, which may never be run; other minima.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import Dim, DimLike, at_most
from ortfuse.ir.traits import BROADCASTS
from ortfuse.ir.walk import needed_nodes
from ortfuse.transforms.context import Context


@dataclass(frozen=True)
class DropLengthClamps:
    """Remove the Min of a bound and a length that never exceeds it."""

    name: ClassVar[str] = "drop_length_clamps"

    def run(self, context: Context) -> int:
        """Replace every such minimum; returns the number replaced."""
        graph, facts = context.model.graph, context.facts
        clamps = [clamp for node in graph if (clamp := _clamp(node, facts)) is not None]
        if not clamps:
            return 0
        asked = dict(_equal_sizes(graph, facts))
        met = [(clamp, asked[clamp.cut, clamp.size]) for clamp in clamps if (clamp.cut, clamp.size) in asked]
        editor, replaced = context.editor, 0
        for clamp in clamps:
            witness = next((node for other, node in met if clamp.follows_from(other)), None)
            if witness is not None:
                with editor.change(self.name, nodes=[clamp.node], witnesses=[witness]) as change:
                    editor.replace(clamp.node.outputs[0], clamp.length)
                    editor.remove(clamp.node)
                replaced += bool(change)
        return replaced


class _Clamp(NamedTuple):
    """The minimum of a bound and a length: the node, the value of the length, the bound, and both lengths as sizes."""

    node: ir.Node
    length: ir.Value
    limit: int
    size: Dim
    cut: Dim

    def follows_from(self, other: _Clamp) -> bool:
        """This length is at most its bound wherever the other one is at most its own."""
        return other.limit <= self.limit and at_most(self.size, other.size)


def _clamp(node: ir.Node, facts: Facts) -> _Clamp | None:
    """A node as ``Min(bound, length)``, if it is one."""
    if node.op_type != "Min" or node.domain or len(node.inputs) != 2 or node.outputs[0].is_graph_output():
        return None
    cut = _size(node.outputs[0], facts)
    for bound, length in itertools.permutations(node.inputs):
        limit, size = _size(bound, facts), _size(length, facts)
        same = length is not None and facts.shape(length) == facts.shape(node.outputs[0])
        if same and isinstance(limit, int) and limit > 1 and isinstance(size, Dim) and isinstance(cut, Dim):
            assert length is not None
            return _Clamp(node, length, limit, size, cut)
    return None


def _size(value: ir.Value | None, facts: Facts) -> DimLike | None:
    numbers = facts.ints(value)
    return numbers.elements[0] if numbers is not None and len(numbers.elements) == 1 else None


def _equal_sizes(graph: ir.Graph, facts: Facts) -> Iterator[tuple[tuple[DimLike, DimLike], ir.Node]]:
    """Pairs of sizes that operands of a node have along the same axis, for nodes executed in every run, with the node."""
    for node in needed_nodes(graph):
        if node.op_type not in BROADCASTS or node.domain:
            continue
        shapes = [facts.shape(value) or () for value in node.inputs if value is not None]
        for one, other in itertools.permutations(shapes, 2):
            yield from ((sizes, node) for sizes in zip(reversed(one), reversed(other), strict=False))
