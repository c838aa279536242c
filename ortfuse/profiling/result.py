"""What a profile says, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ortfuse.bench.peaks import Peaks
from ortfuse.profiling.creation import Creation
from ortfuse.profiling.kernels import VIEWS, Group, Kernel, by_kind_of_block, groups, reached
from ortfuse.profiling.timing import Timing

SCHEMA = "ortfuse.profile/1"
"""The name and version of the JSON data; the number changes when fields are renamed or go."""


@dataclass(frozen=True)
class Bottleneck:
    """Something that takes time, and what can be done about it.

    Attributes:
        what: What takes the time.
        share: Its part of the time of all kernels; of handing over from one to the next, of the time of a run.
        remedy: What can be done.
    """

    what: str
    share: float
    remedy: str


@dataclass(frozen=True)
class SideBySide:
    """What each operator takes in two models whose runs took turns.

    Attributes:
        sizes: The sizes of the inputs, as text.
        runs: How many runs of each model are counted.
        before: The operators of the first model, with the seconds of all their nodes in a run.
        after: Those of the second.
    """

    sizes: str
    runs: int
    before: tuple[Group, ...]
    after: tuple[Group, ...]


@dataclass(frozen=True)
class Profile:
    """Where the time of a model goes.

    Attributes:
        sizes: The sizes of the inputs, as text.
        threads: Threads per operator; 0 if the runtime chose.
        timing: Latency, throughput, session creation and memory, without the profiler.
        kernels: The executed nodes, in the order of their execution.
        run_seconds: What a run takes under the profiler.
        runs: How many runs the profile counts.
        creation: What the runtime did at session creation.
        peaks: The peaks of this machine; `None` if they were not measured.
        bottlenecks: What takes the time and can be helped, the largest first.
        notes: What should be known about the numbers.
        between: What a run takes under the profiler besides its kernels, the median over runs: handing over from one to the next.
    """

    sizes: str
    threads: int
    timing: Timing
    kernels: tuple[Kernel, ...] = field(repr=False)
    run_seconds: float
    runs: int
    creation: Creation = field(repr=False)
    peaks: Peaks | None
    bottlenecks: tuple[Bottleneck, ...] = ()
    notes: tuple[str, ...] = ()
    between: float = 0.0

    @property
    def seconds(self) -> float:
        """What all kernels take in a run."""
        return sum(one.seconds for one in self.kernels)

    @property
    def blocks(self) -> tuple[Group, ...]:
        """The time of fused blocks, those that are alike added up; the longest first."""
        return groups(self.kernels, by_kind_of_block)

    @property
    def reached(self) -> float | None:
        """The fraction of the roof that the kernels reach together; `None` if it is not known."""
        return reached(self.kernels)

    def by(self, view: str) -> tuple[Group, ...]:
        """The time by `operator`, fused `block`, original `module`, its `role` in all layers, or `rule`; the longest first."""
        return groups(self.kernels, VIEWS[view])

    def to_dict(self) -> dict[str, Any]:
        """Everything as data for JSON (docs/profile.md describes them)."""
        return {
            "schema": SCHEMA,
            "inputs": self.sizes,
            "threads": self.threads,
            "timing": self.timing.to_dict(),
            "run_seconds": self.run_seconds,
            "runs": self.runs,
            "kernel_seconds": self.seconds,
            "between_seconds": self.between,
            "reached": self.reached,
            "peaks": None if self.peaks is None else self.peaks.to_dict(),
            "by": {view: [group.to_dict() for group in self.by(view)] for view in VIEWS},
            "kernels": [one.to_dict() for one in self.kernels],
            "creation": self.creation.to_dict(),
            "bottlenecks": [asdict(one) for one in self.bottlenecks],
            "notes": list(self.notes),
        }
