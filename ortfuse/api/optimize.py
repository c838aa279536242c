"""Optimise a model, then verify, measure and write the result as the options ask.

Options are an `Options` object, `optimize(model, options)`, or keywords, `optimize(model, verify="whole")`; keywords win.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from ortfuse.api.assess_optimization import Assessment, Progress, silent
from ortfuse.api.effective_options import effective_options
from ortfuse.api.fallback import Attempts, as_it_is, demand_possible, left_alone, taken_in
from ortfuse.api.finish import Clock, concluded
from ortfuse.api.result import Result
from ortfuse.errors import InvalidModelError, OptionError, PassError
from ortfuse.io.atomic_write import writable_target
from ortfuse.io.convert_model_objects import AnyModel
from ortfuse.options import (
    AllOptions,
    Options,
)
from ortfuse.options.target_in_file_name import has_target, with_target
from ortfuse.pipeline.manager import PassManager
from ortfuse.pipeline.schedule import OnPass
from ortfuse.runtime.current_execution_target import executing_for
from ortfuse.runtime.load_check import UnloadableError, without_kernels_here
from ortfuse.runtime.worker import WORKER
from ortfuse.targets import installed
from ortfuse.targets.resolve import members, resolve_target

if TYPE_CHECKING:
    pass


def optimize(
    model: AnyModel,
    options: Options | None = None,
    *,
    on_pass: OnPass | None = None,
    progress: Progress | None = None,
    **changes: Unpack[AllOptions],
) -> Result:
    """Rewrite a model into the operators that ONNX Runtime executes fastest. The input model is not changed.

    Args:
        model: A path, `onnx.ModelProto`, `onnx_ir.Model` or `onnx_graphsurgeon.Graph`.
        options: How to optimise, what to check and measure, and where to write the result; see `Options`.
        on_pass: Called after each pass. If a rewrite needs a newer opset that the model cannot be raised to, or a pass fails, the
            run restarts from the first pass without these; a model for which nothing helps is left as it is.
        progress: Called with short messages about what is going on.
        **changes: Single options; they override those of `options`.

    Raises:
        WrongResultError: With `verify="whole"`, the result does not compute what the model computes. The error carries the
            result; nothing was measured or written.
        VerificationError: The original cannot be executed, or lacks a dimension named in `sizes`. With `verify="whole"`, a
            result without inputs to measure it on has a note instead.
        OptionError: An option has an invalid value, or two contradict each other.
        OrtfuseError: The model, the pipeline or a rule file cannot be used; the message says what to do.
    """
    options, progress = effective_options(options, **changes), progress or silent
    if has_target(options.output):
        every = list(options_by_target(options).values())
        if len(every) > 1:
            raise OptionError("output", "names a file for each target: `ortfuse.optimize_for_targets` makes these")
        options = every[0]
    manager = PassManager(options)
    _refuse_early(options, manager)
    with executing_for(manager.target.spec):
        return _optimized(model, options, manager, on_pass, progress)


def options_by_target(options: Options) -> dict[str, Options]:
    """Return the options for each of the targets and releases that they list, by its name in those of files.

    Raises:
        TargetError: There is no such target or release, so that nothing is done for the others.
    """
    listed = members(options.target, options.runtime)
    for one in listed:
        resolve_target(one.target, runtime=one.release, max_opset=options.max_opset)
    return {
        one.label: options.with_(
            target=one.target,
            runtime=one.release,
            output=None if options.output is None else with_target(options.output, one.label),
        )
        for one in listed
    }


def _optimized(
    model: AnyModel, options: Options, manager: PassManager, on_pass: OnPass | None, progress: Progress
) -> Result:
    """Return the result of `optimize`; all runs of models are on the target."""
    progress("loading the model")
    clock = Clock()
    loads = _is_loaded(options, manager)
    if loads:
        WORKER.start()  # it is ready when there is something to load
    try:
        inside, source = taken_in(model, options)
    except InvalidModelError as error:
        if as_it_is(model) is None:
            raise
        return left_alone(model, options, str(error))
    if options.fix or options.same:
        demand_possible(model, inside)
    original = taken_in(model, options)[0] if Assessment.compares(options) else inside
    asked = Assessment(options, original, progress, on_pass, lambda: taken_in(model, options)[0])
    clock.lap("load")
    progress("optimising")
    attempts = Attempts(model, inside, source, manager, asked, progress)
    try:
        report = attempts.run()
        clock.lap("optimize")
        if loads and (unloaded := without_kernels_here(attempts.inside, manager.target)):
            report.notes.append(unloaded)
            loads = False
        try:
            return concluded(attempts, report, clock, check=loads)
        except UnloadableError as error:
            report, loads = attempts.mended(report, error)
            return concluded(attempts, report, clock, check=loads)
    except (PassError, UnloadableError) as error:
        return left_alone(model, options, str(error))


def _is_loaded(options: Options, manager: PassManager) -> bool:
    """Whether the runtime is to load the result: what is written, and what is handed back for the runtime that is installed."""
    return options.loaded and (options.output is not None or manager.target.table is installed().table)


def _refuse_early(options: Options, manager: PassManager) -> None:
    """Fail early where the run would otherwise fail only after minutes of work.

    Raises:
        OutputError: The output cannot be written.
        RuleError: A name in `explain` is neither a family nor a rule.
        OptionError: What would be measured here is not the target.
    """
    if options.measure and manager.target.table is not installed().table:
        here, there = installed().table, manager.target.table
        text = f"would run {here.runtime} ({here.provider}), and the target is {there.runtime} ({there.provider})"
        raise OptionError(
            "measure", f"{text}; leave out one of the two, or give the target a table of costs measured there"
        )
    if options.output is not None:
        writable_target(options.output)
    if not isinstance(options.explain, bool):
        from ortfuse.verification.explanation import chosen_rules

        chosen_rules(manager.catalogue, options.explain)
