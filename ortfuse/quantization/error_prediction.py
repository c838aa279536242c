"""Predict the error and time of choices of schemes, from measurements of single sites and of choices that were run."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ortfuse.quantization.interaction_cost import share_of_whole
from ortfuse.quantization.knapsack import Option, choose, linear_error, total
from ortfuse.quantization.outcome import Goal, Point
from ortfuse.quantization.site_measurements import MeasuredSite

WORTH = 1.02
"""The least speedup for which precision is given up."""

MOST_PREDICTED = 50.0
"""The largest speedup that is predicted, where the sites by themselves seem to take longer than the whole."""


@dataclass
class Predictions:
    """Predict errors and times of choices, and choose by them.

    A choice has the scheme of each site that is lowered, by the site's name. The squares of the errors of its sites are added.

    Attributes:
        sites: The sites.
        outputs: How many outputs' errors were measured.
        goal: What is to be small.
        float_seconds: The time of the float32 model.
    """

    sites: Sequence[MeasuredSite]
    outputs: int
    goal: Goal
    float_seconds: float
    _options: list[list[Option]] = field(init=False)

    def __post_init__(self) -> None:
        self._options = [site.options(self.goal, self.outputs) for site in self.sites]

    def choose(self, limit: float, without: Callable[[str], bool] | None = None) -> dict[str, str]:
        """The best choice whose error is predicted to be under a limit.

        Args:
            limit: The limit of the relative error.
            without: Whether a scheme, given by name, is left out.
        """
        slowest = None if self.goal == "latency" else 0.0
        allowed = [
            [one for one in options if not (one.name and without is not None and without(one.name))]
            for options in self._options
        ]
        taken = choose(allowed, limit if math.isfinite(limit) else 1e9, slowest=slowest)
        return {
            site.name: options[number].name
            for site, options, number in zip(self.sites, allowed, taken, strict=True)
            if number
        }

    def point(self, label: str, choice: Mapping[str, str]) -> Point:
        """A choice with what is predicted of it."""
        taken = self._taken(choice)
        error = linear = None
        if taken is not None:
            error = math.sqrt(max(total(self._options, taken).errors, default=0.0))
            linear = linear_error(self._options, taken)
        left = max(self.float_seconds - self._saved(choice), self.float_seconds / MOST_PREDICTED)
        speedup = self.float_seconds / left if left else 1.0
        return Point(label, dict(choice), error, linear, speedup)

    def alone(self, choice: Mapping[str, str]) -> float:
        """The error that is predicted for a choice by those of its sites alone that were followed to the outputs."""
        known = [
            option.errors
            for site, options in zip(self.sites, self._options, strict=True)
            for option in options
            if option.name and option.name == choice.get(site.name)
        ]
        return math.sqrt(max(map(sum, zip(*known, strict=True)), default=0.0))

    def excess(self, choice: Mapping[str, str], effects: Sequence[float]) -> float:
        """The ratio of the errors of a choice to the predicted ones."""
        taken = self._taken(choice)
        if taken is None or not effects:
            return 0.0
        predicted = math.sqrt(max(total(self._options, taken).errors, default=0.0))
        return max(effects) / predicted if predicted else 0.0

    def distrust(self, schemes: Collection[str], factor: float, share: float) -> None:
        """Predict errors of some schemes that are larger by a factor or, where that says nothing, have this square."""

        def larger(error: float) -> float:
            return error * factor**2 if error and factor < math.inf else share

        self._options = [
            [replace(one, errors=tuple(map(larger, one.errors))) if one.name in schemes else one for one in options]
            for options in self._options
        ]

    def blame(self, site: str, scheme: str, factor: float) -> None:
        """Predict an error of a scheme at one site that is larger by a factor."""
        number = next(number for number, one in enumerate(self.sites) if one.name == site)
        self._options[number] = [
            replace(one, errors=tuple(error * factor**2 for error in one.errors)) if one.name == scheme else one
            for one in self._options[number]
        ]

    def _taken(self, choice: Mapping[str, str]) -> list[int] | None:
        """The numbers of the options of a choice; `None` if one of them was not measured."""
        names = [[option.name for option in options] for options in self._options]
        wanted = [choice.get(site.name, "") for site in self.sites]
        if not all(name in known for name, known in zip(wanted, names, strict=True)):
            return None
        return [known.index(name) for name, known in zip(wanted, names, strict=True)]

    def _saved(self, choice: Mapping[str, str]) -> float:
        """Return the seconds that the sites of a choice save, of the time that they can have in the whole."""
        return share_of_whole(self.sites, self.float_seconds) * sum(
            site.seconds - scheme.seconds
            for site in self.sites
            for scheme in site.schemes
            if choice.get(site.name) == scheme.name
        )
