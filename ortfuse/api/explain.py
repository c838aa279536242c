"""Explain rewrites and missed optimisations, find matches of a pattern, and inspect a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

from ortfuse.analysis.facts import Facts
from ortfuse.api.assess_optimization import Progress, silent
from ortfuse.api.effective_options import effective_options
from ortfuse.api.optimize import optimize
from ortfuse.errors import PatternError
from ortfuse.io.convert_model_objects import AnyModel, enter
from ortfuse.options import (
    Options,
    PathLike,
    PipelineOptions,
)
from ortfuse.pipeline.manager import PassManager
from ortfuse.rewrite.pattern import Guard, Match, Matcher, Pattern
from ortfuse.rewrite.pattern.find import matches
from ortfuse.targets import Target, TargetSpec

if TYPE_CHECKING:
    from ortfuse.inspection import Inspection
    from ortfuse.verification.explanation import Explanation


def find(model: AnyModel, pattern: Pattern, *, guards: Sequence[Guard] = ()) -> Iterator[Match]:
    """Find every place where a pattern matches, in any graph of the model; nothing is rewritten.

    The matches of an `onnx_ir.Model` refer to its own values. Matches may overlap.

    Args:
        model: A path, `onnx.ModelProto`, `onnx_ir.Model` or `onnx_graphsurgeon.Graph`.
        pattern: What to look for; its root must be an operator.
        guards: Conditions beyond the pattern, as in a rule.

    Raises:
        PatternError: The pattern would match any value, or is none.
        OrtfuseError: The model cannot be used.
    """
    if not isinstance(pattern, Pattern):
        raise PatternError(f"a pattern is made of `var` and `op` of ortfuse.rewrite.pattern, and is not {pattern!r}")
    matcher = Matcher(pattern, tuple(guards))
    inside = enter(model, copy=False)[0]
    return matches(inside, matcher, Facts(inside))


def explain(
    model: AnyModel,
    rules: str | Sequence[str] = (),
    options: Options | None = None,
    *,
    progress: Progress | None = None,
    **changes: Unpack[PipelineOptions],
) -> Explanation:
    """Explain each site of a model: which rule fused it, or which came nearest, what stopped it and what would help.

    Args:
        model: A path, `onnx.ModelProto`, `onnx_ir.Model` or `onnx_graphsurgeon.Graph`; it is not changed.
        rules: A family (`"attention"`) or rule (`"attention.sdpa"`) to explain, or several; by default all fusions and the
            near misses.
        options: Only those that say what is rewritten are used.
        progress: Called with short messages about what is going on.
        **changes: Single options; they override those of `options`.

    Raises:
        RuleError: There is no such family or rule.
        OrtfuseError: The model, the pipeline or an option cannot be used.
    """
    options = effective_options(options, **changes)
    only = {name: getattr(options, name) for name in PipelineOptions.__annotations__}
    asked = (rules,) if isinstance(rules, str) else tuple(rules)
    result = optimize(model, Options(**only, explain=asked or True, loaded=False), progress=progress)
    if result.explanation is None:
        from ortfuse.verification.explanation import Explanation

        return Explanation((), (), {}, tuple(result.report.notes))
    return result.explanation


def inspect(
    model: AnyModel,
    *,
    sizes: Mapping[str, int] | None = None,
    measure: bool = True,
    threads: int = 0,
    target: Target | TargetSpec | PathLike | None = None,
    custom_ops: PathLike | Sequence[PathLike] = (),
    progress: Progress | None = None,
) -> Inspection:
    """Tell what is in a model: opsets, signature, weights, operators, blocks, and what they cost on this machine.

    Blocks are found, and costs are told, in the model's canonical form with recurrent layers, activations,
    normalisations and attention recognised (`ortfuse.inspection.PASSES`).

    Args:
        model: A path, `onnx.ModelProto`, `onnx_ir.Model` or `onnx_graphsurgeon.Graph`; it is not changed.
        sizes: Sizes of open dimensions at which to tell the cost, by name; by default one sample of 128 positions.
        measure: Whether to measure the peaks of this machine, once: they are kept in the cache folder.
        threads: Threads of the runtime when measuring; 0 leaves the number to it.
        target: The runtime whose kernels count, as in `Options`.
        custom_ops: Libraries with kernels of operators of the user's own.
        progress: Called with short messages about what is going on.

    Raises:
        VerificationError: The model lacks a dimension named in `sizes`.
        OrtfuseError: The model or an option cannot be used.
    """
    from ortfuse.inspection import PASSES, inspection
    from ortfuse.runtime.bench.machine_peaks import peaks
    from ortfuse.runtime.bench.typical_benchmark_inputs import labels_of_sizes, usual_sizes

    progress = progress or silent
    options = effective_options(
        Options(sizes=sizes or {}, measure=True, threads=threads, target=target, custom_ops=custom_ops)
    )
    manager = PassManager(options)
    inside = enter(model)[0]
    chosen = usual_sizes(inside, options.sizes)
    normal = optimize(inside, Options(passes=PASSES, loaded=False), progress=progress).model
    progress("measuring this machine")
    machine = peaks(threads) if measure else None
    return inspection(inside, normal, manager.target, chosen, machine, labels_of_sizes(inside))
