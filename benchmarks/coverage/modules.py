"""Calls of PyTorch's own modules and functions, and how many of them have an operator in the results of ortfuse.

    python -m benchmarks.coverage.modules              # the golden models; writes the summary
    python -m benchmarks.coverage.modules FOLDER       # any exports with the record of calls beside them; only printed

The exit code is 1 if a call is missing that nothing explains.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

sys.path.insert(0, str(Path(__file__).parents[2] / "golden"))
import suite

import ortfuse
from benchmarks.results import Results

COMMAND = "python -m benchmarks.coverage.modules"


def compare(folder: Path) -> dict[str, Any]:
    """For each family the calls and the operators that stand for them, and every model where some are missing."""
    calls: Counter[str] = Counter()
    found: Counter[str] = Counter()
    short = []
    paths = [path for path in sorted(folder.glob("*.onnx")) if path.with_suffix(".json").is_file()]
    for path in paths:
        name = path.name.removesuffix(".onnx")
        sites, operators = suite.sites(name, folder), ortfuse.optimize(path).report.after.operators
        here = suite.called(sites)
        calls.update(here)
        found.update(suite.made(operators, here))
        reasons = suite.EXPLAINED.get(name.partition(".")[0], {})
        for family, number in suite.missing(operators, sites).items():
            explained, reason = reasons.get(family, (0, ""))
            short.append({"model": name, "family": family, "calls": here[family], "missing": number,
                          "why": reason if explained == number else ""})  # fmt: skip
    families = {family: {"calls": calls[family], "found": found[family]} for family in calls if calls[family]}
    return {"models": len(paths), "families": families, "missing": short}


def main(
    folder: Annotated[Path | None, typer.Argument(help="Exports with records; the golden models by default.")] = None,
) -> None:
    """Compare, print, and store what concerns the golden models."""
    content = compare(folder or suite.MODELS)
    typer.echo(json.dumps(content, indent=1))
    if folder is None:
        Results("coverage.modules").store(COMMAND, content)
    raise typer.Exit(1 if any(not row["why"] for row in content["missing"]) else 0)


if __name__ == "__main__":
    typer.run(main)
