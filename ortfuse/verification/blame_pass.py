"""Find the pass that made a result wrong."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortfuse.runtime.random_seeds import seeded
from ortfuse.runtime.reference_runs import Experiment
from ortfuse.runtime.rounding_sensitivity import Sensitivity
from ortfuse.verification.sensitivity_verdict import weigh
from ortfuse.verification.verdict import Verdict, judge


def blame(
    found: Sequence[Experiment], original: ir.Model, stages: Sequence[tuple[str, ir.Model]], tolerance: float | None
) -> str:
    """Say which pass first made the outputs wrong, or that the runtime did so on its own.

    Args:
        found: The experiments: what the original computes.
        original: The model before the first pass.
        stages: The name of each pass that changed something, and the model after it.
        tolerance: Allowed relative error; the default is given in `ortfuse.runtime.comparison`.
    """
    original, stages = seeded(original), [(name, seeded(model)) for name, model in stages]
    sensitivity = Sensitivity(original)
    for optimise in (False, True):
        for name, model in [("", original), *stages] if optimise else stages:
            verdict = Verdict(judge(found, model, tolerance, levels=(optimise,)))
            if name and tolerance is None:
                verdict = weigh(verdict, found, original, model, sensitivity)
            if not verdict.ok:
                return (
                    f"the pass {name} broke it" if name else "the runtime's own optimisations move the original as far"
                )
    return "no pass alone shows the difference"
