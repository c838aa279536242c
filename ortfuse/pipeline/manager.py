"""The pass manager: takes a pipeline in any of its forms and runs it over models."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ortfuse.errors import InvalidModelError, PipelineError, RewriteError, TargetError
from ortfuse.facts.facts import Facts
from ortfuse.graph.edit import Inspector
from ortfuse.model.check import check
from ortfuse.model.interop import AnyModel, enter, leave
from ortfuse.model.io import uncollected
from ortfuse.passes import Choices, Context, Finalize, Meter, Pass, check_pins
from ortfuse.passes.foreign import foreign_pass
from ortfuse.pipeline.build import Builder, Repeated, Single, Step, call_of
from ortfuse.pipeline.catalogue import Catalogue, load_catalogue
from ortfuse.pipeline.passlists import read_list
from ortfuse.pipeline.report import Counts, RunReport
from ortfuse.pipeline.runner import OnPass, Runner
from ortfuse.pipeline.text import Item, parse
from ortfuse.rewrite import Debugging, Log
from ortfuse.targets import Target

PipelineLike = str | os.PathLike[str] | Sequence[Any]
"""A pipeline as text, the path of a TOML pass list, or a sequence of texts and passes: ours, those of onnx_ir, and rules and
sets of rules of onnxscript."""


class PassManager:
    """A pipeline, ready to be run over any number of models.

    Args:
        pipeline: Text such as `"canonicalize, fixpoint(fold, cse, dce), fuse.attention"`, the name of a pass list, the
            path of a TOML pass list, or a sequence of texts and pass objects. `"auto"` picks the list by the model.
        target: The runtime to optimise for; by default the installed one, on the CPU.
        patterns: Files and folders with rules of the user's own.
        approximate: Whether rules that replace the mathematics by an approximation may be applied.
        explain: Whether to keep near misses, which takes time.
        max_opset: The highest ai.onnx opset that the result may use.
        pins: For families (`"attention"`) or rules, the operator that their sites are to become whatever the cost, such as
            `"com.microsoft.MultiHeadAttention"`, or `"none"` to leave them as they are.
        debugging: An order in which sites are visited, and checks after every rewrite; see `ortfuse.rewrite.Debugging`.

    Raises:
        PipelineError: The pipeline is wrong.
        RuleError: A rule file is wrong.
    """

    def __init__(
        self,
        pipeline: PipelineLike = "auto",
        *,
        target: Target | None = None,
        patterns: Iterable[str | os.PathLike[str]] | str | os.PathLike[str] = (),
        approximate: bool = False,
        explain: bool = False,
        max_opset: int | None = None,
        pins: Mapping[str, str] | None = None,
        debugging: Debugging | None = None,
    ) -> None:
        self._items = _items(pipeline)
        self._debugging = debugging or Debugging()
        self._target = _target(target, max_opset)
        self._approximate, self._explain = approximate, explain
        named = [patterns] if isinstance(patterns, str | os.PathLike) else patterns
        self._catalogue = load_catalogue([Path(path) for path in named])
        # Whatever is wrong with the pipeline is said now, not when the first model has been loaded.
        self._check_use_of_patterns(Builder(self._catalogue).build(self._items))
        self._pins = check_pins(pins or {}, self._catalogue.rules())

    def __str__(self) -> str:
        return ", ".join(str(item) if not isinstance(item, Pass) else str(call_of(item)) for item in self._items)

    @property
    def catalogue(self) -> Catalogue:
        """The rules that pipelines of this manager can name."""
        return self._catalogue

    def run(
        self,
        model: AnyModel,
        *,
        on_pass: OnPass | None = None,
        inspector: Inspector | None = None,
        meter: Meter | None = None,
    ) -> RunReport:
        """Optimise a model of any kind that ortfuse knows. What is handed in is not changed.

        Args:
            model: A path, `onnx.ModelProto`, `onnx_ir.Model` or `onnx_graphsurgeon.Graph`.
            on_pass: Called after each item of the pipeline. If the opset cannot be raised for a rewrite that needs it, the
                run begins again at the first item without such rewrites.
            inspector: Sees every change before it is final, and may object.
            meter: Measures rewrites where they happen; by default the table of what was measured once decides.

        Returns:
            The report; its `model` is of the kind that was handed in (an `onnx_ir.Model` for a path).

        Raises:
            OrtfuseError: The model cannot be used, or a pass fails.
        """
        inside, source = enter(model)
        opset = inside.graph.opset_imports.get("", 1)
        try:
            report = self.run_in_place(inside, on_pass=on_pass, inspector=inspector, meter=meter)
        except TargetError as error:
            if opset >= self._target.max_opset:
                raise
            # Nothing is lost but the rewrites that need the newer opset; the model is taken from the start again.
            inside, source = enter(model)
            report = self.at_most(opset).run_in_place(inside, on_pass=on_pass, inspector=inspector, meter=meter)
            report.notes.insert(
                0, f"the model stays at opset {opset}, without the rewrites that need a newer one: {error}"
            )
        report.model = leave(inside, source)
        return report

    def at_most(self, opset: int) -> PassManager:
        """The same pipeline for results of this opset or an older one."""
        limited = copy.copy(self)
        limited._target = _target(self._target, opset)
        return limited

    def run_in_place(
        self,
        model: ir.Model,
        *,
        on_pass: OnPass | None = None,
        inspector: Inspector | None = None,
        meter: Meter | None = None,
        skip: Container[str] = (),
    ) -> RunReport:
        """Optimise a model of the graph IR, which is changed, and of no use after an error. See `run`.

        Args:
            model: The model.
            on_pass: Called after each item of the pipeline.
            inspector: Sees every change before it is final, and may object.
            meter: Measures rewrites where they happen.
            skip: Passes that are not run, by the names they have in the report.
        """
        before = Counts.of(model)
        started = time.perf_counter()
        steps = self._with_finalize(Builder(self._catalogue, before.operators).build(self._items))
        with uncollected():
            target = self._target
            opset = min(model.graph.opset_imports.get("", 0), target.known_opset)
            if opset > target.max_opset:
                target = _limited(target, opset)  # a limit keeps a model from being raised; it lowers none
            context = Context(model, Facts(model), target, Log(self._explain), self._approximate)
            if opset > self._target.max_opset:
                context.note(
                    f"the model is at opset {opset}, above the limit of {self._target.max_opset}, and stays there: "
                    "ortfuse lowers no model; export it at an older opset"
                )
            context.inspector, context.debugging = inspector, self._debugging
            context.choices = Choices(target.costs, self._pins, meter=meter)
            analysed = time.perf_counter()
            reports = Runner(context, on_pass, skip).run(steps)
            finished = time.perf_counter()
            _check_result(model)
        return RunReport(
            pipeline=", ".join(step.name for step in steps),
            passes=reports,
            before=before,
            after=Counts.of(model),
            seconds=finished - started,
            analysis_seconds=analysed - started,
            log=context.log,
            choices=context.choices.list(),
            notes=list(context.notes),
            model=model,
        )

    @staticmethod
    def _with_finalize(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        last = steps[-1] if steps else None
        if isinstance(last, Single) and isinstance(last.run, Finalize):
            return steps
        return (*steps, Single(Finalize.name, Finalize()))

    def _check_use_of_patterns(self, steps: Iterable[Step]) -> None:
        """Refuse rules that the user names but the pipeline does not run: they would be silently ignored."""
        files = [file for file in self._catalogue.files if file.source == "user"]
        run = set(_pass_names(steps))
        if files and not any(file.pass_name in run for file in files):
            names = ", ".join(dict.fromkeys(file.pass_name for file in files))
            raise PipelineError(f"the pipeline does not run the rules of {files[0].origin}: add `user`, or {names}")


def _items(pipeline: PipelineLike) -> list[Item | Pass]:
    if isinstance(pipeline, os.PathLike) or (isinstance(pipeline, str) and pipeline.endswith(".toml")):
        return list(read_list(Path(pipeline)).pipeline.items)
    if isinstance(pipeline, str):
        return list(parse(pipeline).items)
    found: list[Item | Pass] = []
    for part in pipeline:
        if isinstance(part, str):
            found += parse(part).items
        elif isinstance(part, Pass):
            found.append(part)
        elif (foreign := foreign_pass(part)) is not None:
            found.append(foreign)
        else:
            raise PipelineError(f"a pipeline is made of texts and passes, and {part!r} is neither")
    return found


def _target(target: Target | None, max_opset: int | None) -> Target:
    if target is None:
        return Target(max_opset=max_opset)
    if max_opset is None or max_opset >= target.max_opset:
        return target
    return _limited(target, max_opset)


def _limited(target: Target, max_opset: int) -> Target:
    limited = copy.copy(target)
    limited.max_opset = max_opset
    return limited


def _pass_names(steps: Iterable[Step]) -> Iterable[str]:
    for step in steps:
        if isinstance(step, Repeated):
            yield from _pass_names(step.steps)
        else:
            yield step.run.name


def _check_result(model: ir.Model) -> None:
    try:
        check(model, name="the optimised model")
    except InvalidModelError as error:
        raise RewriteError(
            f"{error}. This is a mistake in ortfuse or in a rule: please report it with the model"
        ) from error
