"""The functions most users need: optimise a model, find a pattern in it, compare and measure models, load and save."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from ortfuse.errors import PipelineError
from ortfuse.ir.facts import Facts
from ortfuse.ir.interop import AnyModel, enter
from ortfuse.ir.io import load, save
from ortfuse.pattern import Guard, Match, Matcher, Pattern
from ortfuse.pipeline.manager import PassManager, PipelineLike
from ortfuse.pipeline.report import RunReport
from ortfuse.pipeline.runner import OnPass
from ortfuse.rewrite import Debugging, scopes
from ortfuse.target import Target

if TYPE_CHECKING:
    from ortfuse.bench import Latency
    from ortfuse.validate import Inputs, Verdict

__all__ = ["Result", "benchmark", "find", "load", "optimize", "save", "verify"]


@dataclass(frozen=True)
class Result:
    """An optimised model, of the kind that was handed in (an `onnx_ir.Model` for a path), and what was done to it."""

    model: Any
    report: RunReport

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file.

        Raises:
            OutputError: It cannot be written; what was there before is unchanged.
        """
        save(enter(self.model, copy=False)[0], path)


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
        on_pass: Called after each item of the pipeline.
        debugging: An order in which sites are visited, and checks after every rewrite; see `ortfuse.rewrite.Debugging`.

    Raises:
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
        debugging=debugging,
    )
    report = manager.run(model, on_pass=on_pass)
    return Result(report.model, report)


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

    See `ortfuse.validate.verify` for the arguments.

    Raises:
        VerificationError: One of the models cannot be executed, or their inputs or outputs have other names.
        OrtfuseError: One of the models cannot be used.
    """
    from ortfuse.validate import verify as compare

    return compare(
        enter(original)[0],
        enter(optimised)[0],
        inputs=inputs,
        seed=seed,
        tolerance=tolerance,
        reference=reference,
    )


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
    from ortfuse.validate import experiments

    entered = {name: enter(model)[0] for name, model in models.items()}
    if inputs is None:
        found, _ = experiments(next(iter(entered.values())), seed=seed, reference=False)
        inputs = found[-1].inputs
    return measure(entered, inputs, rounds=rounds, threads=threads)
