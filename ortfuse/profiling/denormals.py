"""Measure the cost of denormal numbers (below 1.2e-38 in float32): compare with a run that flushes them to zero."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.profiling.kernels import Kernel
from ortfuse.profiling.profiler_trace import trace
from ortfuse.profiling.result import Denormals
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.session import LARGEST, weight_bytes
from ortfuse.runtime.session_settings.find_flushable_denormals import first_that_sees, sources
from ortfuse.runtime.session_settings.recommendations import DENORMALS
from ortfuse.runtime.unrepresentable_models import Runnable
from ortfuse.runtime.worker import WORKER, UnavailableError

ROUNDS = 5
"""How often a model is run at most with zeros for such numbers."""

SLOWER = 1.5
"""A kernel that is slower than this with such numbers is slow because of them."""

NOTABLE = 0.1
"""The least part of the time of all kernels that is worth a mention."""

LEAST = 0.01
"""The least part of that time that a kernel among them loses."""

Times = Mapping[str, float]
"""The seconds of executed nodes by name."""


def cost_of_denormals(
    model: Runnable, inputs: Inputs, kernels: Sequence[Kernel], *, rounds: int, threads: int
) -> Denormals | None:
    """The kernels that such numbers slow down; `None` if there are none, or that cannot be measured.

    A second pair of measurements has to confirm the first, since something else on the machine may slow down one of them.

    Args:
        model: The model as it was profiled: its nodes have names.
        inputs: What it is run on.
        kernels: The kernels of its profile.
        rounds: How often it is run; `ROUNDS` are enough.
        threads: Threads per operator; 0 leaves the choice to the runtime.

    Raises:
        VerificationError: The runtime refuses the model.
    """
    if not _has_own_process(model):
        return None

    def times(settings: Mapping[str, str]) -> Times:
        # The first session of a process decides what its thread takes such numbers for.
        WORKER.stop()
        try:
            traced = trace(model, inputs, runs=min(rounds, ROUNDS), threads=threads, settings=settings, graph=False)
        finally:
            WORKER.stop()
        return {one.name: one.seconds for one in traced.nodes}

    with_them: Times = {one.name: one.seconds for one in kernels}
    without = times({DENORMALS: "1"})
    if not slowed(with_them, without):
        return None
    with_them = _each(min, with_them, times({}))
    without = _each(max, without, times({DENORMALS: "1"}))
    names = slowed(with_them, without)
    if not names:
        return None
    return Denormals(names, sum(without[name] for name in names), *_about(model))


def slowed(with_them: Times, without: Times) -> tuple[str, ...]:
    """The executed nodes that such numbers slow down; none, if that costs less than a notable part of the time of all."""
    total = sum(with_them.values())
    slow = [name for name, seconds in with_them.items() if seconds > SLOWER * without.get(name, seconds)]
    lost = {name: with_them[name] - without[name] for name in slow}
    return tuple(name for name in slow if lost[name] >= LEAST * total) if sum(lost.values()) >= NOTABLE * total else ()


def _each(choose: Callable[[float, float], float], some: Times, others: Times) -> Times:
    return {name: choose(seconds, others.get(name, seconds)) for name, seconds in some.items()}


def _has_own_process(model: Runnable) -> bool:
    """Whether a session can have a process of its own: in this one, numpy would take such numbers as zero from then on."""
    if weight_bytes(model) > LARGEST:
        return False
    try:
        WORKER.wait()
    except UnavailableError:
        return False
    return True


def _about(model: Runnable) -> tuple[str, str | None]:
    """The source of such numbers in a model, if it is known, and the operator that tells them from zero; empty for none."""
    if not isinstance(model, ir.Model):
        return "", None
    node = first_that_sees(model, Facts(model))
    return next(sources(model), ""), "" if node is None else f"{node.op_type} '{node.name}'"
