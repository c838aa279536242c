"""Find the pass or rule that makes a result slower than the original, and a result without it.

The passes that changed the model are left out one at a time, those first after which the measured stages became slower; then, of
the pass that costs most, its rules. All models of one step are measured side by side, in interleaved runs, and count as faster
or slower only if the bounds of the ratio say so: what is within the noise is left as it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ortfuse.errors import OrtfuseError
from ortfuse.ir.edit import Edit, Inspector
from ortfuse.ir.refusal import Refusal, Subject, refuse
from ortfuse.pipeline import RunReport
from ortfuse.runtime.bench import Latency
from ortfuse.serialization import Record, derived, entry
from ortfuse.transforms import Finalize

MOST_TRIED = 12
"""The most passes, and the most rules, that are left out one at a time."""

ORIGINAL, RESULT = "original", "result"

Left = tuple[str, str]
"""The part that is left out: a pass, and a rule of it or an empty text for all of them."""

Make = Callable[[Left], tuple[ir.Model, RunReport]]
"""Runs the pipeline on the model as it was, without a pass or a rule of it."""

Measure = Callable[[Mapping[str, ir.Model]], Sequence[Latency]]
"""Measures models side by side; the first is what the others are compared with."""


@dataclass
class WithoutRule:
    """An inspector that leaves out the rewrites of one rule, and asks another one about the rest."""

    rule: str
    then: Inspector | None = None

    def objection(self, edit: Edit) -> Refusal | None:
        """Why an edit is left out, if it is."""
        if edit.author == self.rule:
            return refuse("left_out", Subject("value", edit.name), found=f"{self.rule} is left out")
        return None if self.then is None else self.then.objection(edit)


@dataclass(frozen=True)
class Slowdown(Record):
    """A result that is slower than the original by more than noise.

    Attributes:
        result: The measurement of the result.
        culprit: The pass that makes it slower, with the rule if one alone does; `None` if leaving out no single one helps.
        without: The measurement, against the original, of the result without the culprit.
        model: The model that is offered instead: the result without the culprit or, if that is slower too, the original.
        report: What was done to that model; `None` if it is the original.
        applied: Whether it was taken for the result, as `fastest` asks for.
    """

    result: Latency = field(metadata=entry(omit=True))
    culprit: Left | None = field(metadata=entry(omit=True))
    without: Latency | None = field(metadata=entry(omit=True))
    model: ir.Model = field(repr=False, compare=False, metadata=entry(omit=True))
    report: RunReport | None = field(default=None, repr=False, compare=False, metadata=entry(omit=True))
    applied: bool = False

    @property
    @derived("alternative")
    def offered(self) -> str:
        """The kind of model that is offered instead."""
        return "the original" if self.report is None else f"the result without {_named(self.culprit)}"

    def text(self) -> str:
        """The finding in words."""
        said = f"SLOWER than the original: {_ratio(self.result)}. "
        if self.culprit is None:
            said += "No single pass is to blame: leaving out none of them helps. "
        elif self.without is not None:
            said += f"It is {_named(self.culprit)}: without, {_ratio(self.without)}. "
        return said + (f"Taken instead: {self.offered}" if self.applied else f"--fastest takes {self.offered}")

    @property
    @derived()
    def speedup(self) -> float:
        """The speedup of the result."""
        return self.result.speedup

    @property
    @derived()
    def speedup_bounds(self) -> tuple[float, float] | None:
        """The 95 % confidence interval of the speedup."""
        return self.result.speedup_bounds

    @property
    @derived("pass")
    def culprit_pass(self) -> str:
        """The pass that makes the result slower; empty if leaving out no single one helps."""
        return self.culprit[0] if self.culprit else ""

    @property
    @derived("rule")
    def culprit_rule(self) -> str:
        """The rule of that pass, if one alone makes it slower."""
        return self.culprit[1] if self.culprit else ""

    @property
    @derived()
    def speedup_without(self) -> float | None:
        """The speedup without the culprit."""
        return self.without.speedup if self.without else None


def is_slower(row: Latency) -> bool:
    """Whether a model is slower than the first by more than noise; never from too few rounds to tell."""
    return row.speedup_bounds is not None and row.speedup_bounds[1] < 1


def slowdown(
    original: ir.Model,
    result: ir.Model,
    report: RunReport,
    stages: Sequence[Latency],
    make: Make,
    measure: Measure,
    progress: Callable[[str], None] = lambda text: None,
) -> Slowdown | None:
    """Find what makes a result slower; `None` if it is not slower.

    Args:
        original: The model as it was.
        result: What the pipeline made of it.
        report: The report of that run.
        stages: The measurements of the original, and of the model after each pass that changed it.
        make: Makes the result without something.
        measure: Measures models.
        progress: Called with short messages about what is going on.
    """
    if len(stages) < 2 or not is_slower(stages[-1]):
        return None
    search = _Search(result, make, measure, progress)
    hits: dict[str, dict[str, int]] = {}
    for leaf in (leaf for one in report.passes for leaf in one.leaves()):
        if leaf.changes and leaf.name != Finalize.name:
            hits.setdefault(leaf.name, {}).update(leaf.hits)
    culprit = search.costliest([(name, "") for name in sorted(hits, key=_drops(stages), reverse=True)])
    if culprit is not None and len(hits[culprit[0]]) > 1:
        rules = sorted(hits[culprit[0]], key=hits[culprit[0]].__getitem__, reverse=True)
        culprit = search.costliest([(culprit[0], rule) for rule in rules]) or culprit
    if culprit is None:
        return Slowdown(stages[-1], None, None, original)
    model, made = search.made[culprit]
    without = measure({ORIGINAL: original, _named(culprit): model})[-1]
    if is_slower(without):
        return Slowdown(stages[-1], culprit, without, original)
    return Slowdown(stages[-1], culprit, without, model, made)


@dataclass
class _Search:
    """Leave out one thing after the other."""

    result: ir.Model
    make: Make
    measure: Measure
    progress: Callable[[str], None]
    made: dict[Left, tuple[ir.Model, RunReport]] = field(default_factory=dict)

    def costliest(self, left: Sequence[Left]) -> Left | None:
        """The part without which the result is fastest; `None` if none helps."""
        models = {RESULT: self.result}
        for one in left[:MOST_TRIED]:
            self.progress(f"measuring without {_named(one)}")
            try:
                self.made[one] = self.make(one)
            except OrtfuseError:
                continue  # the passes that follow cannot do without it
            models[_named(one)] = self.made[one][0]
        if len(models) == 1:
            return None
        rows = {row.name: row for row in self.measure(models)}
        better = [one for one in left if _is_faster(rows.get(_named(one)))]
        return max(better, key=lambda one: rows[_named(one)].speedup, default=None)


def _is_faster(row: Latency | None) -> bool:
    return row is not None and row.speedup_bounds is not None and row.speedup_bounds[0] > 1


def _drops(stages: Sequence[Latency]) -> Callable[[str], float]:
    """By how much a pass made the model slower, measured before and after it."""
    found: dict[str, float] = {}
    for before, after in itertools.pairwise(stages):
        name = after.name.removeprefix("after ").partition(" (")[0]
        found[name] = found.get(name, 0.0) + before.speedup - after.speedup
    return lambda name: found.get(name, 0.0)


def _named(left: Left | None) -> str:
    pass_name, rule = left or ("", "")
    return f"{pass_name}, rule {rule}" if rule else f"pass {pass_name}"


def _ratio(row: Latency) -> str:
    bounds = f" ({row.speedup_bounds[0]:.2f}..{row.speedup_bounds[1]:.2f})" if row.speedup_bounds else ""
    return f"speedup {row.speedup:.2f}{bounds}"
