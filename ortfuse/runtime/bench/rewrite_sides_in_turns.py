"""Time two sides of a rewrite in alternating rounds and return their ratios."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ortfuse.runtime.bench.blocked_convolution import pools, runs_in_blocks, surrounded
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.session import Arrays, Session

SHORTEST = 0.002
"""The minimum seconds of one measurement: what is faster is repeated until it takes that long."""

MOSTLY = 0.2
"""The least share of a measurement that must remain without the pools; otherwise nothing is subtracted."""

Enough = Callable[[Sequence[float], float], bool]
"""Whether so many ratios, and so many seconds, are enough."""


def ratios(
    sides: tuple[ir.Model, ir.Model],
    inputs: Inputs,
    results: Arrays,
    enough: Enough,
    *,
    threads: int = 0,
    blocked: Collection[str] | None = None,
) -> list[float]:
    """The time of the first side divided by that of the second, round by round.

    Args:
        sides: What is replaced, and its replacement, with the same inputs and outputs.
        inputs: What both are run on.
        results: What they give, for the shapes.
        enough: Asked before each round.
        threads: Threads per operator; 0 leaves the choice to the runtime.
        blocked: The inputs and outputs that the runtime has in its blocked layout there, if one of the sides computes in
            that (see `ortfuse.runtime.bench.blocked_convolution`); by default all that can be.

    Raises:
        VerificationError: The runtime refuses one of the sides.
    """
    models, images = _in_layout(sides, blocked)
    arrays = {**results, **inputs}
    shapes = {name: arrays[name].shape for some in images for name in some}
    given: dict[object, Inputs] = {0: inputs, 1: inputs}
    sessions: dict[object, Session] = {
        side: Session(model, threads=threads, isolated=False) for side, model in enumerate(models)
    }
    for shape in dict.fromkeys(shapes.values()):
        sessions[shape] = Session(pools(shape), threads=threads, isolated=False)
        given[shape] = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    counts = {name: repeats(session, given[name]) for name, session in sessions.items()}
    found: list[float] = []
    order, started = list(sessions), time.perf_counter()
    while not enough(found, time.perf_counter() - started):
        taken = {name: seconds(sessions[name], given[name], counts[name]) / counts[name] for name in order}
        found.append(_ratio(taken, [[shapes[name] for name in some] for some in images]))
        order.append(order.pop(0))
    return found


def _in_layout(
    sides: tuple[ir.Model, ir.Model], blocked: Collection[str] | None
) -> tuple[list[ir.Model], list[list[str]]]:
    """The sides with pools around them, if one of them computes in blocks, and the names of what goes through these."""
    if not any(map(runs_in_blocks, sides)):
        return list(sides), [[], []]
    made = [surrounded(side, blocked) for side in sides]
    return [model for model, _ in made], [names for _, names in made]


def _ratio(taken: Mapping[object, float], images: Sequence[Sequence[tuple[int, ...]]]) -> float:
    """One time divided by the other, without the pools: two of them and two reorderings were measured for each shape."""
    around = [sum(taken[shape] for shape in shapes) / 2 for shapes in images]
    before, after = taken[0], taken[1]
    if before - around[0] < MOSTLY * before or after - around[1] < MOSTLY * after:
        return before / after
    return (before - around[0]) / (after - around[1])


def repeats(session: Session, inputs: Inputs, shortest: float = SHORTEST) -> int:
    """The number of runs in one measurement, which is to take `shortest` seconds at least."""
    session.run(inputs)
    return max(1, round(shortest / max(seconds(session, inputs, 1), 1e-6)))


def seconds(session: Session, inputs: Inputs, times: int) -> float:
    """The seconds that so many runs take."""
    started = time.perf_counter()
    for _ in range(times):
        session.run(inputs)
    return time.perf_counter() - started
