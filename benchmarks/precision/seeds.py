"""Check that the bound holds: searches with many seeds, and the error of each result on inputs that no search has seen.

    python -m benchmarks.precision.seeds                            # what the raw result lacks
    python -m benchmarks.precision.seeds bert.sdpa.ts --seeds 10    # golden models by name; these again

Each search has a few quantisation schemes, a bound between 1e-3 and 5e-2, inputs that it generates, and times that are made up,
others for each seed: so each takes other schemes, and nothing depends on the machine's load. The errors are true.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import numpy as np
import onnx_ir as ir
import typer
from rich.console import Console

import ortfuse
from benchmarks.models import GOLDEN
from benchmarks.results import Results
from ortfuse.errors import BoundError
from ortfuse.io.load_and_save import load
from ortfuse.quantization import final_measurement
from ortfuse.quantization.input_sets import generated
from ortfuse.quantization.measurement_store import Store
from ortfuse.quantization.metrics import METRICS
from ortfuse.quantization.mixed_precision_search import Request, fastest
from ortfuse.quantization.quantization_sites import quantization_rules
from ortfuse.quantization.scheme_rules import Rules
from ortfuse.runtime.bench import Latency
from ortfuse.runtime.bench.rewrite_timing import content_of
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.session import Session

COMMAND = "python -m benchmarks.precision.seeds"

DEFAULTS = ("lstm.ts", "bert.sdpa.ts", "resnet.ts", "gpt2.sdpa.ts")
SEEDS = 50
SCHEMES = 8
"""The quantisation schemes that a search may choose from."""

UNSEEN = 16
"""Sets of inputs on which the error of each result is measured."""

FAR = 1_000_000
"""The first seed of those; the seeds of a search are below."""

BOUNDS = (1e-3, 3e-3, 1e-2, 2e-2, 5e-2)
INTEGERS = ("Integer", "NBits", "QLinear", "DynamicQuantizeLSTM")


class MadeUp:
    """Times that depend on the operators of a model and on a seed: products of integers take 0.2 to 1.1 times as long."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def seconds(self, models: Mapping[str, ir.Model], inputs: Inputs) -> dict[str, float]:
        """The seconds of each model."""
        return {name: self._of(model) for name, model in models.items()}

    def measure(self, models: Mapping[str, ir.Model], inputs: Inputs, **options: Any) -> list[Latency]:
        """The same in the form in which whole models are measured."""
        seconds = self.seconds(models, inputs)
        first = next(iter(seconds.values()))
        return [Latency(n, 1.0, 1.0, 1.0, 0.0, first / s, None, 1.0, 1, 1, 1.0) for n, s in seconds.items()]

    def _of(self, model: ir.Model) -> float:
        if not any(kind in node.op_type for node in model.graph for kind in INTEGERS):
            return 1e-3 * len(model.graph)
        digest = hashlib.sha256(repr((self._seed, content_of(model))).encode()).digest()
        return 1e-3 * len(model.graph) * (0.2 + 0.9 * digest[0] / 255) / 2


def one_seed(model: ir.Model, original: ir.Model, seed: int) -> dict[str, Any]:
    """Search once, and return the bound, the lowered sites, and the largest error on inputs that the search never saw."""
    bound, clock = BOUNDS[seed % len(BOUNDS)], MadeUp(seed)
    asked = Request(METRICS["l2"], bound, seed=seed, rounds=1)
    row: dict[str, Any] = {"seed": seed, "bound": bound}
    every = quantization_rules()
    few = np.random.default_rng(seed).choice(list(every), SCHEMES, replace=False)
    try:
        with mock.patch.object(final_measurement, "measure", clock.measure):
            found = fastest(
                model,
                original,
                asked,
                Rules({name: every[name] for name in few}),
                Store(None),
                lambda text: None,
                clock,
            )
    except BoundError as error:
        return {**row, "state": "cannot be kept", "reason": str(error)}
    session, other = Session(original), Session(found.model)
    _, unseen = generated(session, original, {}, range(FAR + seed * UNSEEN, FAR + (seed + 1) * UNSEEN))
    errors = [METRICS["l2"].of([session.run(arrays)], [other.run(arrays)], [arrays]).error for arrays in unseen]
    return {
        **row,
        "state": "kept" if max(errors) <= bound else "BROKEN",
        "error": float(f"{max(errors):.3g}"),
        "seen": float(f"{max(found.error, found.held_out_error or 0.0):.3g}"),
        "lowered": found.lowered,
    }


def counts(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a model's row of the summary: the searches by state, the largest error over its bound, and a line in words."""
    states = {state: sum(row["state"] == state for row in rows) for state in ("kept", "cannot be kept", "BROKEN")}
    worst = max((row["error"] / row["bound"] for row in rows if "error" in row), default=0.0)
    return {"searches": len(rows), **states, "worst error / bound": worst, "summary": summary(rows)}


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a line about one model."""
    broken = [row["seed"] for row in rows if row["state"] == "BROKEN"]
    lowered = [row for row in rows if row.get("lowered")]
    used = sorted(row["error"] / row["bound"] for row in lowered)
    middle = f", half of them above {used[len(used) // 2]:.0%} of it" if used else ""
    said = f"broken by seeds {broken}" if broken else "the bound holds in all"
    return f"{len(rows)} searches, {len(lowered)} with lowered sites{middle}; {said}"


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Golden models by name.")] = None,
    seeds: Annotated[int, typer.Option(help="How many searches for each model.")] = SEEDS,
    output: Annotated[Path | None, typer.Option(help="File of the raw result; the summary goes beside it.")] = None,
) -> None:
    """Search, measure, and store after each search."""
    console = Console()
    results = Results("precision.seeds", output)
    known = results.raw_rows()
    for name in names or DEFAULTS:
        rows = [] if names else known.get(name, [])
        path = GOLDEN / f"{name}.onnx"
        original, model = load(path), ortfuse.optimize(path).model
        for seed in range(len(rows), seeds):
            rows.append(one_seed(model, original, seed))
            models = {**results.rows(), name: counts(rows)}
            results.store(COMMAND, {"models": dict(sorted(models.items()))}, raw={name: rows})
        console.print(f"{name}: {summary(rows)}", highlight=False)


if __name__ == "__main__":
    typer.run(main)
