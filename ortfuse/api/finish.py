"""Finish an optimisation: check, measure and write the result, as the options ask."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from ortfuse.api.assess_optimization import Assessment
from ortfuse.api.fallback import Attempts
from ortfuse.api.result import Result, Timings, WrongResultError
from ortfuse.errors import VerificationError
from ortfuse.io.convert_model_objects import leave
from ortfuse.io.load_and_save import save, stored_bytes
from ortfuse.io.select_outputs import drop_unread_inputs
from ortfuse.pipeline.manager import PassManager
from ortfuse.pipeline.report import RunReport
from ortfuse.runtime.function_expansion_limit import not_loadable
from ortfuse.runtime.load_check import Loading
from ortfuse.runtime.session_settings import SessionConfig, Setting, recommended, store, write_beside
from ortfuse.runtime.session_settings.recommendations import with_runtime

if TYPE_CHECKING:
    from ortfuse.runtime.bench import Latencies
    from ortfuse.verification import SiteCheck
    from ortfuse.verification.bisection.bisect_slowdown import Slowdown
    from ortfuse.verification.explanation import Explanation, ForcedOutcome


WRONG = "in a default session ONNX Runtime computes other numbers than the model says, of the original too"
"""The reason to disable optimisers of the runtime."""


class Clock:
    """Collect the times of `Timings`."""

    def __init__(self) -> None:
        self._laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """Book the time since the last lap under this name."""
        now = time.perf_counter()
        self._laps[name], self._last = self._laps.get(name, 0.0) + now - self._last, now

    def timings(self) -> Timings:
        """The times of all laps."""
        return Timings(**self._laps)


def concluded(attempts: Attempts, report: RunReport, clock: Clock, *, check: bool) -> Result:
    """Check, measure and write the result of a pipeline, as asked.

    Raises:
        UnloadableError: With `check`: the runtime does not load the result. Nothing was written.
        WrongResultError: It is wrong. Nothing was written.
    """
    inside, asked, options = attempts.inside, attempts.asked, attempts.options
    if check and (options.verify == "whole" or options.bench or options.output is None):
        Loading.of_graph(inside).demand()
    if check and (unasked := not_loadable(inside)):
        report.notes.append(unasked)
    _remark(inside, report, attempts.manager)
    sites = _site_checks(asked)
    session = _recommended_session(inside)
    original = attempts.given
    result = Result(leave(inside, attempts.source), report, options, sites=sites, session=session, original=original)
    if options.explain:
        result = replace(result, explanation=_explanation(inside, result, attempts.manager))
    if options.force:
        result = replace(result, forced=_forced_outcomes(inside, result, attempts.manager))
    if options.verify == "whole":
        verdict, blame = asked.verdict(inside, attempts.manager.target)
        clock.lap("verify")
        result = replace(result, verdict=verdict, blame=blame)
        if asked.disabled:
            session = _recommended_session(inside, asked.disabled)
            result = replace(result, model=leave(inside, attempts.source), session=session)
        if not result.ok:
            raise WrongResultError(replace(result, timings=clock.timings()))
    found = _latencies(attempts, report) if options.bench else None
    if found is not None:
        result = replace(result, latencies=found, slowdown=asked.slowdown(inside, report, found, attempts.without))
        if options.fastest and result.slowdown is not None:
            inside, result = _faster(attempts, result, result.slowdown)
        clock.lap("bench")
    if options.drop_inputs and (dropped := drop_unread_inputs(inside)):
        report.notes += dropped
        result = replace(result, model=leave(inside, attempts.source))
    if options.output is not None:
        attempts.progress(f"writing {options.output}")
        given = None if attempts.source.path is None else stored_bytes(attempts.source.path)
        save(
            inside,
            options.output,
            link=options.link,
            external_data=options.external_data,
            check=_load_written if check else None,
            source=attempts.source.path,
        )
        result = replace(
            result,
            written=Path(options.output),
            session_file=write_beside(options.output, result.session),
            file_bytes=(given, stored_bytes(options.output)),
        )
        clock.lap("write")
    return replace(result, timings=clock.timings())


def _latencies(attempts: Attempts, report: RunReport) -> Latencies | None:
    """The latencies; `None`, with a note, if no inputs to measure a result on are found that was verified on others.

    Raises:
        VerificationError: There are no such inputs, and the result was not verified; or a model cannot be executed.
    """
    try:
        attempts.asked.choose_inputs()
    except VerificationError as error:
        if attempts.options.verify != "whole":
            raise
        report.notes.append(f"not measured: {error}")
        return None
    return attempts.asked.latencies()


def _site_checks(asked: Assessment) -> tuple[SiteCheck, ...] | None:
    """The checks of changes; `None` if none were asked for and the user's own rules and passes changed nothing."""
    if asked.sites is not None:
        return tuple(asked.sites.found.values())
    own = None if asked.user_checks is None else asked.user_checks.found
    return None if own is None else tuple(own.found.values())


def _faster(attempts: Attempts, result: Result, slowdown: Slowdown) -> tuple[ir.Model, Result]:
    """The model that is faster than the result, in the place of the result, unless it is wrong."""
    inside, report, verdict = slowdown.model, slowdown.report, result.verdict
    if report is None:
        report = replace(result.report, notes=[*result.report.notes, "the result is the original, which was faster"])
    elif verdict is not None:
        verdict, blame = attempts.asked.verdict(inside, attempts.manager.target)
        if not verdict.ok:
            result.report.notes.append(f"{slowdown.offered} was not taken: {blame}")
            return attempts.inside, result
    session = _recommended_session(inside, attempts.asked.disabled)
    model = leave(inside, attempts.source)
    slowdown = replace(slowdown, applied=True)
    return inside, replace(result, model=model, report=report, verdict=verdict, slowdown=slowdown, session=session)


def _recommended_session(model: ir.Model, disabled: Sequence[str] = ()) -> SessionConfig:
    """The settings to open a model with; they are also put into its metadata.

    Args:
        model: The model.
        disabled: The runtime's own optimisers without which alone it computes what the model says.
    """
    found = recommended(model)
    if disabled:
        found = with_runtime((*found, Setting("disabled_optimizers", tuple(disabled), WRONG)))
    store(model, found)
    return found


def _load_written(path: Path, data: Mapping[str, Path]) -> Callable[[], None]:
    """Have the runtime load what is written but not yet in place."""
    return Loading.of_files(path, data).demand


def _remark(model: ir.Model, report: RunReport, manager: PassManager) -> None:
    """Add what was left, and why, to the report."""
    from ortfuse.verification.explanation import remarks

    report.remarks = remarks(model, report, manager.catalogue)
    if not manager.options.explain:  # which says the same at length
        report.notes += [remark.text() for remark in report.remarks]


def _explanation(model: ir.Model, result: Result, manager: PassManager) -> Explanation:
    from ortfuse.verification.explanation import explanation

    asked = result.options.explain
    return explanation(model, result.report, manager.catalogue, () if isinstance(asked, bool) else asked)


def _forced_outcomes(model: ir.Model, result: Result, manager: PassManager) -> tuple[ForcedOutcome, ...]:
    from ortfuse.verification.explanation import forced_outcomes

    options = result.options
    return forced_outcomes(
        options.force,
        model,
        result.report,
        manager.catalogue,
        approximate=options.approximate,
        quirks=manager.target.quirks,
        target=manager.target.spec.name,
    )
