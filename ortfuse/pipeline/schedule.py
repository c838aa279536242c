"""Schedule the passes of a pipeline: select the next one, and record the changes of each."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Container, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import UnsettledError
from ortfuse.ir.fingerprint import fingerprint
from ortfuse.pipeline.report import PassReport
from ortfuse.pipeline.steps import Repeated, Single, Step
from ortfuse.rewrite import Log
from ortfuse.transforms import (
    CommonSubexpressionElimination,
    Context,
    DeadCodeElimination,
    Finalize,
    LiftConstants,
    Pass,
    RulePass,
    constant_bytes,
)
from ortfuse.transforms.cleanup.finalize import not_lowered
from ortfuse.transforms.run_user_pass import is_of_ortfuse


@dataclass(frozen=True)
class PassEvent:
    """A pass has been run: item number `index` (from 0) of `total` in the pipeline, or a pass within that item.

    `changed` is the number of changes in this run; the report sums up all its runs.
    """

    index: int
    total: int
    report: PassReport
    context: Context
    changed: int

    @property
    def is_executable(self) -> bool:
        """Whether the target executes the current model: a later pass may have to lower operators that it lacks."""
        return not_lowered(self.context) is None

    def snapshot(self) -> ir.Model:
        """A copy of the current model, finalized so that it can be saved or executed; the run is not affected.

        Raises:
            TargetError: It is not executable on the target yet.
        """
        model = self.context.model.clone()
        # The facts belong to the values of the original, and events and notes from finalizing the copy are discarded.
        opaque = [function.clone() for function in self.context.opaque]
        Finalize().run(Context(model, Facts(model), self.context.target, Log(), opaque=opaque))
        return model


OnPass = Callable[[PassEvent], None]
"""Called after each pass, and after each item of a pipeline that consists of several. It must not change the model."""


_PATIENCE = 8
"""Rounds of a fixpoint after which the model is compared with what it was before, which takes time; most need less than five."""

_FOLLOWING = (RulePass, LiftConstants, CommonSubexpressionElimination, DeadCodeElimination)
"""Passes that have more to do after the changes of others; of the first, the rules are named."""


@dataclass
class Turn:
    """A pass to run now; the caller sets how much it changed."""

    transformer: Pass
    name: str
    changes: int = 0


class Schedule:
    """An iterator over the passes to run, in order; the caller reports how much each of them changed.

        for turn in schedule:
            turn.changes = turn.transformer.run(context)

    A fixpoint ends when all of its passes in a row have changed nothing, or when the model is as it was before: what undoes each
    other then is told as a failure. Passes named in `skip` are left out.

    Raises (while it is iterated):
        UnsettledError: A fixpoint finds more and more to do.
    """

    def __init__(
        self, steps: Sequence[Step], context: Context, on_pass: OnPass | None = None, skip: Container[str] = ()
    ) -> None:
        self._steps, self._context, self._on_pass, self._skip = steps, context, on_pass, skip
        self.reports = [_report(step) for step in steps]
        """A report for each step of what it has done so far."""
        self._nodes, self._bytes = self._count(), constant_bytes(context.model)
        self._index = self._clock = 0
        self.told = 0.0
        """The seconds that `on_pass` took, which are no time of any pass."""
        self._last_changed: dict[str, int] = {}

    def __iter__(self) -> Iterator[Turn]:
        for index, (step, report) in enumerate(zip(self._steps, self.reports, strict=True)):
            self._index = index
            yield from self._turns(step, report)

    def _turns(self, step: Step, report: PassReport) -> Generator[Turn, None, int]:
        """The turns of one run of a step; returns the number of changes."""
        started, nodes, size, told = time.perf_counter(), self._nodes, self._bytes, self.told
        if not report.runs:
            report.nodes_before = report.nodes_after = nodes
        changes = yield from self._once(step, report) if isinstance(step, Single) else self._rounds(step, report)
        report.runs += 1
        report.changes += changes
        # For a pass that runs again later, count only the nodes that its own runs removed or added.
        report.nodes_after += self._nodes - nodes
        report.bytes += self._bytes - size
        finished = time.perf_counter()
        report.seconds += finished - started - (self.told - told)
        if self._on_pass is not None:
            self._on_pass(PassEvent(self._index, len(self._steps), report, self._context, changes))
            self.told += time.perf_counter() - finished
        return changes

    def _once(self, step: Single, report: PassReport) -> Generator[Turn, None, int]:
        if step.name in self._skip:
            return 0
        context = self._context
        before = context.log.hits()
        context.editor.author = step.name
        turn = Turn(step.run, step.name)
        yield turn
        context.debugging.inspect(context.model, context.facts, step.name)
        if turn.changes:
            self._clock += 1
            self._last_changed[step.name] = self._clock
            self._nodes, self._bytes = self._count(), constant_bytes(context.model)
            for rule, hits in context.log.hits().items():
                if hits > before.get(rule, 0):
                    report.hits[rule] = report.hits.get(rule, 0) + hits - before.get(rule, 0)
        return turn.changes

    def _rounds(self, step: Repeated, report: PassReport) -> Generator[Turn, None, int]:
        """Repeat the steps until every one of them in a row has changed nothing, or the model is as it has been before."""
        total, unchanged = 0, 0
        changed: dict[str, int] = {}
        seen: dict[bytes, Counter[str]] = {}
        for number in range(step.max_rounds):
            changed = {}
            for part, part_report in zip(step.steps, report.parts, strict=True):
                changes = yield from self._turns(part, part_report)
                total += changes
                # A fixpoint that has settled would change nothing if it ran again now.
                settled = 1 if isinstance(part, Repeated) else 0
                unchanged = settled if changes else unchanged + 1
                changed[part.name] = changes
                if unchanged == len(step.steps):
                    return total
            if number + 1 >= _PATIENCE:
                key, hits = fingerprint(self._context.model), Counter(self._context.log.hits())
                if key in seen:
                    self._tell_of_circle(step, number + 1, [*(hits - seen[key])], changed)
                    return total
                seen[key] = hits
        restless = {name: changes for name, changes in changed.items() if changes}
        if restless:
            self._give_up(step, restless, seen)
        return total

    def _tell_of_circle(self, step: Repeated, rounds: int, rules: Sequence[str], changed: Mapping[str, int]) -> None:
        """Say what undoes each other; the model is as good as it was when it was in this state before."""
        singles = [
            part.name for part in step.steps if isinstance(part, Single) and not isinstance(part.run, _FOLLOWING)
        ]
        who = [*rules, *(name for name in singles if changed[name])] or [name for name in changed if changed[name]]
        sites = dict.fromkeys(
            event.site for event in self._context.log.events[-2 * len(rules) :] if event.rule in rules
        )
        where = f" around {', '.join(repr(site) for site in sites)}" if sites else ""
        text = (
            f"{' and '.join(who)} undo each other{where}: they were stopped after round {rounds} of {step.name}, "
            "and everything else is done"
        )
        if any(self._is_users(part.run, who) for part in _leaves(step)):
            self._context.note(text)
        else:
            self._context.failures.append(f"{text}; please report it with the model")

    def _is_users(self, transformer: Pass, who: Sequence[str]) -> bool:
        """Whether a pass, or one of the rules that undo each other, is not one of ours."""
        rules = transformer.rules if isinstance(transformer, RulePass) else ()
        ours = is_of_ortfuse(transformer)
        return not ours or any(rule.name in who and self._context.editor.is_users(rule.loaded()) for rule in rules)

    def _give_up(self, step: Repeated, restless: Mapping[str, int], seen: Mapping[bytes, Counter[str]]) -> None:
        """Raise an error that names the rule that finds most, or else the last pass that does."""
        single = [part.name for part in step.steps if isinstance(part, Single) and restless.get(part.name)]
        inner = [part.name for part in _leaves(step)]
        last = max(self._last_changed.keys() & inner, key=lambda name: self._last_changed[name], default="")
        hits = Counter(self._context.log.hits()) - next(iter(seen.values()), Counter())
        names = ", ".join(f"{name} ({changes} changes)" for name, changes in restless.items())
        raise UnsettledError(
            single[-1] if single else last,
            f"{step.name} has not settled after {step.max_rounds} rounds; still at work in the last one: {names}. "
            "Passes that find more and more to do never settle; one that only needs longer gets more with max_rounds",
            hits.most_common(1)[0][0] if seen and hits else "",
        )

    def _count(self) -> int:
        return sum(len(scope.graph) for scope in self._context.scopes())


def _leaves(step: Step) -> list[Single]:
    """The single passes in a step."""
    return [step] if isinstance(step, Single) else [leaf for part in step.steps for leaf in _leaves(part)]


def _report(step: Step) -> PassReport:
    return PassReport(step.name, parts=[_report(part) for part in step.steps] if isinstance(step, Repeated) else [])
