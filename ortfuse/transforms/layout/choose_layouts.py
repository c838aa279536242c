"""Choose the axis order of each region, and rewrite it in one change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ortfuse.targets import Quirk
from ortfuse.transforms.context import Context
from ortfuse.transforms.layout import assign_axis_orders
from ortfuse.transforms.layout.apply_axis_orders import Move
from ortfuse.transforms.layout.find_units import Map
from ortfuse.transforms.layout.layout_unit import State, Unit, start
from ortfuse.transforms.layout.region import Region, joined_by_node
from ortfuse.transforms.layout.transpose_lower_bound import bound
from ortfuse.transforms.node_builder import Rounds

_REMARK = "layout: "


@dataclass(frozen=True)
class Layout:
    """Move Transposes to where the fewest elements are transposed."""

    name: ClassVar[str] = "layout"

    def run(self, context: Context) -> int:
        """Choose the order of axes of every region; returns how many parts of regions were changed."""
        count = 0
        for text in [text for text in context.notes if text.startswith(_REMARK)]:
            del context.notes[text]  # of an earlier round
        if context.target.spec.orders_axes_itself:
            if any(node.op_type == "Transpose" for scope in context.scopes() for node in scope.graph):
                context.note(f"{_REMARK}Transposes are left to {context.target.spec.name}, which orders axes itself")
            return 0
        turned, gaps = Quirk.TURNS_SIGNED_PAIRS in context.target.quirks, list[_Gap]()
        kept = Quirk.INTERPOLATES_LAST_AXES in context.target.quirks
        for scope in context.scopes():
            found = Map(scope.graph, context.facts, turned, context.target.spec.fast_transpose_axes, kept)
            for region in list(found.regions()):
                states = assign_axis_orders.best(region)
                parts = list(_parts(region, states, found))
                changed = [
                    self._change(Move(found, part, states, context.editor, context.facts), context) for part in parts
                ]
                count += sum(changed)
                if len(region.orders) > 2 or not all(changed):
                    gaps += _gap(region, states if all(changed) else assign_axis_orders.as_it_is(region))
        if gaps:
            context.note(_told(gaps))
        return count

    def _change(self, move: Move, context: Context) -> bool:
        if any(node.graph is None for node in move.nodes):
            return False  # an earlier part has removed one of them; the next round sees what is left
        with context.editor.change(
            self.name, rule=Rounds(self.name) if move.rounds else None, nodes=move.nodes
        ) as change:
            move.make(change)
        return bool(change)


@dataclass(frozen=True)
class _Gap:
    """A region whose choice may not be the best: a tensor of it, its nodes, the elements that it transposes, and the fewest."""

    name: str
    nodes: int
    left: int
    least: int


def _gap(region: Region, states: Mapping[Unit, State]) -> list[_Gap]:
    """The largest distance of the choice from the best one; 0 with two orders, unless a change was not made."""
    left = assign_axis_orders.transposed(region, states) + sum(unit.cost(states[unit]) for unit in region.units)
    least = bound(region) + sum(_least(unit, region) for unit in region.units)
    return [_Gap(region.tensors[0].base.name or "", len(region.units), left, least)] if left > least else []


def _told(gaps: Sequence[_Gap]) -> str:
    """A sentence on all gaps, which names the largest region."""
    largest = max(gaps, key=lambda gap: gap.left - gap.least)
    nodes, left, least = (sum(getattr(gap, what) for gap in gaps) for what in ("nodes", "left", "least"))
    where = f"around '{largest.name}'" + (f" and in {len(gaps) - 1} other places" if len(gaps) > 1 else "")
    return f"{_REMARK}{nodes} nodes {where} transpose {left} elements at usual sizes; at least {least} have to be"


def _least(unit: Unit, region: Region) -> int:
    """The fewest elements that the kernel of a unit has to move by itself."""
    return min(unit.cost(state) for state in (start(unit), *(order[unit] for order in region.orders if unit in order)))


def _parts(region: Region, states: Mapping[Unit, State], found: Map) -> Iterator[list[Unit]]:
    """The units that change, in groups that have no tensor in common, each in the order of the graph."""
    left = {unit: None for unit in region.units if not states[unit].is_unmoved}
    siblings = joined_by_node(left)
    while left:
        first = next(iter(left))
        del left[first]
        part, pending = {first: None}, [first]
        while pending:
            unit = pending.pop()
            ends = (use.unit for tensor in found.tensors_at(unit) for use in tensor.ends)
            for other in (*siblings[unit.node], *ends):
                if other in left:
                    del left[other]
                    part[other] = None
                    pending.append(other)
        yield sorted(part, key=lambda unit: found.place[unit.node])
