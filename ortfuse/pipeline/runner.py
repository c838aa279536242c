"""Runs the steps of a pipeline over a model, and keeps account of what each did."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.errors import PipelineError
from ortfuse.facts.facts import Facts
from ortfuse.passes import Context, Finalize
from ortfuse.pipeline.build import Repeated, Single, Step
from ortfuse.pipeline.report import PassReport
from ortfuse.rewrite import Log


@dataclass(frozen=True)
class PassEvent:
    """A pass has been run: the `index`-th of `total` items of the pipeline, from 0, or one pass within it.

    `changed` is what it changed this time; its report sums up all its runs.
    """

    index: int
    total: int
    report: PassReport
    context: Context
    changed: int

    def snapshot(self) -> ir.Model:
        """A copy of the model as it is now, made fit for being saved or executed; the run is not affected."""
        model = self.context.model.clone()
        # The facts belong to the values of the original, and the events and notes of finishing a copy are nobody's.
        Finalize().run(Context(model, Facts(model), self.context.target, Log()))
        return model


OnPass = Callable[[PassEvent], None]
"""Called after each pass, and after each item of a pipeline that is made of several. The model must not be changed."""


class Runner:
    """Runs steps on one model, all but those with names in `skip`."""

    def __init__(self, context: Context, on_pass: OnPass | None = None, skip: Container[str] = ()) -> None:
        self._context, self._on_pass, self._skip = context, on_pass, skip
        self._nodes = self._count()
        self._index = self._total = 0

    def run(self, steps: Sequence[Step]) -> list[PassReport]:
        """Run the steps in order.

        Returns:
            One report for each step.

        Raises:
            PipelineError: A fixpoint does not settle.
        """
        reports = [_report(step) for step in steps]
        self._total = len(steps)
        for self._index, (step, report) in enumerate(zip(steps, reports, strict=True)):
            self._run_step(step, report)
        return reports

    def _run_step(self, step: Step, report: PassReport) -> int:
        """Run a step once; returns what it changed."""
        started = time.perf_counter()
        if not report.runs:
            report.nodes_before = report.nodes_after = self._nodes
        nodes = self._nodes
        changes = self._run_pass(step, report) if isinstance(step, Single) else self._repeat(step, report)
        report.runs += 1
        report.changes += changes
        # Of a pass that runs again later, only what its own runs took away or added.
        report.nodes_after += self._nodes - nodes
        report.seconds += time.perf_counter() - started
        if self._on_pass is not None:
            self._on_pass(PassEvent(self._index, self._total, report, self._context, changes))
        return changes

    def _run_pass(self, step: Single, report: PassReport) -> int:
        if step.name in self._skip:
            return 0
        before = self._context.log.hits()
        context = self._context
        changes = step.run.run(context)
        context.debugging.inspect(context.model, context.facts, step.name)
        if changes:
            self._nodes = self._count()
            for rule, hits in self._context.log.hits().items():
                if hits > before.get(rule, 0):
                    report.hits[rule] = report.hits.get(rule, 0) + hits - before.get(rule, 0)
        return changes

    def _repeat(self, step: Repeated, report: PassReport) -> int:
        """Run the steps round after round, until as many in a row as there are have changed nothing."""
        total, unchanged = 0, 0
        last_changes: dict[str, int] = {}
        for _ in range(step.max_rounds):
            last_changes = {}
            for part, part_report in zip(step.steps, report.parts, strict=True):
                changes = self._run_step(part, part_report)
                total += changes
                unchanged = 0 if changes else unchanged + 1
                last_changes[part.name] = changes
                if unchanged == len(step.steps):
                    return total
        restless = ", ".join(f"{name} ({changes} changes)" for name, changes in last_changes.items() if changes)
        if not restless:
            return total
        raise PipelineError(
            f"{step.name} has not settled after {step.max_rounds} rounds; still at work in the last one: {restless}. "
            "Passes that undo each other never settle; one that only needs longer gets more with max_rounds"
        )

    def _count(self) -> int:
        return sum(len(scope.graph) for scope in self._context.scopes())


def _report(step: Step) -> PassReport:
    return PassReport(step.name, parts=[_report(part) for part in step.steps] if isinstance(step, Repeated) else [])
