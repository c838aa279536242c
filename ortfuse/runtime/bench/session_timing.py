"""Time sessions side by side, each in a process of its own, with its peak memory.

The sessions take turns, round after round, and each is compared with the first within the same round, as in
`ortfuse.runtime.bench.models_side_by_side`. They are as an application has them: threads wait busily for the next run
unless a setting says otherwise. A turn ends when they have stopped to, so that they do not take processors from the
next session.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self, TypeAlias

from ortfuse.errors import OrtfuseError, VerificationError
from ortfuse.runtime.bench.confidence import median_bounds
from ortfuse.runtime.bench.stopping_rule import MOST, Patience
from ortfuse.runtime.current_execution_target import execution_target
from ortfuse.runtime.function_expansion_limit import demand_bounded
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.session import shortened
from ortfuse.runtime.session_subprocess import Settings, seconds_timed
from ortfuse.runtime.worker import Remote, Worker
from ortfuse.serialization import Record
from ortfuse.targets import libraries
from ortfuse.targets.processor import demand_threads

LEAST_SECONDS = 0.01
"""Shorter runs are repeated within a round until they take about as long."""

Enough: TypeAlias = Callable[[Mapping[str, Sequence[float]]], Collection[str]]
"""From the speedups of each round so far, by name: the candidates that need no more rounds."""

Check: TypeAlias = Callable[[str, Mapping[str, Any]], None]
"""Looks at the outputs of a candidate, by name."""


@dataclass(frozen=True)
class Candidate:
    """A model file and the settings to open it with, as `ortfuse.runtime.session_subprocess.configure` takes them."""

    path: Path
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SessionLatency(Record):
    """The measurements of a session.

    Attributes:
        name: Its name.
        median_ms: The median latency in milliseconds.
        p95_ms: The latency that 95 % of the runs stay under.
        speedup: The median over rounds of the first session's latency divided by this one's.
        speedup_bounds: 95 % confidence interval of `speedup`; `None` for the first and for fewer than six rounds.
        session_ms: The time to create the session, from the file.
        peak_mb: The most memory that its process held, in megabytes (10**6 bytes); 0 where the system does not tell.
    """

    name: str
    median_ms: float
    p95_ms: float
    speedup: float
    speedup_bounds: tuple[float, float] | None
    session_ms: float
    peak_mb: float


def measure_sessions(
    candidates: Mapping[str, Candidate],
    inputs: Inputs,
    *,
    rounds: int = 20,
    seconds: float = 0.0,
    warmup: int = 2,
    threads: int = 0,
) -> list[SessionLatency]:
    """Run sessions in turn on the same inputs; the first is the baseline.

    Args:
        candidates: The model files and settings, by their names in the result.
        inputs: Arrays by input name.
        rounds: How often each is run at least; the one that goes first changes from round to round.
        seconds: How long there may be more rounds where the bounds of a speedup are not narrow yet.
        warmup: Rounds beforehand that are not counted.
        threads: Threads per operator, for those whose settings do not say; 0 leaves the choice to the runtime.

    Raises:
        CrashError: The runtime crashes.
        VerificationError: The runtime refuses a model, or cannot execute it on the inputs; the message names the candidate.
    """
    first, *others = candidates
    with SessionMeter(candidates[first], inputs, threads, first) as meter:
        if not others or not seconds:
            return meter.measure({name: candidates[name] for name in others}, rounds, warmup=warmup)
        enough = Patience(rounds, seconds).finished
        return meter.measure({name: candidates[name] for name in others}, MOST, warmup=warmup, enough=enough)


class Meter(Protocol):
    """Measure candidates beside a baseline; `SessionMeter`."""

    def __enter__(self) -> Self:
        """Measure from here on."""

    def __exit__(self, *error: object) -> None:
        """End what was kept open."""

    def measure(
        self,
        candidates: Mapping[str, Candidate],
        rounds: int,
        *,
        enough: Enough | None = None,
        check: Check | None = None,
    ) -> list[SessionLatency]:
        """The latencies of the baseline and of the candidates."""


class SessionMeter:
    """Measure sessions beside a baseline, which stays open from one measurement to the next.

    Use as a context manager.

    Args:
        baseline: What the others are compared with.
        inputs: Arrays by input name.
        threads: Threads per operator, for those whose settings do not say; 0 leaves the choice to the runtime.
        name: The name of the baseline.
    """

    def __init__(self, baseline: Candidate, inputs: Inputs, threads: int = 0, name: str = "baseline") -> None:
        self._baseline, self._inputs, self._threads, self._name = baseline, inputs, threads, name
        self._first: _Opened | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._first is not None:
            self._first.worker.stop()
            self._first = None

    def measure(
        self,
        candidates: Mapping[str, Candidate],
        rounds: int,
        *,
        warmup: int = 2,
        enough: Enough | None = None,
        check: Check | None = None,
    ) -> list[SessionLatency]:
        """Measure candidates; the baseline is the first of the result.

        Args:
            candidates: The model files and settings, by their names in the result.
            rounds: How often each is run at most; the one that goes first changes from round to round.
            warmup: Rounds beforehand that are not counted.
            enough: After each round, says which candidates need no more of them.
            check: Called with the name of each candidate and its outputs, last; may raise what it has against them.

        Raises:
            CrashError: The runtime crashes.
            VerificationError: The runtime refuses a model, or cannot execute it on the inputs; the message names the candidate.
        """
        opened: dict[str, _Opened] = {}
        try:
            if self._first is None or not self._first.alive:
                self._first = _open(self._name, self._baseline, self._inputs, self._threads)
            for name, candidate in candidates.items():
                opened[name] = _open(name, candidate, self._inputs, self._threads)
            every = {self._name: self._first, **opened}
            for one in every.values():
                one.session.timed(max(1, warmup))
            times = _interleaved({name: one.session for name, one in every.items()}, rounds, enough)
            rows = [
                _latency(name, times[name], times[self._name], one, one is self._first) for name, one in every.items()
            ]
            if check is not None:
                for name, one in opened.items():
                    check(name, one.outputs(self._inputs))  # last: handing over outputs takes memory
            return rows
        finally:
            for one in opened.values():
                one.worker.stop()


@dataclass(frozen=True)
class _Opened:
    """A session in a process of its own, and the seconds it took to create it."""

    session: Remote
    worker: Worker
    seconds: float
    generation: int

    @property
    def alive(self) -> bool:
        """Whether its process still runs."""
        return self.worker.generation() == self.generation

    def outputs(self, inputs: Inputs) -> dict[str, Any]:
        """The outputs by name."""
        given = {name: inputs[name] for name in self.session.input_names if name in inputs}
        return dict(zip(self.session.output_names, self.session.run(given), strict=True))


def _interleaved(
    sessions: Mapping[str, Remote], rounds: int, enough: Enough | None = None
) -> dict[str, list[list[float]]]:
    """The seconds of the runs of each session, a list for each round; of the first for all rounds that another has."""
    runs = {name: _repetitions(session.timed(1)[0]) for name, session in sessions.items()}
    times: dict[str, list[list[float]]] = {name: [] for name in sessions}
    order, (first, *others) = list(sessions), sessions
    for _ in range(rounds):
        for name in order:
            times[name].append(sessions[name].timed(runs[name]))
        order.append(order.pop(0))
        if enough is not None:
            done = enough({name: _ratios(times[name], times[first]) for name in others if name in order})
            order = [name for name in order if name not in done]
            if order == [first]:
                break
    return times


def _ratios(times: Sequence[Sequence[float]], first: Sequence[Sequence[float]]) -> list[float]:
    """The first session's latency divided by another's, round by round; the latter may have fewer rounds."""
    return [statistics.median(there) / statistics.median(own) for there, own in zip(first, times, strict=False)]


def _latency(
    name: str, times: Sequence[Sequence[float]], first: Sequence[Sequence[float]], opened: _Opened, is_first: bool
) -> SessionLatency:
    ratios = _ratios(times, first)
    every = sorted(second for one in times for second in one)
    return SessionLatency(
        name=name,
        median_ms=statistics.median(statistics.median(one) for one in times) * 1e3,
        p95_ms=every[min(len(every) - 1, int(0.95 * len(every)))] * 1e3,
        speedup=statistics.median(ratios),
        speedup_bounds=None if is_first else median_bounds(ratios),
        session_ms=opened.seconds * 1e3,
        peak_mb=opened.session.peak_bytes() / 1e6,
    )


def turn_seconds(seconds: float) -> float:
    """About how long the turn of a session takes within a round, from the seconds of a run."""
    return seconds_timed(seconds, _repetitions(seconds))


def _repetitions(seconds: float) -> int:
    """How often a session runs in its turn, from the seconds of a run."""
    return max(1, min(50, int(LEAST_SECONDS / seconds))) if seconds else 50


def _open(name: str, candidate: Candidate, inputs: Inputs, threads: int) -> _Opened:
    target = execution_target()
    others = tuple({**target.session_settings, **candidate.settings}.items())
    settings = Settings(
        target.session_providers(),
        threads=demand_threads(threads),
        libraries=libraries(),
        runner=target.runner_file,
        spinning=True,
        others=others,
    )
    demand_bounded(os.fspath(candidate.path))
    worker = Worker()
    try:
        worker.wait()
        started = time.perf_counter()
        session = Remote(str(Path(candidate.path).absolute()), {}, settings, worker)
        opened = _Opened(session, worker, time.perf_counter() - started, worker.generation())
        session.take({key: inputs[key] for key in session.input_names if key in inputs})
        session.timed(1)
    except BaseException as error:
        worker.stop()
        if isinstance(error, OrtfuseError) or not isinstance(error, Exception):
            raise
        raise VerificationError(f"{name}: {shortened(error)}") from error
    return opened
