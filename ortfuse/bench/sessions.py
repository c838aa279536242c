"""Measures sessions side by side, each in a process of its own: some settings hold for a whole process, and so does its memory.

The sessions take turns, round after round, and each is compared with the first within the same round, as in
`ortfuse.bench.latency`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from ortfuse.bench.scatter import median_bounds
from ortfuse.errors import OrtfuseError, VerificationError
from ortfuse.execution.inputs import Inputs
from ortfuse.execution.runtime import Settings
from ortfuse.execution.session import shortened
from ortfuse.execution.worker import Remote, Worker
from ortfuse.targets import libraries

LEAST_SECONDS = 0.01
"""Shorter runs are repeated within a round until they take about as long."""


@dataclass(frozen=True)
class Candidate:
    """A model file and the settings to open it with, as `ortfuse.execution.runtime.configure` takes them."""

    path: Path
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SessionLatency:
    """What was measured of a session.

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

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON data."""
        return asdict(self)


def measure_sessions(
    candidates: Mapping[str, Candidate], inputs: Inputs, *, rounds: int = 20, warmup: int = 2, threads: int = 0
) -> list[SessionLatency]:
    """Run sessions in turn on the same inputs; the first is the baseline.

    Args:
        candidates: The model files and settings, by their names in the result.
        inputs: Arrays by input name.
        rounds: How often each is run; the one that goes first changes from round to round.
        warmup: Rounds beforehand that are not counted.
        threads: Threads per operator, for those whose settings do not say; 0 leaves the choice to the runtime.

    Raises:
        CrashError: The runtime crashes.
        VerificationError: The runtime refuses a model, or cannot execute it on the inputs; the message names the candidate.
    """
    with _opened(candidates, inputs, threads) as (sessions, created):
        for session in sessions.values():
            session.timed(max(1, warmup))
        times = _interleaved(sessions, rounds)
        peaks = {name: session.peak_bytes() / 1e6 for name, session in sessions.items()}
    first = next(iter(candidates))
    return [_latency(name, times[name], times[first], created[name], peaks[name], name == first) for name in candidates]


def _interleaved(sessions: Mapping[str, Remote], rounds: int) -> dict[str, list[list[float]]]:
    """The seconds of the runs of each session, a list for each round."""
    runs = {name: _repetitions(session) for name, session in sessions.items()}
    times: dict[str, list[list[float]]] = {name: [] for name in sessions}
    order = list(sessions)
    for _ in range(rounds):
        for name in order:
            times[name].append(sessions[name].timed(runs[name]))
        order.append(order.pop(0))
    return times


def _latency(
    name: str, times: list[list[float]], first: list[list[float]], created: float, peak: float, is_first: bool
) -> SessionLatency:
    medians = [statistics.median(one) for one in times]
    ratios = [statistics.median(one) / own for one, own in zip(first, medians, strict=True)]
    every = sorted(second for one in times for second in one)
    return SessionLatency(
        name=name,
        median_ms=statistics.median(medians) * 1e3,
        p95_ms=every[min(len(every) - 1, int(0.95 * len(every)))] * 1e3,
        speedup=statistics.median(ratios),
        speedup_bounds=None if is_first else median_bounds(ratios),
        session_ms=created * 1e3,
        peak_mb=peak,
    )


def _repetitions(session: Remote) -> int:
    seconds = session.timed(1)[0]
    return max(1, min(50, int(LEAST_SECONDS / seconds))) if seconds else 50


@contextmanager
def _opened(
    candidates: Mapping[str, Candidate], inputs: Inputs, threads: int
) -> Iterator[tuple[dict[str, Remote], dict[str, float]]]:
    """A session for each candidate, in a process of its own, and the seconds it took to create it."""
    workers: list[Worker] = []
    sessions: dict[str, Remote] = {}
    created: dict[str, float] = {}
    try:
        for name, candidate in candidates.items():
            workers.append(Worker())
            sessions[name], created[name] = _open(name, candidate, inputs, threads, workers[-1])
        yield sessions, created
    finally:
        sessions.clear()
        for worker in workers:
            worker.stop()


def _open(name: str, candidate: Candidate, inputs: Inputs, threads: int, worker: Worker) -> tuple[Remote, float]:
    settings = Settings(threads=threads, libraries=libraries(), others=tuple(candidate.settings.items()))
    try:
        worker.wait()
        started = time.perf_counter()
        session = Remote(str(Path(candidate.path).absolute()), {}, settings, worker)
        seconds = time.perf_counter() - started
        session.take({key: inputs[key] for key in session.input_names if key in inputs})
        session.timed(1)
    except OrtfuseError:
        raise
    except Exception as error:
        raise VerificationError(f"{name}: {shortened(error)}") from error
    return session, seconds


def sessions_table(rows: Sequence[SessionLatency], title: str) -> Table:
    """The measurements as a table."""
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    made.add_column("session", overflow="fold", min_width=8)
    for heading in ("median ms", "95 % under", "speedup", "(95 %)", "session ms", "peak MB"):
        made.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        bounds = "{:.2f}..{:.2f}".format(*row.speedup_bounds) if row.speedup_bounds else ""
        made.add_row(
            row.name, f"{row.median_ms:.4g}", f"{row.p95_ms:.4g}", f"{row.speedup:.2f}", bounds, f"{row.session_ms:.0f}",
            f"{row.peak_mb:.0f}",
        )  # fmt: skip
    return made
