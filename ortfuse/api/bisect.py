"""Find the smallest change that moves an output of a model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from ortfuse.api.assess_optimization import Progress, given_inputs, silent
from ortfuse.api.effective_options import effective_options
from ortfuse.api.fallback import taken_in
from ortfuse.io.convert_model_objects import AnyModel, enter
from ortfuse.options import (
    BisectOptions,
    ComparisonOptions,
    Options,
)
from ortfuse.pipeline.manager import PassManager

if TYPE_CHECKING:
    from ortfuse.verification.bisection.bisect_pipeline import Bisection
    from ortfuse.verification.bisection.bisect_runtime_optimizers import RuntimeBisection


def bisect(
    model: AnyModel,
    options: Options | None = None,
    *,
    progress: Progress | None = None,
    **changes: Unpack[BisectOptions],
) -> Bisection:
    """Find the smallest set of passes, rules and single rewrites that moves an output of a model beyond tolerance.

    Args:
        model: A path, `onnx.ModelProto`, `onnx_ir.Model` or `onnx_graphsurgeon.Graph`; it is not changed.
        options: Only those that say what is rewritten and how models are compared are used.
        progress: Called with short messages about what is going on.
        **changes: Single options; they override those of `options`.

    Raises:
        VerificationError: The model cannot be executed.
        OrtfuseError: The model, the pipeline or a rule file cannot be used.
    """
    from ortfuse.verification.bisection.bisect_pipeline import bisect as search

    options = effective_options(options, **changes)
    manager = PassManager(replace(options, explain=False))
    original = taken_in(model, options)[0]
    inputs = given_inputs(options, original)
    return search(
        original,
        manager,
        inputs=inputs,
        seed=options.seed,
        tolerance=options.tolerance,
        progress=progress or silent,
    )


def bisect_runtime(
    model: AnyModel,
    options: Options | None = None,
    *,
    progress: Progress | None = None,
    **changes: Unpack[ComparisonOptions],
) -> RuntimeBisection:
    """Find the smallest set of ONNX Runtime's own optimisers that moves an output of a model beyond tolerance.

    Args:
        model: As in `bisect`.
        options: Only `inputs`, `seed` and `tolerance` are used.
        progress: Called with short messages about what is going on.
        **changes: Single options; they override those of `options`.

    Raises:
        VerificationError: The model cannot be executed without the runtime's optimisations.
        OrtfuseError: The model or an option cannot be used.
    """
    from ortfuse.verification.bisection.bisect_runtime_optimizers import bisect_runtime as search

    options = effective_options(options, **changes)
    original = enter(model)[0]
    inputs = given_inputs(options, original)
    return search(original, inputs=inputs, seed=options.seed, tolerance=options.tolerance, progress=progress or silent)
