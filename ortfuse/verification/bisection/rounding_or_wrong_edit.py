"""Decide whether a suspected edit is wrong or only rounds differently.

Both sides are run on the values that reach the rewrite in the model, and also in float64. If they agree in float64, the
mathematics is the same and the difference is rounding. If neither the runtime nor ONNX's reference can evaluate the new side
in float64, it may differ from the old side's float64 result by as much as rounding allows (see `ortfuse.runtime.comparison`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import onnx_ir as ir

from ortfuse.errors import OrtfuseError, VerificationError
from ortfuse.ir.edit import Edit
from ortfuse.rewrite import Exactness
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.reference_runs import Experiment, experiments
from ortfuse.runtime.rewrite_sides import Sides, sides
from ortfuse.runtime.session import Session
from ortfuse.runtime.submodel import computing
from ortfuse.serialization import entry
from ortfuse.verification.compare_regions import SAME, apart_in_float64
from ortfuse.verification.verdict import Judged, Trial, Verdict, judge

_OTHERWISE = (Exactness.APPROXIMATE, Exactness.LOSSY)
"""Declared to compute something else."""

Nature = Literal["rounding", "approximation", "wrong rewrite", "does not run", "crashes", "not known"]


@dataclass(frozen=True)
class Culprit(Judged):
    """The findings about a suspected edit.

    Attributes:
        name: The rule or pass; several passes if their edits cannot be told apart.
        site: The value at the root of the match, or the first that is replaced; empty for whole models.
        nodes: The nodes before the edit, each as operator and name.
        added: The operators after the edit.
        nature: Whether it is rounding, a wrong rewrite, or something else.
        reason: How that was determined.
        verdict: The comparison of both sides on the values that reach them; `None` if it could not be made.
    """

    name: str
    site: str
    nodes: tuple[str, ...]
    added: tuple[str, ...]
    nature: Nature
    reason: str
    verdict: Verdict | None = field(default=None, metadata=entry(omit=True))

    def text(self) -> str:
        """The finding as text."""
        text = f"{self.nature.upper()}: {self.reason}"
        if self.nodes:
            operators = ", ".join(dict.fromkeys(node.partition(" ")[0] for node in self.nodes))
            text += f". {operators} became {', '.join(self.added) or 'nothing'}"
        return text + (f"; there, the {errors}" if (errors := self.errors()) else "")


def examine(site: Edit, model: ir.Model, experiment: Experiment) -> Culprit:
    """Judge one edit of `model` just before it becomes final, on the inputs of `experiment`.

    Inside a loop or a function, a value that reaches the rewrite is not a single array, so generated inputs are used there.
    """
    names = tuple(f"{node.op_type} '{node.name}'" for node in reversed(site.nodes))
    added = tuple(node.op_type for node in site.added)
    if not site.outputs:
        return Culprit(site.author, site.name, names, added, "not known", "nothing takes the place of what is removed")
    try:
        both, found = _on_real_inputs(site, model, experiment)
        verdict = Verdict(judge(found, both.after, levels=(False,)))
        nature, reason = _nature(both.before, both.after, [one.inputs for one in found], verdict)
    except OrtfuseError as error:
        return Culprit(site.author, site.name, names, added, "not known", str(error))
    if nature == "wrong rewrite" and getattr(site.rule, "exactness", None) in _OTHERWISE:
        nature, reason = "approximation", "the rule declares other mathematics"
    return Culprit(site.author, site.name, names, added, nature, reason, verdict)


def examine_model(name: str, original: ir.Model, changed: ir.Model, experiment: Experiment) -> Culprit:
    """Judge what passes did to a whole model."""
    try:
        verdict = Verdict(judge([experiment], changed, levels=(False,)))
        nature, reason = _nature(original, changed, [experiment.inputs], verdict)
    except OrtfuseError as error:
        return Culprit(name, "", (), (), "not known", str(error))
    return Culprit(name, "", (), (), nature, reason, verdict)


def _on_real_inputs(site: Edit, model: ir.Model, experiment: Experiment) -> tuple[Sides, list[Experiment]]:
    try:
        both = sides(site, prelude=False)
        given = _captured(both, site, model, experiment.inputs)
        return both, experiments(both.before, [given])[0]
    except VerificationError:
        both = sides(site)
        return both, experiments(both.before, specs=both.inputs)[0]


def _captured(both: Sides, site: Edit, model: ir.Model, inputs: Inputs) -> Inputs:
    """The values at the border of a rewrite when the model is run on `inputs`."""
    if site.scope.graph is not model.graph:
        raise VerificationError("the rewrite is inside of a loop, a branch or a function")
    named = [(spec.name, value) for spec, value in zip(both.inputs, both.border, strict=True)]
    return dict(Session(computing(model, named), optimise=False).run(inputs))


def nature_of_refusal(trial: Trial) -> tuple[Nature, str]:
    """The nature of a candidate that cannot be run, and how that was determined."""
    return ("crashes" if trial.crashed else "does not run"), trial.refusal


def _nature(before: ir.Model, after: ir.Model, inputs: Sequence[Inputs], verdict: Verdict) -> tuple[Nature, str]:
    """Whether two models differ by rounding."""
    for trial in verdict.trials:
        if trial.refusal:
            return nature_of_refusal(trial)
    worst = verdict.worst
    if worst is not None and not worst.ok and worst.element is None:
        return "wrong rewrite", worst.reason  # a different shape or type
    distances = apart_in_float64(before, after, inputs)
    if distances is not None:
        apart = max(distances.values(), default=0.0)
        if apart <= SAME:
            return "rounding", f"in float64 both sides agree to {apart:.1g}"
        return "wrong rewrite", f"in float64 both sides differ by {apart:.3g} of the scale"
    without = "" if any(found.criterion == "float64" for found in verdict.differences) else " (no float64 evaluation)"
    if verdict.ok:
        return "rounding", f"both sides differ by no more than rounding explains{without}"
    return "wrong rewrite", f"both sides differ by more than rounding explains{without}"
