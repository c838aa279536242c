"""Class `TuningOutcome`: the winner of a search and all points measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ortfuse.serialization import Record
from ortfuse.serialization.dataclass_from_json import record

Value = bool | int | str


@dataclass(frozen=True)
class Point(Record):
    """One choice, measured beside the original in a default session.

    Attributes:
        number: Which trial it was.
        choice: The value of each dimension of the space.
        speedup: The original's latency divided by this one's, the median over rounds.
        median_ms: The median latency in milliseconds.
        p95_ms: The latency that 95 % of the runs stay under.
        session_ms: The time to create the session.
        peak_mb: The most memory that its process held, in megabytes (10**6 bytes).
        error: The largest relative Euclidean error of an output, against the original's.
        content: A digest of the model.
        failure: Why it could not be measured or does not compute the same; empty if it could and does.
        speedup_bounds: 95 % confidence interval of `speedup`; `None` for fewer than six rounds.
    """

    number: int
    choice: Mapping[str, Value]
    speedup: float = 0.0
    median_ms: float = 0.0
    p95_ms: float = 0.0
    session_ms: float = 0.0
    peak_mb: float = 0.0
    error: float = 0.0
    content: str = ""
    failure: str = ""
    speedup_bounds: tuple[float, float] | None = None

    @property
    def throughput(self) -> float:
        """Runs a second, one after the other."""
        return 1e3 / self.median_ms if self.median_ms else 0.0

    @property
    def regression(self) -> float:
        """The slowdown of a run relative to the original's in a default session; 0 if it is faster."""
        return max(0.0, 1.0 / self.speedup - 1.0) if self.speedup else 0.0

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Point:
        """The point of `to_dict`, read back from JSON.

        Raises:
            ValueError: It is none.
        """
        return record(cls, data)


@dataclass(frozen=True)
class TuningOutcome(Record):
    """The result of a search.

    Attributes:
        best: The choice that was taken.
        baseline: The original in a default session.
        finalists: The best choices measured again side by side, fastest first. Empty if there was one alone besides what
            `optimize` makes, or time for one alone.
        trials: Every trial, in order.
        confirmed: The best of the finalists and what `optimize` makes, measured once more in new processes, fastest first;
            `best` and `baseline` are of this measurement. Empty if the original was best.
        seconds: The time that all of it took, making models, writing and the trials of interrupted runs included.
        notes: What is worth knowing.
    """

    best: Point
    baseline: Point
    finalists: Sequence[Point]
    trials: Sequence[Point] = field(repr=False)
    seconds: float = 0.0
    notes: Sequence[str] = ()
    confirmed: Sequence[Point] = ()
