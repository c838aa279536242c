"""Decide whether differences are rounding that the model amplifies, by its measured sensitivity.

First, near ties are set apart: a result may decide otherwise where the original's own numbers are tied or next to a threshold, if
all else is equal given the original's decisions (`ortfuse.verification.compare_with_imposed_decisions`).

Two things are asked of any other result that differs by more than rounding explains, and it passes only if both are so:

1. The original moves as far by itself, when nothing but rounding changes (`ortfuse.runtime.rounding_sensitivity`).
2. The mathematics is the same. In float64, where rounding is 2^29 times finer, the difference has to shrink by `SHRINKS`; or
   wherever the models differ, both sides compute the same from what the original computes there
   (`ortfuse.verification.compare_regions`); or, where neither can be told, float64 results are as close as those of the original
   with weights off by one rounding of float32.

The second is what finds a wrong constant, axis or mask in a model so sensitive that its outputs tell nothing. Where the runtime's
own optimisations alone move the outputs so much (it computes products with weights of four or eight bits in bytes), a result has
to be less than half as far from the original with these optimisations on both sides.

A result that is equal without these optimisations, and equal to the original with them on both sides, as models quantised by
other tools often are, is simply equal: nothing has to be excused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import VerificationError
from ortfuse.ir.editor import Editor
from ortfuse.pipeline import load_catalogue
from ortfuse.rewrite import Log, Rewriter
from ortfuse.runtime.comparison import TOLERANCES, Difference, compare_all
from ortfuse.runtime.reference_runs import Experiment
from ortfuse.runtime.rounding_sensitivity import FACTOR, LARGEST, OPTIMISED, Sensitivity, shaken_model
from ortfuse.runtime.session import Session, weight_bytes
from ortfuse.runtime.verification_time_budget import Budget
from ortfuse.targets import Quirk, installed
from ortfuse.verification.compare_regions import BLUNT, SECONDS, Places, apart_in_float64, compare_places
from ortfuse.verification.compare_with_imposed_decisions import Decided, compare_decided
from ortfuse.verification.verdict import Trial, Verdict

SHRINKS = 1e3
"""How many times smaller a difference has to be in float64 to count as rounding."""

LEAST_SECONDS = 20.0
"""How long models are compared place by place, however little time is left."""

UNSIGNED = "ortfuse.unsigned."
"""Prefix of the names of unsigned pairs, which no other model has by chance."""

MOST_REASONS = 3
"""The most decisions that are listed for an output."""


def weigh(
    verdict: Verdict,
    found: Sequence[Experiment],
    original: ir.Model,
    candidate: ir.Model,
    sensitivity: Sensitivity | None = None,
    budget: Budget | None = None,
) -> Verdict:
    """The verdict with those differences passing that the model's own sensitivity explains; all others say how sensitive it is.

    Args:
        verdict: The comparison of the candidate with the original.
        found: The experiments that it was compared on.
        original: The model.
        candidate: The other model, with inputs and outputs of the same names.
        sensitivity: That of the original, if it is known already.
        budget: The time that is left: the worst run is weighed in any case, and those that time does not allow are left out.
    """
    failing = [trial for trial in verdict.trials if not trial.ok]
    if not failing or any(trial.refusal for trial in failing):
        return verdict
    weights = _Weights(found, original, candidate, sensitivity or Sensitivity(original), budget)
    only, weighed = verdict.only_optimised, dict[int, Trial]()
    for trial in sorted(failing, key=lambda trial: -trial.worst.relative if trial.worst is not None else 0.0):
        if weighed and budget is not None and budget.left <= 0:
            break
        weighed[id(trial)] = weights.weighed(trial, only_optimised=only)
    trials = [weighed.get(id(trial), trial) for trial in verdict.trials if trial.ok or id(trial) in weighed]
    if left := len(failing) - len(weighed):
        verdict.notes.append(
            f"{left} runs that differ by less are left out: the time for verifying is over (--verify-budget)"
        )
    return replace(verdict, trials=trials)


def at_the_same_level(
    trials: Sequence[Trial],
    found: Sequence[Experiment],
    original: ir.Model,
    candidate: ir.Model,
    tolerance: float | None,
) -> list[Trial]:
    """Comparisons in which the runtime's own optimisations are passed over where they move the original alike.

    A stated tolerance says nothing about what these do, and a model has to be equal to itself under any.

    Args:
        trials: The comparisons; unless all without optimisations pass, they are returned as they are.
        found: The experiments.
        original: The original, with fixed seeds.
        candidate: The other model, with fixed seeds.
        tolerance: Allowed relative error; `None` for the usual rules.
    """
    if not all(trial.ok for trial in trials if not trial.runtime_optimisations):
        return list(trials)
    weights, experiments = (
        _Weights(found, original, candidate, Sensitivity(original), None, tolerance),
        {experiment.label: experiment for experiment in found},
    )
    return [
        trial
        if trial.ok or trial.refusal
        else replace(trial, outputs=[weights.alike(first, experiments[trial.inputs]) for first in trial.outputs])
        for trial in trials
    ]


class _Weights:
    """The evidence about two models by which their differences are weighed; each part is found when it is first needed."""

    def __init__(
        self,
        found: Sequence[Experiment],
        original: ir.Model,
        candidate: ir.Model,
        sensitivity: Sensitivity,
        budget: Budget | None,
        tolerance: float | None = None,
    ) -> None:
        self._budget, self._tolerance = budget, tolerance
        self._experiments = {experiment.label: experiment for experiment in found}
        self._original, self._candidate, self._sensitivity = original, candidate, sensitivity
        self._float64: dict[str, Mapping[str, float] | None] = {}
        self._places: dict[str, Places | None] = {}
        self._optimised: dict[tuple[str, bool], Mapping[str, Difference]] = {}

    def weighed(self, trial: Trial, *, only_optimised: bool) -> Trial:
        """The trial with each failed comparison weighed; `only_optimised` says that none fails without optimisations."""
        experiment = self._experiments[trial.inputs]
        if only_optimised:
            trial = replace(trial, outputs=[self.alike(first, experiment) for first in trial.outputs])
            if trial.ok:
                return trial
        decided = self._decided(experiment, trial.runtime_optimisations)
        differences = []
        for first in trial.outputs:
            found = first if first.ok or decided is None else _apart_from_ties(first, decided)
            if not found.ok:
                found = self._weighed(found, experiment, only_optimised)
            differences.append(self._as_the_original(first, found, experiment) if only_optimised else found)
        return replace(trial, outputs=differences)

    def _decided(self, experiment: Experiment, optimise: bool) -> Decided | None:
        """The comparison given the original's decisions; those of signed pairs may have to be sought among unsigned ones."""
        found = compare_decided(self._original, self._candidate, experiment, optimise)
        if found is None or not all(difference.ok for difference in found.differences.values()):
            unsigned = with_unsigned_pairs(self._original)
            if any((value.name or "").startswith(UNSIGNED) for value in _made(unsigned)):
                other = compare_decided(unsigned, self._candidate, experiment, optimise)
                if other is not None and all(difference.ok for difference in other.differences.values()):
                    return other
        return found

    def alike(self, first: Difference, experiment: Experiment) -> Difference:
        """The comparison with what the runtime's optimisations make of the original, if that is equal.

        NaN or infinity that only the optimisations make is not passed over; decisions may be others on both sides.
        """
        numbers = getattr(experiment.expected[first.output], "dtype", None)
        if first.ok or (not math.isfinite(first.relative) and (numbers is None or numbers.name in TOLERANCES)):
            return first
        found = self._between_optimised(experiment).get(first.output)
        if found is None or not found.ok:
            return first
        apart = f"{first.relative:.2g} of its scale" if math.isfinite(first.relative) else first.reason
        reason = f"equal at each level of the runtime's optimisations, which change the original alike ({apart})"
        return replace(found, criterion="the same level", reason=reason)

    def _as_the_original(self, first: Difference, found: Difference, experiment: Experiment) -> Difference:
        """A comparison that failed passes if the runtime's optimisations do the same to the original.

        Without them nothing differs, so that the mathematics is the same; where they replace decisions by others (products of
        float32 by products of bytes), those cannot be compared.
        """
        if found.ok or not math.isfinite(first.relative):
            return found
        own = self._sensitivity.of(experiment).get(first.output, {}).get(OPTIMISED, 0.0)
        between = self._distance_optimised(experiment, first.output)
        if between > own / 2:
            return found
        reason = f"{OPTIMISED} move the original by {own:.2g} of its scale, and with them both are {between:.2g} apart"
        return replace(first, ok=True, criterion="sensitivity", reason=reason)

    def _weighed(self, difference: Difference, experiment: Experiment, only_optimised: bool) -> Difference:
        if not math.isfinite(difference.relative):
            return difference
        moved = self._sensitivity.of(experiment).get(difference.output, {})
        own = max((value for value in moved.values() if math.isfinite(value)), default=0.0)
        evidence = f"it moves by {difference.relative:.2g} of its scale, the original by itself by {_listed(moved)}"
        if difference.relative > FACTOR * own:
            return replace(difference, reason=f"{difference.reason}; {evidence}")
        same, why = self._same_mathematics(difference, experiment)
        if not same:
            return replace(difference, reason=f"{evidence}; but {why}")
        if only_optimised and own > BLUNT:
            # The mathematics of the model says nothing about what the runtime's optimisations make of it.
            between = self._distance_optimised(experiment, difference.output)
            if between > own / 2:
                between = self._distance_optimised(experiment, difference.output, unsigned=True)
            if between > own / 2:
                return replace(
                    difference, reason=f"{evidence}; but it does so only with the runtime's own optimisations"
                )
            why += f"; with the runtime's optimisations on both sides, it moves by {between:.2g}"
        return replace(difference, ok=True, criterion="sensitivity", reason=f"{evidence}; {why}")

    def _same_mathematics(self, difference: Difference, experiment: Experiment) -> tuple[bool, str]:
        """Whether an output is computed the same but for rounding, and how that is known."""
        apart = self._apart(experiment, difference.output)
        if apart is not None and apart * SHRINKS <= difference.relative:
            return True, f"in float64 both are {apart:.2g} apart"
        places = self._compared(experiment)
        if places is not None:
            return not places.wrong, places.wrong or places.text()
        if apart is None or weight_bytes(self._original) > LARGEST:
            return False, "whether that is rounding cannot be told: it cannot be evaluated in float64 or place by place"
        shaken = apart_in_float64(self._original, shaken_model(self._original, 0), [experiment.inputs]) or {}
        least = shaken.get(difference.output, 0.0)
        text = f"in float64 both are {apart:.2g} apart, and {least:.2g} with weights off by one rounding"
        return least <= BLUNT and apart <= FACTOR * least, text

    def _apart(self, experiment: Experiment, output: str) -> float | None:
        """How far an output is apart in float64; `None` if that cannot be evaluated."""
        if experiment.label not in self._float64:
            inputs = [experiment.inputs]
            self._float64[experiment.label] = apart_in_float64(self._original, self._candidate, inputs)
        found = self._float64[experiment.label]
        return None if found is None else found[output]

    def _distance_optimised(self, experiment: Experiment, output: str, *, unsigned: bool = False) -> float:
        """How far an output of both models is apart when the runtime optimises both, as where it quantises products."""
        found = self._between_optimised(experiment, unsigned=unsigned).get(output)
        return math.inf if found is None else found.relative

    def _between_optimised(self, experiment: Experiment, *, unsigned: bool = False) -> Mapping[str, Difference]:
        """How the outputs of both models compare when the runtime optimises both.

        With `unsigned`, quantised pairs of the original are unsigned, which are the same bits, but computed in integers.
        """
        key = (experiment.label, unsigned)
        if key not in self._optimised:
            original = with_unsigned_pairs(self._original) if unsigned else self._original
            try:
                before, after = (
                    Session(model, optimise=True).run(experiment.inputs) for model in (original, self._candidate)
                )
            except VerificationError:
                before, after = {}, {}
            found = compare_all(before, after, None, self._tolerance, experiment.precision)
            self._optimised[key] = {difference.output: difference for difference in found}
        return self._optimised[key]

    def _compared(self, experiment: Experiment) -> Places | None:
        if experiment.label not in self._places:
            seconds = SECONDS if self._budget is None else max(self._budget.left, LEAST_SECONDS)
            self._places[experiment.label] = compare_places(self._original, self._candidate, experiment, seconds)
        return self._places[experiment.label]


def with_unsigned_pairs(model: ir.Model) -> ir.Model:
    """A copy whose quantised pairs are unsigned, where the runtime prefers such; names of what is new begin with `UNSIGNED`."""
    copy, target = model.clone(), installed()
    if Quirk.TURNS_SIGNED_PAIRS in target.quirks:
        known = {value.name for value in _made(copy)}
        rules = [rule for rule in load_catalogue().rules() if rule.because is Quirk.TURNS_SIGNED_PAIRS]
        editor = Editor(copy, Facts(copy))
        Rewriter(editor, target, Log()).run(rules)
        for value in _made(copy):
            if value.name not in known:
                editor.rename(value, f"{UNSIGNED}{value.name}")
    return copy


def _made(model: ir.Model) -> Iterator[ir.Value]:
    """The outputs of nodes of the main graph."""
    return (value for node in model.graph for value in node.outputs if value.name)


def _apart_from_ties(difference: Difference, decided: Decided) -> Difference:
    """The comparison of an output given the original's decisions: the reasons explain the others, if all of them pass."""
    other = decided.differences[difference.output]
    if not other.ok:
        return other if other.reason else difference
    reasons = "; ".join((*decided.reasons[:MOST_REASONS], *(["..."] if len(decided.reasons) > MOST_REASONS else [])))
    return replace(other, criterion="near ties", reason=f"{reasons}; with the original's decisions it is equal")


def _listed(moved: Mapping[str, float]) -> str:
    """How far an output moves by what."""
    return ", ".join(f"{value:.2g} ({what})" for what, value in moved.items()) or "nothing that could be measured"
