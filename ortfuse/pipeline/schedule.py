"""Schedules the passes of a pipeline: which one runs next, and what each has done so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Generator, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.errors import UnsettledError
from ortfuse.facts.facts import Facts
from ortfuse.passes import Context, Finalize, Pass, constant_bytes
from ortfuse.pipeline.build import Repeated, Single, Step
from ortfuse.pipeline.report import PassReport
from ortfuse.rewrite import Log


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

    def snapshot(self) -> ir.Model:
        """A copy of the current model, finalized so that it can be saved or executed; the run is not affected."""
        model = self.context.model.clone()
        # The facts belong to the values of the original, and events and notes from finalizing the copy are discarded.
        opaque = [function.clone() for function in self.context.opaque]
        Finalize().run(Context(model, Facts(model), self.context.target, Log(), opaque=opaque))
        return model


OnPass = Callable[[PassEvent], None]
"""Called after each pass, and after each item of a pipeline that consists of several. It must not change the model."""


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

    A fixpoint ends when all of its passes in a row have changed nothing. Passes named in `skip` are left out.

    Raises (while it is iterated):
        UnsettledError: A fixpoint does not settle.
    """

    def __init__(
        self, steps: Sequence[Step], context: Context, on_pass: OnPass | None = None, skip: Container[str] = ()
    ) -> None:
        self._steps, self._context, self._on_pass, self._skip = steps, context, on_pass, skip
        self.reports = [_report(step) for step in steps]
        """A report for each step of what it has done so far."""
        self._nodes, self._bytes = self._count(), constant_bytes(context.model)
        self._index = 0

    def __iter__(self) -> Iterator[Turn]:
        for index, (step, report) in enumerate(zip(self._steps, self.reports, strict=True)):
            self._index = index
            yield from self._turns(step, report)

    def _turns(self, step: Step, report: PassReport) -> Generator[Turn, None, int]:
        """The turns of one run of a step; returns the number of changes."""
        started, nodes, size = time.perf_counter(), self._nodes, self._bytes
        if not report.runs:
            report.nodes_before = report.nodes_after = nodes
        changes = yield from self._once(step, report) if isinstance(step, Single) else self._rounds(step, report)
        report.runs += 1
        report.changes += changes
        # For a pass that runs again later, count only the nodes that its own runs removed or added.
        report.nodes_after += self._nodes - nodes
        report.bytes += self._bytes - size
        report.seconds += time.perf_counter() - started
        if self._on_pass is not None:
            self._on_pass(PassEvent(self._index, len(self._steps), report, self._context, changes))
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
            self._nodes, self._bytes = self._count(), constant_bytes(context.model)
            for rule, hits in context.log.hits().items():
                if hits > before.get(rule, 0):
                    report.hits[rule] = report.hits.get(rule, 0) + hits - before.get(rule, 0)
        return turn.changes

    def _rounds(self, step: Repeated, report: PassReport) -> Generator[Turn, None, int]:
        """Repeat the steps until every one of them in a row has changed nothing."""
        total, unchanged = 0, 0
        last_changes: dict[str, int] = {}
        for _ in range(step.max_rounds):
            last_changes = {}
            for part, part_report in zip(step.steps, report.parts, strict=True):
                changes = yield from self._turns(part, part_report)
                total += changes
                # A fixpoint that has settled would change nothing if it ran again now.
                settled = 1 if isinstance(part, Repeated) else 0
                unchanged = settled if changes else unchanged + 1
                last_changes[part.name] = changes
                if unchanged == len(step.steps):
                    return total
        restless = ", ".join(f"{name} ({changes} changes)" for name, changes in last_changes.items() if changes)
        if not restless:
            return total
        single = [part.name for part in step.steps if isinstance(part, Single) and last_changes.get(part.name)]
        raise UnsettledError(
            single[-1] if single else "",
            f"{step.name} has not settled after {step.max_rounds} rounds; still at work in the last one: {restless}. "
            "Passes that undo each other never settle; one that only needs longer gets more with max_rounds",
        )

    def _count(self) -> int:
        return sum(len(scope.graph) for scope in self._context.scopes())


def _report(step: Step) -> PassReport:
    return PassReport(step.name, parts=[_report(part) for part in step.steps] if isinstance(step, Repeated) else [])
