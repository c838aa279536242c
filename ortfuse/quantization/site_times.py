"""Measure the time of a site in float32 and on each scheme on this machine: interleaved runs, shortest times.

The runs are so short that other load on the machine disturbs many of them, and only ever makes them longer. Over 11
runs, the first quartiles of equal models differed by up to 1.5 times, the shortest by 1.2. The quartiles were also far
above the time of the same operator within the whole model.

They run in a separate process, which isolates crashes and measures the times itself: so every model is loaded only once.

If the weights of the whole model exceed a cache, every run reads them from memory. The same has to hold here: other memory is
written between the runs, unless the other models that take turns have as many weights.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Mapping
from typing import Protocol

import numpy as np
import onnx_ir as ir

from ortfuse.errors import OrtfuseError
from ortfuse.quantization.rounded_weights_cache import ROUNDED
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.session import Session, weight_bytes

ROUNDS = 11
"""How often each model is run, interleaved."""

SHORTEST = 0.001
"""The least seconds of one measurement: a faster model is repeated until it takes that long."""

LONGEST = 2.0
"""The seconds after which no further round is begun, once there are three."""

CACHED = 64 << 20
"""Weights of more bytes than this are taken to come from memory in every run."""

HOPELESS = 1.5
"""A model that takes at least this many times as long as the first one, however often it is run, is not run more often."""

SETTLED = 1.02
"""A model is not run more often once this many times its shortest time is at least the third shortest."""

_LEAST = 3
_FEW = 5
_CHANGED = 1 << 20


class Clock(Protocol):
    """Measure models side by side."""

    def seconds(self, models: Mapping[str, ir.Model], inputs: Inputs) -> dict[str, float]:
        """The seconds of a run of each model; those that cannot be run are left out.

        The first is what the others are compared with: how much slower one is does not matter.
        """


class Stopwatch:
    """Measure on this machine. The first model of the last time stays loaded, in case that it is the first again.

    Args:
        threads: Threads per operator; 0 leaves the choice to the runtime.
        weights: The bytes of weights of the whole model.
    """

    def __init__(self, threads: int, weights: int) -> None:
        self._threads, self._weights = threads, weights
        self._other = np.zeros(CACHED, np.uint8) if weights > CACHED else None
        self._first: tuple[ir.Model, Session] | None = None

    def seconds(self, models: Mapping[str, ir.Model], inputs: Inputs) -> dict[str, float]:
        """The seconds of a run of each model; those that cannot be run are left out."""
        sessions = {
            name: session for name, model in models.items() if (session := self._ready(model, inputs)) is not None
        }
        if not sessions:
            return {}
        first = next(iter(sessions))
        self._first = (models[first], sessions[first])
        sizes = {name: weight_bytes(models[name]) for name in sessions}
        cold = self._other is not None and max(sizes.values()) > _CHANGED
        counts = {name: 1 if cold else _repeats(session) for name, session in sessions.items()}
        times: dict[str, list[float]] = {name: [] for name in sessions}
        gc.collect(1)  # what the last steps left; all of a large program takes longer than the runs
        order, started = list(sessions), time.perf_counter()
        for number in range(ROUNDS):
            if number == _LEAST:  # single runs tell little: the first ones of a session are disturbed most
                order = _hopeful(times, order)
            if number >= _FEW:
                order = [name for name in order if not _is_settled(times[name])]
            if not order or (number >= _LEAST and time.perf_counter() - started > LONGEST):
                break
            for name in order:
                if cold:
                    self._write(CACHED - sum(sizes[one] for one in order if one != name))
                times[name].append(_seconds(sessions[name], counts[name]))
            order.append(order.pop(0))
        return {name: min(taken) for name, taken in times.items()}

    def _write(self, size: int) -> None:
        """Write so many bytes of other memory, if any: what other models read since the last run takes a cache up, too."""
        if self._other is not None and size > 0:
            np.add(self._other[:size], 1, out=self._other[:size])

    def _ready(self, model: ir.Model, inputs: Inputs) -> Session | None:
        """A session in the other process, which has been run once; `None` if the model cannot be run."""
        try:
            known = self._first if self._first is not None and self._first[0] is model else None
            with ROUNDED.for_times():
                session = Session(model, threads=self._threads) if known is None else known[1]
            session.timed(inputs, 1)
        except OrtfuseError:
            return None
        return session


class Untimed:
    """Take all models to be alike, where another tool runs the result."""

    def seconds(self, models: Mapping[str, ir.Model], inputs: Inputs) -> dict[str, float]:
        """No time for any."""
        return dict.fromkeys(models, 0.0)


def _repeats(session: Session) -> int:
    """The number of runs in one measurement."""
    return max(1, round(SHORTEST / max(_seconds(session, 1), 1e-6)))


def _seconds(session: Session, runs: int) -> float:
    """The mean of the seconds of so many runs, one right after the other."""
    return statistics.fmean(session.timed(None, runs))


def _is_settled(times: list[float]) -> bool:
    return sorted(times)[_LEAST - 1] <= SETTLED * min(times)


def _hopeful(times: Mapping[str, list[float]], order: list[str]) -> list[str]:
    """Those of the models, in this order, that may not be slower than the first."""
    most = HOPELESS * min(next(iter(times.values()), [0.0]))
    return [name for name in order if min(times[name]) <= most]
