"""Quantise a model: search the fastest one under an error bound (`quantize`), or apply given schemes (`lower`)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args

import onnx_ir as ir

from ortfuse.api.assess_optimization import Progress, given_inputs, silent
from ortfuse.api.optimize import optimize
from ortfuse.errors import OptionError, OrtfuseError
from ortfuse.io.atomic_write import writable_target
from ortfuse.io.convert_model_objects import AnyModel, enter, leave
from ortfuse.io.load_and_save import save
from ortfuse.io.training_mode import told_of_training, training_note
from ortfuse.ir import walk
from ortfuse.ir.selection import EVERYTHING, Selected, demand_matches, mark, patterns_of, unmark
from ortfuse.naming.former_arguments import former_arguments
from ortfuse.options import InputsLike, Options, PathLike, PipelineOptions
from ortfuse.pipeline.manager import PassManager
from ortfuse.pipeline.report import RunReport
from ortfuse.runtime.inputs.read_input_files import notes_of
from ortfuse.runtime.load_check import Loading
from ortfuse.serialization import Record, entry
from ortfuse.targets import Target, installed

if TYPE_CHECKING:
    from ortfuse.quantization.apply_schemes_without_search import Uniform
    from ortfuse.quantization.input_labels import LabelsLike
    from ortfuse.quantization.metrics import UserFunction
    from ortfuse.quantization.outcome import Goal, Outcome
    from ortfuse.quantization.phase_times import Phases


Form = Literal["onnxruntime", "qdq"]
"""The operators of a result: the runtime's own too, or those of the standard with QuantizeLinear and DequantizeLinear."""

FOR_OTHERS = ("static_int8",)
"""The schemes of a search for other tools: weights alone in 8 bits are as small and more exact, but faster nowhere."""

MOST_FOREIGN = 4
"""How many kinds of operators that are not of the standard are named."""

OVER = 1.1
"""How many times its budget a search may take before that is said."""


class QuantizeOptions(PipelineOptions, total=False):
    """The options of `quantize` that it shares with `optimize`."""

    inputs: InputsLike | None
    preprocess: PathLike | None
    seed: int
    sizes: Mapping[str, int]
    rounds: int
    threads: int
    output: PathLike | None
    link: bool
    external_data: bool
    loaded: bool


@dataclass(frozen=True)
class Quantized(Record):
    """A model under a bound, with all that was found out on the way.

    Attributes:
        model: The model, of the same kind as the input (an `onnx_ir.Model` for a path).
        outcome: The choice, its error and speed, the sites, the curve, and why the model is in float32 if it is.
        report: What the optimisation in float32 did.
        written: The file that the model was written to; none if it is in float32.
    """

    model: Any = field(repr=False, metadata=entry(omit=True))
    outcome: Outcome = field(metadata=entry(inline=True))
    report: RunReport = field(repr=False, metadata=entry(omit=True))
    written: Path | None = None

    def __repr__(self) -> str:
        found = self.outcome
        lowered = ", ".join(f"{scheme} {count}" for scheme, count in found.lowered.items())
        said = f"{lowered or 'float32'}; {found.metric} error {found.error:.2g} of {found.bound:g} allowed"
        return f"<{type(self).__name__}: {said}; {found.speedup:.2f} times as fast as float32>"


@former_arguments(rungs="schemes")
def quantize(
    model: AnyModel,
    options: Options | None = None,
    *,
    max_error: float,
    metric: str | UserFunction = "l2",
    labels: LabelsLike | None = None,
    goal: Goal | None = None,
    outputs: Sequence[str] = (),
    schemes: Sequence[str] = (),
    only: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    form: Form = "onnxruntime",
    curve: bool = False,
    budget: float | None = None,
    store: PathLike | None = "",
    progress: Progress | None = None,
    **changes: Unpack[QuantizeOptions],
) -> Quantized:
    """Find the fastest model whose outputs stay within a stated error of the original's. The input model is not changed.

    The model is optimised in float32 first. Every site at which lower precision is legal is then measured on this machine: how
    much time each scheme saves there, and what it alone does to the outputs. The best choice is run as a whole, and its
    bound has to hold on inputs that the search never saw.

    Args:
        model: A path, `onnx.ModelProto`, `onnx_ir.Model` or `onnx_graphsurgeon.Graph`.
        options: How to optimise in float32, the inputs, and where to write the result; see `Options`.
        max_error: The largest error, in terms of the metric.
        metric: `"l2"`, `"max"`, `"cosine"`, `"top1"`, `"tokens"` (see `ortfuse.quantization.metrics`), a function of
            the original's
            outputs, the result's and the inputs (a list of arrays by name each) that returns the error; or its name as
            `"file.py:function"` or `"module:function"`.
        labels: What such a function finds as `labels` among the inputs: a label for each set of inputs, the path of a .npy
            or .csv file of these, or a function of the sets of inputs that returns them, or its name.
        goal: What is to be small: `"latency"` (the default); or without being slower the `"size"` of the weights, or the
            `"memory"` that a process takes at most that loads and runs the model, as measured of the smallest choices.
        outputs: The names of the outputs that count; by default all.
        schemes: The names of the schemes, or of families of them (`"dynamic_int8"`), to choose from; by default all, and
            `"static_int8"` for other tools.
        only: Patterns of what may be in lower precision: names of nodes, operators, modules, classes or values of the model, with
            wildcards, such as `"op:MatMul"` or `"module:encoder.*"` (see `ortfuse.ir.selection`); by default everything.
        exclude: Patterns of what stays in float32.
        form: The operators of the result: `"onnxruntime"`, or `"qdq"` for other tools such as TensorRT and OpenVINO: operators of
            the standard with QuantizeLinear and DequantizeLinear. No time counts for these; the weights are to be small.
        curve: Whether the choices under other bounds are run too, so that the curve has their true errors.
        budget: The seconds that it may take: what is best by then is the result, and the next call goes on from there.
            Reading the model, optimising it, running it first and running up to three choices as a whole are not
            cut short.
        store: The file that measurements are kept in, so that the search goes on where it was stopped; by default in the user's
            cache folder, `None` for none.
        progress: Called with short messages about what is going on.
        **changes: Single options; they override those of `options`.

    Raises:
        BoundError: The bound cannot be met; nothing was written.
        OptionError: An option has an invalid value, there is no such scheme, or scipy is missing.
        VerificationError: The inputs do not fit the model, hold NaN, or the model cannot be run on them.
        OrtfuseError: The model cannot be used.
    """
    from ortfuse.quantization.apply_schemes_without_search import named
    from ortfuse.quantization.error_bound_metadata import Bound, demand_bound, write_bound
    from ortfuse.quantization.input_labels import with_labels
    from ortfuse.quantization.knapsack import demand_solver
    from ortfuse.quantization.metrics import metric_of
    from ortfuse.quantization.mixed_precision_search import Request, fastest
    from ortfuse.quantization.outcome import GOALS
    from ortfuse.quantization.phase_times import Phases
    from ortfuse.quantization.quantization_sites import quantization_rules
    from ortfuse.quantization.rounded_weights_cache import FOR_A_SEARCH, ROUNDED, settle
    from ortfuse.quantization.scheme_rules import Rules
    from ortfuse.runtime.memory_footprint import demand_footprints

    progress, started = progress or silent, time.monotonic()
    demand_bound(max_error)
    if budget is not None and not budget > 0:
        raise OptionError("budget", f"write seconds, more than 0, not {budget!r}")
    goal, qdq = _goal_of(goal, form), _is_qdq(form)
    if goal not in GOALS:
        raise OptionError("goal", f"write {', '.join(GOALS)}, not {goal!r}")
    if goal == "memory":
        demand_footprints()
    judged = metric_of(metric, outputs)
    options = _for_form(Options.of(options, bench=True, **changes), form)
    if options.output is not None:
        writable_target(options.output)
    demand_solver()
    rules = quantization_rules(options.rules, qdq=qdq)
    wanted = named(rules, schemes or FOR_OTHERS) if schemes or qdq else rules
    original, source = enter(model)
    given = with_labels(given_inputs(options, original), labels)
    phases = Phases()
    with phases.phase("optimising in float32"):
        inside, target, report, selected = _in_float32(model, options, progress, only, exclude)
    asked = Request(
        judged,
        float(max_error),
        goal,
        given,
        options.sizes,
        options.seed,
        options.threads,
        options.rounds,
        curve,
        None if budget is None else max(budget - (time.monotonic() - started), 0.0),
        timed=not qdq,
    )
    with ROUNDED.kept(FOR_A_SEARCH), told_of_training(original) as training:
        outcome = fastest(
            inside, original, asked, Rules(wanted, target, selected), _store(store), progress, phases=phases
        )
        settle(outcome.model)
        if outcome.chosen.choice:
            write_bound(outcome.model, Bound(judged, asked.bound))
        written = None if outcome.reason else _written(outcome.model, options, progress, source.path)
    outcome = replace(outcome, notes=[*notes_of(given), *training, *outcome.notes, *_foreign(outcome.model, form)])
    seconds = time.monotonic() - started
    if budget is not None and seconds > OVER * budget:
        outcome = replace(outcome, notes=[*outcome.notes, _overrun(budget, seconds, phases)])
    return Quantized(leave(outcome.model, source), outcome, report, written)


@dataclass(frozen=True)
class Lowered(Record):
    """A model with the same schemes everywhere, of which nothing was measured.

    Attributes:
        model: The model, of the same kind as the input (an `onnx_ir.Model` for a path).
        uniform: What was lowered.
        report: What the optimisation in float32 did.
        written: The file that the model was written to.
        notes: Remarks for the user.
    """

    model: Any = field(repr=False, metadata=entry(omit=True))
    uniform: Uniform = field(metadata=entry(inline=True))
    report: RunReport = field(repr=False, metadata=entry(omit=True))
    written: Path | None = None
    notes: Sequence[str] = ()

    def __repr__(self) -> str:
        found = self.uniform
        return (
            f"<{type(self).__name__}: {len(found.choice)} sites, {found.float_size} -> {found.size} bytes of weights>"
        )


@former_arguments(rungs="schemes")
def lower(
    model: AnyModel,
    schemes: str | Sequence[str],
    options: Options | None = None,
    *,
    only: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    form: Form = "onnxruntime",
    progress: Progress | None = None,
    **changes: Unpack[QuantizeOptions],
) -> Lowered:
    """Lower every site of a model to the first of some schemes that is legal there, without a search.

    Nothing is run, but for ranges where `inputs` are given; so the model may be larger than memory: its weights are lowered one
    after the other while the result is written. The error is not known: see `ortfuse.verify(..., max_error=)`.

    Args:
        model: A path, `onnx.ModelProto`, `onnx_ir.Model` or `onnx_graphsurgeon.Graph`.
        schemes: Names of schemes, or of families of schemes (`"dynamic_int8"`), the best first.
        options: How to optimise in float32, the inputs, and where to write the result; see `Options`.
        only: Patterns of what may be in lower precision; see `quantize`.
        exclude: Patterns of what stays in float32.
        form: The operators of the result; see `quantize`.
        progress: Called with short messages about what is going on.
        **changes: Single options; they override those of `options`.

    Raises:
        OptionError: An option has an invalid value, or there is no such scheme.
        NoSiteError: No site can be lowered so.
        PrecisionError: Ranges of values are needed, and there are no inputs.
        VerificationError: The inputs do not fit the model.
        OrtfuseError: The model cannot be used.
    """
    from ortfuse.quantization.apply_schemes_without_search import named, uniform
    from ortfuse.quantization.quantization_sites import quantization_rules
    from ortfuse.quantization.rounded_weights_cache import settle

    progress = progress or silent
    options = _for_form(Options.of(options, bench=True, **changes), form)
    wanted = named(
        quantization_rules(options.rules, qdq=_is_qdq(form)), [schemes] if isinstance(schemes, str) else schemes
    )
    if options.output is not None:
        writable_target(options.output)
    original, source = enter(model)
    given, training = given_inputs(options, original), training_note(original)
    inside, target, report, selected = _in_float32(model, options, progress, only, exclude)
    progress("lowering")
    made = uniform(inside, wanted, given, target, selected)
    if given:
        settle(made.model)
    written = _written(made.model, options, progress, source.path)
    notes = [*notes_of(given), *([] if training is None else [training]), *_foreign(made.model, form)]
    return Lowered(leave(made.model, source), made, report, written, notes)


def _is_qdq(form: str) -> bool:
    """Whether the result is for other tools.

    Raises:
        OptionError: There is no such form.
    """
    if form not in get_args(Form):
        raise OptionError("form", f"write {' or '.join(get_args(Form))}, not {form!r}")
    return form == "qdq"


def _goal_of(goal: Goal | None, form: Form) -> Goal:
    """The quantity to minimise.

    Raises:
        OptionError: It cannot be measured, as another tool runs the result.
    """
    if _is_qdq(form) and goal not in (None, "size"):
        raise OptionError(
            "goal", "another tool runs a result of the form qdq, so that its weights alone are made small; leave it out"
        )
    return goal or ("size" if _is_qdq(form) else "latency")


def _for_form(options: Options, form: Form) -> Options:
    """The options with passes that make operators of the standard alone, for other tools; the user's own passes go before."""
    plain = options.passes == "auto" and options.level is None and options.purpose == "execution"
    return options.with_(level="basic") if _is_qdq(form) and plain else options


def _foreign(model: ir.Model, form: Form) -> list[str]:
    """A note on operators that other tools may not know."""
    nodes = (node for node in walk.nodes(model) if node.domain not in ("", "ai.onnx"))
    names = Counter(f"{node.domain}.{node.op_type}" for node in nodes) if _is_qdq(form) else Counter[str]()
    listed = ", ".join(f"{count} {name}" for name, count in names.most_common(MOST_FOREIGN))
    return (
        [f"the model has operators that are not of the standard, which other tools may not read: {listed}"]
        if names
        else []
    )


def _overrun(budget: float, seconds: float, phases: Phases) -> str:
    """Why a search took longer than it should."""
    longest = sorted(phases.found, key=lambda phase: -phase.seconds)[:2]
    which = " and ".join(f"'{phase.name}' ({phase.seconds:.0f} s)" for phase in longest)
    return (
        f"the search took {seconds:.0f} s instead of {budget:.0f} s, most of it for {which}: the model has to be optimised and "
        "run, and a few choices as a whole, however little time is given"
    )


def _in_float32(
    model: AnyModel, options: Options, progress: Progress, only: str | Sequence[str], exclude: str | Sequence[str]
) -> tuple[ir.Model, Target, RunReport, Selected]:
    """The model as `optimize` makes it, what runs it, what was done, and what may be in lower precision.

    Raises:
        OptionError: A pattern matches nothing in the model, as it was or as it is made.
    """
    plain = options.with_(
        output=None, verify=None, bench=False, sizes={}, inputs=None, link=False, measure=False, external_data=False
    )
    target = _target(plain)
    only, exclude = patterns_of(only), patterns_of(exclude)
    original, found = None, set[str]()
    if only or exclude:
        original = model = enter(model)[0]
        found = mark(original, only, exclude)
    result = optimize(model, plain, progress=progress)
    if result.unchanged:
        raise OrtfuseError(f"the model cannot be quantised: {result.unchanged}")
    inside = enter(result.model)[0]
    if original is None:
        return inside, target, result.report, EVERYTHING
    found |= mark(inside, only, exclude)
    for option, patterns in (("only", only), ("exclude", exclude)):
        demand_matches(option, patterns, found, original)
    return inside, target, result.report, unmark(inside, only)


def _written(model: ir.Model, options: Options, progress: Progress, source: Path | None) -> Path | None:
    if options.output is None:
        return None
    progress(f"writing {options.output}")
    check = _load_written if options.loaded else None
    save(model, options.output, link=options.link, external_data=options.external_data, check=check, source=source)
    return Path(options.output)


def _target(options: Options) -> Target:
    """The target, which has to be what runs here, since everything is measured.

    Raises:
        OptionError: It is something else.
    """
    target = PassManager(options).target
    if target.table is not installed().table:
        raise OptionError("target", "schemes are measured on this machine, on the default target; leave the target out")
    return target


def _store(path: PathLike | None) -> Any:
    """The file that measurements are kept in.

    Raises:
        OptionError: It was named, and cannot be used: another run could not go on from there.
    """
    from ortfuse.quantization.measurement_store import Store, default_store

    found = Store(default_store() if path == "" else None if path is None else Path(path))
    if path != "" and found.problem:
        raise OptionError("store", found.problem)
    return found


def _load_written(path: Path, data: Mapping[str, Path]) -> Callable[[], None]:
    """Have the runtime load what is written but not yet in place."""
    return Loading.of_files(path, data).demand
