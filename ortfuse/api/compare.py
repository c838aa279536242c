"""Compare two models numerically (`verify`) and by structure (`diff`)."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Unpack

import onnx_ir as ir

from ortfuse.api.assess_optimization import Progress, at_common_sizes, given_inputs, silent
from ortfuse.api.effective_options import effective_options
from ortfuse.api.fallback import declare, runnable
from ortfuse.api.verify_on_targets import refused_nodes, verify_on_each
from ortfuse.errors import OptionError
from ortfuse.io.convert_model_objects import AnyModel, enter
from ortfuse.ir.declared_sizes import declared_sizes
from ortfuse.options import (
    ComparisonOptions,
    Options,
)
from ortfuse.runtime.unrepresentable_models import Runnable
from ortfuse.targets import resolve_target

if TYPE_CHECKING:
    from ortfuse.quantization.input_labels import LabelsLike
    from ortfuse.quantization.metrics import UserFunction
    from ortfuse.verification import Verdict
    from ortfuse.verification.diff import ModelDifference


def verify(
    original: AnyModel,
    optimised: AnyModel,
    options: Options | None = None,
    *,
    reference: bool = True,
    max_error: float | None = None,
    metric: str | UserFunction | None = None,
    labels: LabelsLike | None = None,
    **changes: Unpack[ComparisonOptions],
) -> Verdict:
    """Compare what two models compute, on generated inputs of several sizes or on inputs of your own.

    A model that states a bound (`ortfuse.quantize` writes it into its results), and is compared with one that does not, has to
    keep it, unless a tolerance is given; it is not expected to be equal.

    Args:
        original: Run without the runtime's own optimisations, which might be what is wrong.
        optimised: Run both without and with them.
        options: Only `inputs`, `seed`, `sizes`, `target`, `tolerance` and `verify_budget` are used.
        reference: Whether to evaluate the original in float64 too, where that is feasible.
        max_error: The largest error in terms of the metric, instead of the bound that `optimised` states.
        metric: How that error is measured, as in `ortfuse.quantize`; by default as `optimised` states, or `"l2"`.
        labels: What a function that measures finds as `labels` among the inputs, as in `ortfuse.quantize`.
        **changes: Single options; they override those of `options`.

    Returns:
        The verdict; under a bound an `ortfuse.quantization.error_bound_metadata.BoundVerdict`.

    Raises:
        VerificationError: One of the models cannot be executed, or the names of their inputs or outputs differ.
        OrtfuseError: One of the models or options cannot be used.
    """
    from ortfuse.quantization.error_bound_metadata import bound_between, keeps
    from ortfuse.quantization.input_labels import with_labels
    from ortfuse.runtime.inputs.read_input_files import notes_of
    from ortfuse.verification import verify as compare
    from ortfuse.verification.bisection.judge_without_result_changing_optimizers import told

    options = effective_options(options, **changes, verify="whole")
    if options.tolerance is not None and (max_error is not None or metric is not None):
        raise OptionError("max_error", "give either a tolerance or a largest error, not both")
    first, second = runnable(original), runnable(optimised)
    _declare_alike(first, second)
    bound = None if options.tolerance is not None else bound_between(first, second, max_error, metric)
    given = given_inputs(options, first)
    if labels is not None and (bound is None or bound.metric.function is None):
        raise OptionError("labels", "are for a function that measures: name it with `metric`")
    if bound is not None:
        verdict: Verdict = keeps(first, second, bound, with_labels(given, labels), options.seed)
        verdict.notes[:0] = notes_of(given)
        return verdict
    target = resolve_target(options.target)
    verdict = verify_on_each(
        target,
        lambda: compare(
            first,
            second,
            inputs=given,
            seed=options.seed,
            tolerance=options.tolerance,
            reference=reference,
            sizes=options.sizes,
            budget=options.verify_budget,
            tell=told,
        ),
    )
    verdict.notes[:0] = notes_of(given)
    if not verdict.ok:
        verdict.notes += refused_nodes(target, second)
    return verdict


def _declare_alike(first: Runnable, second: Runnable) -> None:
    """Declare of a model the sizes that are declared of its result, for which alone that is right."""
    if not isinstance(first, ir.Model) or not isinstance(second, ir.Model):
        return
    declared = declared_sizes(second)
    if declared and declared != declared_sizes(first):
        with contextlib.suppress(OptionError):  # of another model: verification says what differs
            declare(first, declared)


def diff(
    first: AnyModel,
    second: AnyModel,
    options: Options | None = None,
    *,
    run: bool | None = None,
    progress: Progress | None = None,
    **changes: Unpack[ComparisonOptions],
) -> ModelDifference:
    """Tell where two models differ: nodes, attributes, constants and interface and, if asked, the first tensor that differs.

    Nodes and values match by name, then by structure (`ortfuse.verification.diff.matching`).

    Args:
        first: A path, `onnx.ModelProto`, `onnx_ir.Model` or `onnx_graphsurgeon.Graph`; it is not changed.
        second: The other model.
        options: Only `inputs`, `seed` and `tolerance` are used.
        run: Whether to run both, and to compare every tensor that both compute; by default if there are `inputs`, without
            which they are generated, of sizes that are declared or fixed in either.
        progress: Called with short messages about what is going on.
        **changes: Single options; they override those of `options`.

    Raises:
        VerificationError: The models are to be run, and one of them cannot be.
        OrtfuseError: One of the models or options cannot be used.
    """
    from ortfuse.runtime.reference_runs import experiments
    from ortfuse.verification.diff import Matching, ModelDifference, compare_structure, compare_tensors

    options = effective_options(options, **changes)
    one, other = enter(first)[0], enter(second)[0]
    matching = Matching(one, other)
    structure = compare_structure(one, other, matching)
    if not (options.inputs is not None if run is None else run):
        return ModelDifference(structure, None, matching)
    drawn = at_common_sizes([one, other])
    found, _ = experiments(drawn, given_inputs(options, drawn), options.seed, reference=False)
    inputs = [(trial.label, trial.inputs) for trial in found]
    tensors = compare_tensors(one, other, matching, inputs, options.tolerance, progress or silent)
    return ModelDifference(structure, tensors, matching)
