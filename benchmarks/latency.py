"""Latency of full-size models, as exported and as ortfuse leaves them, both with the runtime's default optimisations.

    python benchmarks/export_full.py
    python benchmarks/latency.py --models benchmarks/.models --write

Runs are interleaved; a speedup is the median over rounds of the original's latency divided by the optimised model's.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import statistics
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ortfuse.bench import measure, typical_inputs
from ortfuse.ir.io import load
from ortfuse.pipeline import PassManager


def compare(path: Path, rounds: int, threads: int) -> dict[str, Any]:
    """One model against its optimised form, at a typical size."""
    original = load(path)
    optimised = PassManager("auto").run(original).model
    sizes, inputs = typical_inputs(original)
    before, after = measure({"original": original, "ortfuse": optimised}, inputs, rounds=rounds, threads=threads)
    return {
        "model": path.stem,
        "sizes": sizes,
        "default_ms": before.median_ms,
        "ortfuse_ms": after.median_ms,
        "speedup": after.speedup,
        "executed_default": before.executed,
        "executed_ortfuse": after.executed,
    }


def main(
    models: Annotated[Path, typer.Option(help="Folder with the full-size models.")] = Path("benchmarks/.models"),
    only: Annotated[list[str] | None, typer.Option(help="Only models whose name begins with this.")] = None,
    rounds: int = 25,
    threads: int = 2,
    write: Annotated[bool, typer.Option(help="Store the result in benchmarks/results.")] = False,
) -> None:
    """Measure, print and, with --write, store."""
    rows = []
    console = Console(width=140)
    for path in sorted(models.glob("*.onnx")):
        if only and not any(path.stem.startswith(name) for name in only):
            continue
        rows.append(compare(path, rounds, threads))
        console.print(
            " ".join(f"{value:.3g}" if isinstance(value, float) else str(value) for value in rows[-1].values())
        )
        gc.collect()
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()))
    console.print(table)
    mean = statistics.geometric_mean(row["speedup"] for row in rows)
    console.print(f"geometric mean of the speedups: {mean:.3f}")
    if write:
        content = {
            "command": f"python benchmarks/latency.py --models FOLDER --rounds {rounds} --threads {threads} --write",
            "machine": f"{os.cpu_count()} cores, {platform.machine()}, load at the end {os.getloadavg()[0]:.1f}",
            "versions": {name: version(name) for name in ("ortfuse", "onnxruntime")},
            "rows": rows,
            "geometric_mean": mean,
        }
        (Path(__file__).parent / "results" / "latency.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
