"""The pass: regions, one change each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from ortfuse.passes.context import Context
from ortfuse.passes.layout import choice
from ortfuse.passes.layout.bound import bound
from ortfuse.passes.layout.mapping import Map
from ortfuse.passes.layout.moving import Move
from ortfuse.passes.layout.region import Region, joined_by_node
from ortfuse.passes.layout.unit import State, Unit, start
from ortfuse.targets import Quirk

_REMARK = "layout: "


@dataclass(frozen=True)
class Layout:
    """Moves Transposes to where the fewest elements are transposed."""

    name: ClassVar[str] = "layout"

    def run(self, context: Context) -> int:
        """Choose the order of axes of every region; returns how many parts of regions were changed."""
        count = 0
        for text in [text for text in context.notes if text.startswith(_REMARK)]:
            del context.notes[text]  # of an earlier round
        turned = Quirk.TURNS_SIGNED_PAIRS in context.target.quirks
        for scope in context.scopes():
            found = Map(scope.graph, context.facts, turned)
            for region in list(found.regions()):
                states = choice.best(region)
                parts = list(_parts(region, states, found))
                changed = [
                    self._change(Move(found, part, states, context.editor, context.facts), context) for part in parts
                ]
                count += sum(changed)
                if len(region.orders) > 2 or not all(changed):
                    _note_gap(region, states if all(changed) else choice.as_it_is(region), context)
        return count

    def _change(self, move: Move, context: Context) -> bool:
        if any(node.graph is None for node in move.nodes):
            return False  # an earlier part has removed one of them; the next round sees what is left
        with context.editor.change(self.name, rule=self if move.rounds else None, nodes=move.nodes) as change:
            move.make(change)
        return bool(change)


def _note_gap(region: Region, states: Mapping[Unit, State], context: Context) -> None:
    """Say how far the choice may be from the best one; with two orders it is the best, unless a change was not made."""
    left = choice.transposed(region, states) + sum(unit.cost(states[unit]) for unit in region.units)
    least = bound(region) + sum(_least(unit, region) for unit in region.units)
    if left > least:
        what = f"{len(region.units)} nodes around '{region.tensors[0].base.name}'"
        context.note(f"{_REMARK}{what} transpose {left} elements at usual sizes; at least {least} have to be")


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
