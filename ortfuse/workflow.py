"""Optimise, verify, find the pass to blame, measure: what `ortfuse optimize` does, as a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ortfuse.bench import Latency, SiteMeter, per_pass, typical_inputs
from ortfuse.bench.inputs import check_sizes
from ortfuse.cli.usage import Verification
from ortfuse.model.io import save
from ortfuse.pipeline import PassEvent, PassManager, RunReport
from ortfuse.verification import Experiment, Inputs, SiteChecks, Verdict, experiments, judge

Progress = Callable[[str], None]
"""Told in a few words what is going on."""


@dataclass
class Outcome:
    """What came of one optimisation: the report, and the verdict, site checks and latencies if they were asked for.

    If the verdict is that the result is wrong, `blame` says which pass broke it, and nothing was measured or written.
    """

    report: RunReport
    verdict: Verdict | None = None
    blame: str = ""
    sites: SiteChecks | None = None
    latencies: list[Latency] = field(default_factory=list)
    sizes: str = ""
    written: Path | None = None

    @property
    def ok(self) -> bool:
        """Whether the result is right, as far as that was asked for."""
        return self.verdict is None or self.verdict.ok

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
            "blame": self.blame,
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
    measure: bool = False,
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
    `verify="sites"` every change is checked where it happens, on its own nodes, and undone if it is wrong. With `measure`,
    what is to be chosen by cost is measured there too, at the given `sizes`.

    Raises:
        VerificationError: The original cannot be executed, or has no dimensions of the names of `sizes`.
        OrtfuseError: Whatever else goes wrong.
    """
    if (bench or measure) and sizes:
        check_sizes(original, sizes)
    stages: list[tuple[str, ir.Model]] = []

    def on_pass(event: PassEvent) -> None:
        progress(f"pass {event.index + 1} of {event.total}: {event.report.name}")
        if (verify == "whole" or bench) and event.changed and not event.report.parts:
            stages.append((event.report.name, event.snapshot()))

    progress("optimising")
    sites = SiteChecks(tolerance, seed, progress) if verify == "sites" else None
    meter = SiteMeter.for_model(original, dict(sizes or {}), threads=threads) if measure else None
    report = manager.run(original, on_pass=on_pass, inspector=sites, meter=meter)
    outcome = Outcome(report, sites=sites)
    if verify == "whole":
        progress("running the original")
        found, notes = experiments(original, inputs, seed)
        progress("verifying")
        outcome.verdict = Verdict(judge(found, outcome.model, tolerance), notes)
        if not outcome.ok:
            progress("looking for the pass that broke it")
            outcome.blame = blame(found, original, stages, tolerance)
            return outcome
    if bench:
        progress("measuring")
        outcome.sizes, typical = bench_inputs(original, inputs, sizes, seed)
        outcome.latencies = per_pass(original, stages, typical, rounds=rounds, threads=threads)
    if output is not None:
        progress(f"writing {output}")
        save(outcome.model, output)
        outcome.written = output
    return outcome


def blame(
    found: Sequence[Experiment], original: ir.Model, stages: Sequence[tuple[str, ir.Model]], tolerance: float | None
) -> str:
    """Which pass first made the outputs wrong, or whether the runtime did so on its own, in words."""
    for optimise in (False, True):
        for name, model in [("", original), *stages] if optimise else stages:
            if not all(trial.ok for trial in judge(found, model, tolerance, levels=(optimise,))):
                return (
                    f"the pass {name} broke it" if name else "the runtime's own optimisations move the original as far"
                )
    return "no pass alone shows the difference"


def bench_inputs(
    model: ir.Model, inputs: Sequence[Inputs] | None, sizes: Mapping[str, int] | None, seed: int
) -> tuple[str, Inputs]:
    """What a model is measured on, and that in words: the user's first inputs, or generated ones of a typical size."""
    return ("the given inputs", inputs[0]) if inputs else typical_inputs(model, sizes=sizes, seed=seed)
