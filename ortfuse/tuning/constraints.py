"""Check the constraints of a tuned model, and by how much it misses them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from numbers import Real

from ortfuse.errors import OptionError
from ortfuse.tuning.outcome import Point

NAMES = ("max-latency", "min-throughput", "max-memory", "max-error", "max-regression")
"""The quantities that can be constrained, as the options are called."""


@dataclass(frozen=True)
class Unmet:
    """A constraint that a point does not keep.

    Attributes:
        name: What is constrained, as the option is called.
        limit: The limit.
        found: What was measured.
        unit: The unit of both.
    """

    name: str
    limit: float
    found: float
    unit: str

    @property
    def excess(self) -> float:
        """By how much the limit is missed, relative to it."""
        return abs(self.found - self.limit) / max(abs(self.limit), 1e-12)

    def __str__(self) -> str:
        return f"{self.name} of {self.limit:.4g}{self.unit} is missed by {self.excess:.0%}: {self.found:.4g}{self.unit}"


@dataclass(frozen=True)
class Constraints:
    """Limits; `None` where there is none.

    Attributes:
        max_latency: Milliseconds that 95 % of the runs stay under.
        min_throughput: Runs a second, one after the other.
        max_memory: Megabytes (10**6 bytes) that the process of a session holds at most, Python and the runtime with it.
        max_error: Relative Euclidean error of any output.
        max_regression: How much longer a run may take than the original's in a default session, relative to it.

    Raises:
        OptionError: A limit is no number, or one that nothing could miss.
    """

    max_latency: float | None = None
    min_throughput: float | None = None
    max_memory: float | None = None
    max_error: float | None = None
    max_regression: float = 0.05

    def __post_init__(self) -> None:
        for name, limit in asdict(self).items():
            if limit is not None and not (isinstance(limit, Real) and 0 <= float(limit) < math.inf):
                raise OptionError(name, f"write a number, 0 or more, not {limit!r}")

    def unmet(self, point: Point) -> list[Unmet]:
        """The constraints that a point does not keep."""
        found = [
            Unmet("max-latency", self.max_latency, point.p95_ms, " ms")
            if self.max_latency is not None and point.p95_ms > self.max_latency
            else None,
            Unmet("min-throughput", self.min_throughput, point.throughput, " runs/s")
            if self.min_throughput is not None and point.throughput < self.min_throughput
            else None,
            Unmet("max-memory", self.max_memory, point.peak_mb, " MB")
            if self.max_memory is not None and point.peak_mb > self.max_memory
            else None,
            Unmet("max-error", self.max_error, point.error, "")
            if self.max_error is not None and point.error > self.max_error
            else None,
            Unmet("max-regression", 1 + self.max_regression, 1 + point.regression, " of the original's time")
            if point.regression > self.max_regression
            else None,
        ]
        return [one for one in found if one is not None]

    def violations(self, point: Point) -> list[float]:
        """The distance by which each constraint is missed, 0 or less where it is kept; of constant length, for the sampler."""
        missed = {one.name: one.excess for one in self.unmet(point)}
        return [missed.get(name, 0.0) for name in NAMES]

    def nearest(self, points: Sequence[Point]) -> list[Unmet]:
        """The amount by which the nearest point misses each constraint that no point keeps together with the others."""
        if not points:
            return []
        return self.unmet(min(points, key=lambda point: sum(self.violations(point))))
