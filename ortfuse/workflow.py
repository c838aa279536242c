"""Optimise, verify, find the pass to blame, measure: what `ortfuse optimize` does, as a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import onnx_ir as ir

from ortfuse.bench import Latency, per_pass, typical_inputs
from ortfuse.errors import VerificationError
from ortfuse.ir.io import save
from ortfuse.pipeline import PassEvent, PassManager, RunReport
from ortfuse.validate import Experiment, Inputs, SiteChecks, Verdict, experiments, judge

Progress = Callable[[str], None]
"""Told in a few words what is going on."""

Verification = Literal["whole", "sites"]
"""What is verified: the model as a whole, or each rewrite by itself."""


@dataclass
class Outcome:
    """What came of one optimisation: the report, and the verdict, site checks and latencies if they were asked for."""

    report: RunReport
    verdict: Verdict | None = None
    sites: SiteChecks | None = None
    latencies: list[Latency] = field(default_factory=list)
    sizes: str = ""
    written: Path | None = None

    @property
    def model(self) -> ir.Model:
        """The optimised model."""
        model: ir.Model = self.report.model
        return model

    def to_dict(self) -> dict[str, Any]:
        """Everything as data for JSON."""
        return {
            **self.report.to_dict(),
            "verdict": self.verdict.to_dict() if self.verdict else None,
            "sites": [check.to_dict() for check in self.sites.found.values()] if self.sites else None,
            "latency_sizes": self.sizes,
            "latency": [row.to_dict() for row in self.latencies],
            "written": str(self.written) if self.written else None,
        }


def optimise(
    original: ir.Model,
    manager: PassManager,
    *,
    output: Path | None = None,
    verify: Verification | None = None,
    bench: bool = False,
    inputs: Sequence[Inputs] | None = None,
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    rounds: int = 20,
    threads: int = 0,
    progress: Progress = lambda text: None,
) -> Outcome:
    """Optimise `original` (which stays as it is), check and measure the result, and write it.

    With `verify="whole"` the result is compared with the original, and nothing is written if they differ. With
    `verify="sites"` every change is checked where it happens, on its own nodes, and undone if it is wrong.

    Raises:
        VerificationError: The result is wrong; the message names the output, the element and the pass that broke it.
        OrtfuseError: Whatever else goes wrong.
    """
    stages: list[tuple[str, ir.Model]] = []

    def on_pass(event: PassEvent) -> None:
        progress(f"pass {event.index + 1} of {event.total}: {event.report.name}")
        if (verify == "whole" or bench) and event.changed and not event.report.parts:
            stages.append((event.report.name, event.snapshot()))

    progress("optimising")
    sites = SiteChecks(tolerance, seed, progress) if verify == "sites" else None
    report = manager.run(original, on_pass=on_pass, inspector=sites)
    outcome = Outcome(report, sites=sites)
    if verify == "whole":
        progress("running the original")
        found, notes = experiments(original, inputs, seed)
        progress("verifying")
        outcome.verdict = Verdict(judge(found, outcome.model, tolerance), notes)
        if not outcome.verdict.ok:
            culprit = blame(found, stages, tolerance)
            raise VerificationError(f"{outcome.verdict.summary()}; {culprit}. Nothing was written")
    if bench:
        progress("measuring")
        outcome.sizes, typical = bench_inputs(original, inputs, sizes, seed)
        outcome.latencies = per_pass(original, stages, typical, rounds=rounds, threads=threads)
    if output is not None:
        progress(f"writing {output}")
        save(outcome.model, output)
        outcome.written = output
    return outcome


def blame(found: Sequence[Experiment], stages: Sequence[tuple[str, ir.Model]], tolerance: float | None) -> str:
    """Which pass first made the outputs wrong, in words."""
    for name, model in stages:
        trials = judge(found, model, tolerance)
        if not all(difference.ok for trial in trials for difference in trial.differences):
            return f"the pass {name} broke it"
    return "no pass alone shows the difference"


def bench_inputs(
    model: ir.Model, inputs: Sequence[Inputs] | None, sizes: Mapping[str, int] | None, seed: int
) -> tuple[str, Inputs]:
    """What a model is measured on, and that in words: the user's first inputs, or generated ones of a typical size."""
    return ("the given inputs", inputs[0]) if inputs else typical_inputs(model, sizes=sizes, seed=seed)
