"""Profile a model: time per operator, and advice on the bottlenecks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import onnx_ir as ir

from ortfuse.api.assess_optimization import Progress, at_common_sizes, inputs_to_measure, silent
from ortfuse.api.effective_options import effective_options, target_spec
from ortfuse.api.explain import explain
from ortfuse.api.fallback import runnable
from ortfuse.errors import OrtfuseError
from ortfuse.io.convert_model_objects import AnyModel
from ortfuse.options import BenchOptions, Options
from ortfuse.runtime.current_execution_target import executing_for
from ortfuse.targets import use_library

if TYPE_CHECKING:
    from ortfuse.profiling import Profile, SideBySide
    from ortfuse.verification.explanation import Explanation


def profile(
    model: AnyModel,
    options: Options | None = None,
    *,
    remedies: bool = True,
    progress: Progress | None = None,
    **changes: Unpack[BenchOptions],
) -> Profile:
    """Tell where the time of a model goes: by operator, fused block, module of the original network and rule.

    The model is run as it is, with and without the runtime's profiler, in a default session.

    Args:
        model: A path, `onnx.ModelProto`, `onnx_ir.Model` or `onnx_graphsurgeon.Graph`; it is not changed.
        options: Only `inputs`, `sizes`, `seed`, `target`, `rounds`, `threads` and `custom_ops` are used. Without inputs, the
            model is run on generated ones of these `sizes`, by default one sample of 128 positions.
        remedies: Whether to find out what `optimize` would fuse or nearly would, which schemes of lower precision are legal, and
            what numbers below the smallest normal one cost.
        progress: Called with short messages about what is going on.
        **changes: Single options; they override those of `options`.

    Raises:
        VerificationError: The runtime refuses the model, or the model lacks a dimension named in `sizes`.
        OrtfuseError: The model or an option cannot be used.
    """
    options = effective_options(options, **changes, bench=True)
    with executing_for(target_spec(options)):
        return _profiled(model, options, remedies, progress or silent)


def _profiled(model: AnyModel, options: Options, remedies: bool, progress: Progress) -> Profile:
    """The profile of a model on the target for which models are executed now."""
    from ortfuse.profiling import at_peaks, beyond, bottlenecks, cost_of_denormals, profile_of
    from ortfuse.runtime.bench.machine_peaks import peaks

    progress("loading the model")
    inside = runnable(model)
    inputs = inputs_to_measure(options, inside)
    source = Path(model) if isinstance(model, str | os.PathLike) else inside
    found = profile_of(inside, source, inputs, rounds=options.rounds, threads=options.threads, progress=progress)
    progress("measuring this machine")
    found = at_peaks(found, peaks(options.threads))
    if beyond(found):
        found = at_peaks(found, peaks(options.threads, again=True))
    if not remedies:
        return replace(found, bottlenecks=bottlenecks(found))
    progress("looking for remedies")
    slow = cost_of_denormals(inside, inputs[1], found.kernels, rounds=options.rounds, threads=options.threads)
    found = replace(found, denormals=slow)
    if not isinstance(inside, ir.Model):
        return replace(found, bottlenecks=bottlenecks(found))
    return replace(found, bottlenecks=bottlenecks(found, _explained(inside, options), _schemes(inside)))


def side_by_side(before: AnyModel, after: AnyModel, options: Options, progress: Progress = silent) -> SideBySide:
    """Tell what each operator takes in a model and in its result; their runs take turns under the runtime's profiler.

    Args:
        before: The model, as for `profile`.
        after: The result, with the same inputs.
        options: As for `profile`.
        progress: Called with short messages about what is going on.

    Raises:
        VerificationError: The runtime refuses a model, or the model lacks a dimension named in `sizes`.
        OrtfuseError: A model or an option cannot be used.
    """
    from ortfuse.profiling import side_by_side_of

    for library in options.custom_ops:  # type: ignore[union-attr]
        use_library(library)
    models = runnable(before), runnable(after)
    inputs = inputs_to_measure(options, at_common_sizes(models, options.sizes))
    progress("running both under the profiler")
    return side_by_side_of(models, inputs, rounds=options.rounds, threads=options.threads)


def _explained(model: ir.Model, options: Options) -> Explanation | None:
    """The explanation of an optimisation; `None` if `optimize` cannot handle the model."""
    try:
        return explain(model, target=options.target)
    except OrtfuseError:
        return None


def _schemes(model: ir.Model) -> Mapping[str, tuple[str, ...]]:
    """The schemes of lower precision that are legal, by the names of nodes."""
    from ortfuse.quantization import sites

    nodes = {value.name: node.name or "" for node in model.graph for value in node.outputs}
    try:
        return {nodes[name]: site.schemes for name, site in sites(model).items() if site.schemes}
    except OrtfuseError:
        return {}
