"""Bisect a pipeline: find the passes, rules and single edits that move an output beyond tolerance.

Delta debugging narrows down the passes, then the rules and passes whose edits matter, then the single edits. For the edits, a
binary search first finds the earliest one that moves the output with everything before it applied; delta debugging then
finds which of the others it needs. The edit is cut out of the model. Both of its sides run on the values that reach it
in the model, and are compared with float64. Whether it is rounding or a wrong rewrite is judged there, not by how far the
model's outputs moved. A result that cannot be loaded or run, or that crashes the runtime, is neither and is reported as
such.

Only whole models can be compared if the edits of `finalize` are to blame, without which there is no result, or if a pass
changes the model without the editor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from ortfuse.errors import OrtfuseError, TargetError
from ortfuse.ir.edit import Edit
from ortfuse.ir.refusal import Refusal, Subject, refuse
from ortfuse.pipeline import PassManager, RunReport
from ortfuse.pipeline.manager import NECESSARY
from ortfuse.rewrite import Rule
from ortfuse.runtime.comparison import Difference
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.random_seeds import seeded
from ortfuse.runtime.reference_runs import Experiment, explored
from ortfuse.runtime.rounding_sensitivity import Sensitivity
from ortfuse.serialization import Record, derived, entry
from ortfuse.transforms import Finalize
from ortfuse.verification.bisection.delta_debugging import first_showing, smallest
from ortfuse.verification.bisection.judge_without_result_changing_optimizers import told
from ortfuse.verification.bisection.rounding_or_wrong_edit import Culprit, examine, examine_model, nature_of_refusal
from ortfuse.verification.runtime_changes import runtime_change
from ortfuse.verification.sensitivity_verdict import at_the_same_level
from ortfuse.verification.verdict import Trial, Verdict, judge

Key = tuple[str, str]
"""A rule or pass and the site that it changes."""


@dataclass(frozen=True)
class Restriction:
    """Limit what a run may do; `None` means no limit.

    Attributes:
        passes: Names of the passes allowed.
        authors: Names of the rules and passes whose edits are allowed.
        sites: The edits allowed, each as a rule or pass and a site.
        first: Only this many edits, counted from the start.
    """

    passes: frozenset[str] | None = None
    authors: frozenset[str] | None = None
    sites: frozenset[Key] | None = None
    first: int | None = None


@dataclass
class Gate:
    """An inspector that allows the edits a restriction permits, and shows one of them to an observer.

    Attributes:
        allowed: The restriction.
        watched: The number of the edit to observe, from 1.
        watch: Called with that edit before it is final.
        applied: The edits that were allowed, in order.
        rules: Those of their authors that are rules.
    """

    allowed: Restriction
    watched: int = 0
    watch: Callable[[Edit], None] = lambda edit: None
    applied: list[Key] = field(default_factory=list)
    rules: set[str] = field(default_factory=set)

    def objection(self, edit: Edit) -> Refusal | None:
        """Why an edit is left out, if it is. One that neither replaces nor removes anything (types, order) is allowed."""
        if edit.author in NECESSARY or not (edit.nodes or edit.outputs):
            return None
        key = (edit.author, edit.name)
        allowed = self.allowed
        if allowed.authors is not None and edit.author not in allowed.authors:
            return _left_out(edit, f"{edit.author} is left out")
        if allowed.sites is not None and key not in allowed.sites:
            return _left_out(edit, "the site is left out")
        if allowed.first is not None and len(self.applied) >= allowed.first:
            return _left_out(edit, "only the first edits are made")
        self.applied.append(key)
        if isinstance(edit.rule, Rule):
            self.rules.add(edit.author)
        if len(self.applied) == self.watched:
            self.watch(edit)
        return None


def _left_out(edit: Edit, why: str) -> Refusal:
    return refuse("left_out", Subject("value", edit.name), found=why)


@dataclass(frozen=True)
class _Rewrite:
    rule: str
    site: str


def _rewrites(sites: Sequence[Key]) -> list[_Rewrite]:
    return [_Rewrite(rule, site) for rule, site in sites]


@dataclass(frozen=True)
class Bisection(Record):
    """The result of a bisection.

    Attributes:
        verdict: How the optimised model compares with the original as a whole.
        passes: The smallest set of passes that moves an output beyond tolerance; empty if nothing does.
        rules: The rules in the smallest set of rules and passes whose edits move it.
        sites: The smallest set of single edits, each as a rule or pass and a site; the last one is the one that moves the
            output.
        culprit: What is known about that edit.
        before: The comparison of the output without it.
        after: The comparison of the output with it.
        runs: How many models were built and run.
    """

    verdict: Verdict
    passes: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    sites: tuple[Key, ...] = field(default=(), metadata=entry(convert=_rewrites))
    culprit: Culprit | None = None
    before: Difference | None = None
    after: Difference | None = None
    runs: int = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {'; '.join(self.lines())}>"

    @property
    @derived()
    def moved(self) -> bool:
        """Whether an output moves beyond tolerance."""
        return not self.verdict.ok

    def lines(self) -> list[str]:
        """The finding as lines of text."""
        if not self.moved:
            change = self.verdict.runtime
            blamed = [] if change is None else [change.text()]
            return [f"no output moves beyond tolerance: {self.verdict.summary()}", *blamed]
        found = [self.verdict.summary()]
        found.append(f"passes: {', '.join(self.passes)}")
        if self.rules:
            found.append(f"rules: {', '.join(self.rules)}")
        if self.sites:
            rule, site = self.sites[-1]
            others = len(self.sites) - 1
            kind = "rewrite" if {author for author, _ in self.sites} <= {*self.rules} else "edit"
            rest = f" with {others} other {kind}s that it takes" if others else f", and this {kind} alone"
            found.append(f"site: {rule} at '{site}'{rest}")
        if self.culprit is not None:
            found.append(self.culprit.text())
        if self.before is not None and self.after is not None and self.after.element is not None:
            found.append(f"output '{self.after.output}': {_errors(self.before, self.after)}")
        return [*found, f"{self.runs} models were made and run"]


def _errors(before: Difference, after: Difference) -> str:
    if before.optimised_error is not None and after.optimised_error is not None:
        return f"error against float64 {before.optimised_error:.3g} before, {after.optimised_error:.3g} after"
    return (
        f"error against the original {before.absolute:.3g} before, {after.absolute:.3g} after (no float64 evaluation)"
    )


def bisect(
    original: ir.Model,
    manager: PassManager,
    *,
    inputs: Sequence[Inputs] | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Bisection:
    """Find the smallest set of passes, rules and single edits that moves an output of `original` beyond tolerance.

    Args:
        original: The model; it is not changed.
        manager: The pipeline.
        inputs: Sets of inputs by name, used instead of generated ones.
        seed: Seed of the generated inputs.
        tolerance: Allowed relative error; the default is given in `ortfuse.runtime.comparison`.
        progress: Called with a short text on what is being done.

    Raises:
        VerificationError: The original cannot be executed.
        OrtfuseError: The pipeline fails on the model.
    """
    progress("running the original")
    first = seeded(original)
    looked = explored(first, inputs, seed)
    found, notes = looked.experiments, looked.notes
    manager, model, report = _whole_run(original, manager)
    second = seeded(model)
    judged = judge(found, second, tolerance)
    trials = at_the_same_level(judged, found, first, second, tolerance)
    verdict = Verdict(trials, notes, looked.exercise, tolerance)
    if trials != judged:
        verdict = _with_runtime(verdict, found, first, second)
    if verdict.ok:
        return Bisection(verdict, runs=1)
    worst = _failing(trials)
    experiment = next(one for one in found if one.label == worst.inputs)
    search = _Search(original, manager, experiment, worst, tolerance, progress)
    return search.run(verdict, report)


def _with_runtime(verdict: Verdict, found: Sequence[Experiment], original: ir.Model, result: ir.Model) -> Verdict:
    """The verdict with what the runtime's own optimisations change in the original, and by which optimisers."""
    moved = {
        trial.inputs for trial in verdict.trials if any(one.criterion == "the same level" for one in trial.outputs)
    }
    change = runtime_change(original, [one for one in found if one.label in moved], Sensitivity(original))
    return verdict if change is None else told(replace(verdict, runtime=change), found, original, result)[0]


def _whole_run(original: ir.Model, manager: PassManager) -> tuple[PassManager, ir.Model, RunReport]:
    """The result of the pipeline, and a manager that produces it without restarting at an older opset."""
    model = original.clone()
    try:
        return manager, model, manager.run(model)
    except TargetError:
        manager, model = manager.at_most(original.graph.opset_imports.get("", 1)), original.clone()
        return manager, model, manager.run(model)


def _failing(trials: Sequence[Trial]) -> Trial:
    """The trial to continue with: one without the runtime's own optimisations, if it fails there."""
    failing = [trial for trial in trials if not trial.ok]
    return min(failing, key=lambda trial: (trial.runtime_optimisations, -(trial.worst.relative if trial.worst else 0)))


class _Search:
    def __init__(
        self,
        original: ir.Model,
        manager: PassManager,
        experiment: Experiment,
        failing: Trial,
        tolerance: float | None,
        progress: Callable[[str], None],
    ) -> None:
        self._original, self._manager, self._experiment = original, manager, experiment
        self._failing, self._tolerance, self._progress = failing, tolerance, progress
        self._seeded = seeded(original)
        self._passes: frozenset[str] = frozenset()
        self._runs = 1

    def run(self, verdict: Verdict, report: RunReport) -> Bisection:
        """Narrow down passes, rules and sites in turn."""
        leaves = [leaf for entry in report.passes for leaf in entry.leaves() if leaf.name != Finalize.name]
        self._passes = frozenset(leaf.name for leaf in leaves)
        changed = list(dict.fromkeys(leaf.name for leaf in leaves if leaf.changes))
        passes = smallest(changed, lambda some: self._moves(Restriction(frozenset(some))))
        allowed = Restriction(frozenset(passes))
        gate = Gate(allowed)
        self._make(gate)
        authors = list(dict.fromkeys(author for author, _ in gate.applied))
        result = Bisection(verdict, tuple(passes))
        if not authors or self._moves(replace(allowed, authors=frozenset())):
            return self._with_model(result, replace(allowed, authors=frozenset()))
        authors = smallest(authors, lambda some: self._moves(replace(allowed, authors=frozenset(some))))
        result = replace(result, rules=tuple(author for author in authors if author in gate.rules))
        return self._with_sites(result, replace(allowed, authors=frozenset(authors)))

    def _with_sites(self, result: Bisection, allowed: Restriction) -> Bisection:
        """The single edits to blame, and what is known about the last of them."""
        gate = Gate(allowed)
        self._make(gate)
        last = first_showing(len(gate.applied), lambda count: self._moves(replace(allowed, first=count)))
        without, including = replace(allowed, first=last - 1), replace(allowed, first=last)
        if self._make(Gate(without)) is None:
            return self._with_model(result, allowed)  # a pass that cannot do without the edit shows nothing of it
        culprit = self._examine(allowed, last)
        compared = self._compare(without, including)
        final = gate.applied[last - 1]
        others = [key for key in dict.fromkeys(gate.applied[: last - 1]) if key != final]
        if others and self._moves(replace(allowed, sites=frozenset({final}))):
            others = []
        elif others and self._moves(replace(allowed, sites=frozenset({*others, final}))):
            others = smallest(others, lambda some: self._moves(replace(allowed, sites=frozenset({*some, final}))))
        return self._finished(replace(result, sites=(*others, final)), culprit, *compared)

    def _with_model(self, result: Bisection, allowed: Restriction) -> Bisection:
        """No single edit is to blame: only whole models can be compared."""
        model = self._make(Gate(allowed))
        culprit = (
            None if model is None else examine_model(", ".join(result.passes), self._original, model, self._experiment)
        )
        return self._finished(result, culprit, *self._compare(Restriction(frozenset()), allowed))

    def _finished(
        self, result: Bisection, culprit: Culprit | None, before: Difference | None, after: Difference | None
    ) -> Bisection:
        """The finding; if the model as a whole does not run, that is the verdict, whatever the rewrite does by itself."""
        if culprit is not None and self._failing.refusal:
            nature, reason = nature_of_refusal(self._failing)
            culprit = replace(culprit, nature=nature, reason=reason)
        return replace(result, culprit=culprit, before=before, after=after, runs=self._runs)

    def _examine(self, allowed: Restriction, number: int) -> Culprit | None:
        found: list[Culprit] = []
        model = self._original.clone()
        gate = Gate(
            replace(allowed, first=number),
            number,
            lambda site: found.append(examine(site, model, self._experiment)),
        )
        self._make(gate, model)
        return found[0] if found else None

    def _make(self, gate: Gate, model: ir.Model | None = None) -> ir.Model | None:
        """The result of a restricted run; `None` if it fails."""
        passes, made = gate.allowed.passes, model or self._original.clone()
        skipped = frozenset() if passes is None else self._passes - passes
        try:
            self._manager.without(skipped).run(made, inspector=gate)
        except Exception as error:
            # A user's pass may not be prepared for being refused an edit.
            if isinstance(error, OrtfuseError) or gate.allowed != Restriction(passes):
                return None
            raise
        return made

    def _trial(self, allowed: Restriction) -> Trial | None:
        self._runs += 1
        self._progress(f"run {self._runs}")
        model = self._make(Gate(allowed))
        if model is None:
            return None
        model, level = seeded(model), self._failing.runtime_optimisations
        trials = judge([self._experiment], model, self._tolerance, levels=(level,))
        if level:
            trials = at_the_same_level(trials, [self._experiment], self._seeded, model, self._tolerance)
        return trials[0]

    def _moves(self, allowed: Restriction) -> bool:
        """Whether the failure shows: an output moves, the model does not run, or it crashes the runtime."""
        trial = self._trial(allowed)
        return trial is not None and trial.fails_like(self._failing)

    def _compare(self, without: Restriction, including: Restriction) -> tuple[Difference | None, Difference | None]:
        """The output that moves most, without and with the blamed changes."""
        first, second = self._trial(without), self._trial(including)
        after = None if second is None else second.worst
        if first is None or after is None:
            return None, None
        return next(found for found in first.outputs if found.output == after.output), after
