"""Savings by each pass of each family's list: the result without it beside the result with all of them.

    python -m benchmarks.passes                          # golden models that the raw result lacks
    python -m benchmarks.passes --model bert.sdpa.ts     # this one again
    python -m benchmarks.passes cse --model bert         # of these models, only what has this in its name; only printed
    python -m benchmarks.passes --latency --minutes 40   # the latency of each pass too; on a quiet machine
    python -m benchmarks.passes --models benchmarks/.models --minutes 30   # full size, in pieces
    python -m benchmarks.passes --models benchmarks/.models --model swin              # one family of these

One export of each golden architecture is taken, with the list that `auto` picks for it. Prices are those of
`benchmarks.estimate`, the same in every run. Passes that change nothing in a model are not left out there. Raw results are
stored model by model; the summary is written when no model is missing. `benchmarks.rules` leaves out single rules.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import ortfuse
from benchmarks.estimate import ESTIMATE, PRICES, weigh
from benchmarks.models import GOLDEN, one_of_each, sizes_of
from benchmarks.passes.summary import brief, summed
from benchmarks.results import Results
from ortfuse.errors import OrtfuseError
from ortfuse.runtime.bench import typical_inputs
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.targets import Target, default_spec, shipped_tables

COMMAND = "python -m benchmarks.passes"
ALWAYS = ("finalize",)
"""Passes without which there is no result."""


def measure(path: Path, only: str, latency: bool, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Optimise a model with all passes, and without each pass that changes something.

    Args:
        path: The model.
        only: A part of the names of the passes to leave out.
        latency: Whether latencies are measured too.
        sizes: Sizes of open dimensions by name; others are the usual ones.
    """
    manager = ortfuse.PassManager(ortfuse.Options(target=Target(costs=shipped_tables(default_spec())[0])))
    _, inputs = typical_inputs(ortfuse.load(path), sizes=sizes)
    whole = ortfuse.load(path)
    report = manager.run(whole)
    changes: dict[str, int] = {}
    for leaf in (leaf for item in report.passes for leaf in item.leaves()):
        changes[leaf.name] = changes.get(leaf.name, 0) + leaf.changes
    passes = {name: count for name, count in changes.items() if count and name not in ALWAYS and only in name}
    row = {
        "list": report.pass_list.partition(",")[0].partition(";")[0],
        "original": weigh(ortfuse.load(path), inputs),
        "all": weigh(whole, inputs),
        "idle": sorted(name for name, count in changes.items() if not count),
        "passes": {
            name: {"changes": count, **_without_pass(manager, path, inputs, name)} for name, count in passes.items()
        },
    }
    if latency:
        add_latencies(row, path, sizes)
    return row


def _without_pass(manager: ortfuse.PassManager, path: Path, inputs: Inputs, name: str) -> dict[str, Any]:
    model = ortfuse.load(path)
    try:
        manager.without([name]).run(model)
        return weigh(model, inputs)
    except OrtfuseError as error:
        return {"error": str(error)[:200]}


def add_latencies(row: dict[str, Any], path: Path, sizes: Mapping[str, int]) -> None:
    """Measure the result without each pass beside the one with all: how many times as fast all passes are, with bounds."""
    manager = ortfuse.PassManager(ortfuse.Options(target=Target(costs=shipped_tables(default_spec())[0])))
    models = {"all": ortfuse.load(path)}
    manager.run(models["all"])
    for name, found in row["passes"].items():
        if "error" not in found:
            models[name] = ortfuse.load(path)
            manager.without([name]).run(models[name])
    options = ortfuse.Options(bench=True, threads=2, rounds=40, sizes=dict(sizes))
    rows = ortfuse.benchmark({"all": models.pop("all"), **models}, options).latency
    for entry in rows[1:]:
        low, high = entry.speedup_bounds or (entry.speedup, entry.speedup)
        row["passes"][entry.name]["latency"] = [round(1 / number, 4) for number in (entry.speedup, high, low)]
    row["latency"] = True


def store(results: Results, command: str, rows: Mapping[str, Any]) -> None:
    """Write the summary.

    Args:
        results: Their files.
        command: The command that measured.
        rows: All raw rows by model.
    """
    results.store(command, {"estimate": ESTIMATE, **brief(summed(rows))})


def chosen(folder: Path, names: Sequence[str], known: Iterable[str], lacking: Iterable[str]) -> list[Path]:
    """The models of some names, by their beginnings; else one of each architecture, if not known or if it lacks something.

    Raises:
        typer.BadParameter: There is no model of a name.
    """
    every = sorted(folder.glob("*.onnx"))
    if not names:
        missing = {*lacking}
        return [path for path in one_of_each(every) if path.stem not in known or path.stem in missing]
    found = [path for path in every if any(f"{path.stem}.".startswith(f"{name}.") for name in names)]
    if not found:
        raise typer.BadParameter(f"there is no model {names[0]} in {folder}")
    return found


def main(
    only: Annotated[str, typer.Argument(help="Leave out only passes with this in their names; stores nothing.")] = "",
    model: Annotated[list[str] | None, typer.Option(help="Models by the beginning of their names.")] = None,
    models: Annotated[
        Path | None, typer.Option(help="A folder with models of full size instead of the golden ones.")
    ] = None,
    latency: Annotated[bool, typer.Option(help="Measure the latency without each pass too.")] = False,
    minutes: Annotated[float, typer.Option(help="Begin no further model after that; 0 is without end.")] = 0.0,
    output: Annotated[Path | None, typer.Option(help="File of the raw result; the summary goes beside it.")] = None,
) -> None:
    """Measure, and store after each model."""
    console = Console()
    results = Results("passes" if models is None else "passes.full", output)
    rows = results.raw_rows()
    lacking = [name for name, row in rows.items() if latency and not row.get("latency")]
    until = time.monotonic() + 60 * minutes if minutes else float("inf")
    paths = chosen(models or GOLDEN, model or [], rows, lacking)
    for number, path in enumerate(paths, 1):
        if time.monotonic() > until:
            console.print(f"{len(paths) - number + 1} models are left for the next run")
            break
        sizes = {} if models is None else sizes_of(path.stem)
        if path.stem in lacking and not model:
            add_latencies(rows[path.stem], path, sizes)
        else:
            rows[path.stem] = measure(path, only, latency, sizes)
        console.print(f"{number}/{len(paths)} {_line(path.stem, rows[path.stem])}", markup=False, highlight=False)
        if not only:
            results.add({path.stem: rows[path.stem]})
    if not only and not chosen(models or GOLDEN, [], rows, []):
        store(results, COMMAND if models is None else f"{COMMAND} --models benchmarks/.models", rows)


def _line(name: str, row: Mapping[str, Any]) -> str:
    return f"{name} ({row['list']}): " + ", ".join(
        f"{price} {row['original'][price]:g} -> {row['all'][price]:g}" for price in PRICES
    )
