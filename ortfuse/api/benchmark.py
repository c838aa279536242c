"""Measure models side by side."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import onnx_ir as ir

from ortfuse.api.assess_optimization import at_common_sizes, inputs_to_measure
from ortfuse.api.effective_options import effective_options, target_spec
from ortfuse.api.fallback import runnable
from ortfuse.errors import OptionError
from ortfuse.io.convert_model_objects import AnyModel
from ortfuse.io.training_mode import training_note
from ortfuse.options import (
    BenchOptions,
    Options,
)
from ortfuse.runtime.current_execution_target import executing_for
from ortfuse.runtime.session_settings import stored_config
from ortfuse.runtime.unrepresentable_models import AsItIs

if TYPE_CHECKING:
    from ortfuse.runtime.bench import Candidate, Latencies, SessionLatency


def benchmark(
    models: Mapping[str, AnyModel], options: Options | None = None, **changes: Unpack[BenchOptions]
) -> Latencies:
    """Measure models side by side, runs interleaved; speedups are relative to the first model.

    Args:
        models: The models, keyed by the name to report them under; they must take the same inputs.
        options: Only `inputs`, `sizes`, `seed`, `target`, `rounds`, `bench_budget` and `threads` are used. Without inputs, the
            models are measured on generated ones of these `sizes`, by default one sample of 128 positions, or of the sizes
            that are declared or fixed in any of them.
        **changes: Single options; they override those of `options`.

    Returns:
        One row for each model, with latencies in milliseconds.

    Raises:
        VerificationError: The runtime refuses a model, or the first model lacks a dimension named in `sizes`.
        OrtfuseError: One of the models or options cannot be used.
    """
    from ortfuse.runtime.bench import Latencies, budget_of, measure, measure_sessions

    if not isinstance(models, Mapping) or not models:
        raise OptionError("models", f'give models by name, such as {{"before": a, "after": b}}, not {models!r}')
    options = effective_options(options, **changes, bench=True)
    entered = {name: runnable(model) for name, model in models.items()}
    sizes, inputs = inputs_to_measure(options, at_common_sizes(list(entered.values()), options.sizes))
    rounds, seconds, threads = options.rounds, budget_of(options.bench_budget), options.threads
    sessions: Sequence[SessionLatency] = ()
    with executing_for(target_spec(options)):
        rows = measure(entered, inputs, rounds=rounds, seconds=seconds, threads=threads)
        if candidates := _in_their_sessions(models):
            sessions = measure_sessions(candidates, inputs, rounds=rounds, seconds=seconds, threads=threads)
    return Latencies(sizes, tuple(rows), tuple(sessions), tuple(_of_training(entered)))


def _of_training(models: Mapping[str, ir.Model | AsItIs]) -> Iterator[str]:
    """Warnings of models in training mode."""
    for name, model in models.items():
        note = training_note(model) if isinstance(model, ir.Model) else None
        if note is not None:
            yield f"{name}: {note}"


def _in_their_sessions(models: Mapping[str, AnyModel]) -> dict[str, Candidate]:
    """The first model file as it is, and each that has stored settings as it is and with them; none if no settings are stored."""
    from ortfuse.runtime.bench import Candidate

    paths = {name: Path(model) for name, model in models.items() if isinstance(model, str | os.PathLike)}
    stored = {name: stored_config(path).values() for name, path in paths.items()}
    if not any(stored.values()):
        return {}
    first = next(iter(paths))
    found = {}
    for name, values in stored.items():
        if values or name == first:
            found[f"{name}, the runtime's default"] = Candidate(paths[name])
        if values:
            found[f"{name}, its settings"] = Candidate(paths[name], values)
    return found
