"""Finds the pass that made a result wrong."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortfuse.execution.experiments import Experiment
from ortfuse.verification.verify import judge


def blame(
    found: Sequence[Experiment], original: ir.Model, stages: Sequence[tuple[str, ir.Model]], tolerance: float | None
) -> str:
    """Say which pass first made the outputs wrong, or that the runtime did so on its own.

    Args:
        found: The experiments: what the original computes.
        original: The model before the first pass.
        stages: The name of each pass that changed something, and the model after it.
        tolerance: Allowed relative error; the default is given in `ortfuse.execution.compare`.
    """
    for optimise in (False, True):
        for name, model in [("", original), *stages] if optimise else stages:
            if not all(trial.ok for trial in judge(found, model, tolerance, levels=(optimise,))):
                return (
                    f"the pass {name} broke it" if name else "the runtime's own optimisations move the original as far"
                )
    return "no pass alone shows the difference"
