"""The fastest choices of rungs, measured side by side with the float32 model: the last step of a search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.bench import Latency, measure
from ortfuse.errors import OrtfuseError
from ortfuse.execution.footprint import footprint
from ortfuse.execution.session import weight_bytes
from ortfuse.precision.outcome import Goal, Point
from ortfuse.precision.predictions import WORTH
from ortfuse.precision.samples import Samples
from ortfuse.precision.trial import Trial

FINALISTS = 3
"""How many choices are measured side by side with the float32 model."""

NOISE = 0.98
"""A speedup that counts as none."""


@dataclass(frozen=True)
class Final:
    """The choice that is best as measured, with its model and the latencies; no choice if nothing is gained.

    Where memory is the goal, `memory` is that of the float32 model and of the choice.
    """

    point: Point | None
    model: ir.Model
    latencies: Sequence[Latency]
    reason: str
    measured: Mapping[int, float]
    memory: tuple[int, int] | None = None


def finish(
    found: Sequence[Point], trial: Trial, plain: ir.Model, inputs: Samples, goal: Goal, rounds: int, threads: int
) -> Final:
    """Measure the best choices side by side with the float32 model, and take the best that is not slower."""
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
        return Final(None, plain, (), "no choice of rungs that promises a gain keeps the error under the bound", {})
    ran = measure(models, inputs.search[0], rounds=rounds, threads=threads, tried=True)
    rows = {row.name: row for row in ran}
    measured = {id(points[name]): rows[name].speedup for name in points if not rows[name].crash}
    least = WORTH if goal == "latency" else NOISE
    fast = [name for name in points if _is_fast(rows[name], least)]
    if not fast:
        return Final(None, plain, (), too_slow([rows[name] for name in points], least), measured)
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


def _bytes(model: ir.Model, goal: Goal, inputs: Samples, threads: int) -> int:
    """What is to be small: the bytes of the weights, or of all that a process takes that runs the model."""
    return footprint(model, inputs.search[0], threads) if goal == "memory" else weight_bytes(model)


def _is_fast(row: Latency, least: float) -> bool:
    """Whether a model is so many times as fast as float32 and, as far as that can be told, not slower."""
    return not row.crash and row.speedup >= least and (row.speedup_bounds is None or row.speedup_bounds[0] >= NOISE)


def too_slow(rows: Sequence[Latency], least: float) -> str:
    """Why none of the choices is taken, in words."""
    best = max((row for row in rows if not row.crash), key=lambda row: row.speedup, default=None)
    speedup = 0.0 if best is None else best.speedup
    ran = f"the best choice under the bound runs {speedup:.2f} times as fast as float32"
    if best is None or best.speedup_bounds is None or speedup < least:
        return f"nothing is gained: {ran}"
    within = "{:.2f} and {:.2f}".format(*best.speedup_bounds)
    return f"that anything is gained cannot be told: {ran}, but that is only known to lie between {within}; end what else runs"


def _different(points: Sequence[Point]) -> Iterator[Point]:
    seen: list[Mapping[str, str]] = []
    for point in points:
        if point.choice not in seen:
            seen.append(point.choice)
            yield point
