"""Stop measuring when the confidence intervals are narrow enough or the time is over.

The bounds are looked at after each block of rounds, which grow with the rounds so far, so that looking takes little of the time.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ortfuse.runtime.bench.confidence import median_bounds

SECONDS = 10.0
"""How long models are measured side by side if nobody says otherwise, unless the least rounds take longer."""

NARROW = 0.05
"""The bounds of a speedup are narrow if they are no further apart than this share of it."""

GROWTH = 0.5
"""The rounds of a further block, as a share of those so far."""

MOST = 20_000
"""The most rounds, however short they are."""

OPENINGS = 3
"""How many times sessions are opened anew within the least rounds: one may be luckier with its memory than the next."""

OPENING = 0.1
"""The share of the time that opening sessions anew may take each time."""


def is_narrow(speedups: Sequence[float]) -> bool:
    """Whether the bounds of the median of these speedups are narrow."""
    bounds = median_bounds(speedups)
    return bounds is not None and bounds[1] - bounds[0] <= NARROW * statistics.median(speedups)


def budget_of(seconds: float | None) -> float:
    """The seconds that somebody asks for, or the usual ones."""
    return SECONDS if seconds is None else seconds


@dataclass
class Patience:
    """The time limit of a measurement, which starts when the object is made.

    Attributes:
        least: The rounds that are made in any case.
        seconds: After these no further round is begun, once there are the least; 0 makes no more than those.
        clock: Tells the time in seconds.
    """

    least: int
    seconds: float = 0.0
    clock: Callable[[], float] = time.perf_counter
    _began: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._began = self.clock()

    @property
    def _taken(self) -> float:
        return self.clock() - self._began

    def opens_anew(self, seconds: float) -> bool:
        """Whether sessions that take so long to open are opened anew for each block."""
        return seconds <= OPENING * self.seconds

    def block(self, done: int, openings: bool) -> int:
        """The rounds of the next block after so many, of which those before the least may be spread over several openings."""
        if done < self.least:
            return min(self.least - done, math.ceil(self.least / OPENINGS) if openings else self.least)
        taken = self._taken
        affordable = (self.seconds - taken) * done / taken if taken > 0 else math.inf
        return max(1, int(min(max(1.0, GROWTH * done), affordable, MOST - done)))

    def enough(self, speedups: Mapping[str, Sequence[float]], done: int) -> bool:
        """Whether no further round is needed after so many, from the speedups of each candidate, round by round."""
        if done < self.least:
            return False
        return self._taken >= self.seconds or done >= MOST or all(map(is_narrow, speedups.values()))

    def finished(self, speedups: Mapping[str, Sequence[float]]) -> Collection[str]:
        """The candidates that need no further round, from the speedups of each so far."""
        over = self._taken >= self.seconds
        return [
            name
            for name, found in speedups.items()
            if len(found) >= self.least and (over or len(found) >= MOST or is_narrow(found))
        ]
