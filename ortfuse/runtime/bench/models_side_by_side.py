"""Measure the latency of models side by side: interleaved runs, medians, and ratios taken per round.

Machines drift: a number measured now cannot be compared with one measured a minute ago. The models therefore take
turns, round after round. Each is compared with the first within the same round, and the median of these ratios is
reported. If the weights are too large for all sessions to be open at once, the first model is run again with each group
of the others. How far a ratio can be trusted is judged by how it scatters over the rounds (see
`ortfuse.runtime.bench.confidence`). There are as many rounds as that takes to be known well, within a time (see
`ortfuse.runtime.bench.stopping_rule`); where sessions open fast, several of each model have a part of them.
"""

from __future__ import annotations

import functools
import gc
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import onnx_ir as ir

from ortfuse.errors import CrashError, VerificationError
from ortfuse.io.convert_modelproto import separate
from ortfuse.runtime.bench.confidence import median_bounds, quartile_spread
from ortfuse.runtime.bench.executed_operators import profiled
from ortfuse.runtime.bench.stopping_rule import Patience
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.session import SHARED, Session, weight_bytes
from ortfuse.runtime.unrepresentable_models import AsItIs, Runnable, signature_of
from ortfuse.runtime.worker import WORKER
from ortfuse.serialization import Record

M = TypeVar("M")

OPEN_AT_ONCE = 4 << 30
"""Limit on the bytes of weights in sessions open at the same time, not counting the first model."""


@dataclass(frozen=True)
class Latency(Record):
    """The latency of one model.

    Attributes:
        name: The label of the model.
        median_ms: Median latency in milliseconds.
        low_ms: First decile of the latencies.
        high_ms: Ninth decile.
        spread: Interquartile range of the latencies divided by their median.
        speedup: Median over rounds of the first model's latency divided by this one's.
        speedup_bounds: 95 % confidence interval of `speedup`; `None` for the first model and for fewer than six rounds.
        session_ms: Time to create a session from the model in memory, the shorter of two measurements.
        nodes: Number of nodes in the model, including those in subgraphs.
        executed: Number of nodes executed per run after the runtime's own optimisations.
        file_mb: Size of the model as a file in megabytes (10**6 bytes), weights included.
        crash: How the runtime crashed on the model; if it did, there are no times.
        rounds: How many runs were counted.
    """

    name: str
    median_ms: float
    low_ms: float
    high_ms: float
    spread: float
    speedup: float
    speedup_bounds: tuple[float, float] | None
    session_ms: float
    nodes: int
    executed: int
    file_mb: float
    crash: str = ""
    rounds: int = 0


def measure(
    models: Mapping[str, Runnable],
    inputs: Inputs,
    *,
    rounds: int = 20,
    seconds: float = 0.0,
    threads: int = 0,
    warmup: int = 2,
    tried: bool = False,
) -> list[Latency]:
    """Run models in turn on `inputs`; the first one that does not crash the runtime is the baseline.

    Each model is first run once in a separate process; one that crashes the runtime there is not run here.

    Args:
        models: The models, by their names in the result.
        inputs: Arrays by input name, the same for all models.
        rounds: How often each model is run at least; the model that goes first changes from round to round.
        seconds: How long there may be more rounds where the bounds of a speedup are not narrow yet.
        threads: Threads per operator; 0 leaves the choice to the runtime.
        warmup: Rounds run beforehand, in each session, and not counted.
        tried: Whether all have been run on these inputs in a separate process before, so that they are not run there again.

    Raises:
        VerificationError: The runtime refuses a model, or cannot execute it on the inputs; the message names the model.
    """
    crashes = {name: "" if tried else _crash(name, models, inputs, threads) for name in models}
    WORKER.stop()  # nothing runs beside what is measured
    sound = {name: models[name] for name in models if not crashes[name]}
    rows = _measured(sound, inputs, rounds, seconds, threads, warmup)
    return [rows[name] if name in rows else _crashed(name, models[name], crashes[name]) for name in models]


def _measured(
    models: Mapping[str, Runnable], inputs: Inputs, rounds: int, seconds: float, threads: int, warmup: int
) -> dict[str, Latency]:
    names = list(models)
    if not names:
        return {}
    profiled(models[names[0]], inputs, threads)  # the first session pays for fresh memory, which would be unfair
    profiles = {name: profiled(models[name], inputs, threads) for name in names}
    created = {name: took for name, (_, took) in profiles.items()}
    times, ratios = dict[str, list[float]](), dict[str, list[float]]()
    groups = list(_groups(models, names[1:]))
    for group in groups:
        members = [names[0], *group]
        opened = functools.partial(_open_all, members, models, threads, created)
        opening, patience = sum(created[name] for name in members), Patience(rounds, seconds / len(groups))
        taken = _as_long_as_needed(opened, opening, patience, inputs, warmup)
        ratios |= _ratios(taken)
        times |= {name: times.get(name, []) + some for name, some in taken.items()}
    return {
        name: _latency(name, model, times[name], ratios.get(name), profiles[name][0], created[name])
        for name, model in models.items()
    }


def _as_long_as_needed(
    opened: Callable[[], Mapping[str, Runs]], opening: float, patience: Patience, inputs: Inputs, warmup: int
) -> dict[str, list[float]]:
    """The seconds of each run, round by round, until the bounds of all ratios are narrow or the time is over.

    Args:
        opened: Opens the sessions, the first of which the others are compared with.
        opening: The seconds that this takes.
        patience: How many rounds there are.
        inputs: What is run on.
        warmup: Rounds that are not counted, in each session.
    """
    anew = patience.opens_anew(opening)
    sessions: Mapping[str, Runs] | None = None
    times: dict[str, list[float]] = {}
    done = 0
    while not done or not patience.enough(_ratios(times) or times, done):
        if anew:
            sessions = None  # closed before others are opened
        fresh = sessions is None
        sessions = opened() if sessions is None else sessions
        taken = interleaved(sessions, inputs, patience.block(done, anew), warmup if fresh else 0)
        times = {name: times.get(name, []) + some for name, some in taken.items()}
        done = len(next(iter(times.values())))
    return times


def _ratios(times: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """The time of the first divided by that of each other one, round by round."""
    if not times:
        return {}
    first, *others = times
    return {name: [a / b for a, b in zip(times[first], times[name], strict=True)] for name in others}


def _crash(name: str, models: Mapping[str, Runnable], inputs: Inputs, threads: int) -> str:
    """The crash of the runtime on a model, as text; empty if it does not crash."""
    graph = signature_of(models[name]).graph
    for value in graph.inputs:
        if value.name not in inputs and value.name not in graph.initializers:
            raise VerificationError(
                f"{name}: takes the input '{value.name}', and what is measured is given {sorted(inputs)}; "
                "measure models with the same inputs"
            )
    try:
        Session(models[name], threads=threads).run(inputs)
    except CrashError as error:
        return str(error)
    except VerificationError as error:
        raise VerificationError(f"{name}: {error}") from error
    return ""


def _crashed(name: str, model: Runnable, crash: str) -> Latency:
    nan, megabytes = math.nan, file_bytes(model) / 1e6
    return Latency(name, nan, nan, nan, nan, nan, None, nan, _nodes(model), 0, megabytes, crash)


def _open(name: str, models: Mapping[str, Runnable], threads: int, created: dict[str, float]) -> Session:
    """Open a session; its creation time is stored in `created` if it is the shortest so far."""
    started = time.perf_counter()
    session = Session(models[name], threads=threads, isolated=False)
    created[name] = min(created[name], time.perf_counter() - started)
    return session


def _open_all(
    names: Sequence[str], models: Mapping[str, Runnable], threads: int, created: dict[str, float]
) -> Mapping[str, Runs]:
    return {name: _open(name, models, threads, created) for name in names}


def stages_of(original: ir.Model, stages: Iterable[tuple[str, ir.Model]]) -> dict[str, ir.Model]:
    """A model and its state after each of several passes, by name; passes that occur more than once are numbered."""
    return numbered([("original", original), *((f"after {name}", model) for name, model in stages)])


def numbered(models: Iterable[tuple[str, M]]) -> dict[str, M]:
    """Models by name; repeated names get a number appended."""
    found: dict[str, M] = {}
    for name, model in models:
        label, number = name, 2
        while label in found:
            label, number = f"{name} ({number})", number + 1
        found[label] = model
    return found


def _groups(models: Mapping[str, Runnable], names: Sequence[str]) -> Iterator[list[str]]:
    """Split the models into groups whose sessions fit into memory together; one empty group if there are no models."""
    group: list[str] = []
    held = 0
    for name in names:
        size = weight_bytes(models[name])
        if group and held + size > OPEN_AT_ONCE:
            yield group
            group, held = [], 0
        group.append(name)
        held += size
    yield group


class Runs(Protocol):
    """A session that runs on inputs: of ONNX Runtime, or of another runtime."""

    def run(self, inputs: Inputs, /) -> Any:
        """The outputs."""


def interleaved(sessions: Mapping[str, Runs], inputs: Inputs, rounds: int, warmup: int) -> dict[str, list[float]]:
    """The seconds of each run, per session, round by round; in each round another one is the first."""
    times: dict[str, list[float]] = {name: [] for name in sessions}
    order = list(sessions)
    with _no_collection():
        for number in range(warmup + rounds):
            for name in order:
                started = time.perf_counter()
                sessions[name].run(inputs)
                if number >= warmup:
                    times[name].append(time.perf_counter() - started)
            order.append(order.pop(0))
    return times


@contextmanager
def _no_collection() -> Iterator[None]:
    """Disable Python's garbage collector while measuring.

    Garbage of earlier steps is collected first; collecting that of a large program takes longer than most measurements.
    """
    gc.collect(1)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _latency(
    name: str,
    model: Runnable,
    seconds: Sequence[float],
    ratios: Sequence[float] | None,
    executed: Counter[str],
    created: float,
) -> Latency:
    deciles = statistics.quantiles(seconds, n=10) if len(seconds) > 1 else [seconds[0]]
    return Latency(
        name=name,
        median_ms=statistics.median(seconds) * 1e3,
        low_ms=max(deciles[0], min(seconds)) * 1e3,  # quantiles of few numbers are extrapolated beyond them
        high_ms=min(deciles[-1], max(seconds)) * 1e3,
        spread=quartile_spread(seconds),
        speedup=statistics.median(ratios) if ratios else 1.0,
        speedup_bounds=median_bounds(ratios) if ratios else None,
        session_ms=created * 1e3,
        nodes=_nodes(model),
        executed=executed.total(),
        file_mb=file_bytes(model) / 1e6,
        rounds=len(seconds),
    )


def _nodes(model: Runnable) -> int:
    return model.nodes if isinstance(model, AsItIs) else sum(1 for _ in model.graph.all_nodes())


def file_bytes(model: Runnable) -> int:
    """The size in bytes that a model would have as a file, weights included; nothing is written."""
    if isinstance(model, AsItIs):
        return model.size
    proto, weights = separate(model, SHARED)
    held = sum(weight.header.ByteSize() for weight in weights)
    data = sum(weight.tensor.nbytes for weight in weights if weight.tensor is not None)
    return int(proto.ByteSize() + held + data)
