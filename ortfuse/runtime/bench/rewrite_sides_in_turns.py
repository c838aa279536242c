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
    turns = _Turns(sides, inputs, results, threads=threads, blocked=blocked)
    found: list[float] = []
    started = time.perf_counter()
    while not enough(found, time.perf_counter() - started):
        found.append(turns.ratio(turns.round()))
    return found


def undisturbed_ratio(
    sides: tuple[ir.Model, ir.Model], inputs: Inputs, results: Arrays, enough: Enough, *, threads: int = 0
) -> tuple[float, float, float]:
    """The shortest time of the first side divided by that of the second, in all rounds, and in each half of them.

    Other processes lengthen times, and never shorten them. With one thread the time of the processor counts, without that
    of others in between. For the arguments and errors see `ratios`.
    """
    turns = _Turns(sides, inputs, results, threads=threads, clock=time.thread_time if threads == 1 else None)
    taken: list[dict[object, float]] = []
    started = time.perf_counter()
    while not enough([turns.ratio(one) for one in taken], time.perf_counter() - started):
        taken.append(turns.round())
    halves = (taken, taken[::2], taken[1::2] or taken)
    whole, first, second = (turns.ratio({name: min(one[name] for one in some) for name in some[0]}) for some in halves)
    return whole, first, second


class _Turns:
    """Sessions of both sides, and of the pools around images, that run in turns."""

    def __init__(
        self,
        sides: tuple[ir.Model, ir.Model],
        inputs: Inputs,
        results: Arrays,
        *,
        threads: int,
        blocked: Collection[str] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        models, images = _in_layout(sides, blocked)
        arrays = {**results, **inputs}
        shapes = {name: arrays[name].shape for some in images for name in some}
        self._around = [[shapes[name] for name in some] for some in images]
        self._given: dict[object, Inputs] = {0: inputs, 1: inputs}
        self._sessions: dict[object, Session] = {
            side: Session(model, threads=threads, isolated=False) for side, model in enumerate(models)
        }
        for shape in dict.fromkeys(shapes.values()):
            self._sessions[shape] = Session(pools(shape), threads=threads, isolated=False)
            self._given[shape] = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
        self._counts = {name: repeats(session, self._given[name]) for name, session in self._sessions.items()}
        self._order, self._clock = list(self._sessions), clock or time.perf_counter

    def round(self) -> dict[object, float]:
        """The seconds of one run of each, in another order than in the round before."""
        taken = {name: self._seconds(name) / self._counts[name] for name in self._order}
        self._order.append(self._order.pop(0))
        return taken

    def ratio(self, taken: Mapping[object, float]) -> float:
        """The time of the first side divided by that of the second."""
        return _ratio(taken, self._around)

    def _seconds(self, name: object) -> float:
        return seconds(self._sessions[name], self._given[name], self._counts[name], self._clock)


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


def seconds(session: Session, inputs: Inputs, times: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """The seconds that so many runs take by a clock."""
    started = clock()
    for _ in range(times):
        session.run(inputs)
    return clock() - started
