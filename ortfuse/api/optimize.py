"""The functions most users need: optimise a model, find a pattern in it, compare and measure models, load and save.

They share their options: pass an `Options` object, `optimize(model, options)`, or single options as keywords,
`optimize(model, verify="whole", ...)`; keywords override `options`. The command line calls these functions and nothing else.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.api.fallback import Attempts, as_it_is, declare, demand_possible, left_alone, runnable, taken_in
from ortfuse.api.finish import Clock, concluded
from ortfuse.api.instrumentation import Assessment, Progress, at_common_sizes, given_inputs, inputs_to_measure, silent
from ortfuse.api.result import Result, WrongResultError
from ortfuse.errors import InvalidModelError, OptionError, PassError, PatternError
from ortfuse.io.atomic_write import writable_target
from ortfuse.io.files import load, save
from ortfuse.io.interop import AnyModel, enter
from ortfuse.io.training_mode import training_note
from ortfuse.ir.declared_sizes import declared_sizes
from ortfuse.options import (
    AllOptions,
    BenchOptions,
    BisectOptions,
    ComparisonOptions,
    Options,
    PathLike,
    PipelineOptions,
)
from ortfuse.pipeline.manager import PassManager
from ortfuse.pipeline.schedule import OnPass
from ortfuse.rewrite.pattern import Guard, Match, Matcher, Pattern
from ortfuse.rewrite.pattern.find import matches
from ortfuse.runtime.load_check import UnloadableError
from ortfuse.runtime.session_settings import session, stored_config
from ortfuse.runtime.unrepresentable_models import AsItIs, Runnable
from ortfuse.runtime.worker import WORKER
from ortfuse.targets import Target, installed, use_library

if TYPE_CHECKING:
    from ortfuse.inspection import Inspection
    from ortfuse.quantization.input_labels import LabelsLike
    from ortfuse.quantization.metrics import UserFunction
    from ortfuse.runtime.bench import Candidate, Latencies, SessionLatency
    from ortfuse.verification import Verdict
    from ortfuse.verification.bisection.bisect_pipeline import Bisection
    from ortfuse.verification.bisection.runtime_optimizers import RuntimeBisection
    from ortfuse.verification.diff import ModelDifference
    from ortfuse.verification.explanation import Explanation

__all__ = [
    "Options",
    "Result",
    "WrongResultError",
    "benchmark",
    "bisect",
    "bisect_runtime",
    "diff",
    "explain",
    "find",
    "inspect",
    "load",
    "optimize",
    "save",
    "session",
    "verify",
]


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
    options, progress = _options(options, **changes), progress or silent
    manager = PassManager(options)
    _refuse_what_is_in_vain(options, manager)
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
        try:
            return concluded(attempts, report, clock, check=loads)
        except UnloadableError as error:
            report, loads = attempts.mended(report, error)
            return concluded(attempts, report, clock, check=loads)
    except (PassError, UnloadableError) as error:
        return left_alone(model, options, str(error))


def _options(options: Options | None, **changes: Unpack[AllOptions]) -> Options:
    """The options with changes; sessions know their libraries from here on."""
    found = Options.of(options, **changes)
    for library in found.custom_ops:  # type: ignore[union-attr]
        use_library(library)
    return found


def _is_loaded(options: Options, manager: PassManager) -> bool:
    """Whether the runtime is to load the result: what is written, and what is handed back for the runtime that is installed."""
    return options.loaded and (options.output is not None or manager.target.table is installed().table)


def _refuse_what_is_in_vain(options: Options, manager: PassManager) -> None:
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


def find(model: AnyModel, pattern: Pattern, *, guards: Sequence[Guard] = ()) -> Iterator[Match]:
    """Find every place where a pattern matches, in any graph of the model; nothing is rewritten.

    The matches of an `onnx_ir.Model` refer to its own values. Matches may overlap.

    Args:
        model: A path, `onnx.ModelProto`, `onnx_ir.Model` or `onnx_graphsurgeon.Graph`.
        pattern: What to look for; its root must be an operator.
        guards: Conditions beyond the pattern, as in a rule.

    Raises:
        PatternError: The pattern would match any value, or is none.
        OrtfuseError: The model cannot be used.
    """
    if not isinstance(pattern, Pattern):
        raise PatternError(f"a pattern is made of `var` and `op` of ortfuse.rewrite.pattern, and is not {pattern!r}")
    matcher = Matcher(pattern, tuple(guards))
    inside = enter(model, copy=False)[0]
    return matches(inside, matcher, Facts(inside))


def verify(
    original: AnyModel,
    optimised: AnyModel,
    options: Options | None = None,
    *,
    reference: bool = True,
    max_error: float | None = None,
    metric: str | UserFunction | None = None,
    labels: LabelsLike | None = None,
    **changes: Unpack[ComparisonOptions],
) -> Verdict:
    """Compare what two models compute, on generated inputs of several sizes or on inputs of your own.

    A model that states a bound (`ortfuse.quantize` writes it into its results), and is compared with one that does not, has to
    keep it, unless a tolerance is given; it is not expected to be equal.

    Args:
        original: Run without the runtime's own optimisations, which might be what is wrong.
        optimised: Run both without and with them.
        options: Only `inputs`, `seed`, `sizes`, `tolerance` and `verify_budget` are used.
        reference: Whether to evaluate the original in float64 too, where that is feasible.
        max_error: The largest error in terms of the metric, instead of the bound that `optimised` states.
        metric: How that error is measured, as in `ortfuse.quantize`; by default as `optimised` states, or `"l2"`.
        labels: What a function that measures finds as `labels` among the inputs, as in `ortfuse.quantize`.
        **changes: Single options; they override those of `options`.

    Returns:
        The verdict; under a bound an `ortfuse.quantization.error_bound.BoundVerdict`.

    Raises:
        VerificationError: One of the models cannot be executed, or the names of their inputs or outputs differ.
        OrtfuseError: One of the models or options cannot be used.
    """
    from ortfuse.quantization.error_bound import bound_between, keeps
    from ortfuse.quantization.input_labels import with_labels
    from ortfuse.runtime.inputs.files import notes_of
    from ortfuse.verification import verify as compare
    from ortfuse.verification.bisection.runtime_changes import told

    options = _options(options, **changes, verify="whole")
    if options.tolerance is not None and (max_error is not None or metric is not None):
        raise OptionError("max_error", "give either a tolerance or a largest error, not both")
    first, second = runnable(original), runnable(optimised)
    _declare_alike(first, second)
    bound = None if options.tolerance is not None else bound_between(first, second, max_error, metric)
    given = given_inputs(options, first)
    if labels is not None and (bound is None or bound.metric.function is None):
        raise OptionError("labels", "are for a function that measures: name it with `metric`")
    if bound is not None:
        verdict: Verdict = keeps(first, second, bound, with_labels(given, labels), options.seed)
        verdict.notes[:0] = notes_of(given)
        return verdict
    verdict = compare(
        first,
        second,
        inputs=given,
        seed=options.seed,
        tolerance=options.tolerance,
        reference=reference,
        sizes=options.sizes,
        budget=options.verify_budget,
        tell=told,
    )
    verdict.notes[:0] = notes_of(given)
    return verdict


def _declare_alike(first: Runnable, second: Runnable) -> None:
    """Declare of a model the sizes that are declared of its result, for which alone that is right."""
    if not isinstance(first, ir.Model) or not isinstance(second, ir.Model):
        return
    declared = declared_sizes(second)
    if declared and declared != declared_sizes(first):
        with contextlib.suppress(OptionError):  # of another model: verification says what differs
            declare(first, declared)


def diff(
    first: AnyModel,
    second: AnyModel,
    options: Options | None = None,
    *,
    run: bool | None = None,
    progress: Progress | None = None,
    **changes: Unpack[ComparisonOptions],
) -> ModelDifference:
    """Tell where two models differ: nodes, attributes, constants and interface and, if asked, the first tensor that differs.

    Nodes and values match by name, then by structure (`ortfuse.verification.diff.matching`).

    Args:
        first: A path, `onnx.ModelProto`, `onnx_ir.Model` or `onnx_graphsurgeon.Graph`; it is not changed.
        second: The other model.
        options: Only `inputs`, `seed` and `tolerance` are used.
        run: Whether to run both, and to compare every tensor that both compute; by default if there are `inputs`, without
            which they are generated, of sizes that are declared or fixed in either.
        progress: Called with short messages about what is going on.
        **changes: Single options; they override those of `options`.

    Raises:
        VerificationError: The models are to be run, and one of them cannot be.
        OrtfuseError: One of the models or options cannot be used.
    """
    from ortfuse.runtime.reference_runs import experiments
    from ortfuse.verification.diff import Matching, ModelDifference, compare_structure, compare_tensors

    options = _options(options, **changes)
    one, other = enter(first)[0], enter(second)[0]
    matching = Matching(one, other)
    structure = compare_structure(one, other, matching)
    if not (options.inputs is not None if run is None else run):
        return ModelDifference(structure, None, matching)
    drawn = at_common_sizes([one, other])
    found, _ = experiments(drawn, given_inputs(options, drawn), options.seed, reference=False)
    inputs = [(trial.label, trial.inputs) for trial in found]
    tensors = compare_tensors(one, other, matching, inputs, options.tolerance, progress or silent)
    return ModelDifference(structure, tensors, matching)


def bisect(
    model: AnyModel,
    options: Options | None = None,
    *,
    progress: Progress | None = None,
    **changes: Unpack[BisectOptions],
) -> Bisection:
    """Find the smallest set of passes, rules and single rewrites that moves an output of a model beyond tolerance.

    Args:
        model: A path, `onnx.ModelProto`, `onnx_ir.Model` or `onnx_graphsurgeon.Graph`; it is not changed.
        options: Only those that say what is rewritten and how models are compared are used.
        progress: Called with short messages about what is going on.
        **changes: Single options; they override those of `options`.

    Raises:
        VerificationError: The model cannot be executed.
        OrtfuseError: The model, the pipeline or a rule file cannot be used.
    """
    from ortfuse.verification.bisection.bisect_pipeline import bisect as search

    options = _options(options, **changes)
    manager = PassManager(replace(options, explain=False))
    original = taken_in(model, options)[0]
    inputs = given_inputs(options, original)
    return search(
        original,
        manager,
        inputs=inputs,
        seed=options.seed,
        tolerance=options.tolerance,
        progress=progress or silent,
    )


def bisect_runtime(
    model: AnyModel,
    options: Options | None = None,
    *,
    progress: Progress | None = None,
    **changes: Unpack[ComparisonOptions],
) -> RuntimeBisection:
    """Find the smallest set of ONNX Runtime's own optimisers that moves an output of a model beyond tolerance.

    Args:
        model: As in `bisect`.
        options: Only `inputs`, `seed` and `tolerance` are used.
        progress: Called with short messages about what is going on.
        **changes: Single options; they override those of `options`.

    Raises:
        VerificationError: The model cannot be executed without the runtime's optimisations.
        OrtfuseError: The model or an option cannot be used.
    """
    from ortfuse.verification.bisection.runtime_optimizers import bisect_runtime as search

    options = _options(options, **changes)
    original = enter(model)[0]
    inputs = given_inputs(options, original)
    return search(original, inputs=inputs, seed=options.seed, tolerance=options.tolerance, progress=progress or silent)


def explain(
    model: AnyModel,
    rules: str | Sequence[str] = (),
    options: Options | None = None,
    *,
    progress: Progress | None = None,
    **changes: Unpack[PipelineOptions],
) -> Explanation:
    """Explain each site of a model: which rule fused it, or which came nearest, what stopped it and what would help.

    Args:
        model: A path, `onnx.ModelProto`, `onnx_ir.Model` or `onnx_graphsurgeon.Graph`; it is not changed.
        rules: A family (`"attention"`) or rule (`"attention.sdpa"`) to explain, or several; by default all fusions and the
            near misses.
        options: Only those that say what is rewritten are used.
        progress: Called with short messages about what is going on.
        **changes: Single options; they override those of `options`.

    Raises:
        RuleError: There is no such family or rule.
        OrtfuseError: The model, the pipeline or an option cannot be used.
    """
    options = _options(options, **changes)
    only = {name: getattr(options, name) for name in PipelineOptions.__annotations__}
    asked = (rules,) if isinstance(rules, str) else tuple(rules)
    result = optimize(model, Options(**only, explain=asked or True, loaded=False), progress=progress)
    if result.explanation is None:
        from ortfuse.verification.explanation import Explanation

        return Explanation((), (), {}, tuple(result.report.notes))
    return result.explanation


def inspect(
    model: AnyModel,
    *,
    sizes: Mapping[str, int] | None = None,
    measure: bool = True,
    threads: int = 0,
    target: Target | PathLike | None = None,
    custom_ops: PathLike | Sequence[PathLike] = (),
    progress: Progress | None = None,
) -> Inspection:
    """Tell what is in a model: opsets, signature, weights, operators, blocks, and what they cost on this machine.

    Blocks are found, and costs are told, in the model's normal form with recurrent layers, activations,
    normalisations and attention recognised (`ortfuse.inspection.PASSES`).

    Args:
        model: A path, `onnx.ModelProto`, `onnx_ir.Model` or `onnx_graphsurgeon.Graph`; it is not changed.
        sizes: Sizes of open dimensions at which to tell the cost, by name; by default one sample of 128 positions.
        measure: Whether to measure the peaks of this machine, once: they are kept in the cache folder.
        threads: Threads of the runtime when measuring; 0 leaves the number to it.
        target: The runtime whose kernels count, as in `Options`.
        custom_ops: Libraries with kernels of operators of the user's own.
        progress: Called with short messages about what is going on.

    Raises:
        VerificationError: The model lacks a dimension named in `sizes`.
        OrtfuseError: The model or an option cannot be used.
    """
    from ortfuse.inspection import PASSES, inspection
    from ortfuse.runtime.bench.machine_peaks import peaks
    from ortfuse.runtime.bench.typical_inputs import labels_of_sizes, usual_sizes

    progress = progress or silent
    options = _options(Options(sizes=sizes or {}, measure=True, threads=threads, target=target, custom_ops=custom_ops))
    manager = PassManager(options)
    inside = enter(model)[0]
    chosen = usual_sizes(inside, options.sizes)
    normal = optimize(inside, Options(passes=PASSES, loaded=False), progress=progress).model
    progress("measuring this machine")
    machine = peaks(threads) if measure else None
    return inspection(inside, normal, manager.target, chosen, machine, labels_of_sizes(inside))


def benchmark(
    models: Mapping[str, AnyModel], options: Options | None = None, **changes: Unpack[BenchOptions]
) -> Latencies:
    """Measure models side by side, runs interleaved; speedups are relative to the first model.

    Args:
        models: The models, keyed by the name to report them under; they must take the same inputs.
        options: Only `inputs`, `sizes`, `seed`, `rounds`, `bench_budget` and `threads` are used. Without inputs, the models are
            measured on generated ones of these `sizes`, by default one sample of 128 positions, or of the sizes that are
            declared or fixed in any of them.
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
    options = _options(options, **changes, bench=True)
    entered = {name: runnable(model) for name, model in models.items()}
    sizes, inputs = inputs_to_measure(options, at_common_sizes(list(entered.values()), options.sizes))
    rounds, seconds, threads = options.rounds, budget_of(options.bench_budget), options.threads
    rows = measure(entered, inputs, rounds=rounds, seconds=seconds, threads=threads)
    sessions: Sequence[SessionLatency] = ()
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
