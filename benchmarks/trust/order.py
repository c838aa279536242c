"""Independence of the order in which matches are visited: every golden model in several random orders, each edit checked.

    python -m benchmarks.trust.order --seeds 5

In every order the result must have the operators that are expected of the model and compute the same. After each rewrite
and each pass the graph is checked and the facts kept up are compared with facts computed afresh.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

sys.path.insert(0, str(Path(__file__).parents[2] / "golden"))
import suite

import ortfuse
from benchmarks.results import Results
from ortfuse.errors import OrtfuseError
from ortfuse.io.load_and_save import load
from ortfuse.rewrite import Debugging


def tried(name: str, seed: int | None, outputs: bool) -> tuple[list[str], int]:
    """Return the failures of a model's result in one order, in words, and the number of rewrites."""
    original = load(suite.MODELS / f"{name}.onnx")
    try:
        result = ortfuse.optimize(original, debugging=Debugging(seed=seed, checks=True))
    except OrtfuseError as error:
        return [str(error)], 0
    problems = suite.difference(suite.stored(name), suite.outcome(result.report))
    if outputs:
        verdict = ortfuse.verify(original, result.model, reference=False)
        problems += [] if verdict.ok else [verdict.summary()]
    return problems, len(result.report.events)


def main(
    names: Annotated[
        list[str] | None, typer.Argument(help="Golden models; all with an expectation by default.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Random orders for each model.")] = 5,
    outputs: Annotated[bool, typer.Option(help="Whether to compare outputs, in the first order.")] = True,
) -> None:
    """Print the models that depend on the order, and write the figures; the exit code is 1 if there is one."""
    started, rows, rewrites = time.perf_counter(), [], 0
    for name in names or suite.expected_names():
        row: dict[str, Any] = {"model": name, "problems": {}}
        for seed in (None, *range(seeds)):
            problems, count = tried(name, seed, outputs and seed == 0)
            rewrites += count
            row["rewrites"] = max(count, row.get("rewrites", 0))
            if problems:
                row["problems"][str(seed)] = problems
                print(f"{name}, seed {seed}: {'; '.join(problems)}", flush=True)
        rows.append(row)
    wrong = [row for row in rows if row["problems"]]
    if names is None:
        figures = {
            "models": len(rows),
            "orders": seeds + 1,
            "rewrites checked": rewrites,
            "models that depend on the order": {row["model"]: sorted(row["problems"]) for row in wrong},
            "seconds": round(time.perf_counter() - started),
        }
        Results("trust.order").store(f"python -m benchmarks.trust.order --seeds {seeds}", figures, raw={"rows": rows})
    print(f"{len(rows)} models, {rewrites} rewrites checked, {len(wrong)} models depend on the order")
    raise typer.Exit(1 if wrong else 0)


if __name__ == "__main__":
    typer.run(main)
