"""Estimate the duration of steps of a search from those done so far."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ortfuse.runtime.bench.session_timing import Enough, turn_seconds
from ortfuse.serialization.dataclass_from_json import of_type
from ortfuse.tuning.outcome import Point

OPENING = 0.5
"""Seconds until a session is ready, before one was opened: its process is started, and it runs a few times."""

REMEMBERED = 15
"""How many of the last measurements count: the load of a machine changes."""


class Watch:
    """Look at the clock after each round of a measurement, and end it when another round would take too long.

    Args:
        enough: What else ends it.
        least: The rounds that are made in any case.
        until: When it has to be over, on the clock.
        clock: Seconds that pass.
    """

    def __init__(self, enough: Enough | None, least: int, until: float, clock: Callable[[], float]) -> None:
        self._enough, self._least, self._until, self._clock = enough, least, until, clock
        self._began = clock()
        self._ends: list[float] = []

    def __call__(self, speedups: Mapping[str, Sequence[float]]) -> Collection[str]:
        """The candidates that need no more rounds, as a meter asks for them."""
        self._ends.append(self._clock())
        if len(self._ends) >= self._least and self._ends[-1] + self._last > self._until:
            return list(speedups)
        return () if self._enough is None else self._enough(speedups)

    @property
    def _last(self) -> float:
        """The seconds of the last round; 0 if it was the first, before which sessions were opened."""
        return self._ends[-1] - self._ends[-2] if len(self._ends) > 1 else 0.0

    def learnt(self) -> tuple[float, float] | None:
        """The seconds until the first round began, and those of a round; `None` where there were too few to tell."""
        if len(self._ends) < 2:
            return None
        each = (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)
        return max(0.0, self._ends[0] - self._began - each), each


class Pace:
    """The seconds that measurements took.

    Args:
        budget: The seconds of the whole search.
        clock: Seconds that pass.

    Attributes:
        verifying: What verifying a model took, at most.
        first: What the first trial took, and making its model.
        run: What a run of the original took.
    """

    def __init__(self, budget: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.budget, self.clock = budget, clock
        self.verifying = self.first = self.run = 0.0
        self._openings: list[float] = []
        self._stretches: list[float] = []
        self._trials: list[float] = []

    def watch(self, enough: Enough | None, least: int, seconds: float) -> Watch:
        """Ends a measurement after these seconds, but not before it has had so many rounds."""
        return Watch(enough, least, self.clock() + seconds, self.clock)

    def learn(self, watch: Watch, opened: int, points: Sequence[Point]) -> None:
        """Take note of a measurement of points in which so many sessions were opened, and none was left out on the way."""
        found = watch.learnt()
        expected = _turns(points)
        if found is not None and expected > 0:
            self._openings.append(found[0] / opened)
            self._stretches.append(found[1] / expected)
        self.run = max((_original(point) for point in points), default=self.run)

    def tried(self, seconds: float) -> None:
        """Take note of a trial, without the time to make its model."""
        self._trials.append(seconds)

    @property
    def trial(self) -> float:
        """About how long a trial takes."""
        return _usual(self._trials, 0.0)

    def round(self, points: Sequence[Point]) -> float:
        """About how long a round with the original and these points takes."""
        return _usual(self._stretches, 1.0) * _turns(points)

    def opening(self, points: Sequence[Point], others: int = 0) -> float:
        """About how long it takes until sessions of these points, and so many others, are ready."""
        return _usual(self._openings, OPENING) * (len(points) + others)

    def to_dict(self) -> dict[str, Any]:
        """The estimates as data for JSON."""
        return {
            "openings": self._openings[-REMEMBERED:],
            "stretches": self._stretches[-REMEMBERED:],
            "trials": self._trials[-REMEMBERED:],
            "verifying": self.verifying,
            "first": self.first,
            "run": self.run,
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Go on from what an earlier process had learnt."""
        try:
            several = {name: of_type(list[float], kept.get(name, [])) for name in ("openings", "stretches", "trials")}
            single = {name: of_type(float, kept.get(name, 0.0)) for name in ("verifying", "first", "run")}
        except ValueError:
            return
        self._openings, self._stretches, self._trials = several.values()
        self.verifying, self.first, self.run = max(self.verifying, single["verifying"]), single["first"], single["run"]


def _original(point: Point) -> float:
    """The seconds of a run of the original beside this point."""
    return point.speedup * point.median_ms / 1e3


def _turns(points: Sequence[Point]) -> float:
    """The seconds that the turns of the original and of these points should take, were the machine idle."""
    original = max((_original(point) for point in points), default=0.0)
    return sum(turn_seconds(seconds) for seconds in (original, *(point.median_ms / 1e3 for point in points)))


def _usual(found: Sequence[float], before: float) -> float:
    """The mean of the last ones; what is expected before there is one."""
    return statistics.fmean(found[-REMEMBERED:]) if found else before
