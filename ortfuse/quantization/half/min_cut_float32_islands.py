"""Extend float32 islands by a minimum cut, with the fewest operators and Casts in float32.

A graph is seen as units, each of which computes in one type, and wires from the unit that makes a value to those that take it.
Every operator in float32 counts one, and so does every Cast: one for each wire of which some end has another type than its
source, however many do.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from ortfuse.transforms.layout.dinic_min_cut import UNCUT, Network

Kind = Literal["float", "half", "free"]
"""The required type of a unit; a free one may have either."""


@dataclass(frozen=True)
class Wire:
    """A value: the unit that makes it, and those that take it."""

    source: int
    ends: frozenset[int]


def choose(units: Sequence[Kind], wires: Collection[Wire]) -> list[bool]:
    """For each unit whether it computes in float32: with the least cost, and among those the fewest units.

    Args:
        units: What each unit has to be.
        wires: The values between them.
    """
    network = Network()
    nodes = [network.node() for _ in units]
    for node, kind in zip(nodes, units, strict=True):
        if kind == "float":
            network.edge(Network.SOURCE, node, UNCUT)
        else:
            network.edge(node, Network.SINK, UNCUT if kind == "half" else 1)
    for wire in wires:
        source, ends = nodes[wire.source], [nodes[end] for end in wire.ends]
        narrowed, widened = network.node(), network.node()
        network.edge(source, narrowed, 1)
        network.edge(widened, source, 1)
        for end in ends:
            network.edge(narrowed, end, UNCUT)
            network.edge(end, widened, UNCUT)
    _, halves = network.cut()
    return [not halves[node] for node in nodes]


def cost(units: Sequence[Kind], wires: Collection[Wire], wide: Sequence[bool]) -> int:
    """The free units in float32, and the Casts, of a choice."""
    chosen = sum(kind == "free" and one for kind, one in zip(units, wide, strict=True))
    return chosen + sum(any(wide[end] != wide[wire.source] for end in wire.ends) for wire in wires)
