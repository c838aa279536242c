"""Measure what each rule buys on this kind of processor, for the tables that come with ortfuse.

    python -m benchmarks.kernels.costs --write

The measurements are those of `ortfuse calibrate` (`ortfuse.calibration`): both sides of a rule's declaration at the sizes that
its proof calls typical, interleaved, in the runtime with its optimisations on. The file holds a table for each kind of processor;
this writes the one of the processor at hand.
"""

from __future__ import annotations

import json
from typing import Annotated

import onnxruntime
import typer
from rich.console import Console
from rich.table import Table

from ortfuse.calibration import candidates
from ortfuse.calibration.speedup import speedup
from ortfuse.pipeline import load_catalogue
from ortfuse.targets import CPU, shipped_costs
from ortfuse.targets.costs import FLOAT32, shipped_file
from ortfuse.targets.processor import number_formats, processor_kind, processor_name


def main(
    rules: Annotated[list[str] | None, typer.Argument(help="Rules to measure; all by default.")] = None,
    threads: int = 2,
    write: Annotated[bool, typer.Option(help="Store the table that ortfuse ships.")] = False,
) -> None:
    """Measure and print; with --write, store."""
    path, kind, formats = shipped_file(CPU), processor_kind(), number_formats()
    content = json.loads(path.read_text()) if path.exists() else {"tables": []}
    stored = next(
        (one for one in content["tables"] if (one["processor"], one.get("formats", "")) == (kind, formats)), None
    )
    if stored is None:
        if write and rules:
            raise typer.BadParameter(f"there is no table of {kind} {formats} yet: measure all rules")
        stored = {"processor": kind, "formats": formats, "speedups": {}}
        content["tables"].append(stored)
    table = Table("rule", "size", "speedup")
    for one in candidates(load_catalogue([]).rules(), rules or (), shipped_costs(CPU)):
        found = speedup(one, threads)
        if found is None and one.dtype != FLOAT32:
            continue
        table.add_row(
            one.rule.name, one.sizes, "silent" if found is None else f"{found.speedup:.2f}" + " ?" * found.unsure
        )
        if found is not None and not found.unsure:
            stored["speedups"].setdefault(one.rule.name, {})[one.sizes] = found.speedup
    Console().print(table)
    if write:
        stored["source"] = (
            f"onnxruntime {onnxruntime.__version__}, {CPU}, {threads} threads, {processor_name()}, benchmarks.kernels.costs"
        )
        path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    typer.run(main)
