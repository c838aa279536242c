"""Bisection: which passes, rules and single rewrites move an output beyond tolerance.

The passes are narrowed down by delta debugging, then the rules in them, then the single rewrites: of those the first
that moves the output, with all before it applied, is found by halving, and what it takes of the others by delta debugging
again. That rewrite is then cut out of the model and run on what reaches it in the model, before and after, against
float64: whether it is rounding or a wrong rewrite is judged there, not by how far the model's outputs moved. A result that
cannot be loaded or run, or that crashes the runtime, is neither, but a finding of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from ortfuse.bisection.culprit import Culprit, examine, examine_model, nature_of_refusal
from ortfuse.bisection.ddmin import first_showing, smallest
from ortfuse.errors import OrtfuseError, TargetError
from ortfuse.execution.compare import Difference
from ortfuse.execution.experiments import Experiment, experiments
from ortfuse.execution.inputs import Inputs
from ortfuse.graph.edit import Edit
from ortfuse.passes import Finalize
from ortfuse.pipeline import PassManager, RunReport
from ortfuse.refusal import Refusal, Subject, refuse
from ortfuse.rewrite import Rule
from ortfuse.verification.verify import Trial, Verdict, judge

Key = tuple[str, str]
"""A rule and the site where it is applied."""


@dataclass(frozen=True)
class Restriction:
    """What a run may do: `None` is everything.

    Attributes:
        passes: Names of passes.
        rules: Names of rules.
        sites: Rules at sites.
        first: How many rewrites, the first ones.
    """

    passes: frozenset[str] | None = None
    rules: frozenset[str] | None = None
    sites: frozenset[Key] | None = None
    first: int | None = None


@dataclass
class Gate:
    """An inspector that lets through what a restriction allows, and hands one rewrite to whoever wants to see it.

    Attributes:
        allowed: The restriction.
        watched: The number of a rewrite, from 1.
        watch: Called with that rewrite before it is final.
        applied: What was let through, in order.
    """

    allowed: Restriction
    watched: int = 0
    watch: Callable[[Edit], None] = lambda edit: None
    applied: list[Key] = field(default_factory=list)

    def objection(self, edit: Edit) -> Refusal | None:
        """Whether a rewrite is left out. Passes that are no rules are left out as a whole, not edit by edit."""
        if not isinstance(edit.rule, Rule):
            return None
        key = (edit.author, edit.name)
        allowed = self.allowed
        if allowed.rules is not None and key[0] not in allowed.rules:
            return _left_out(edit, "the rule is left out")
        if allowed.sites is not None and key not in allowed.sites:
            return _left_out(edit, "the site is left out")
        if allowed.first is not None and len(self.applied) >= allowed.first:
            return _left_out(edit, "only the first rewrites are applied")
        self.applied.append(key)
        if len(self.applied) == self.watched:
            self.watch(edit)
        return None


def _left_out(edit: Edit, why: str) -> Refusal:
    return refuse("left_out", Subject("value", edit.name), found=why)


@dataclass(frozen=True)
class Bisection:
    """What was found.

    Attributes:
        verdict: How the optimised model compares with the original as a whole.
        passes: The smallest set of passes that moves an output beyond tolerance; empty if nothing does.
        rules: The smallest set of rules in them.
        sites: The smallest set of single rewrites, the one that moves the output last.
        culprit: What was learned of that one.
        before: The comparison of the output without it.
        after: The same with it.
        runs: How many models were made and run.
    """

    verdict: Verdict
    passes: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    sites: tuple[Key, ...] = ()
    culprit: Culprit | None = None
    before: Difference | None = None
    after: Difference | None = None
    runs: int = 0

    @property
    def moved(self) -> bool:
        """Whether an output moves beyond tolerance."""
        return not self.verdict.ok

    def lines(self) -> list[str]:
        """The finding in words."""
        if not self.moved:
            return [f"no output moves beyond tolerance: {self.verdict.summary()}"]
        found = [self.verdict.summary()]
        found.append(f"passes: {', '.join(self.passes)}")
        if self.rules:
            found.append(f"rules: {', '.join(self.rules)}")
        if self.sites:
            rule, site = self.sites[-1]
            others = len(self.sites) - 1
            rest = f" with {others} other rewrites that it takes" if others else ", and this rewrite alone"
            found.append(f"site: {rule} at '{site}'{rest}")
        if self.culprit is not None:
            found.append(self.culprit.text())
        if self.before is not None and self.after is not None and self.after.element is not None:
            found.append(f"output '{self.after.output}': {_errors(self.before, self.after)}")
        return [*found, f"{self.runs} models were made and run"]

    def to_dict(self) -> dict[str, object]:
        """The finding as data for JSON."""
        return {
            "moved": self.moved,
            "verdict": self.verdict.to_dict(),
            "passes": list(self.passes),
            "rules": list(self.rules),
            "sites": [{"rule": rule, "site": site} for rule, site in self.sites],
            "culprit": self.culprit.to_dict() if self.culprit else None,
            "before": self.before.to_dict() if self.before else None,
            "after": self.after.to_dict() if self.after else None,
            "runs": self.runs,
        }


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
    """Find the smallest set of passes, rules and single rewrites that moves an output of `original` beyond tolerance.

    Args:
        original: Stays as it is.
        manager: The pipeline.
        inputs: Sets of inputs by name, instead of generated ones.
        seed: Of the generated inputs.
        tolerance: Allowed relative error; by default what `ortfuse.execution.compare` says.
        progress: Told in a few words what is going on.

    Raises:
        VerificationError: The original cannot be executed.
        OrtfuseError: The pipeline fails on the model.
    """
    progress("running the original")
    found, notes = experiments(original, inputs, seed)
    manager, model, report = _whole_run(original, manager)
    trials = judge(found, model, tolerance)
    verdict = Verdict(trials, notes)
    if verdict.ok:
        return Bisection(verdict, runs=1)
    worst = _failing(trials)
    experiment = next(one for one in found if one.label == worst.label)
    search = _Search(original, manager, experiment, worst, tolerance, progress)
    return search.run(verdict, report)


def _whole_run(original: ir.Model, manager: PassManager) -> tuple[PassManager, ir.Model, RunReport]:
    """The result of the pipeline, and the manager that makes it without starting again at an older opset."""
    model = original.clone()
    try:
        return manager, model, manager.run(model)
    except TargetError:
        manager, model = manager.at_most(original.graph.opset_imports.get("", 1)), original.clone()
        return manager, model, manager.run(model)


def _failing(trials: Sequence[Trial]) -> Trial:
    """The trial to go on with: without the runtime's own optimisations if it fails there."""
    failing = [trial for trial in trials if not trial.ok]
    return min(failing, key=lambda trial: (trial.optimise, -(trial.worst.relative if trial.worst else 0)))


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
        self._passes: frozenset[str] = frozenset()
        self._runs = 1

    def run(self, verdict: Verdict, report: RunReport) -> Bisection:
        """Narrow down passes, rules and sites in turn."""
        leaves = [leaf for entry in report.passes for leaf in entry.leaves() if leaf.name != Finalize.name]
        self._passes = frozenset(leaf.name for leaf in leaves)
        changed = list(dict.fromkeys(leaf.name for leaf in leaves if leaf.changes))
        passes = smallest(changed, lambda some: self._moves(Restriction(frozenset(some))))
        allowed = Restriction(frozenset(passes))
        rules = self._rules(allowed)
        if rules and not self._moves(replace(allowed, rules=frozenset())):
            rules = smallest(rules, lambda some: self._moves(replace(allowed, rules=frozenset(some))))
        else:
            rules = []
        allowed = replace(allowed, rules=frozenset(rules))
        result = Bisection(verdict, tuple(passes), tuple(rules))
        return self._with_sites(result, allowed) if rules else self._with_model(result, allowed)

    def _rules(self, allowed: Restriction) -> list[str]:
        gate = Gate(allowed)
        self._make(gate)
        return list(dict.fromkeys(rule for rule, _ in gate.applied))

    def _with_sites(self, result: Bisection, allowed: Restriction) -> Bisection:
        """The single rewrites to blame, and what is to be said of the last of them."""
        gate = Gate(allowed)
        self._make(gate)
        last = first_showing(len(gate.applied), lambda count: self._moves(replace(allowed, first=count)))
        culprit = self._examine(allowed, last)
        compared = self._compare(replace(allowed, first=last - 1), replace(allowed, first=last))
        final = gate.applied[last - 1]
        others = [key for key in dict.fromkeys(gate.applied[: last - 1]) if key != final]
        if others and self._moves(replace(allowed, sites=frozenset({final}))):
            others = []
        elif others and self._moves(replace(allowed, sites=frozenset({*others, final}))):
            others = smallest(others, lambda some: self._moves(replace(allowed, sites=frozenset({*some, final}))))
        return self._finished(replace(result, sites=(*others, final)), culprit, *compared)

    def _with_model(self, result: Bisection, allowed: Restriction) -> Bisection:
        """Passes that are no rules are to blame: all that can be compared are whole models."""
        model = self._make(Gate(allowed))
        culprit = (
            None if model is None else examine_model(", ".join(result.passes), self._original, model, self._experiment)
        )
        return self._finished(result, culprit, *self._compare(Restriction(frozenset()), allowed))

    def _finished(
        self, result: Bisection, culprit: Culprit | None, before: Difference | None, after: Difference | None
    ) -> Bisection:
        """The finding; that the model as a whole does not run is the verdict, whatever the rewrite does by itself."""
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
        """The result of a restricted run, `None` if it fails."""
        passes, made = gate.allowed.passes, model or self._original.clone()
        skipped = frozenset() if passes is None else self._passes - passes
        try:
            self._manager.without(skipped).run(made, inspector=gate)
        except OrtfuseError:
            return None
        return made

    def _trial(self, allowed: Restriction) -> Trial | None:
        self._runs += 1
        self._progress(f"run {self._runs}")
        model = self._make(Gate(allowed))
        if model is None:
            return None
        return judge([self._experiment], model, self._tolerance, levels=(self._failing.optimise,))[0]

    def _moves(self, allowed: Restriction) -> bool:
        """Whether what is sought shows: an output that moves, a model that does not run, or one that crashes the runtime."""
        trial = self._trial(allowed)
        return trial is not None and trial.fails_like(self._failing)

    def _compare(self, without: Restriction, including: Restriction) -> tuple[Difference | None, Difference | None]:
        """The output that moves most, without and with what is to blame."""
        first, second = self._trial(without), self._trial(including)
        after = None if second is None else second.worst
        if first is None or after is None:
            return None, None
        return next(found for found in first.differences if found.output == after.output), after
