"""Name the optimisers of ONNX Runtime that change the original's results, and judge the candidate without them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir

from ortfuse.runtime.reference_runs import Experiment
from ortfuse.runtime.session import Session
from ortfuse.verification.bisection.bisect_runtime_optimizers import changing
from ortfuse.verification.verdict import Verdict, judge_session


def told(
    verdict: Verdict, found: Sequence[Experiment], original: ir.Model, candidate: ir.Model
) -> tuple[Verdict, tuple[str, ...]]:
    """The verdict with the optimisers named, and those that have to be disabled for the candidate to be right.

    A refusal to run needs none disabled: it is no wrong number, and the original is refused alike.

    Args:
        verdict: A verdict with a `RuntimeChange`.
        found: The experiments that it is of.
        original: The original.
        candidate: The other model.
    """
    change = verdict.runtime
    experiment = next((one for one in found if change is not None and one.label == change.label), None)
    if change is None or experiment is None:
        return verdict, ()
    verdict = replace(verdict, runtime=change.named(changing(original, experiment)))
    if change.is_avoided or change.refusal:
        return verdict, ()
    disabled = changing(candidate, experiment) or changing(original, experiment)
    if not disabled:
        return verdict, ()
    trials = judge_session(lambda: Session(candidate, disabled=disabled), found, verdict.tolerance, optimise=True)
    if not all(trial.ok for trial in trials):
        return verdict, ()
    return replace(
        verdict, trials=[*(one for one in verdict.trials if not one.runtime_optimisations), *trials]
    ), disabled
