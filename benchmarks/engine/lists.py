"""What the pass lists of families save: the engine's time with `auto` against `all`, on golden models.

    python -m benchmarks.engine.lists              # all golden models; writes lists.json
    python -m benchmarks.engine.lists bert llama   # those whose names have one of these parts; only printed

For each model, runs with both are interleaved; the ratio is the median over rounds of the processor time with the family's list
divided by that with `all`. Both must leave the same operators.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import typer

import ortfuse
from ortfuse.pipeline import RunReport

HERE = Path(__file__).parent
RESULTS = HERE / "lists.json"
GOLDEN = HERE.parents[1] / "golden" / "models"
ROUNDS = 5


def run(manager: ortfuse.PassManager, path: Path) -> tuple[float, RunReport]:
    """The processor time of one run in seconds, without loading, and its report."""
    model = ortfuse.load(path)
    started = time.process_time()
    report = manager.run(model)
    return time.process_time() - started, report


def measure(path: Path, rounds: int) -> dict[str, Any]:
    """The family of a model, its list's share of the time of `all`, and whether both leave the same operators."""
    family, everything = ortfuse.PassManager("auto"), ortfuse.PassManager("all")
    ratios, reports = [], []
    for _ in range(rounds):
        (first, found), (second, whole) = run(family, path), run(everything, path)
        ratios.append(first / second)
        reports = [found, whole]
    same = reports[0].after.operators == reports[1].after.operators
    return {"list": reports[0].chosen.partition(",")[0], "share": round(statistics.median(ratios), 3), "same": same}


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Parts of names of golden models.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each.")] = ROUNDS,
) -> None:
    """Measure each model, and sum up by list."""
    paths = [path for path in sorted(GOLDEN.glob("*.onnx")) if not names or any(name in path.name for name in names)]
    rows = {}
    for path in paths:
        rows[path.stem] = measure(path, rounds)
        typer.echo(f"{path.stem}: {rows[path.stem]}")
    families = {name: [row["share"] for row in rows.values() if row["list"] == name] for name in
                sorted({row["list"] for row in rows.values()})}  # fmt: skip
    shares = {name: round(statistics.geometric_mean(found), 3) for name, found in families.items()}
    different = [name for name, row in rows.items() if not row["same"]]
    figures = {
        "command": "python -m benchmarks.engine.lists",
        "rounds": rounds,
        "share_of_all": shares,
        "different": different,
    }
    typer.echo(json.dumps(figures, indent=1))
    if not names:
        RESULTS.write_text(json.dumps({**figures, "models": rows}, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
