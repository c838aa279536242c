"""Measure latency, throughput, session creation and memory without the profiler."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import onnx_ir as ir

from ortfuse.profiling.settled_runs import AWAKE, WARMUP, settling_runs
from ortfuse.runtime.bench.confidence import quartile_spread
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.memory_footprint import ONE_NODE
from ortfuse.runtime.session import Session
from ortfuse.runtime.unrepresentable_models import Runnable
from ortfuse.runtime.worker import WORKER
from ortfuse.serialization import Record

SESSIONS = 3
"""How many sessions are created; the shortest time counts."""

Source: TypeAlias = "Runnable | str | os.PathLike[str]"
"""A model, or the path of its file, which is how programs open it."""


@dataclass(frozen=True)
class Timing(Record):
    """The time of a model without the profiler.

    Attributes:
        rounds: How many runs were counted.
        p50_ms: The median latency in milliseconds.
        p95_ms: The latency that 95 % of the runs do not exceed.
        throughput: Runs a second, one after the other.
        spread: The interquartile range of the latencies divided by their median.
        session_ms: The time to create a session, the shortest of several.
        memory: The most bytes that a process has while it creates a session and runs it once, less what it has with a model
            of one node; `None` if the system does not tell.
    """

    rounds: int
    p50_ms: float
    p95_ms: float
    throughput: float
    spread: float
    session_ms: float
    memory: int | None


def timing(source: Source, inputs: Inputs, *, rounds: int, threads: int = 0) -> Timing:
    """Measure a model.

    Raises:
        CrashError: The runtime crashes on the model.
        VerificationError: It refuses the model, or cannot execute it on the inputs.
    """
    memory = peak_memory(source, inputs, threads)  # in a process of its own, which would end in a crash
    WORKER.stop()  # nothing runs beside what is measured
    created = []
    for _ in range(SESSIONS):
        started = time.perf_counter()
        session = Session(source, threads=threads, isolated=False, settings=AWAKE)
        created.append(time.perf_counter() - started)
    taken = _seconds(lambda: session.run(inputs), rounds)
    return Timing(
        rounds,
        statistics.median(taken) * 1e3,
        percentile(taken, 0.95) * 1e3,
        len(taken) / sum(taken),
        quartile_spread(taken),
        min(created) * 1e3,
        memory,
    )


def _seconds(run: Callable[[], object], rounds: int) -> list[float]:
    """The seconds of each of several runs, when threads have settled."""
    first = min(_once(run) for _ in range(WARMUP))
    for _ in range(settling_runs(first)):
        run()
    return [_once(run) for _ in range(rounds)]


def _once(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def percentile(numbers: Sequence[float], share: float) -> float:
    """The smallest of the numbers that at least this share of them do not exceed."""
    ordered = sorted(numbers)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def peak_memory(source: Source, inputs: Inputs, threads: int) -> int | None:
    """The most memory that a fresh process needs for a session and a run; `None` if the system does not tell.

    Raises:
        CrashError: The runtime crashes on the model.
        VerificationError: It refuses the model, or cannot execute it on the inputs.
    """
    WORKER.stop()
    before = Session(ir.from_onnx_text(ONE_NODE), threads=threads).peak_bytes()
    session = Session(source, threads=threads)
    session.run(inputs)
    after = session.peak_bytes()
    return after - before if before and after else None
