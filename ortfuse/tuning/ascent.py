"""The beginning of a search: one change at a time, each on top of those that were faster.

What comes next follows from the points so far alone, so that a search that was stopped goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ortfuse.tuning.constraints import Constraints
from ortfuse.tuning.outcome import Point, Value
from ortfuse.tuning.space import MODEL, Choice, Space

FASTER = 1.01
"""How much faster a change has to be so that the next ones are tried on top of it."""


class Ascent:
    """Proposes each model as it is, the recommended settings, each other setting, and last what takes another model to be made.

    Args:
        space: The space.
        constraints: The limits; of choices that miss some, the one that misses them least is gone on with.
        known: The point of a choice; `None` if it was not tried yet.
    """

    def __init__(self, space: Space, constraints: Constraints, known: Callable[[Choice], Point | None]) -> None:
        self._space, self._constraints, self._known = space, constraints, known
        self.base: dict[str, Value] = space.usual

    def proposal(self) -> dict[str, Value] | None:
        """The next choice; `None` if there is none left, and then `base` is the best."""
        for choices in self._rounds():
            for choice in choices:
                if self._known(choice) is None:
                    return choice
            self._take(choices)
        return None

    def _rounds(self) -> Iterator[list[dict[str, Value]]]:
        """The choices of which the best is gone on with, dimension by dimension."""
        models = self._space.dimensions[MODEL]
        yield [{**self._space.usual, MODEL: model} for model in models]
        if self._space.recommended:
            yield [{**self.base, **self._space.recommended}]
        for name, values in sorted(self._space.dimensions.items(), key=lambda one: self._space.is_of_model(one[0])):
            if name != MODEL and self._space.matters(name, self.base):
                yield [{**self.base, name: value} for value in values if value != self.base[name]]
        yield [{**self.base, MODEL: model} for model in models if model != self.base[MODEL]]

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
