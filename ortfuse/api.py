"""The functions most users need: optimise a model, find a pattern in it, compare and measure models, load and save."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import onnx_ir as ir

from ortfuse.errors import PipelineError, VerificationError
from ortfuse.facts.facts import Facts
from ortfuse.graph.walk import scopes
from ortfuse.model.interop import AnyModel, enter
from ortfuse.model.io import load, save
from ortfuse.pattern import Guard, Match, Matcher, Pattern
from ortfuse.pipeline.manager import PassManager, PipelineLike
from ortfuse.pipeline.report import RunReport
from ortfuse.pipeline.runner import OnPass
from ortfuse.rewrite import Debugging
from ortfuse.targets import Target

if TYPE_CHECKING:
    from ortfuse.bench import Latency, SiteMeter
    from ortfuse.bisection.bisect import Bisection
    from ortfuse.bisection.runtime_optimizers import RuntimeBisection
    from ortfuse.explanation import Explanation
    from ortfuse.verification import Inputs, SiteCheck, SiteChecks, Verdict

__all__ = ["Result", "benchmark", "bisect", "bisect_runtime", "explain", "find", "load", "optimize", "save", "verify"]


@dataclass(frozen=True)
class Result:
    """An optimised model, of the kind that was handed in (an `onnx_ir.Model` for a path), and what was done to it.

    Attributes:
        model: The model.
        report: What was done.
        verdict: How it compares with the original, if it was verified as a whole.
        sites: The check of each change, if those were verified.
    """

    model: Any
    report: RunReport
    verdict: Verdict | None = None
    sites: tuple[SiteCheck, ...] = ()

    def save(self, path: str | os.PathLike[str], *, link: bool = False) -> None:
        """Write the model to a file; `link` says whether external data may be hard links (see `ortfuse.save`).

        Raises:
            OutputError: It cannot be written; what was there before is unchanged.
        """
        save(enter(self.model, copy=False)[0], path, link=link)


def optimize(
    model: AnyModel,
    *,
    passes: PipelineLike = "auto",
    level: str | None = None,
    target: Target | None = None,
    max_opset: int | None = None,
    patterns: Iterable[str | os.PathLike[str]] | str | os.PathLike[str] = (),
    approximate: bool = False,
    explain: bool = False,
    pins: Mapping[str, str] | None = None,
    measure: bool = False,
    sizes: Mapping[str, int] | None = None,
    verify: Literal["whole", "sites"] | None = None,
    on_pass: OnPass | None = None,
    debugging: Debugging | None = None,
) -> Result:
    """Rewrite a model into the operators that ONNX Runtime executes fastest. What is handed in is not changed.

    Args:
        model: A path, `onnx.ModelProto`, `onnx_ir.Model` or `onnx_graphsurgeon.Graph`.
        passes: A pipeline as text, the name or path of a pass list, or a sequence of texts and passes. By default the
            pass list that suits the operators of the model.
        level: `"basic"`, `"extended"` or `"all"` instead of `passes`.
        target: The runtime to optimise for; by default the installed one, on the CPU.
        max_opset: The highest ai.onnx opset that the result may use.
        patterns: Files and folders with rules of the user's own.
        approximate: Whether rules that replace the mathematics by an approximation may be applied.
        explain: Whether to keep near misses in the report, which takes time.
        pins: For families (`"attention"`) or rules, the operator that their sites become whatever the cost, such as
            `"com.microsoft.MultiHeadAttention"`, or `"none"` to leave them as they are.
        measure: Whether to measure on this machine, where several operators are legal, instead of asking the table that
            comes with ortfuse.
        sizes: Sizes of the model's open dimensions at which to measure, by name.
        verify: `"whole"` compares the result with the original. `"sites"` checks each change where it happens, on its
            own nodes with the real weights and generated inputs, and undoes it if it is wrong; the result lists all checks.
        on_pass: Called after each item of the pipeline.
        debugging: An order in which sites are visited, and checks after every rewrite; see `ortfuse.rewrite.Debugging`.

    Raises:
        VerificationError: With `verify="whole"`, the result does not compute what the model computes.
        OrtfuseError: The model, the pipeline or a rule file cannot be used; the message says what to do.
    """
    if level is not None:
        if passes != "auto":
            raise PipelineError("give either passes or a level, not both")
        passes = level
    manager = PassManager(
        passes,
        target=target,
        patterns=patterns,
        approximate=approximate,
        explain=explain,
        max_opset=max_opset,
        pins=pins,
        debugging=debugging,
    )
    if verify not in (None, "sites", "whole"):
        raise VerificationError(f'verify={verify!r}: give "whole" or "sites"')
    checks = _site_checks() if verify == "sites" else None
    meter = _meter(model, sizes or {}) if measure else None
    original = enter(model)[0] if verify == "whole" else None
    report = manager.run(model, on_pass=on_pass, inspector=checks, meter=meter)
    verdict = None if original is None else _verify(original, report.model)
    if verdict is not None and not verdict.ok:
        raise VerificationError(verdict.summary())
    return Result(report.model, report, verdict, () if checks is None else tuple(checks.found.values()))


def _site_checks() -> SiteChecks:
    from ortfuse.verification import SiteChecks

    return SiteChecks()


def _meter(model: AnyModel, sizes: Mapping[str, int]) -> SiteMeter:
    from ortfuse.bench import SiteMeter

    return SiteMeter.for_model(enter(model, copy=False)[0], dict(sizes))


def _verify(original: AnyModel, optimised: AnyModel) -> Verdict:
    # Within `optimize`, `verify` is what is asked for.
    return verify(original, optimised)


def find(model: AnyModel, pattern: Pattern, *, guards: Sequence[Guard] = ()) -> Iterator[Match]:
    """Every place where a pattern matches, in any graph of the model; nothing is rewritten.

    The matches of an `onnx_ir.Model` refer to its own values. Matches may overlap.

    Args:
        model: A path, `onnx.ModelProto`, `onnx_ir.Model` or `onnx_graphsurgeon.Graph`.
        pattern: What to look for; there must be an operator at its root.
        guards: Conditions beyond the pattern, as in a rule.

    Raises:
        PatternError: The pattern would match any value.
        OrtfuseError: The model cannot be used.
    """
    matcher = Matcher(pattern, tuple(guards))
    return _matches(enter(model, copy=False)[0], matcher)


def _matches(model: ir.Model, matcher: Matcher) -> Iterator[Match]:
    facts = Facts(model)
    for scope in scopes(model):
        for node in scope.graph:
            if node.op_type not in matcher.heads:
                continue
            for output in node.outputs:
                found = matcher.match(output, facts)
                if isinstance(found, Match):
                    yield found


def verify(
    original: AnyModel,
    optimised: AnyModel,
    *,
    inputs: Sequence[Inputs] | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    reference: bool = True,
) -> Verdict:
    """Compare what two models compute, on generated inputs of several sizes or on inputs of one's own.

    See `ortfuse.verification.verify` for the arguments.

    Raises:
        VerificationError: One of the models cannot be executed, or their inputs or outputs have other names.
        OrtfuseError: One of the models cannot be used.
    """
    from ortfuse.verification import verify as compare

    return compare(
        enter(original)[0],
        enter(optimised)[0],
        inputs=inputs,
        seed=seed,
        tolerance=tolerance,
        reference=reference,
    )


def bisect(
    model: AnyModel,
    *,
    passes: PipelineLike = "auto",
    target: Target | None = None,
    max_opset: int | None = None,
    patterns: Iterable[str | os.PathLike[str]] | str | os.PathLike[str] = (),
    approximate: bool = False,
    inputs: Sequence[Inputs] | None = None,
    seed: int = 0,
    tolerance: float | None = None,
) -> Bisection:
    """Find the smallest set of passes, rules and single rewrites that moves an output of a model beyond tolerance.

    Args:
        model: A path, `onnx.ModelProto`, `onnx_ir.Model` or `onnx_graphsurgeon.Graph`; it is not changed.
        passes: As in `optimize`, and so are `target`, `max_opset`, `patterns` and `approximate`.
        target: The runtime to optimise for.
        max_opset: The highest ai.onnx opset that results may use.
        patterns: Files and folders with rules of the user's own.
        approximate: Whether rules that replace the mathematics by an approximation may be applied.
        inputs: Sets of inputs by name, instead of generated ones.
        seed: Of the generated inputs.
        tolerance: Allowed relative error; by default what `ortfuse.execution.compare` says.

    Raises:
        VerificationError: The model cannot be executed.
        OrtfuseError: The model, the pipeline or a rule file cannot be used.
    """
    from ortfuse.bisection.bisect import bisect as search

    manager = PassManager(passes, target=target, patterns=patterns, approximate=approximate, max_opset=max_opset)
    return search(enter(model)[0], manager, inputs=inputs, seed=seed, tolerance=tolerance)


def bisect_runtime(
    model: AnyModel, *, inputs: Sequence[Inputs] | None = None, seed: int = 0, tolerance: float | None = None
) -> RuntimeBisection:
    """Find the smallest set of ONNX Runtime's own optimisers that moves an output of a model beyond tolerance.

    See `bisect` for the arguments.

    Raises:
        VerificationError: The model cannot be executed without the runtime's optimisations.
        OrtfuseError: The model cannot be used.
    """
    from ortfuse.bisection.runtime_optimizers import bisect_runtime as search

    return search(enter(model)[0], inputs=inputs, seed=seed, tolerance=tolerance)


def explain(
    model: AnyModel,
    *,
    rules: Sequence[str] = (),
    passes: PipelineLike = "auto",
    target: Target | None = None,
    max_opset: int | None = None,
    patterns: Iterable[str | os.PathLike[str]] | str | os.PathLike[str] = (),
    approximate: bool = False,
) -> Explanation:
    """Say for each site of a model which rule fused it, or which came nearest, what stopped it and what would help.

    Args:
        model: A path, `onnx.ModelProto`, `onnx_ir.Model` or `onnx_graphsurgeon.Graph`; it is not changed.
        rules: Families (`"attention"`) or rules (`"attention.sdpa"`) to explain; by default all fusions, and of the
            misses those that are near.
        passes: As in `optimize`, and so are `target`, `max_opset`, `patterns` and `approximate`.
        target: The runtime to optimise for.
        max_opset: The highest ai.onnx opset that the result may use.
        patterns: Files and folders with rules of the user's own.
        approximate: Whether rules that replace the mathematics by an approximation may be applied.

    Raises:
        RuleError: There is no such family or rule.
        OrtfuseError: The model or the pipeline cannot be used.
    """
    from ortfuse.explanation import explain as find_reasons

    manager = PassManager(
        passes, target=target, patterns=patterns, approximate=approximate, explain=True, max_opset=max_opset
    )
    return find_reasons(model, manager, rules)


def benchmark(
    models: Mapping[str, AnyModel],
    *,
    inputs: Inputs | None = None,
    seed: int = 0,
    rounds: int = 20,
    threads: int = 0,
) -> list[Latency]:
    """Measure models side by side, runs interleaved; speedups are relative to the first model.

    Args:
        models: The models by the names they have in the result; they take the same inputs.
        inputs: What they are run on; by default the last of the inputs that `verify` would generate for the first model.
        seed: Of the generated inputs.
        rounds: How often each model is run.
        threads: Threads of the runtime; 0 leaves the number to it.

    Raises:
        VerificationError: The runtime refuses a model.
        OrtfuseError: One of the models cannot be used.
    """
    from ortfuse.bench import measure
    from ortfuse.verification import experiments

    entered = {name: enter(model)[0] for name, model in models.items()}
    if inputs is None:
        found, _ = experiments(next(iter(entered.values())), seed=seed, reference=False)
        inputs = found[-1].inputs
    return measure(entered, inputs, rounds=rounds, threads=threads)
