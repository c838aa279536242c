"""Coordinate ascent, the start of a search: change one setting at a time, cheap ones first, and keep improvements.

The next point follows from the points so far and the time that is left, so that a stopped search goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ortfuse.tuning.constraints import Constraints
from ortfuse.tuning.outcome import Point, Value
from ortfuse.tuning.search_space import MODEL, ORIGINAL, QUANTIZED, Choice, Space

FASTER = 1.01
"""How much faster a change has to be so that the next ones are tried on top of it."""


class Ascent:
    """Propose the usual model with the recommended settings and without, the original where that is no faster, and lower
    precision if an error is allowed; each other setting of the best of these; and last what takes another model to be made.

    Args:
        space: The space.
        constraints: The limits; of choices that miss some, the one that misses them least is gone on with.
        known: The point of a choice; `None` if it was not tried yet.
        affordable: Whether there is time to try a choice, its model included; one for which there is none is left out.
    """

    def __init__(
        self,
        space: Space,
        constraints: Constraints,
        known: Callable[[Choice], Point | None],
        affordable: Callable[[Choice], bool] = lambda choice: True,
    ) -> None:
        self._space, self._constraints, self._known, self._affordable = space, constraints, known, affordable
        self.base: dict[str, Value] = {**space.usual, **space.recommended}

    def proposal(self) -> dict[str, Value] | None:
        """The next choice; `None` if there is none left, and then `base` is the best."""
        for choices in self._rounds():
            for choice in choices:
                if self._known(choice) is None and self._affordable(choice):
                    return choice
            self._take(choices)
        return None

    def _rounds(self) -> Iterator[list[dict[str, Value]]]:
        """The choices of which the best is gone on with, dimension by dimension."""
        space = self._space
        yield [self.base]
        yield [space.usual]
        first = self._known(self.base)
        if first is not None and (first.failure or first.speedup < 1.0):
            yield self._models(ORIGINAL)
        yield self._models(QUANTIZED)
        yield from map(self._others, filter(lambda name: not space.is_of_model(name), space.dimensions))
        yield self._models(*space.dimensions[MODEL])
        for name in space.dimensions:
            if name != MODEL and space.is_of_model(name) and space.matters(name, self.base):
                yield self._others(name)

    def _models(self, *names: Value) -> list[dict[str, Value]]:
        """Other models, of those named, with the settings so far."""
        return [one for one in self._others(MODEL) if one[MODEL] in names]

    def _others(self, name: str) -> list[dict[str, Value]]:
        return [
            {**self.base, name: value} for value in self._space.dimensions.get(name, ()) if value != self.base[name]
        ]

    def _take(self, choices: list[dict[str, Value]]) -> None:
        """Go on with the best of the choices if it is better than what there is."""
        base = self._known(self.base)
        for choice in choices:
            point = self._known(choice)
            if point is not None and (base is None or self._is_better(point, base)):
                self.base, base = choice, point

    def _is_better(self, point: Point, base: Point) -> bool:
        if point.failure or base.failure:
            return not point.failure
        missed, allowed = (sum(self._constraints.violations(one)) for one in (point, base))
        return missed < allowed or (missed == allowed and point.speedup > FASTER * base.speedup)
