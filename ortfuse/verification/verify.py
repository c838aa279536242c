"""Decides whether two models compute the same."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortfuse.errors import VerificationError
from ortfuse.execution.as_it_is import Runnable, signature_of
from ortfuse.execution.experiments import Experiment, experiments
from ortfuse.execution.inputs import Inputs
from ortfuse.verification.verdict import Verdict, judge
from ortfuse.verification.weigh import weigh


def verify(
    original: Runnable,
    optimised: Runnable,
    *,
    inputs: Sequence[Inputs] | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    reference: bool = True,
) -> Verdict:
    """Compare two models on generated inputs of several sizes, or on `inputs`.

    Args:
        original: Run without the runtime's own optimisations, since those might be what is wrong.
        optimised: Run both without and with them.
        inputs: Sets of inputs by name, used instead of generated ones.
        seed: Seed of the generated inputs.
        tolerance: Allowed relative error; the default is given in `ortfuse.execution.compare`.
        reference: Whether to evaluate the original in float64 too, where that is feasible.

    Raises:
        VerificationError: The original cannot be executed, or the input or output names of the models differ.
    """
    demand_same_interface(original, optimised)
    found, notes = experiments(original, inputs, seed, reference)
    verdict = Verdict(judge(found, optimised, tolerance), notes)
    if tolerance is None and isinstance(original, ir.Model) and isinstance(optimised, ir.Model):
        verdict = weigh(verdict, found, original, optimised)
    if verdict.only_optimised:
        verdict.notes.append(_suspect(found, original, tolerance))
    return verdict


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
