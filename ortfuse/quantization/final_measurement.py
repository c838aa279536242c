"""Measure the fastest choices beside the float32 model and select the winner: the last step of a search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.errors import OrtfuseError
from ortfuse.quantization.error_prediction import WORTH
from ortfuse.quantization.input_sets import Samples
from ortfuse.quantization.model_trials import Trial
from ortfuse.quantization.outcome import Goal, Point
from ortfuse.runtime.bench import Latency, measure
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.memory_footprint import footprint
from ortfuse.runtime.session import weight_bytes

FINALISTS = 3
"""How many choices are measured side by side with the float32 model."""

NOISE = 0.98
"""A speedup that counts as none."""

AGAIN = (4, 16)
"""How many times as many rounds are run, one after the other, where it cannot be told otherwise whether anything is gained."""

AGAIN_SECONDS = 10.0
"""How long such rounds may take."""


@dataclass(frozen=True)
class Final:
    """The choice that is best as measured, with its model and the latencies; no choice if nothing is gained.

    If memory is the goal, `memory` is that of the float32 model and of the choice.
    """

    point: Point | None
    model: ir.Model
    latencies: Sequence[Latency]
    reason: str
    measured: Mapping[int, float]
    memory: tuple[int, int] | None = None


def finish(
    found: Sequence[Point],
    trial: Trial,
    plain: ir.Model,
    inputs: Samples,
    goal: Goal,
    rounds: int,
    threads: int,
    seconds: float = AGAIN_SECONDS,
    timed: bool = True,
) -> Final:
    """Measure the best choices side by side with the float32 model, and take the best that is not slower.

    Args:
        found: Choices that keep the bound, best first.
        trial: Makes models of them.
        plain: The model in float32.
        inputs: The inputs, on the first of which they are measured.
        goal: What is to be small.
        rounds: How often each is run.
        threads: Threads of the runtime.
        seconds: How long they may be run again where the first rounds leave open whether anything is gained.
        timed: Whether the times on this machine count; otherwise the smallest choice is taken, and nothing is measured.
    """
    models = {"float32": plain}
    points: dict[str, Point] = {}
    for point in _different(found):
        try:
            models[point.label] = trial.made(point.choice)
        except OrtfuseError:
            continue
        points[point.label] = point
        if len(points) == FINALISTS:
            break
    if not points:
        return Final(None, plain, (), "no choice of schemes that promises a gain keeps the error under the bound", {})
    if not timed:
        name = min(points, key=lambda one: weight_bytes(models[one]))
        return Final(points[name], models[name], (), "", {})
    least = WORTH if goal == "latency" else NOISE
    rows = _rows(models, inputs.search[0], least, rounds, threads, min(seconds, AGAIN_SECONDS))
    measured = {id(points[name]): rows[name].speedup for name in points if not rows[name].crash}
    fast = [name for name in points if _is_fast(rows[name], least)]
    if not fast:
        return Final(None, plain, (), why_none([rows[name] for name in points], least), measured)
    if goal == "latency":
        name = max(fast, key=lambda one: rows[one].speedup)
        return Final(points[name], models[name], (rows["float32"], rows[name]), "", measured)
    taken = {one: _bytes(models[one], goal, inputs, threads) for one in ("float32", *fast)}
    name = min(fast, key=lambda one: taken[one])
    if taken[name] >= taken["float32"]:
        what = "is smaller" if goal == "size" else "takes less memory"
        return Final(None, plain, (), f"nothing is gained: no choice under the bound {what}", measured)
    memory = (taken["float32"], taken[name]) if goal == "memory" else None
    return Final(points[name], models[name], (rows["float32"], rows[name]), "", measured, memory)


def _rows(
    models: Mapping[str, ir.Model], inputs: Inputs, least: float, rounds: int, threads: int, seconds: float
) -> Mapping[str, Latency]:
    """The models side by side; what is not seen to be fast but may be is measured longer: other programs run, too."""
    rows = {row.name: row for row in measure(models, inputs, rounds=rounds, threads=threads, tried=True)}
    _, *names = models
    for times in AGAIN:
        open_still = [name for name in names if _may_be_fast(rows[name], least)]
        some = {name: models[name] for name in ("float32", *open_still)}
        seconds -= times * rounds * sum(rows[name].median_ms for name in some) / 1e3
        if not open_still or any(_is_fast(rows[name], least) for name in names) or seconds < 0:
            break
        again = measure(some, inputs, rounds=times * rounds, threads=threads, tried=True)
        rows |= {row.name: row for row in again}
    return rows


def why_none(rows: Sequence[Latency], least: float) -> str:
    """Why none of the choices is the result."""
    best = max((row for row in rows if not row.crash), key=lambda row: row.speedup, default=None)
    if best is None:
        return "the runtime crashed on the choices under the bound when they were measured"
    told = f"the best choice under the bound runs {best.speedup:.2f} times as fast as float32"
    if best.speedup_bounds is None or not _may_be_fast(best, least):
        return f"nothing is gained: {told}"
    low, high = best.speedup_bounds
    return (
        f"it cannot be told whether anything is gained: {told}, give or take what else this machine does "
        f"({low:.2f} to {high:.2f}); measure again when it is idle, or with more --rounds"
    )


def _bytes(model: ir.Model, goal: Goal, inputs: Samples, threads: int) -> int:
    """The number to minimise: the bytes of the weights, or of all that a process takes that runs the model."""
    return footprint(model, inputs.search[0], threads) if goal == "memory" else weight_bytes(model)


def _is_fast(row: Latency, least: float) -> bool:
    """Whether a model is so many times as fast as float32 and, as far as that can be told, not slower."""
    return not row.crash and row.speedup >= least and (row.speedup_bounds is None or row.speedup_bounds[0] >= NOISE)


def _may_be_fast(row: Latency, least: float) -> bool:
    """Whether a model seems fast enough, but the runs scatter too much to tell that it is not slower."""
    return not row.crash and row.speedup >= least and not _is_fast(row, least)


def _different(points: Sequence[Point]) -> Iterator[Point]:
    seen: list[Mapping[str, str]] = []
    for point in points:
        if point.choice not in seen:
            seen.append(point.choice)
            yield point
