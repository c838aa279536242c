"""Run a pipeline again without the failing step, down to the original model, until the runtime loads the result.

- If the opset cannot be raised, the run starts again without the rewrites that need it.
- If a pass of ortfuse fails, it starts again without that pass, or without the rule that is to blame. A rule that raises an error
  is left out at once, and passes that undo each other are stopped (`ortfuse.pipeline.schedule`).
- If the runtime does not load the result, it starts again at the newest opset at which it loads the model as it was, with no
  shapes declared that were not, or without the edits that are to blame.
- If nothing of this helps, or a graph cannot represent the model at all, the model is left as it is.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from ortfuse.analysis.equal_sizes import with_sizes
from ortfuse.analysis.facts import Facts
from ortfuse.api.assess_optimization import Assessment, Progress, idle_options
from ortfuse.api.result import Result
from ortfuse.errors import InvalidModelError, OptionError, OrtfuseError, PassError, TargetError
from ortfuse.io.build_graph_from_protobuf import NOTES
from ortfuse.io.convert_model_objects import AnyModel, Source, enter, leave
from ortfuse.io.copy_model import copy_model
from ortfuse.io.declare_sizes import declare_sizes
from ortfuse.io.external_data import resolved
from ortfuse.io.list_external_data_files import locations
from ortfuse.io.load_and_save import save
from ortfuse.io.select_outputs import drop_unread_inputs, keep_outputs
from ortfuse.io.training_mode import to_inference
from ortfuse.ir.declared_sizes import LARGEST, DeclaredSizes, declared_sizes
from ortfuse.ir.dims import bounds, symbol
from ortfuse.ir.edit import Inspector
from ortfuse.options import Options
from ortfuse.pipeline.manager import PassManager
from ortfuse.pipeline.report import Counts, RunReport
from ortfuse.rewrite import Log
from ortfuse.runtime.load_check import LEVELS, Loading, UnloadableError
from ortfuse.runtime.session_settings import hand_on
from ortfuse.runtime.session_subprocess import Level
from ortfuse.runtime.unrepresentable_models import AsItIs, Runnable
from ortfuse.targets import raise_opset
from ortfuse.transforms import Finalize

_MOST_NAMED = 12
"""Edits that a note names one by one."""

_MOST = 8
"""Passes that may be left out before the model is left as it is."""

_REPORT_IT = "please report it with the model"


class Attempts:
    """The attempts at one model.

    Args:
        model: The model as it was handed in.
        inside: The same as a graph, to be optimised in place.
        source: Where it came from.
        manager: The pipeline.
        asked: The checks and measurements that are asked for.
        progress: Called with short messages about what is going on.

    Attributes:
        given: The model as it was handed in.
        inside: The result.
        source: Where it came from.
        manager: The pipeline, limited to the opset at which it works.
        options: Its options.
        asked: The checks and measurements that are asked for.
        progress: Called with short messages about what is going on.
    """

    def __init__(
        self,
        model: AnyModel,
        inside: ir.Model,
        source: Source[Any],
        manager: PassManager,
        asked: Assessment,
        progress: Progress,
    ) -> None:
        self.inside, self.source, self.manager = inside, source, manager
        self.options, self.asked, self.progress = manager.options, asked, progress
        self.given = model
        self._opset = inside.graph.opset_imports.get("", 1)
        self._limited = False
        self._left_out: dict[str, str] = {}
        self._without_rules: dict[str, str] = {}
        self._notes: list[str] = []

    def run(self, avoided: Collection[tuple[str, str]] = ()) -> RunReport:
        """Run the pipeline, starting again from the model as it was where that helps.

        Raises:
            PassError: ortfuse cannot handle the model.
            OrtfuseError: A pass or a rule of the user fails.
        """
        while True:
            inspector: Inspector | None = self.asked.sites
            if avoided:
                from ortfuse.verification.bisection.edits_that_break_loading import Avoiding

                inspector = Avoiding(avoided, inspector)
            try:
                report = self._pipeline().run(
                    self.inside,
                    on_pass=self.asked.on_pass,
                    inspector=inspector,
                    checks=self.asked.user_checks,
                    meter=self.asked.meter,
                )
            except TargetError as error:
                self._stay_at_opset(error)
            except PassError as error:
                self._do_without(error)
            else:
                own = self.asked.user_checks
                undone = [] if own is None else own.notes()
                report.notes[:] = [*self._notes, *report.notes, *undone, *idle_options(self.options)]
                report.failures += [*self._left_out.values(), *self._without_rules.values()]
                return report
            self._start_over()

    def _start_over(self) -> None:
        """Go back to the model as it was."""
        self.inside, self.source = taken_in(self.given, self.options)
        self.asked.start()

    def _stay_at_opset(self, error: OrtfuseError) -> None:
        if self._limited:
            raise error
        self._limited = True
        self.manager = self.manager.at_most(self._opset)
        self._notes.append(
            f"the model stays at opset {self._opset}, without the rewrites that need a newer one: {error}"
        )

    def _do_without(self, error: PassError) -> None:
        """Leave out the rule or pass that failed; what puts the result in order has less to do at the model's own opset."""
        known = {*self._without_rules, *self._own_rules()}
        if error.rule and error.rule not in known and len(self._without_rules) < _MOST:
            self._without_rules[error.rule] = f"{error}; the result is without the rule {error.rule}: {_REPORT_IT}"
        elif error.name in ("", Finalize.name):
            self._stay_at_opset(error)
        elif error.name in self._left_out or len(self._left_out) >= _MOST:
            raise error
        else:
            self._left_out[error.name] = f"{error}; the result is without it: {_REPORT_IT}"

    def _own_rules(self) -> set[str]:
        """The names of rules that do not come with ortfuse."""
        return {rule.name for rule in self.manager.catalogue.rules_from("package", "user")}

    def mended(self, report: RunReport, error: UnloadableError) -> tuple[RunReport, bool]:
        """Run again without what keeps the runtime from loading the result where it loads the model as it was.

        The cause is the opset, if the model as it was is not loaded at that of the result either, declared shapes, or
        else some edits.

        Returns:
            The report, and whether the result is now to be loaded wherever the runtime has been asked to.

        Raises:
            UnloadableError: It does not load the result without any edits either.
        """
        from ortfuse.verification.bisection.bisect_runtime_optimizers import breaking
        from ortfuse.verification.bisection.edits_that_break_loading import edits_to_avoid

        self.progress("looking for what the runtime does not load")
        original = taken_in(self.given, self.options)[0]
        levels = [level for level in LEVELS if not Loading.of_graph(original, [level]).problem()]
        if len(levels) < len(LEVELS) and not Loading.of_graph(self.inside, levels).problem():
            report.notes.append(f"the runtime loads neither the model as it was nor the result: {error}")
            return report, False
        optimisers = breaking(self.inside)
        why = f"{error}; its own optimiser {', '.join(optimisers)} is to blame" if optimisers else str(error)
        opset = self._newest_that_loads(levels)
        if opset is not None:
            self.manager = self.manager.at_most(opset)
            self._start_over()
            report = self.run()
            if not Loading.of_graph(self.inside, levels).problem():
                found = "because the runtime does not load the model as it was at newer ones"
                report.notes.append(f"the result has at most opset {opset}, {found} ({why})")
                return report, len(levels) == len(LEVELS)
        self.manager = self.manager.without_new_shapes()
        self._start_over()
        report = self.run()
        if not Loading.of_graph(self.inside, levels).problem():
            report.notes.append(
                f"no shapes are declared that were not, because the runtime would not load the result ({why})"
            )
            return report, len(levels) == len(LEVELS)
        avoided = edits_to_avoid(self._made, levels)
        if avoided:
            self._start_over()
            report = self.run(avoided)
            if not Loading.of_graph(self.inside, levels).problem():
                edits = ", ".join(f"{author} at '{site}'" for author, site in avoided[:_MOST_NAMED])
                edits += f" and {len(avoided) - _MOST_NAMED} more" if len(avoided) > _MOST_NAMED else ""
                report.notes.append(f"left out, because the runtime would not load the result: {edits} ({why})")
                return report, len(levels) == len(LEVELS)
        raise UnloadableError(f"the runtime would not load the result: {why}")

    def _newest_that_loads(self, levels: Sequence[Level]) -> int | None:
        """The newest opset up to the result's at which the runtime loads the model as it was; `None` if it is the result's."""
        newest = self.inside.graph.opset_imports.get("", 1)
        for opset in range(newest, self._opset, -1):
            original = taken_in(self.given, self.options)[0]
            try:
                raise_opset(original, opset, self.manager.target)
            except TargetError:
                continue
            if not Loading.of_graph(original, levels).problem():
                return None if opset == newest else opset
        return self._opset if newest > self._opset else None

    def _made(self, inspector: Inspector) -> ir.Model:
        made = taken_in(self.given, self.options)[0]
        self._pipeline().run(made, inspector=inspector)
        return made

    def without(self, left: tuple[str, str]) -> tuple[ir.Model, RunReport]:
        """The result without a pass or, if that is not empty, without one of its rules, and the report of the run."""
        from ortfuse.verification.bisection.bisect_slowdown import WithoutRule

        (pass_name, rule), made, sites = left, taken_in(self.given, self.options)[0], self.asked.new_site_checks()
        manager = self.manager.without({*self._left_out, *(() if rule else (pass_name,))})
        inspector = WithoutRule(rule, sites) if rule else sites
        checks = self.asked.new_user_checks()
        return made, manager.run(made, inspector=inspector, checks=checks, meter=self.asked.meter)

    def _pipeline(self) -> PassManager:
        manager = self.manager.without(self._left_out) if self._left_out else self.manager
        return manager.without_rules(self._without_rules) if self._without_rules else manager


def taken_in(model: AnyModel, options: Options) -> tuple[ir.Model, Source[Any]]:
    """A model of our own of any kind of model, as the options ask for it: outputs chosen, sizes declared, no training mode.

    Raises:
        OptionError: What is declared of sizes or outputs is not of this model, or contradicts it.
        InvalidModelError: A graph cannot represent the model.
        OrtfuseError: The model cannot be used.
    """
    inside, source = enter(model)
    done = to_inference(inside) if options.inference else None
    if done is not None:
        inside.graph.meta.setdefault(NOTES, []).append(done)
    said = inside.graph.meta.setdefault(NOTES, [])
    if options.keep_outputs:
        said += keep_outputs(inside, options.keep_outputs)
    if options.drop_inputs:
        said += drop_unread_inputs(inside)
    if options.declared:
        declare(inside, options.declared)
    return inside, source


def declare(model: ir.Model, declared: DeclaredSizes) -> None:
    """Declare sizes in a model, in place, and note what is taken for granted.

    Raises:
        OptionError: There is no open dimension of a name, or declarations contradict each other or the model.
    """
    agreeing = Facts(model).agreeing
    sizes = declare_sizes(model, declared)
    ranges = declared_sizes(model).size_range
    for name, size in agreeing.items():
        one, other = (with_sizes(dim, sizes) for dim in (symbol(name), size))
        low, high = bounds(one - other)
        if (low or 0) > 0 or (high is not None and high < 0):
            raise OptionError("fix", f"{name} is {size} in every run that succeeds; it cannot be {one}")
        for bounded, exact in ((one, other), (other, one)):
            least, most = ranges.get(str(bounded), (0, LARGEST))
            if isinstance(exact, int) and not least <= exact <= most:
                text = f"{bounded} is {exact} in every run that succeeds, which is not within {least}:{most}"
                raise OptionError("size_range", text)
    said = model.graph.meta.setdefault(NOTES, [])
    said += [f"taken for granted, as {text} says: the result is right for such inputs" for text in declared.texts()]


def demand_possible(model: AnyModel, declared: ir.Model) -> None:
    """Check that the runtime still loads a model of which sizes were declared.

    Raises:
        OptionError: It loads the model, and no longer with these sizes.
    """
    problem = Loading.of_graph(declared, ["none"]).problem()
    if problem and not Loading.of_graph(enter(model)[0], ["none"]).problem():
        raise OptionError("fix", f"the model cannot have the sizes that are declared: {problem}")


def as_it_is(model: AnyModel) -> AsItIs | None:
    """A file or a ModelProto that a graph cannot represent; `None` if the runtime does not load it either."""
    from ortfuse.runtime.session import Session

    try:
        if isinstance(model, str | os.PathLike):
            for location in locations(model):
                resolved(location, Path(model), os.fspath(model))
            found = AsItIs(os.fspath(model))
        elif isinstance(model, onnx.ModelProto):
            found = AsItIs(model.SerializeToString())
        else:
            return None
        Session(found, lean=True)
    except (OrtfuseError, OSError, ValueError):  # ValueError: too large to be serialised
        return None
    return found


def runnable(model: AnyModel) -> Runnable:
    """Whatever can be run of a model: its graph or, if the runtime loads what a graph cannot represent, the model itself.

    Raises:
        OrtfuseError: The model cannot be used.
    """
    try:
        return enter(model)[0]
    except InvalidModelError:
        found = as_it_is(model)
        if found is None:
            raise
        return found


def left_alone(model: AnyModel, options: Options, why: str) -> Result:
    """The result of leaving a model as it is, written to the output if there is one."""
    given = model
    counts = Counts(0, {})
    try:
        inside, source = enter(model)
        given, counts = leave(inside, source), Counts.of(inside)
    except InvalidModelError:
        pass
    asked = [
        *(f"--outputs {name}" for name in options.keep_outputs),
        *(["--drop-inputs"] if options.drop_inputs else []),
    ]
    declared = ", ".join([*asked, *options.declared.texts()])
    why += f"; nothing is made of {declared}" if declared else ""
    note = f"the model is left as it is: {why}"
    report = RunReport("", [], counts, counts, 0.0, 0.0, Log(), [], [note])
    if options.output is not None:
        if isinstance(model, str | os.PathLike | onnx.ModelProto) and not options.external_data:
            copy_model(model, options.output, hand_on)
        else:
            hand_on(inside.metadata_props, inside.graph.name or "the model")
            save(inside, options.output, link=options.link, external_data=options.external_data)
    written = None if options.output is None else Path(options.output)
    return Result(given, report, options, unchanged=why, written=written, original=model)
