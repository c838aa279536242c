"""Run a model under the runtime's profiler, and return the time of each node and the executed graph.

The times are those of kernels: a node that runs others in its body (If, Loop, Scan) has only what is left without
these. The time of a run besides its kernels goes to the runtime's executor.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnx_ir as ir

from ortfuse.errors import CrashError, OrtfuseError, VerificationError
from ortfuse.io.load_and_save import load
from ortfuse.profiling.settled_runs import ASLEEP, AWAKE, WARMUP, run_settled
from ortfuse.runtime.bench.executed_operators import KERNEL, is_execution
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.session import Session, weight_bytes
from ortfuse.runtime.unrepresentable_models import Runnable

TURNS = 3
"""How often models take turns."""

MOST_EVENTS = 400_000
"""Events that the runtime's profiler certainly keeps; it drops those after its millionth."""

FEWEST_RUNS = 3

LARGEST_DUMP = 1 << 30
"""Bytes of weights up to which the runtime is asked to write the graph that it executes, which it does with its weights."""

Event = Mapping[str, Any]
"""An event of the runtime's profile."""

Tensor = tuple[str, tuple[int, ...]]
"""The element type, in the words of the runtime, and the shape."""


@dataclass(frozen=True)
class Calls:
    """Executions of a node at the same sizes.

    Attributes:
        count: How many they are, in all runs.
        inputs: Element types and shapes of its inputs, as far as the runtime tells them.
        outputs: The same of its outputs.
    """

    count: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


@dataclass(frozen=True)
class Executed:
    """A node as it was executed.

    Attributes:
        name: Its name in the executed graph.
        operator: The operator, without its domain.
        provider: The execution provider.
        calls: How often it is executed in a run.
        seconds: What it takes in a run, the median over runs, without the nodes in its body.
        sizes: Its executions by their sizes, which may differ from one to the next in the body of a loop.
    """

    name: str
    operator: str
    provider: str
    calls: int
    seconds: float
    sizes: tuple[Calls, ...]


@dataclass(frozen=True)
class Trace:
    """The events of some runs of a model.

    Attributes:
        nodes: The nodes in the order of their first execution.
        run_seconds: The median of what a run took, under the profiler.
        runs: How many runs were counted.
        between: The median of what a run took besides its nodes.
        graph: The graph that was executed; `None` if it cannot be had.
    """

    nodes: tuple[Executed, ...]
    run_seconds: float
    runs: int
    between: float
    graph: ir.Model | None


def trace(
    model: Runnable,
    inputs: Inputs,
    *,
    runs: int,
    threads: int = 0,
    settings: Mapping[str, str] = MappingProxyType({}),
    graph: bool = True,
) -> Trace:
    """Run a model under the profiler.

    Args:
        model: The model; its nodes have names, each its own (`ortfuse.runtime.node_naming`).
        inputs: What it is run on.
        runs: How many runs count; fewer if so many events would not be kept.
        threads: Threads per operator; 0 leaves the choice to the runtime.
        settings: Further settings of the session, by the runtime's names.
        graph: Whether the executed graph is wanted.

    Raises:
        VerificationError: The runtime refuses the model, or cannot execute it on the inputs.
    """
    with tempfile.TemporaryDirectory(prefix="ortfuse-") as folder:
        target = Path(folder) / "executed.onnx"
        dumped = graph and isinstance(model, ir.Model) and weight_bytes(model) <= LARGEST_DUMP
        asked = {"threads": threads, "settings": {**AWAKE, **settings}, "profile": Path(folder) / "profile"}
        try:
            events, counted = _events(model, inputs, runs, {**asked, "dump": str(target) if dumped else ""})
        except CrashError:
            raise
        except VerificationError:
            if not dumped:
                raise
            events, counted = _events(model, inputs, runs, asked)
        written = _executed_graph(target)
    nodes, took, between = executed(events, counted)
    return Trace(nodes, statistics.median(took), len(took), statistics.median(between), written)


def traces(models: Sequence[Runnable], inputs: Inputs, *, runs: int, threads: int = 0) -> tuple[Trace, ...]:
    """Run models under the profiler in turns, so that what else happens on the machine befalls all of them; without graphs.

    Args:
        models: The models, with the same inputs.
        inputs: What they are run on.
        runs: How many runs of each count; fewer if so many events would not be kept.
        threads: Threads per operator; 0 leaves the choice to the runtime.

    Raises:
        VerificationError: The runtime refuses a model, or cannot execute it on the inputs.
    """
    sessions: list[Session] = []
    counted: list[list[bool]] = [[] for _ in models]
    rounds = math.ceil(min(_runs(model, runs) for model in models) / TURNS)
    with tempfile.TemporaryDirectory(prefix="ortfuse-") as folder:
        try:
            for number, model in enumerate(models):
                path = Path(folder) / f"profile{number}"
                sessions.append(Session(model, threads=threads, profile=path, settings=AWAKE))
            for _ in range(TURNS):
                for session, marks in zip(sessions, counted, strict=True):
                    marks += run_settled(session, inputs, rounds)
                    time.sleep(ASLEEP)
        finally:
            logs = [session.end_profile() for session in sessions]
        found = [executed(json.loads(log.read_text()), marks) for log, marks in zip(logs, counted, strict=True)]
    return tuple(
        Trace(nodes, statistics.median(took), len(took), statistics.median(between), None)
        for nodes, took, between in found
    )


def _events(
    model: Runnable, inputs: Inputs, runs: int, asked: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], list[bool]]:
    """The events of the profile, and for each run whether it counts."""
    session = Session(model, **asked)
    try:
        counted = run_settled(session, inputs, _runs(model, runs))
    finally:
        log = session.end_profile()
    return json.loads(log.read_text()), counted


def _executed_graph(path: Path) -> ir.Model | None:
    """The graph that the runtime wrote; `None` if it did not, or wrote what no graph can represent."""
    try:
        return load(path).clone() if path.exists() else None
    except OrtfuseError:
        return None


def _runs(model: Runnable, runs: int) -> int:
    nodes = sum(1 for _ in model.graph.all_nodes()) if isinstance(model, ir.Model) else model.nodes
    return min(runs, max(FEWEST_RUNS, MOST_EVENTS // max(nodes, 1)))


def executed(
    events: Iterable[Event], counted: Sequence[bool] | None = None
) -> tuple[tuple[Executed, ...], list[float], list[float]]:
    """The nodes, the seconds of each run and those besides its nodes, from a profile.

    Args:
        events: The events of the profile.
        counted: For each run whether it counts; by default all but the first `WARMUP`.
    """
    known = list(events)
    ran = sorted((event for event in known if event["name"] == "model_run"), key=_start)
    ran = ran[WARMUP:] if counted is None else [run for run, counts in zip(ran, counted, strict=False) if counts]
    took: dict[str, list[float]] = {}
    first: dict[str, Event] = {}
    sizes: dict[str, dict[str, Calls]] = {}
    kernels = sorted((event for event in known if is_execution(event)), key=_outermost_first)
    for number, some in enumerate(_by_run(ran, kernels)):
        for event, seconds in _without_bodies(some):
            name = event["name"].removesuffix(KERNEL)
            first.setdefault(name, event)
            took.setdefault(name, [0.0] * len(ran))[number] += seconds
            _count(sizes.setdefault(name, {}), event["args"])
    nodes = tuple(_node(name, event, took[name], tuple(sizes[name].values())) for name, event in first.items())
    runs = [run["dur"] * 1e-6 for run in ran]
    inside = [sum(seconds[number] for seconds in took.values()) for number in range(len(ran))]
    return nodes, runs, [max(run - within, 0.0) for run, within in zip(runs, inside, strict=True)]


def _start(event: Event) -> float:
    return float(event["ts"])


def _outermost_first(event: Event) -> tuple[float, float]:
    """A node in a body may start in the same microsecond as the node that has the body."""
    return _start(event), -float(event["dur"])


def _count(sizes: dict[str, Calls], args: Event) -> None:
    """Add an execution to those of the same sizes."""
    inputs, outputs = args.get("input_type_shape"), args.get("output_type_shape")
    key = repr((inputs, outputs))
    known = sizes.get(key) or Calls(0, _tensors(inputs), _tensors(outputs))
    sizes[key] = replace(known, count=known.count + 1)


def _by_run(runs: Sequence[Event], kernels: Sequence[Event]) -> list[list[Event]]:
    """The events in each run."""
    groups: list[list[Event]] = [[] for _ in runs]
    number = 0
    for event in kernels:
        while number < len(runs) and _start(event) > runs[number]["ts"] + runs[number]["dur"]:
            number += 1
        if number < len(runs) and _start(event) >= runs[number]["ts"]:
            groups[number].append(event)
    return groups


def _without_bodies(events: Sequence[Event]) -> Iterator[tuple[Event, float]]:
    """The seconds of each event without those within it; events are sorted by their start."""
    open_: list[list[Any]] = []  # event, end, microseconds of those within
    for event in events:
        while open_ and open_[-1][1] <= _start(event):
            yield _closed(open_)
        open_.append([event, _start(event) + event["dur"], 0.0])
    while open_:
        yield _closed(open_)


def _closed(open_: list[list[Any]]) -> tuple[Event, float]:
    event, _, within = open_.pop()
    if open_:
        open_[-1][2] += event["dur"]
    return event, max(event["dur"] - within, 0.0) * 1e-6


def _node(name: str, event: Event, took: Sequence[float], sizes: tuple[Calls, ...]) -> Executed:
    args = event["args"]
    return Executed(
        name,
        args.get("op_name", "?"),
        args.get("provider", ""),
        max(1, round(sum(one.count for one in sizes) / len(took))),
        statistics.median(took),
        sizes,
    )


def _tensors(told: Any) -> tuple[Tensor, ...]:
    return tuple((name, tuple(shape)) for one in told or () for name, shape in one.items())
