"""Measure the speedup by each rule on this kind of processor, for the cost tables that come with ortfuse.

    python -m benchmarks.kernels.costs --write
    python -m benchmarks.kernels.costs --target wasm --threads 1 --write

The measurements are those of `ortfuse calibrate` (`ortfuse.tuning.rule_costs`): both sides of a rule's declaration at the sizes
that its test calls typical, interleaved, in the runtime with its optimisations on. Another process that takes the processor
for seconds spoils all that is measured then, and looks sure: the passes are minutes apart, and their median counts. The file
holds a table for each kind of processor; this writes the one of the processor at hand.
"""

from __future__ import annotations

import json
import statistics
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ortfuse.pipeline import load_catalogue
from ortfuse.runtime.current_execution_target import executing_for
from ortfuse.targets import default_spec, shipped_costs, spec_of
from ortfuse.targets.kernel_table_cache import table_of
from ortfuse.targets.processor import number_formats, processor_kind, processor_name
from ortfuse.targets.rule_speedups import FLOAT32
from ortfuse.tuning.rule_costs import candidates
from ortfuse.tuning.rule_costs.speedup import speedup


def main(
    rules: Annotated[list[str] | None, typer.Argument(help="Rules to measure; all by default.")] = None,
    target: Annotated[str, typer.Option(help="The target to measure.")] = default_spec().name,
    threads: int = 2,
    passes: Annotated[int, typer.Option(help="How often everything is measured, one pass after the other.")] = 3,
    write: Annotated[bool, typer.Option(help="Store the table that ortfuse ships.")] = False,
) -> None:
    """Measure and print; with --write, store."""
    spec, kind, formats = spec_of(target), processor_kind(), number_formats()
    assert spec.folder is not None
    path = spec.folder / "costs.json"
    content = json.loads(path.read_text()) if path.is_file() else {"tables": []}
    stored = next(
        (
            one
            for one in content["tables"]
            if "releases" not in one and (one["processor"], one.get("formats", "")) == (kind, formats)
        ),
        None,
    )
    if stored is None:
        # Rows of float32 that a table lacks are those of the others for its kind of processor.
        if write and rules and not any(one["processor"] == kind for one in content["tables"]):
            raise typer.BadParameter(f"there is no table of {kind} yet: measure all rules")
        stored = {"processor": kind, "formats": formats, "speedups": {}}
        content["tables"].append(stored)
    catalogue = load_catalogue([], spec)
    elsewhere = catalogue.for_others(spec.name)
    rest = [rule for rule in catalogue.rules() if rule.name not in elsewhere]
    wanted = candidates(rest, rules or (), shipped_costs(spec))
    measured: list[list[Any]] = [[] for _ in wanted]
    with executing_for(spec):
        for _ in range(passes):
            for one, found in zip(wanted, measured, strict=True):
                found.append(speedup(one, threads))
    table = Table("rule", "size", "speedup", *(f"pass {number + 1}" for number in range(passes)))
    for one, found in zip(wanted, measured, strict=True):
        some = [run for run in found if run is not None]
        if not some and one.dtype != FLOAT32:
            continue
        sure = [run.speedup for run in some if not run.unsure]
        middle = round(statistics.median(sure), 3) if 2 * len(sure) > passes else None
        each = ["silent" if run is None else f"{run.speedup:.2f}" + " ?" * run.unsure for run in found]
        table.add_row(one.rule.name, one.sizes, "-" if middle is None else f"{middle:.2f}", *each)
        if middle is not None:
            stored["speedups"].setdefault(one.rule.name, {})[one.sizes] = middle
    Console().print(table)
    if write:
        stored["source"] = (
            f"{table_of(spec).runtime}, {spec.provider}, {threads} threads, {processor_name()}, benchmarks.kernels.costs"
        )
        path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    typer.run(main)
