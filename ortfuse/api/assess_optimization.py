"""Assess an optimisation: checks of single changes, comparison with the original, latency after each pass."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import onnx_ir as ir

from ortfuse.api.verify_on_targets import verify_on_each
from ortfuse.ir.declared_sizes import declared_sizes
from ortfuse.ir.edit import Edit
from ortfuse.ir.refusal import Refusal
from ortfuse.options import Options
from ortfuse.pipeline.report import RunReport
from ortfuse.pipeline.schedule import OnPass, PassEvent
from ortfuse.runtime.unrepresentable_models import Runnable, signature_of
from ortfuse.targets import Target
from ortfuse.targets.calibrated_speedups import is_calibrated

if TYPE_CHECKING:
    from ortfuse.runtime.bench import Latencies, Latency, SiteMeter
    from ortfuse.runtime.inputs.random_inputs import Inputs
    from ortfuse.verification import SiteChecks, Verdict
    from ortfuse.verification.bisection.bisect_slowdown import Slowdown

Progress: TypeAlias = Callable[[str], None]
"""Called with short messages about what is going on."""


def silent(text: str) -> None:
    """Ignore progress messages."""


def given_inputs(options: Options, model: Runnable) -> Sequence[Inputs] | None:
    """The user's own inputs; `None` if inputs are to be generated.

    Raises:
        VerificationError: The files they are read from do not fit the model, or sizes are not as declared.
    """
    found = _given(options, model)
    if found is not None and isinstance(model, ir.Model) and declared_sizes(model):
        from ortfuse.runtime.inputs.check_declared_sizes import demand_declared

        demand_declared(model, found)
    return found


def _given(options: Options, model: Runnable) -> Sequence[Inputs] | None:
    if not isinstance(options.inputs, str | os.PathLike):
        return cast("Sequence[Inputs] | None", options.inputs)  # a reader was read when the options were made
    from ortfuse.verification import read_inputs

    graph = signature_of(model).graph
    expected = [value for value in graph.inputs if value.name not in graph.initializers]
    return read_inputs(os.fspath(options.inputs), expected, options.preprocess)


def idle_options(options: Options) -> list[str]:
    """The options that were given and that nothing else makes use of, in words."""
    return [f"{name} is not used: it is for {others}" for name, others in idle(options).items()]


def idle(options: Options) -> dict[str, str]:
    """The options that were given and that nothing else makes use of, each with the options that would."""
    usual, compared = Options(), options.verify is not None
    measured = options.bench or options.measure
    known = {
        "inputs": (options.verify == "whole" or options.bench, "verify='whole' and bench"),
        "seed": (compared or options.bench, "verify and bench"),
        "tolerance": (compared, "verify"),
        "verify_budget": (options.verify == "whole", "verify='whole'"),
        "fill": (options.bench, "bench"),
        "rounds": (options.bench, "bench"),
        "bench_budget": (options.bench, "bench"),
        "threads": (measured or is_calibrated(), "bench, measure and costs of `ortfuse calibrate`"),
    }
    return {
        name: others
        for name, (used, others) in known.items()
        if not used
        and getattr(options, name) is not getattr(usual, name)
        and getattr(options, name) != getattr(usual, name)
    }


def at_common_sizes(models: Sequence[Runnable], but: Collection[str] = ()) -> Runnable:
    """The first model, restricted to sizes at which the others run too; a copy, to draw inputs for all.

    Args:
        models: The models, which have the same inputs.
        but: Names of open dimensions that stay open.
    """
    first, *others = models
    if not isinstance(first, ir.Model) or not others:
        return first
    from ortfuse.io.declare_sizes import restrict_to_sizes_of

    made = first.clone()
    restrict_to_sizes_of(made, [other for other in others if isinstance(other, ir.Model)], but)
    return made


def inputs_to_measure(options: Options, model: Runnable) -> tuple[str, Inputs]:
    """The inputs a model is measured on, with a description: the user's first inputs, or generated ones of a typical size.

    Raises:
        VerificationError: The model lacks an open dimension named in `sizes`, or runs on none of the inputs tried.
    """
    from ortfuse.runtime.bench import typical_inputs
    from ortfuse.runtime.inputs.mask_of_fill import with_fill

    given = given_inputs(options, model)
    if given:
        return "the given inputs", given[0]
    label, inputs = typical_inputs(model, sizes=options.sizes, seed=options.seed)
    if options.fill is not None:
        label, inputs = f"{label}, fill {options.fill:g}", with_fill(model, inputs, options.fill, options.seed)
    fixed = declared_sizes(model).fix if isinstance(model, ir.Model) else {}
    return ", ".join([label, *(f"{name}={size}" for name, size in fixed.items())]), inputs


@dataclass
class UserChecks:
    """An inspector of the changes of the user's own rules and passes, which loads what it needs at the first of them.

    Attributes:
        options: The options.
        progress: Called with short messages about what is going on.
        seen: The values that the model as it was computes.
        found: The checks so far; `None` if there was nothing to check.
    """

    options: Options
    progress: Progress
    seen: Callable[[], Inputs]
    found: SiteChecks | None = None

    def objection(self, edit: Edit) -> Refusal | None:
        """The error of a change; `None` if there is none or it cannot be checked."""
        if self.found is None:
            from ortfuse.verification import SiteChecks

            self.found = SiteChecks(self.options.tolerance, self.options.seed, self.progress, self.seen, bits=False)
        return self.found.objection(edit)

    def notes(self) -> list[str]:
        """The changes that were undone, one line for each rule or pass."""
        return [] if self.found is None else self.found.undone()


class Assessment:
    """Do the checks and measurements that the options of one optimisation ask for.

    Args:
        options: The options.
        original: The model as it was handed in. After the start it is run only if `compares(options)`; otherwise it may be the
            very model that is optimised in place.
        progress: Called with short messages about what is going on.
        on_pass: The user's own hook.
        again: Makes the model as it was handed in once more; by default `original` is not changed.

    Raises:
        VerificationError: The inputs or sizes in the options do not fit the model.
    """

    def __init__(
        self,
        options: Options,
        original: ir.Model,
        progress: Progress,
        on_pass: OnPass | None,
        again: Callable[[], ir.Model] | None = None,
    ) -> None:
        self._options, self._original = options, original
        self._again = again or (lambda: original)
        self._progress, self._hook = progress, on_pass
        self._inputs = given_inputs(options, original)
        self._observed: Inputs | None = None
        if options.sizes:
            from ortfuse.runtime.bench.typical_benchmark_inputs import check_sizes

            check_sizes(original, options.sizes)
        self.start()

    @staticmethod
    def compares(options: Options) -> bool:
        """Whether the original is run, so that it must be kept unchanged."""
        return options.verify == "whole" or options.bench

    def start(self) -> None:
        """Start, or start over with the model as it was."""
        self._stages: list[tuple[str, ir.Model]] = []
        self.disabled: tuple[str, ...] = ()
        """The runtime's own optimisers that have to be disabled for the result to be right, as for the original."""
        self.sites = self.new_site_checks()
        """Checks each change at its site; `None` if that is not asked for."""
        self.user_checks = self.new_user_checks()
        """Checks the changes of the user's own rules and passes; `None` if all changes are checked, or these are not to be."""
        self.meter = self._meter()
        """Measures candidates that are chosen by cost; `None` if that is not asked for."""

    def on_pass(self, event: PassEvent) -> None:
        """Keep a copy of the model after a pass, if it will be needed for blame or latencies.

        Changes that need a later pass before the target executes the model count as changes of that pass.
        """
        self._progress(f"pass {event.index + 1} of {event.total}: {event.report.name}")
        if self.compares(self._options) and event.changed and not event.report.parts and event.is_executable:
            self._stages.append((event.report.name, event.snapshot()))
        if self._hook is not None:
            self._hook(event)

    def verdict(self, optimised: ir.Model, target: Target) -> tuple[Verdict, str]:
        """The comparison of the result with the original and, if it is wrong, which pass broke it.

        Args:
            optimised: The result.
            target: The target; if it stands for several, models run for each that runs here.

        Raises:
            VerificationError: The original cannot be executed.
        """
        blames: list[str] = []

        def verify() -> Verdict:
            verdict, blame = self._verdict(optimised)
            blames.append(blame)
            return verdict

        return verify_on_each(target, verify), next(filter(None, blames), "")

    def _verdict(self, optimised: ir.Model) -> tuple[Verdict, str]:
        """The comparison on the current execution target, and which pass broke a wrong result."""
        from ortfuse.runtime.verification_time_budget import Budget
        from ortfuse.verification.blame_pass import blame
        from ortfuse.verification.equivalence import repeatable, verdict_on
        from ortfuse.verification.hidden_tokens import blanked, comparable, explored_with_hidden_tokens

        options, budget = self._options, Budget(self._options.verify_budget)
        self._progress("running the original")
        original, candidate, hidden = comparable(repeatable(self._original), repeatable(optimised))
        found = explored_with_hidden_tokens(
            original, hidden, self._inputs, options.seed, sizes=options.sizes, budget=budget
        )
        self._progress("verifying")
        verdict = verdict_on(found, original, candidate, options.tolerance, budget)
        if verdict.runtime is not None and isinstance(original, ir.Model) and isinstance(candidate, ir.Model):
            from ortfuse.verification.bisection.judge_without_result_changing_optimizers import told

            self._progress("looking for the runtime's optimiser that changes the original")
            verdict, disabled = told(verdict, found.experiments, original, candidate)
            self.disabled = tuple(dict.fromkeys([*self.disabled, *disabled]))
        if verdict.ok or verdict.state == "not compared":
            return verdict, ""
        self._progress("looking for the pass that broke it")
        if not hidden:
            return verdict, blame(found.experiments, self._original, self._stages, options.tolerance)
        assert isinstance(original, ir.Model)
        stages = [(name, blanked(model, hidden, optimised)) for name, model in self._stages]
        return verdict, blame(found.experiments, original, stages, options.tolerance)

    def choose_inputs(self) -> None:
        """Choose the inputs that `latencies` measures on.

        Raises:
            VerificationError: The original runs on none of the inputs tried.
        """
        self._progress("choosing inputs to measure on")
        self._measured_on = inputs_to_measure(self._options, self._original)

    def latencies(self) -> Latencies:
        """The latencies of the original and of the model after each pass, measured in interleaved runs on the chosen inputs.

        Raises:
            VerificationError: A model cannot be executed.
        """
        from ortfuse.runtime.bench import Latencies, stages_of

        self._progress("measuring")
        rows = self.measure(stages_of(self._original, self._stages))
        return Latencies(self._measured_on[0], tuple(rows))

    def measure(self, models: Mapping[str, ir.Model]) -> Sequence[Latency]:
        """Models side by side, on the inputs of `latencies`."""
        from ortfuse.runtime import bench

        inputs, options = self._measured_on[1], self._options
        return bench.measure(
            models,
            inputs,
            rounds=options.rounds,
            seconds=bench.budget_of(options.bench_budget),
            threads=options.threads,
        )

    def slowdown(
        self, result: ir.Model, report: RunReport, found: Latencies, make: Callable[[tuple[str, str]], Any]
    ) -> Slowdown | None:
        """The passes that make the result slower than the original, and a model without them; `None` if it is not slower.

        Args:
            result: The result.
            report: What was done.
            found: The latencies of the original and after each pass.
            make: Makes the result without a pass or a rule.
        """
        from ortfuse.verification.bisection.bisect_slowdown import slowdown

        return slowdown(self._original, result, report, found.latency, make, self.measure, self._progress)

    def new_site_checks(self) -> SiteChecks | None:
        """Checks for one run of the pipeline; `None` if changes are not to be checked."""
        if self._options.verify != "sites":
            return None
        from ortfuse.runtime.observed_values import observe
        from ortfuse.verification import SiteChecks

        if self._observed is None:  # when a run is restarted, the model may have been changed already
            self._progress("running the original")
            self._observed = observe(self._original, self._options.seed)
        return SiteChecks(self._options.tolerance, self._options.seed, self._progress, self._observed)

    def new_user_checks(self) -> UserChecks | None:
        """Checks of the user's own rules and passes, for one run of the pipeline; `None` if they are not wanted."""
        return UserChecks(self._options, self._progress, self._seen) if self._options.checks_users else None

    def _seen(self) -> Inputs:
        """The values that the model as it was computes, from one run of it."""
        from ortfuse.runtime.observed_values import observe

        if self._observed is None:
            self._progress("running the original")
            self._observed = observe(self._again(), self._options.seed)
        return self._observed

    def _meter(self) -> SiteMeter | None:
        if not self._options.measure:
            return None
        from ortfuse.runtime.bench import SiteMeter

        return SiteMeter.for_model(self._original, dict(self._options.sizes), threads=self._options.threads)
