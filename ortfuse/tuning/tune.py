"""`tune`: the fastest model and session for this machine, under constraints."""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import onnxruntime

from ortfuse.assessment import Progress, given_inputs, inputs_to_measure, silent
from ortfuse.bench import Candidate, SessionLatency, measure_sessions
from ortfuse.errors import ConstraintError, OptionError, OrtfuseError
from ortfuse.execution.inputs import Inputs
from ortfuse.execution.session import Session
from ortfuse.model.atomic_write import writable_target, write_text
from ortfuse.model.interop import AnyModel, enter
from ortfuse.model.io import load, save
from ortfuse.options import Options, PathLike
from ortfuse.precision.metrics import relative_l2
from ortfuse.quantized import QuantizeOptions
from ortfuse.sessions import SessionConfig, Setting, recommended, write_beside
from ortfuse.sessions.denormals import first_that_sees
from ortfuse.sessions.stored import KEY
from ortfuse.targets.processor import processor_name
from ortfuse.tuning.constraints import SLOWEST, Constraints
from ortfuse.tuning.outcome import Point, TuningOutcome
from ortfuse.tuning.space import MODEL, Choice, Space
from ortfuse.tuning.study import MOST, Sampler, Study
from ortfuse.tuning.variants import ORIGINAL, Variant, Variants, write
from ortfuse.version import __version__

FINALISTS = 3
"""How many choices are measured again, side by side."""

SHORT = 7
"""The rounds of a trial."""

ERROR = 1e-3
"""The relative Euclidean error that a session may make where none is stated: providers compute in their own precision."""

OPTIONS = ".options.toml"
"""What is appended to the name of the result for the file of options that make the same model."""

Meter = Callable[..., list[SessionLatency]]
"""Measures candidates side by side; `ortfuse.bench.measure_sessions`."""


@dataclass(frozen=True)
class Tuned:
    """A tuned model, and how it was found.

    Attributes:
        outcome: The choice, the finalists and every trial.
        options: What makes the same model with `ortfuse.optimize` (or `quantize`, if a bound was given and it paid).
        session: The settings of its session.
        written: The files that were written: the model, the settings of its session and the options.
    """

    outcome: TuningOutcome
    options: Options
    session: SessionConfig
    written: tuple[Path, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Everything as data for JSON."""
        return {
            **self.outcome.to_dict(),
            "options": self.options.to_dict(),
            "session": [setting.to_dict() for setting in self.session],
            "written": [str(path) for path in self.written],
        }


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
    meter: Meter = measure_sessions,
    **changes: Unpack[QuantizeOptions],
) -> Tuned:
    """Find the fastest model and session for this machine: pass lists, operators, precision and settings, all measured here.

    Each trial is measured beside the original in a default session, in processes of their own. Every model that takes part has
    been verified, and every session's outputs are compared with the original's. The best are measured again at the end.

    Args:
        model: A path, `onnx.ModelProto`, `onnx_ir.Model` or `onnx_graphsurgeon.Graph`.
        options: How to optimise; `inputs` are what is measured on, `output` is where the result goes.
        budget: Seconds for the trials, those of an interrupted search included; making and verifying the models before the
            first trial, and measuring the best again at the end, come on top.
        constraints: What the result must keep to.
        study: The SQLite file that keeps the trials; by default `OUTPUT.tune.sqlite`, and none without an output.
        sampler: `"tpe"` learns from trials, `"random"` is what it is compared with.
        trials: The most trials.
        progress: Called with short messages, with the best so far.
        meter: Measures candidates side by side.
        **changes: Single options; they override those of `options`.

    Raises:
        ConstraintError: No choice keeps the constraints; nothing was written.
        OptionError: An option has an invalid value.
        OrtfuseError: The model cannot be used, or Optuna is not installed.
    """
    options = Options.of(options, **changes)
    progress, limits = progress or silent, constraints or Constraints()
    if not budget > 0:
        raise OptionError("budget", f"write seconds, more than 0, not {budget!r}")
    output = None if options.output is None else writable_target(options.output)
    with tempfile.TemporaryDirectory(prefix="ortfuse") as folder:
        original = _as_file(model, Path(folder))
        _, inputs = inputs_to_measure(options, load(original))
        making = replace(options, output=None, inputs=given_inputs(options, load(original)), sizes={})
        variants = Variants(original, making, Path(folder), limits.max_error, progress)
        space = _space(variants, options.threads)
        trial = _Trial(original, variants, space, inputs, limits.max_error, options, meter)
        file = None if study is None and output is None else Path(study or f"{output}.tune.sqlite")
        name = _digest(original, inputs, space, options, limits)
        search = Study(name, space, limits, trial.measured, file, sampler, options.seed)
        search.run(budget, trials=trials, progress=progress)
        progress("measuring the best side by side")
        outcome = trial.outcome(search)
        chosen = variants.of(space, outcome.best.choice)
        session = _session(space, outcome)
        written = () if output is None else _written(chosen, session, output, options.link)
        return Tuned(outcome, _portable(chosen, options), session, written)


class _Trial:
    """Measures choices of one search beside the original in a default session."""

    def __init__(
        self,
        original: Path,
        variants: Variants,
        space: Space,
        inputs: Inputs,
        max_error: float | None,
        options: Options,
        meter: Meter,
    ) -> None:
        self._original, self._variants, self._space, self._inputs = original, variants, space, inputs
        self._allowed = ERROR if max_error is None else max_error
        self._rounds, self._threads, self._meter = options.rounds, options.threads, meter
        self._expected = Session(str(original), optimise=False).run(inputs)

    def measured(self, number: int, choice: Choice) -> Point:
        """A choice as a trial."""
        variant = self._variants.of(self._space, choice)
        if variant.failure:
            return Point(number, dict(choice), failure=variant.failure)
        settings = self._space.settings(choice)
        try:
            error = self._error(variant, settings)
            if not error <= self._allowed:
                return Point(number, dict(choice), error=error, failure=f"the outputs are off by {error:.2g}")
            rows = self._side_by_side({"": Candidate(variant.path, settings)}, SHORT)
        except OrtfuseError as failure:
            return Point(number, dict(choice), failure=str(failure))
        return _point(Point(number, dict(choice), error=error), rows[1])

    def outcome(self, search: Study) -> TuningOutcome:
        """The best of a search, measured again side by side.

        Raises:
            ConstraintError: No choice keeps the constraints.
        """
        best = search.best(FINALISTS)
        if not best:
            raise ConstraintError(_why(search))
        candidates = {
            str(point.number): Candidate(
                self._variants.of(self._space, point.choice).path, self._space.settings(point.choice)
            )
            for point in best
        }
        rows = self._side_by_side(candidates, max(SHORT, self._rounds))
        baseline = _point(Point(-1, {**self._space.usual, MODEL: ORIGINAL}), rows[0])
        again = [_point(point, row) for point, row in zip(best, rows[1:], strict=True)]
        kept = [point for point in again if not search.constraints.unmet(point)]
        finalists = sorted(kept or again, key=lambda point: -point.speedup)
        if not kept:
            missed = "; ".join(map(str, search.constraints.unmet(finalists[0])))
            raise ConstraintError(
                f"what kept the constraints in its trial did not when it was measured again: {missed}"
            )
        notes = []
        first = finalists[0]
        if first.speedup < SLOWEST and not search.constraints.unmet(baseline):
            first = replace(baseline, speedup=1.0)
            notes.append("nothing is faster than the original in a default session, which is the result")
        return TuningOutcome(first, baseline, finalists, search.points, search.seconds, notes)

    def _side_by_side(self, candidates: Mapping[str, Candidate], rounds: int) -> list[SessionLatency]:
        baseline = {"the original, the runtime's default": Candidate(self._original)}
        return self._meter({**baseline, **candidates}, self._inputs, rounds=rounds, threads=self._threads)

    def _error(self, variant: Variant, settings: Mapping[str, Any]) -> float:
        found = Session(str(variant.path), settings=settings, threads=self._threads).run(self._inputs)
        return max((_apart(array, found[name]) for name, array in self._expected.items()), default=0.0)


def _apart(expected: Any, found: Any) -> float:
    if not isinstance(expected, np.ndarray) or not np.issubdtype(expected.dtype, np.floating):
        return 0.0
    return relative_l2(expected, found)


def _point(point: Point, row: SessionLatency) -> Point:
    return replace(
        point,
        speedup=row.speedup,
        median_ms=row.median_ms,
        p95_ms=row.p95_ms,
        session_ms=row.session_ms,
        peak_mb=row.peak_mb,
    )


def _why(search: Study) -> str:
    """Why no choice can be taken."""
    points = [point for point in search.points if not point.failure]
    if not points:
        failures = [point.failure for point in search.points]
        return (
            f"no trial succeeded: {failures[0]}"
            if failures
            else "the budget is too small for a single trial; give more"
        )
    missed = "; ".join(map(str, search.constraints.nearest(points)))
    return f"no choice of {len(points)} keeps the constraints; of the nearest, {missed}"


def _as_file(model: AnyModel, folder: Path) -> Path:
    if isinstance(model, str | os.PathLike):
        load(model)  # what is wrong with the file is said once, and early
        return Path(model)
    save(enter(model)[0], folder / "original.onnx")
    return folder / "original.onnx"


def _space(variants: Variants, threads: int) -> Space:
    from ortfuse.facts.facts import Facts

    names = variants.names()
    model = load(variants.get(names[0]).path)
    return Space.of(
        names,
        pins=variants.alternatives(),
        providers=onnxruntime.get_available_providers(),
        threads=threads,
        processors=os.cpu_count() or 1,
        denormals=first_that_sees(model, Facts(model)) is None,
        settings=recommended(model).values(),
    )


def _session(space: Space, outcome: TuningOutcome) -> SessionConfig:
    reason = f"measured: {outcome.best.speedup:.2f} times as fast as the original in a default session, all settings together"
    found = space.settings(outcome.best.choice)
    return SessionConfig(tuple(Setting(name, value, reason) for name, value in found.items()), onnxruntime.__version__)


def _written(variant: Variant, session: SessionConfig, output: Path, link: bool) -> tuple[Path, ...]:
    metadata = {KEY: session.to_json()} if len(session) else {}
    write(variant, output, link=link, metadata=metadata)
    options = output.with_name(output.name + OPTIONS)
    write_text(options, _portable(variant, Options()).to_toml())
    beside = write_beside(output, session)
    return tuple(path for path in (output, beside, options) if path is not None)


def _portable(variant: Variant, options: Options) -> Options:
    """The options that make a variant, without those that say what to measure on and where to write."""
    made = variant.options
    return replace(made, inputs=None, output=None, sizes={}, verify=None, rounds=options.rounds, seed=options.seed)


def _digest(original: Path, inputs: Inputs, space: Space, options: Options, limits: Constraints) -> str:
    """What the trials depend on."""
    digest = hashlib.sha256()
    digest.update(original.read_bytes())
    for name in sorted(inputs):
        array = inputs[name]
        digest.update(repr((name, getattr(array, "shape", None))).encode())
        digest.update(np.ascontiguousarray(array).tobytes() if isinstance(array, np.ndarray) else repr(array).encode())
    machine = (processor_name(), platform.machine(), os.cpu_count(), onnxruntime.__version__, __version__)
    digest.update(repr((machine, sorted(space.dimensions.items()), options.threads, limits.max_error)).encode())
    return digest.hexdigest()[:24]
