"""Find the fastest model and session for this machine, under constraints (`tune`)."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Unpack

import numpy as np
import onnxruntime

from ortfuse.api.assess_optimization import Progress, given_inputs, inputs_to_measure, silent
from ortfuse.api.effective_options import target_spec
from ortfuse.api.quantize import OVER, QuantizeOptions
from ortfuse.errors import OptionError
from ortfuse.io.atomic_write import demand_no_link, writable_target, write_text
from ortfuse.io.convert_model_objects import AnyModel, enter
from ortfuse.io.load_and_save import load, save
from ortfuse.io.training_mode import training_note
from ortfuse.options import Options, PathLike
from ortfuse.runtime.bench import Candidate, SessionMeter
from ortfuse.runtime.bench.session_timing import Meter
from ortfuse.runtime.current_execution_target import executing_for, execution_target
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.session_settings import SessionConfig, Setting, write_beside
from ortfuse.runtime.session_settings.config import settings_of
from ortfuse.runtime.session_settings.find_flushable_denormals import first_that_sees
from ortfuse.runtime.session_settings.settings_in_model import KEY
from ortfuse.serialization import Record, entry
from ortfuse.targets.processor import processor_name
from ortfuse.tuning.constraints import Constraints
from ortfuse.tuning.estimate_step_durations import Pace
from ortfuse.tuning.final_round import Finals
from ortfuse.tuning.model_variants import USUAL, Variant, Variants, write
from ortfuse.tuning.outcome import TuningOutcome
from ortfuse.tuning.search_space import Space
from ortfuse.tuning.study import MOST, Sampler, Study, demand_optuna, no_other_search
from ortfuse.tuning.trials import Trials
from ortfuse.version import __version__

ERROR = 1e-3
"""The relative Euclidean error that a session may make where none is stated: providers compute in their own precision."""

LOWER = 0.6
"""The share of the budget that the search for lower precision may take at most."""

OVERTIME = 60
"""How often a search for lower precision runs a model on after its time is over: a choice on all inputs, and on fresh ones."""

OPTIONS = ".options.toml"
"""The ending of the file with options that make the same model, appended to the name of the result."""


@dataclass(frozen=True)
class Tuned(Record):
    """A tuned model, and how it was found.

    Attributes:
        outcome: The choice, the finalists and every trial.
        options: What makes the same model with `ortfuse.optimize` (or `quantize`, if a bound was given and it paid).
        session: The settings of its session.
        written: The files that were written: the model, the settings of its session and the options.
    """

    outcome: TuningOutcome = field(metadata=entry(inline=True))
    options: Options = field(metadata=entry(convert=Options.to_dict))
    session: SessionConfig = field(metadata=entry(convert=settings_of))
    written: tuple[Path, ...] = ()

    def __repr__(self) -> str:
        best, count = self.outcome.best, len(self.outcome.trials)
        return f"<{type(self).__name__}: {best.speedup:.2f} times as fast as the original, {count} trials>"


def tune(
    model: AnyModel,
    options: Options | None = None,
    *,
    budget: float = 120.0,
    constraints: Constraints | None = None,
    study: PathLike | None = None,
    sampler: Sampler = "tpe",
    trials: int = MOST,
    progress: Progress | None = None,
    meter: Callable[[Candidate, Inputs, int, str], Meter] = SessionMeter,
    clock: Callable[[], float] = time.monotonic,
    began: float | None = None,
    **changes: Unpack[QuantizeOptions],
) -> Tuned:
    """Find the fastest model and session for this machine: pass lists, operators, precision and settings, all measured here.

    Each trial is measured beside the original in a default session, in processes of their own, and its outputs are compared with
    the original's. The best are measured again at the end, beside the best pass list, and what is taken is verified in full.

    Args:
        model: A path, `onnx.ModelProto`, `onnx_ir.Model` or `onnx_graphsurgeon.Graph`.
        options: How to optimise; `inputs` are what is measured on, `output` is where the result goes.
        budget: Seconds for all of it: making models, trials, verifying, measuring the best again and writing, those of an
            interrupted search included. Nothing is begun for which there seems to be no time, but one choice is made, tried,
            verified and measured once more in any case; where that takes longer, the notes say how long.
        constraints: What the result must keep to.
        study: The SQLite file that keeps the trials; by default `OUTPUT.tune.sqlite`, and none without an output.
        sampler: `"tpe"` learns from trials, `"random"` is what it is compared with.
        trials: The most trials.
        progress: Called with short messages, with the best so far.
        meter: What measures candidates beside a baseline, from that, the inputs, the threads and its name.
        clock: Seconds that pass.
        began: When the budget began to be spent, on the clock; by default now.
        **changes: Single options; they override those of `options`.

    Raises:
        ConstraintError: No choice keeps the constraints; nothing was written.
        OptionError: An option has an invalid value.
        OutputError: A file cannot be written, or another search keeps its trials in the same one.
        TargetError: There is no such target, or models cannot be executed for it here.
        OrtfuseError: The model cannot be used, or Optuna is not installed.
    """
    options = Options.of(options, bench=True, **changes)
    progress, limits = progress or silent, constraints or Constraints()
    if not budget > 0:
        raise OptionError("budget", f"write seconds, more than 0, not {budget!r}")
    spec = target_spec(options)
    spec.session_providers()  # refuse a target for which nothing can be measured
    demand_optuna()
    began = clock() if began is None else began
    output = None if options.output is None else Path(options.output)
    if output is not None:
        writable_target(output)
    file = None if study is None and output is None else Path(study or f"{output}.tune.sqlite")
    if study is None and file is not None:
        demand_no_link(file, "remove it, or name a file with `study`")
    with executing_for(spec), no_other_search(file) as folder:
        original = _as_file(model, folder)
        _, inputs = inputs_to_measure(options, load(original))
        making = replace(options, output=None, inputs=given_inputs(options, load(original)))
        variants = Variants(original, making, folder, limits.max_error, LOWER * budget, progress, clock)
        space = _space(variants, options.threads)
        usual = variants.get(USUAL).content  # follows from the weights, wherever they are, and from the options
        name = _digest(original, usual, inputs, space, options, limits, sampler)
        allowed = ERROR if limits.max_error is None else limits.max_error
        pace = Pace(budget, clock)
        finals = Finals(variants, space, options.rounds, pace)
        with meter(Candidate(original), inputs, options.threads, "the original in a default session") as side_by_side:
            measuring = Trials(original, variants, space, inputs, allowed=allowed, pace=pace, meter=side_by_side)
            search = Study(name, space, limits, measuring.measured, file, sampler, options.seed, clock)
            pace.restore(search.learnt())
            variants.run = pace.run
            preparing = search.charge("preparing", clock() - began)
            _search(search, measuring, finals, trials, progress)
            progress("measuring the best side by side")
            outcome = finals.outcome(search, side_by_side)
        progress("measuring what is best once more")
        before = clock()
        with meter(Candidate(original), inputs, options.threads, "the original in a default session") as anew:
            outcome = finals.confirmed(outcome, search, anew)
        ending = clock()
        chosen = variants.of(space, outcome.best.choice)
        session = _session(space, outcome)
        written = () if output is None else _written(chosen, session, output, options.link)
        seconds = outcome.seconds + clock() - ending
        least = preparing + pace.first + pace.verifying + clock() - before
        training = training_note(load(original))
        notes = [*measuring.notes, *outcome.notes, *_overrun(budget, seconds, least, variants)]
        notes[:0] = [] if training is None else [training]
        return Tuned(replace(outcome, seconds=seconds, notes=notes), _portable(chosen, options), session, written)


def _search(search: Study, measuring: Trials, finals: Finals, trials: int, progress: Progress) -> None:
    """Try the usual model, verify it, and go on with settings and other models."""
    pace = finals.pace

    def told(text: str) -> None:
        search.learn(pace.to_dict())
        progress(text)

    def run(most: int) -> None:
        reserve = functools.partial(finals.reserve, search)
        search.run(pace.budget, trials=most, reserve=reserve, takes=measuring.seconds, progress=told)

    run(min(1, trials))
    measuring.verify_leader(search)
    left = pace.budget - search.seconds - finals.reserve(search) - pace.trial - OVERTIME * pace.run
    finals.variants.budget = max(1.0, min(LOWER * pace.budget, left))
    run(trials)


def _overrun(budget: float, seconds: float, least: float, variants: Variants) -> list[str]:
    """Why the budget was exceeded, if it clearly was."""
    if seconds <= OVER * budget:
        return []
    if least > budget:
        why = (
            "to make one model, try it, verify it, measure it once more and write it takes "
            f"{least:.1f} s here, which is the least that it can be given"
        )
    elif variants.searching > (variants.budget or 0.0):
        why = (
            f"the search for lower precision took {variants.searching:.0f} s instead of {variants.budget:.0f} s: "
            "making its model and running it cannot be cut short"
        )
    else:
        why = "what had been begun took longer than the like of it before"
    return [f"the search took {seconds:.0f} s instead of {budget:.0f} s: {why}"]


def _as_file(model: AnyModel, folder: Path) -> Path:
    if isinstance(model, str | os.PathLike):
        load(model)  # what is wrong with the file is said once, and early
        return Path(model)
    save(enter(model)[0], folder / "original.onnx")
    return folder / "original.onnx"


def _space(variants: Variants, threads: int) -> Space:
    from ortfuse.analysis.facts import Facts

    names = variants.names()
    model = load(variants.get(names[0]).path)
    return Space.of(
        names,
        forced=variants.alternatives(),
        providers=onnxruntime.get_available_providers(),
        threads=threads,
        processors=os.cpu_count() or 1,
        denormals=first_that_sees(model, Facts(model)) is None,
        settings=variants.recommended().values(),
        operators={node.op_type for node in model.graph.all_nodes()},
        target=execution_target(),
    )


def _session(space: Space, outcome: TuningOutcome) -> SessionConfig:
    reason = f"measured: {outcome.best.speedup:.2f} times as fast as the original in a default session, all settings together"
    found = space.settings(outcome.best.choice)
    return SessionConfig(tuple(Setting(name, value, reason) for name, value in found.items()), onnxruntime.__version__)


def _written(variant: Variant, session: SessionConfig, output: Path, link: bool) -> tuple[Path, ...]:
    metadata = {KEY: session.to_json()} if len(session) else {}
    write(variant, output, link=link, metadata=metadata)
    options = output.with_name(output.name + OPTIONS)
    write_text(options, _portable(variant, Options()).to_toml(), follow=False)
    beside = write_beside(output, session)
    return tuple(path for path in (output, beside, options) if path is not None)


def _portable(variant: Variant, options: Options) -> Options:
    """The options that make a variant, without those that say what to measure on and where to write."""
    made = variant.options
    return replace(
        made, inputs=None, output=None, sizes={}, bench=False, verify=None, rounds=options.rounds, seed=options.seed
    )


def _digest(
    original: Path, usual: str, inputs: Inputs, space: Space, options: Options, limits: Constraints, sampler: Sampler
) -> str:
    """The conditions on which the trials depend."""
    digest = hashlib.sha256()
    digest.update(original.read_bytes())
    digest.update(usual.encode())
    for name in sorted(inputs):
        array = inputs[name]
        digest.update(repr((name, getattr(array, "shape", None))).encode())
        digest.update(np.ascontiguousarray(array).tobytes() if isinstance(array, np.ndarray) else repr(array).encode())
    target, versions = execution_target().name, (onnxruntime.__version__, __version__)
    machine = (processor_name(), platform.machine(), os.cpu_count(), target, versions)
    digest.update(
        repr((machine, sorted(space.dimensions.items()), options.threads, limits.max_error, sampler)).encode()
    )
    return digest.hexdigest()[:24]
