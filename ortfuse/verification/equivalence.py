"""Decide whether two models compute the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from ortfuse.errors import VerificationError
from ortfuse.io.training_mode import training_note
from ortfuse.runtime.current_execution_target import executing_for, execution_target
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.random_seeds import seeded, unseeded
from ortfuse.runtime.reference_runs import Experiment, Explored
from ortfuse.runtime.rounding_sensitivity import Sensitivity
from ortfuse.runtime.session import Session
from ortfuse.runtime.unrepresentable_models import Runnable, signature_of
from ortfuse.runtime.verification_time_budget import SECONDS, Budget
from ortfuse.targets import default_spec
from ortfuse.verification.hidden_tokens import comparable, explored_with_hidden_tokens
from ortfuse.verification.runtime_changes import RuntimeChange, refuses, runtime_change
from ortfuse.verification.sensitivity_verdict import at_the_same_level, weigh
from ortfuse.verification.verdict import Verdict, judge


def verify(
    original: Runnable,
    optimised: Runnable,
    *,
    inputs: Sequence[Inputs] | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    reference: bool = True,
    sizes: Mapping[str, int] | None = None,
    budget: float | None = None,
    tell: Callable[[Verdict, Sequence[Experiment], ir.Model, ir.Model], tuple[Verdict, Sequence[str]]] | None = None,
) -> Verdict:
    """Compare two models on generated inputs of several sizes, or on `inputs`.

    Args:
        original: Run without the runtime's own optimisations, since those might be what is wrong.
        optimised: Run both without and with them.
        inputs: Sets of inputs by name, used instead of generated ones.
        seed: Seed of the generated inputs.
        tolerance: Allowed relative error; the default is given in `ortfuse.runtime.comparison`.
        reference: Whether to evaluate the original in float64 too, where that is feasible.
        sizes: Sizes of open dimensions by name, for one more set of generated inputs.
        budget: Seconds that the comparison may take; by default `ortfuse.runtime.verification_time_budget.SECONDS`.
        tell: Names the runtime's own optimisers where they change the original.

    Raises:
        VerificationError: The original cannot be executed, or the input or output names of the models differ.
    """
    demand_same_interface(original, optimised)
    limit = Budget(SECONDS if budget is None else budget)
    first, second, hidden = comparable(repeatable(original), repeatable(optimised))
    found = explored_with_hidden_tokens(first, hidden, inputs, seed, reference, sizes=sizes, budget=limit)
    verdict = verdict_on(found, first, second, tolerance, limit)
    if (
        verdict.runtime is not None
        and tell is not None
        and isinstance(first, ir.Model)
        and isinstance(second, ir.Model)
    ):
        verdict, _ = tell(verdict, found.experiments, first, second)
    if verdict.only_optimised:
        verdict.notes.append(_suspect(found.experiments, first, tolerance))
    return verdict


def repeatable(model: Runnable) -> Runnable:
    """The model with fixed seeds where it draws random numbers; what no graph can represent is left as it is."""
    return seeded(model) if isinstance(model, ir.Model) else model


def verdict_on(
    found: Explored, original: Runnable, candidate: Runnable, tolerance: float | None, budget: Budget
) -> Verdict:
    """Compare a candidate with what the original computed, and weigh differences against the original's own sensitivity.

    Args:
        found: What the original computed.
        original: The original, with fixed seeds.
        candidate: The other model, with fixed seeds.
        tolerance: Allowed relative error; `None` for the usual rules.
        budget: The time that is left.
    """
    training = training_note(original) if isinstance(original, ir.Model) else None
    notes = [*found.notes, *([] if training is None else [training])]
    trials = judge(found.experiments, candidate, tolerance, budget=budget)
    if left := len({one.label for one in found.experiments}) - len({trial.inputs for trial in trials}):
        notes.append(f"{left} more sets of inputs were left out: the time for verifying is over (--verify-budget)")
    verdict = Verdict(trials, notes, found.exercise, tolerance)
    if not isinstance(original, ir.Model) or not isinstance(candidate, ir.Model):
        return verdict
    if random := unseeded(original):
        notes.append(f"{', '.join(random)} draws random numbers: outputs that depend on them cannot be compared")
        return verdict
    sensitivity = Sensitivity(original)
    verdict = _without_common_refusals(verdict, found.experiments, original)
    if tolerance is None:
        verdict = weigh(verdict, found.experiments, original, candidate, sensitivity, budget)
    else:
        trials = at_the_same_level(verdict.trials, found.experiments, original, candidate, tolerance)
        verdict = replace(verdict, trials=trials)
    verdict = _with_runtime_change(verdict, found.experiments, original, sensitivity, budget)
    return (
        verdict
        if verdict.ok
        else _beside_default_target(verdict, found.experiments, original, candidate, tolerance, budget)
    )


def _beside_default_target(
    verdict: Verdict,
    found: Sequence[Experiment],
    original: ir.Model,
    candidate: ir.Model,
    tolerance: float | None,
    budget: Budget,
) -> Verdict:
    """The verdict by what the default target computes of the original, if the candidate agrees with that in all wrong runs.

    A bug of another target's runtime that the candidate avoids makes the original wrong there.
    """
    target = execution_target()
    if target.is_default:
        return verdict
    wrong = {trial.inputs for trial in verdict.trials if not trial.ok}
    suspects = [experiment for experiment in found if experiment.label in wrong]
    try:
        with executing_for(default_spec()):
            session = Session(original, optimise=False)
            right = [replace(one, expected=session.run(one.inputs), reference=None) for one in suspects]
    except VerificationError:
        return verdict
    trials = judge(right, candidate, tolerance, budget=budget)
    if len(trials) < 2 * len(right) or not all(trial.ok for trial in trials):
        return verdict
    inputs = ", ".join(experiment.label for experiment in suspects)
    note = (
        f"the runtime of {target.name} computes the original otherwise than that of the CPU, with which the result agrees "
        f"({inputs})"
    )
    others = [trial for trial in verdict.trials if trial.inputs not in wrong]
    return replace(verdict, trials=[*others, *trials], notes=[*verdict.notes, note])


def _without_common_refusals(verdict: Verdict, found: Sequence[Experiment], original: ir.Model) -> Verdict:
    """The verdict without runs that the runtime's own optimisations keep it from, of the original as of the candidate."""
    experiments = {experiment.label: experiment for experiment in found}
    right = {trial.inputs for trial in verdict.trials if not trial.runtime_optimisations and trial.ok}
    common = [
        trial
        for trial in verdict.trials
        if trial.runtime_optimisations
        and trial.refusal
        and trial.inputs in right
        and refuses(original, experiments[trial.inputs])
    ]
    if not common or len(common) == sum(trial.runtime_optimisations for trial in verdict.trials):
        return verdict
    first = common[0]
    verdict = replace(verdict, trials=[trial for trial in verdict.trials if trial not in common])
    return replace(verdict, runtime=RuntimeChange(first.inputs, refusal=first.refusal))


def _with_runtime_change(
    verdict: Verdict, found: Sequence[Experiment], original: ir.Model, sensitivity: Sensitivity, budget: Budget
) -> Verdict:
    """The verdict with what the runtime's own optimisations change in the original, sought where it is most likely."""
    if verdict.runtime is not None or not found:
        return verdict
    moved = {
        trial.inputs
        for trial in verdict.trials
        if trial.runtime_optimisations and any(not one.ok or one.criterion == "the same level" for one in trial.outputs)
    }
    suspects = [experiment for experiment in found if experiment.label in moved] or found[:2][-1:]
    change = runtime_change(original, suspects, sensitivity, budget)
    if change is None:
        return verdict
    return replace(verdict, runtime=replace(change, is_avoided=verdict.ok and not moved))


def _suspect(found: Sequence[Experiment], original: Runnable, tolerance: float | None) -> str:
    """Whether the runtime's own optimisations also go wrong on the original."""
    if all(trial.ok for trial in judge(found, original, tolerance, levels=(True,))):
        return "the original is right with the runtime's own optimisations, the optimised model only without them"
    return "with its own optimisations the runtime is wrong on the original too"


def demand_same_interface(original: Runnable, optimised: Runnable) -> None:
    """Check that two models have inputs and outputs of the same names.

    Raises:
        VerificationError: They do not.
    """
    for what in ("inputs", "outputs"):
        before, after = (
            [value.name for value in getattr(signature_of(one).graph, what)] for one in (original, optimised)
        )
        if before != after:
            raise VerificationError(
                f"the models have different {what}: {before} and {after}; compare models with the same {what} in the same order"
            )
