"""Pass manager: take a pipeline in any of its forms and run it over models."""

from __future__ import annotations

import copy
import functools
import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ortfuse.analysis.assumptions import ASSUMPTIONS
from ortfuse.analysis.facts import Facts
from ortfuse.analysis.loop_summary.nonempty_sizes import declared_least_sizes
from ortfuse.errors import InvalidModelError, OrtfuseError, PassError, PipelineError, RewriteError, RuleError
from ortfuse.io.blocked_layout import blocked_layout_note
from ortfuse.io.build_graph_from_protobuf import NOTES
from ortfuse.io.check_model import check
from ortfuse.io.load_and_save import uncollected
from ortfuse.io.training_mode import training_note
from ortfuse.ir import walk
from ortfuse.ir.edit import Inspector
from ortfuse.ir.preserved_nodes import release, telling
from ortfuse.naming import name_today
from ortfuse.options import Options, PipelineLike
from ortfuse.pipeline.discover_rule_files import load_catalogue
from ortfuse.pipeline.model_features import Content
from ortfuse.pipeline.notes_of_result import LOWERING, notes_of_result
from ortfuse.pipeline.opaque_functions import opaque_functions, take_out
from ortfuse.pipeline.pass_lists import lists_with, read_list
from ortfuse.pipeline.pipeline_text import Item, parse
from ortfuse.pipeline.report import Counts, RunReport
from ortfuse.pipeline.rule_catalogue import Catalogue
from ortfuse.pipeline.run_rules_of_forced_choices_first import checked, forced_first, forced_rules, with_forced_passes
from ortfuse.pipeline.schedule import OnPass, Schedule, Turn
from ortfuse.pipeline.steps import CANONICALIZE, Builder, Repeated, Single, Step, call_of
from ortfuse.rewrite import Debugging, Log, Rule
from ortfuse.targets import Target, default_spec, lower_opset, resolve_target
from ortfuse.targets.upgrade_opset import AUTHOR as RAISE_OPSET
from ortfuse.transforms import Choices, Context, Finalize, Meter, Pass
from ortfuse.transforms.choose_legal_form import full_name, names_one
from ortfuse.transforms.onnx_ir_adapter import ForeignPass, foreign_pass
from ortfuse.transforms.run_user_pass import is_of_ortfuse, run_pass

NECESSARY = frozenset({Finalize.name, RAISE_OPSET})
"""The authors of changes without which there is no result."""


PADDING = "padding_free"
"""The pass that the option `padding_free` adds."""


class PassManager:
    """A pipeline, ready to be run over any number of models.

        PassManager("canonicalize, fixpoint(fold, cse, dce), fuse.attention")
        PassManager(Options(level="basic", max_opset=17))

    Args:
        pipeline: Options, of which only those that say what is rewritten are used; or just the `passes`, with all other
            options at their defaults.

    Raises:
        PipelineError: The pipeline is wrong.
        RuleError: A rule file is wrong.
        TargetError: The target cannot be used.
    """

    def __init__(self, pipeline: Options | PipelineLike = "auto") -> None:
        options = pipeline if isinstance(pipeline, Options) else Options(passes=pipeline)
        self._options = options
        self._items = _items(options.pipeline)
        self._target = resolve_target(
            options.target, runtime=options.runtime, max_opset=options.max_opset, threads=options.threads
        )
        self._catalogue = load_catalogue(options.rules, self._target.spec)
        # Errors in the pipeline are raised now, not after the first model has been loaded.
        self._lists = lists_with(options.list_files)
        self._check_use_of_patterns(
            Builder(self._catalogue, lists=self._lists, target=self._target.spec).build(self._items)
        )
        self._forced = checked(options.force, self._catalogue.rules()) if options.force else {}
        self._check_packing()
        self._catalogue = self._catalogue.asking(self._forced)
        if not isinstance(options.explain, bool):
            names = (name_today(name, ("rules", "families"), tell=False) for name in options.explain)
            self._catalogue = self._catalogue.explaining(names)
        self._skip: Collection[str] = ()
        self._without_rules: Collection[str] = ()
        self._finalize = Finalize()

    def __str__(self) -> str:
        return ", ".join(str(item) if not isinstance(item, Pass) else str(call_of(item)) for item in self._items)

    @property
    def options(self) -> Options:
        """The options that the pipeline was made from."""
        return self._options

    @property
    def target(self) -> Target:
        """The runtime that results are made for."""
        return self._target

    @property
    def catalogue(self) -> Catalogue:
        """The catalogue of rules available to this manager."""
        return self._catalogue

    def at_most(self, opset: int) -> PassManager:
        """The same pipeline, limited to results of at most this opset, without operators that have to be lowered for it."""
        limited = copy.copy(self)
        limited._target = self._target.limited(min(opset, self._target.max_opset)).without_lowering()
        return limited

    def without(self, passes: Collection[str]) -> PassManager:
        """The same pipeline without some passes, given by their names in the report."""
        shorter = copy.copy(self)
        shorter._skip = passes
        return shorter

    def without_rules(self, rules: Collection[str]) -> PassManager:
        """The same pipeline without some rules."""
        fewer = copy.copy(self)
        fewer._without_rules = rules
        return fewer

    def without_new_shapes(self) -> PassManager:
        """The same pipeline with results in which no value has a declared shape that had none."""
        silent = copy.copy(self)
        silent._finalize = Finalize(shapes=False)
        return silent

    def run(
        self,
        model: ir.Model,
        *,
        on_pass: OnPass | None = None,
        inspector: Inspector | None = None,
        checks: Inspector | None = None,
        meter: Meter | None = None,
    ) -> RunReport:
        """Optimise an `onnx_ir.Model` in place. (`ortfuse.optimize` takes any kind of model and leaves it unchanged.)

        Args:
            model: The model; unusable after an error.
            on_pass: Called after each item of the pipeline.
            inspector: Sees every change before it is final, and may object.
            checks: Sees the changes of the user's own rules and passes alone, and may object.
            meter: Measures rewrites at their sites; by default the table of costs measured in advance decides.

        Raises:
            TargetError: The opset cannot be raised as far as rewrites need; `at_most` the model's own opset does without them.
            PassError: A pass of ortfuse fails; `without` it there may be a result.
            OrtfuseError: A pass or rule of the user fails.
            TypeError: It is no `onnx_ir.Model`.
        """
        if not isinstance(model, ir.Model):
            raise TypeError(
                f"PassManager.run works in place on an onnx_ir.Model, such as ortfuse.load gives, not on "
                f"{type(model).__module__}.{type(model).__qualname__}; ortfuse.optimize takes any kind of model"
            )
        started = time.perf_counter()
        before = Counts.of(model)
        builder = Builder(self._catalogue, Content.of(model), self._lists, self._target.spec)
        steps = self._steps(builder)
        with uncollected():
            context = self._context(model, inspector, checks, meter)
            if _text(steps) == Finalize.name:
                context.note(
                    "the pipeline has no passes, so nothing is optimised; `auto` has those that suit the model"
                )
            for text in lower_opset(model, self._target, context.editor, context.facts):
                context.note(text)
            self._stay_within_limit(context)
            schedule, users = Schedule(steps, context, on_pass, self._skip), []
            analysed = time.perf_counter()
            for turn in schedule:
                context.editor.is_users = functools.partial(self._is_users, turn.transformer)
                context.editor.keeps = functools.partial(self._keeps, turn.transformer, context.choices)
                try:
                    turn.changes = run_pass(turn.transformer, context)
                except Exception as error:
                    if self._is_for_the_user(turn, error):
                        raise
                    text = f"the pass {turn.name} failed ({type(error).__name__}: {error})"
                    raise PassError(turn.name, text, getattr(error, "rule", "")) from error
                if turn.changes and self._is_users(turn.transformer, None):
                    users.append(turn.name)
            finished = time.perf_counter()
            _check_result(model)
            context.log.settle(model)
            release(walk.nodes(model))
            for text in notes_of_result(context, self._target, self._catalogue, loads_in=self._options.runtime):
                context.note(text)
            self._tell_of_unchecked(context, users)
        return RunReport(
            pipeline=_text(steps),
            passes=schedule.reports,
            before=before,
            after=Counts.of(model),
            seconds=finished - started - schedule.told,
            analysis_seconds=analysed - started,
            log=context.log,
            choices=context.choices.list(),
            notes=[*context.notes, *context.choices.remarks()],
            failures=context.failures,
            pass_list=builder.chosen,
            folded=context.growth.folded_values(model),
            not_folded=context.growth.held_back_values(model),
        )

    def pipeline_for(self, model: ir.Model) -> str:
        """The passes that `run` runs on a model, with what `auto` and other lists stand for there; equal texts do the same."""
        return _text(self._steps(Builder(self._catalogue, Content.of(model), self._lists, self._target.spec)))

    def _steps(self, builder: Builder) -> tuple[Step, ...]:
        steps = with_forced_passes(forced_first(builder.build(self._items), self._forced), self._forced)
        if self._options.padding_free and PADDING not in _text(steps):
            steps = _before_finalize(steps, builder.build(parse(f"{PADDING}, cse, dce").items))
        if self._target.lowers and not any(LOWERING in _text((step,)) for step in steps):
            steps = _before_last(steps, builder.build(parse(f"{LOWERING}, dce").items))
        return _with_finalize(steps, self._finalize)

    def _is_for_the_user(self, turn: Turn, error: Exception) -> bool:
        """Whether an error is about something that the user gave: a pass or rules, or what a pass says on purpose."""
        users = {"user", *(file.pass_name for file in self._catalogue.files if file.source == "user")}
        purposeful = isinstance(error, OrtfuseError) and not isinstance(error, RewriteError | RuleError)
        return purposeful or not is_of_ortfuse(turn.transformer) or turn.transformer.name in users

    def _is_users(self, transformer: Pass, rule: Any) -> bool:
        """Whether a change that a pass makes by a rule (`None`: by none) is one of the user's own, or of another package."""
        if isinstance(rule, Rule):
            return not self._catalogue.is_built_in(rule)
        return isinstance(transformer, ForeignPass) or not is_of_ortfuse(transformer)

    def _keeps(self, transformer: Pass, choices: Choices, rule: Any, made: Sequence[ir.Node]) -> Mapping[ir.Node, str]:
        """The nodes to keep of those that a rule made: those of a forced choice, and those of the user's own rules.

        The user's rules in the pass `canonicalize` bring a model to the form that other rules look for.
        """
        if not isinstance(rule, Rule):
            return {}
        if wanted := choices.forced_operator(rule):
            asked = [node for node in made if names_one(wanted, [full_name(node.domain, node.op_type)])]
            return dict.fromkeys(asked, f"the forced choice of {wanted}")
        if self._is_users(transformer, rule) and transformer.name != CANONICALIZE:
            return dict.fromkeys(telling(made), f"your rule {rule.name}")
        return {}

    def _tell_of_unchecked(self, context: Context, passes: Iterable[str]) -> None:
        """Note which of the user's own rules and passes changed the model without being checked."""
        rules = {rule.name for rule in self._catalogue.rules_from("package", "user")}
        own = [f"{name} ({hits})" for name, hits in context.log.hits().items() if name in rules]
        own += dict.fromkeys(passes)
        if own and not context.is_inspected and self._options.verify is None:
            context.note(f"changes of your own rules and passes were not checked: {', '.join(own)}")

    def _context(
        self, model: ir.Model, inspector: Inspector | None, checks: Inspector | None, meter: Meter | None
    ) -> Context:
        """The context that the passes work on."""
        target, opaque = self._target, opaque_functions(model)
        if opaque:
            target = target.limited(min(model.graph.opset_imports.get("", 0), target.known_opset))
        options = self._options
        context = Context(
            model,
            Facts(model, assumed=options.assume),
            target,
            Log(bool(options.explain), self._watched()),
            options.approximate,
            choices=Choices(target.costs, self._forced, meter=meter),
            inspector=inspector,
            checks=checks,
            debugging=options.debugging or Debugging(),
            max_growth=options.max_growth,
        )
        context.least_sizes = declared_least_sizes(model, context.facts)
        context.editor.necessary = NECESSARY
        context.opaque = take_out(opaque.keys(), context.editor)
        context.without.update(self._without_rules)
        for text in (*model.graph.meta.get(NOTES, ()), *opaque.values()):
            context.note(text)
        for warning in (training_note(model), blocked_layout_note(model)):
            if warning is not None:
                context.note(warning)
        if not self._target.spec.runs_on and (options.verify is not None or options.bench):
            context.note(
                f"no model runs for the target {self._target.spec.name} here: what was verified or measured is so on "
                f"{default_spec().name}"
            )
        for name in options.assume:
            context.note(f"taken for granted, as --assume {name} says: {ASSUMPTIONS[name]}")
        if agreeing := context.facts.agreeing:
            pairs = ", ".join(f"{name} = {size}" for name, size in agreeing.items())
            context.note(
                f"sizes of inputs that matrix products need to be equal count as one ({pairs}): a run with others fails"
            )
        return context

    def _stay_within_limit(self, context: Context) -> None:
        """Let results have the opset of a model that cannot be lowered to the limit, but none above it."""
        opset = min(context.model.graph.opset_imports.get("", 0), self._target.known_opset)
        if opset > self._target.max_opset:
            context.target = self._target.limited(opset)
            context.note(
                f"the model is at opset {opset}, above the limit of {self._target.max_opset}, and stays there: "
                "not all of its nodes have a form at an older opset"
            )

    def _watched(self) -> frozenset[str]:
        """The rules that forced choices are about, and the user's own: where they are not applied, the report says why."""
        rules = list(self._catalogue.rules()) if self._forced else []
        forced = (rule for name in self._forced for rule in forced_rules(rules, name))
        return frozenset(rule.name for rule in (*forced, *self._catalogue.rules_from("user")))

    def _check_packing(self) -> None:
        """Reject a choice of the operators that packed tokens go into, if no tokens are packed."""
        if PADDING in self._forced and not self._options.padding_free and PADDING not in str(self):
            raise PipelineError(
                f"force {PADDING}={self._forced[PADDING]}: tokens are packed where --padding-free asks for it"
            )

    def _check_use_of_patterns(self, steps: Iterable[Step]) -> None:
        """Reject rule files that the user names but the pipeline does not run, which would be silently ignored."""
        files = [file for file in self._catalogue.files if file.source == "user" and file.entries]
        run = set(_pass_names(steps))
        for name in self._catalogue.asked:
            if name not in run:
                raise PipelineError(f"the pipeline does not run {name}: add `user`, or {name}")
        if files and not any(file.pass_name in run for file in files):
            names = ", ".join(dict.fromkeys(file.pass_name for file in files))
            raise PipelineError(f"the pipeline does not run the rules of {files[0].origin}: add `user`, or {names}")


def _text(steps: tuple[Step, ...]) -> str:
    return ", ".join(step.name for step in steps)


def _before_last(steps: tuple[Step, ...], added: tuple[Step, ...]) -> tuple[Step, ...]:
    """The steps with others at the end, but before `finalize`."""
    last = steps[-1:] if steps and steps[-1].name == Finalize.name else ()
    return (*steps[: len(steps) - len(last)], *added, *last)


def _before_finalize(steps: tuple[Step, ...], added: tuple[Step, ...]) -> tuple[Step, ...]:
    """The steps with others before the last `finalize`: passes behind it, such as `wrap_in_functions`, only give a form."""
    end = max((place for place, step in enumerate(steps) if step.name == Finalize.name), default=len(steps))
    return (*steps[:end], *added, *steps[end:])


def _with_finalize(steps: tuple[Step, ...], finalize: Finalize) -> tuple[Step, ...]:
    last = steps[-1] if steps else None
    if isinstance(last, Single) and isinstance(last.run, Finalize):
        if finalize.shapes:
            return steps
        last = Single(last.name, replace(last.run, shapes=False))
        return (*steps[:-1], last)
    return (*steps, Single(Finalize.name, finalize))


def _items(pipeline: PipelineLike) -> list[Item | Pass]:
    if isinstance(pipeline, os.PathLike) or (isinstance(pipeline, str) and pipeline.endswith(".toml")):
        return list(read_list(Path(pipeline)).pipeline.items)
    if isinstance(pipeline, str):
        return list(parse(pipeline).items)
    found: list[Item | Pass] = []
    for part in pipeline:
        if isinstance(part, str):
            found += parse(part).items
        elif isinstance(part, type):
            raise PipelineError(f"{part.__name__} is a class; give an object of it, {part.__name__}()")
        elif isinstance(part, Pass):
            found.append(part)
        elif (foreign := foreign_pass(part)) is not None:
            found.append(foreign)
        else:
            raise PipelineError(f"a pipeline is made of texts and passes, and {part!r} is neither")
    return found


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
        raise PassError("", f"the result would not be valid ({error})") from error
