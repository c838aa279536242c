"""Figures of a run of `benchmarks/targets/cuda.sh`, printed and stored.

benchmarks/targets/cuda.sh OUT                                   # on a machine with a GPU
python -m benchmarks.targets.cuda.report OUT --write             # there or elsewhere
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.results import Results

COMMAND = "python -m benchmarks.targets.cuda.report OUT --write"


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file; none if it is not there."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def latencies(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return milliseconds of originals and speedups of variants over them, by model and batch, and their geometric means."""
    found: dict[str, Any] = {}
    ratios: dict[str, list[float]] = {}
    for row in rows:
        times = row["ms"]
        speedups = {name: times["default"] / value for name, value in times.items() if name != "default"}
        found[f"{row['model']}, batch {row['batch']}"] = {"default_ms": times["default"], **speedups}
        for name, speedup in speedups.items():
            ratios.setdefault(name, []).append(speedup)
    means = {
        name: {"geometric_mean": statistics.geometric_mean(all_of), "rows": len(all_of)}
        for name, all_of in ratios.items()
    }
    return {"means": means, "models": found}


def goldens(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how many golden models are right in float32 and in float16, and what is wrong with the others."""
    wrong = {row["model"]: row["error"] for row in rows if "error" in row}
    narrow = {row["model"]: row["float16"]["error"] for row in rows if "error" in row.get("float16", {})}
    off = {row["model"]: row["placement"]["result"]["off"] for row in rows if "placement" in row}
    return {
        "models": len(rows),
        "right": len(rows) - len(wrong),
        "right in float16": len(rows) - len(wrong) - len(narrow),
        "wrong": {**wrong, **{f"{name} in float16": why for name, why in narrow.items()}},
        "with nodes off the device": sum(bool(one) for one in off.values()),
    }


def operators(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return how many uses of operators are right, wrong and refused: the last finding of each counts."""
    last = {tuple(row["key"]): row["verdict"] for row in rows}
    return dict(Counter(last.values()))


def main(
    out: Annotated[Path, typer.Argument(help="Folder of results.")],
    write: Annotated[bool, typer.Option(help="Whether to store the figures.")] = False,
) -> None:
    """Print the figures of a run."""
    versions = json.loads((out / "versions.json").read_text())
    found = {
        "gpu": versions.get("gpu", ""),
        "onnxruntime": versions["build"],
        "processors": versions["processors"],
        "operators": operators(lines(out / "operators.jsonl")),
        "goldens": goldens(lines(out / "goldens.jsonl")),
        "padding": lines(out / "padding.jsonl"),
        "latency": latencies(lines(out / "latency.jsonl")),
    }
    print(json.dumps(found, indent=1))
    if write:
        Results("targets.cuda").store(COMMAND, found)


if __name__ == "__main__":
    typer.run(main)
