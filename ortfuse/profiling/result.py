"""The result of a profile, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ortfuse.profiling.kernels import VIEWS, Group, Kernel, by_kind_of_block, groups, reached
from ortfuse.profiling.latency_without_profiler import Timing
from ortfuse.profiling.runtime_graph_optimizations import Creation
from ortfuse.runtime.bench.machine_peaks import Peaks
from ortfuse.serialization import Record, derived


@dataclass(frozen=True)
class Bottleneck:
    """Something that takes time, and what can be done about it.

    Attributes:
        description: What takes the time.
        share: Its part of the time of all kernels; of handing over from one to the next, of the time of a run.
        remedy: What can be done.
    """

    description: str
    share: float
    remedy: str


@dataclass(frozen=True)
class Denormals:
    """The cost of numbers below the smallest normal one (1.2e-38 in float32).

    Attributes:
        kernels: The names of the executed nodes that they slow down.
        seconds: What these take in a run if zeros stand for such numbers.
        source: What makes such numbers, in words; empty if that is not known.
        seen_by: An operator that can tell them from zero; empty if there is none, `None` if that is not known.
    """

    kernels: tuple[str, ...]
    seconds: float
    source: str = ""
    seen_by: str | None = None


@dataclass(frozen=True)
class SideBySide:
    """The time of each operator in two models whose runs took turns.

    Attributes:
        sizes: The sizes of the inputs, as text.
        runs: How many runs of each model are counted.
        before: The operators of the first model, with the seconds of all their nodes in a run.
        after: Those of the second.
        before_seconds: What a run of the first model takes under the profiler.
        after_seconds: The same of the second.
    """

    sizes: str
    runs: int
    before: tuple[Group, ...]
    after: tuple[Group, ...]
    before_seconds: float = 0.0
    after_seconds: float = 0.0


@dataclass(frozen=True)
class Profile(Record):
    """The profile of a model.

    Attributes:
        inputs: The sizes of the inputs, as text.
        threads: Threads per operator; 0 if the runtime chose.
        timing: Latency, throughput, session creation and memory, without the profiler.
        kernels: The executed nodes, in the order of their execution.
        run_seconds: What a run takes under the profiler.
        runs: How many runs the profile counts.
        creation: What the runtime did at session creation.
        peaks: The peaks of this machine; `None` if they were not measured.
        bottlenecks: What takes the time and can be helped, the largest first.
        notes: What should be known about the numbers.
        between_seconds: What a run takes under the profiler besides its kernels, the median over runs: handing over
        from one to the next.
        denormals: What numbers below the smallest normal one cost; `None` if nothing worth a mention, or nobody looked.
    """

    inputs: str
    threads: int
    timing: Timing
    kernels: tuple[Kernel, ...] = field(repr=False)
    run_seconds: float
    runs: int
    creation: Creation = field(repr=False)
    peaks: Peaks | None
    bottlenecks: tuple[Bottleneck, ...] = ()
    notes: tuple[str, ...] = ()
    between_seconds: float = 0.0
    denormals: Denormals | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self.kernels)} kernels, {self.run_seconds * 1e3:.3g} ms a run at {self.inputs}>"

    @property
    @derived()
    def scale(self) -> float:
        """The latency as a part of a run under the profiler: times of kernels multiplied by it belong to the latency."""
        return scale(self.timing.p50_ms * 1e-3, self.run_seconds)

    @property
    @derived("kernel_seconds")
    def seconds(self) -> float:
        """The time of all kernels in a run."""
        return sum(one.seconds for one in self.kernels)

    @property
    def blocks(self) -> tuple[Group, ...]:
        """The time of fused blocks, those that are alike added up; the longest first."""
        return groups(self.kernels, by_kind_of_block)

    @property
    @derived("roofline_fraction")
    def reached(self) -> float | None:
        """The fraction of the roof that the kernels reach together; `None` if it is not known."""
        return reached(self.kernels)

    def by(self, view: str) -> tuple[Group, ...]:
        """The time by `operator`, fused `block`, original `module`, its `role` in all layers, or `rule`; the longest first."""
        return groups(self.kernels, VIEWS[view])

    @property
    @derived("groups")
    def views(self) -> Mapping[str, tuple[Group, ...]]:
        """The time by each view."""
        return {view: self.by(view) for view in VIEWS}


def scale(latency: float, profiled: float) -> float:
    """The seconds of a run as a part of those of a run under the profiler, which lengthens it; at most 1."""
    return min(1.0, latency / profiled) if latency and profiled else 1.0
