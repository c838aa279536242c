"""Profile a model: join the events of the runtime's profiler with the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import onnx_ir as ir

from ortfuse.profiling.kernels import VIEWS, Kernel, groups, kernel
from ortfuse.profiling.latency_without_profiler import Source, Timing, timing
from ortfuse.profiling.node_origins import origins
from ortfuse.profiling.profiler_trace import Trace, trace, traces
from ortfuse.profiling.result import Profile, SideBySide
from ortfuse.profiling.roofline import Work, works
from ortfuse.profiling.runtime_graph_optimizations import creation
from ortfuse.runtime.bench.machine_peaks import Peaks
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.node_naming import name_all_nodes
from ortfuse.runtime.unrepresentable_models import Runnable

PROFILED_MORE = 1.15
"""A model that is slower than this under the profiler has kernels so short that measuring them lengthens them."""

SCATTERED = 0.15
"""The part of a run, in which kernels take longer than their medians add up to, from which on a note says so."""

LONG = 50e-6
"""Products that take less are not compared with a peak that was measured over milliseconds."""

OVER = 1.05
"""How many times as fast as the roof kernels are from which on a note says why."""

_AT = "are faster than the roof, and count as at it:"
_CACHES = f"some kernels {_AT} they read from caches, which are faster than the copy that bandwidth is measured by"
_INTEGERS = f"products of integers {_AT} it is that of products in float32"
_SHORT = (
    f"some products {_AT} they are too short to be timed well, or of sizes that are faster than the one its peak is of"
)

_NARROW = frozenset(
    {
        "MatMulInteger",
        "ConvInteger",
        "DynamicQuantizeMatMul",
        "DynamicQuantizeLSTM",
        "MatMulIntegerToFloat",
        "MatMulNBits",
        "QAttention",
        "QGemm",
    }
)


def profile_of(
    model: Runnable,
    source: Source,
    inputs: tuple[str, Inputs],
    *,
    rounds: int,
    threads: int,
    progress: Callable[[str], None],
) -> Profile:
    """Measure a model, run it under the profiler and put both together; peaks and bottlenecks are left to the caller.

    Args:
        model: The model. Its nodes are given names, if they have none of their own.
        source: The same model as programs open it, for the times without the profiler.
        inputs: What it is run on, with a description.
        rounds: How often it is run, with and without the profiler.
        threads: Threads per operator; 0 leaves the choice to the runtime.
        progress: Called with short messages about what is going on.

    Raises:
        VerificationError: The runtime refuses the model, or cannot execute it on the inputs.
    """
    sizes, arrays = inputs
    graph = model if isinstance(model, ir.Model) else None
    if graph is not None:
        name_all_nodes(graph)
    progress("running under the profiler")
    traced = trace(model, arrays, runs=rounds, threads=threads)
    progress("measuring")
    measured = timing(source, arrays, rounds=rounds, threads=threads)
    kernels = _kernels(graph, traced)
    return Profile(
        inputs=sizes,
        threads=threads,
        timing=measured,
        kernels=kernels,
        run_seconds=traced.run_seconds,
        runs=traced.runs,
        between_seconds=traced.between,
        creation=creation(graph, traced.graph, kernels),
        peaks=None,
        notes=tuple(_notes(graph, traced, measured, kernels)),
    )


def side_by_side_of(
    models: tuple[Runnable, Runnable], inputs: tuple[str, Inputs], *, rounds: int, threads: int
) -> SideBySide:
    """The time of each operator in two models, whose runs under the profiler take turns.

    Args:
        models: The models. Their nodes are given names, if they have none of their own.
        inputs: What they are run on, with a description.
        rounds: How often each is run.
        threads: Threads per operator; 0 leaves the choice to the runtime.

    Raises:
        VerificationError: The runtime refuses a model, or cannot execute it on the inputs.
    """
    sizes, arrays = inputs
    for model in models:
        if isinstance(model, ir.Model):
            name_all_nodes(model)
    found = traces(models, arrays, runs=rounds, threads=threads)
    before, after = (groups(_kernels(None, traced), VIEWS["operator"]) for traced in found)
    return SideBySide(sizes, found[0].runs, before, after, found[0].run_seconds, found[1].run_seconds)


def beyond(profile: Profile) -> bool:
    """Whether products are faster than the peak, which then was measured while the machine was busy."""
    products = [one for one in profile.kernels if one.bound == "compute" and not _is_narrow(one)]
    long = [one for one in products if one.seconds > LONG]
    together = sum(one.seconds for one in products) > LONG
    least, took = sum(one.roofline_seconds or 0.0 for one in products), sum(one.seconds for one in products)
    return any(one.beyond > 1 for one in long) or (together and least > took)


def at_peaks(profile: Profile, peaks: Peaks) -> Profile:
    """The same profile, with the roof at these peaks."""
    kernels = []
    for one in profile.kernels:
        work = None if one.bytes is None else Work(one.flops, one.bytes)
        bound, least = ("", None) if work is None else (work.bound(peaks), work.seconds(peaks))
        kernels.append(replace(one, bound=bound, roofline_seconds=least))
    reasons = {_why(one) for one in kernels if one.beyond > OVER}
    told = (_CACHES, _INTEGERS, _SHORT)
    notes = [note for note in profile.notes if note not in told] + [note for note in told if note in reasons]
    return replace(profile, kernels=tuple(kernels), peaks=peaks, notes=tuple(notes))


def _why(one: Kernel) -> str:
    """Why a kernel can be faster than the roof."""
    return _CACHES if one.bound == "memory" else _INTEGERS if _is_narrow(one) else _SHORT


def _is_narrow(one: Kernel) -> bool:
    return one.operator in _NARROW or one.operator.startswith("QLinear")


def _kernels(graph: ir.Model | None, traced: Trace) -> tuple[Kernel, ...]:
    work = works(traced.nodes, traced.graph)
    found = {} if graph is None or traced.graph is None else origins(graph, traced.graph)
    return tuple(kernel(seen, found.get(seen.name), work.get(seen.name)) for seen in traced.nodes)


def _notes(graph: ir.Model | None, traced: Trace, measured: Timing, kernels: Sequence[Kernel]) -> list[str]:
    """Notes on the numbers."""
    notes = []
    if graph is None:
        notes.append(
            "no graph can represent this model, so that modules, rules and what the runtime fused are not known"
        )
    elif traced.graph is None:
        notes.append("the runtime does not write the graph that it executes, so that only operators are told apart")
    slower = traced.run_seconds * 1e3 / measured.p50_ms
    if slower > PROFILED_MORE:
        notes.append(
            f"under the profiler a run takes {slower:.2f} times as long: milliseconds of operators are scaled to add up to the "
            "latency without it, and shares of short kernels are too large"
        )
    apart = traced.run_seconds - traced.between - sum(one.seconds for one in kernels)
    if apart > SCATTERED * traced.run_seconds:
        notes.append(
            f"the times of kernels scatter: a run has {apart * 1e3:.3g} ms more than their medians add up to. Something else "
            "runs on this machine; end what can be ended"
        )
    unknown = sorted({one.operator for one in kernels if one.flops is None and one.bytes is not None})
    if unknown:
        notes.append(f"operations of {', '.join(unknown)} are not known; their bytes alone count for the roof")
    return notes
