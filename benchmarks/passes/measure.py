"""Savings by each pass of each family's list, and by each rule: the result without it beside the result with all of them.

    python -m benchmarks.passes                          # golden models that the raw result lacks
    python -m benchmarks.passes --model bert.sdpa.ts     # this one again
    python -m benchmarks.passes gelu --model bert        # of these models, only what has this in its name; only printed
    python -m benchmarks.passes --latency --minutes 40   # the latency of each pass too; on a quiet machine
    python -m benchmarks.passes --models benchmarks/.models --no-rules --minutes 30   # full size, in pieces
    python -m benchmarks.passes --models benchmarks/.models --model swin              # one family of these

Of each golden architecture one export is taken, with the list that `auto` picks for it. Operators are those that the runtime
executes in a run, after its own optimisations. The time is estimated: every executed operator takes `DISPATCH`, and the least
time for its work on a machine with the peaks `NOMINAL`; so both are the same in every run. Rules and passes that change nothing
in a model are not left out there. Raw results are stored model by model; the summary is written when no model is missing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import onnx_ir as ir
import typer
from rich.console import Console

import ortfuse
from benchmarks.models import GOLDEN, one_of_each, sizes_of
from benchmarks.passes.summary import PRICES, brief, summed
from benchmarks.results import Results
from ortfuse.errors import OrtfuseError
from ortfuse.profiling.profiler_trace import trace
from ortfuse.profiling.roofline import works
from ortfuse.rewrite import Exactness
from ortfuse.runtime.bench import typical_inputs
from ortfuse.runtime.bench.machine_peaks import Peaks
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.node_naming import name_all_nodes
from ortfuse.targets import Target, default_spec, shipped_tables
from ortfuse.verification.bisection.bisect_slowdown import WithoutRule

COMMAND = "python -m benchmarks.passes"
NOMINAL = Peaks(flops=2e11, bandwidth=2e10, processor="nominal", threads=2)
DISPATCH = 3e-6
"""Seconds for handing over from one operator to the next."""

LOWERING = "precision"
"""The beginning of the names of passes that only `quantize` runs."""

ALWAYS = ("finalize",)
"""Passes without which there is no result."""


def weigh(model: ir.Model, inputs: Inputs) -> dict[str, float]:
    """The operators executed in a run, and the microseconds that a run is estimated to take."""
    name_all_nodes(model)
    seen = trace(model, inputs, runs=1, threads=1)
    known = works(seen.nodes, seen.graph)
    seconds = sum(work.seconds(NOMINAL) for work in known.values())
    executed = sum(node.calls for node in seen.nodes)
    return {"executed": executed, "microseconds": round(1e6 * (seconds + DISPATCH * executed), 2)}


def measure(path: Path, only: str, latency: bool, with_rules: bool, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Optimise a model with all passes, and without each pass and each rule that changes something.

    Args:
        path: The model.
        only: A part of the names of the passes and rules to leave out.
        latency: Whether latencies are measured too.
        with_rules: Whether rules are left out, and not only passes.
        sizes: Sizes of open dimensions by name; others are the usual ones.
    """
    manager = ortfuse.PassManager(ortfuse.Options(target=Target(costs=shipped_tables(default_spec())[0])))
    _, inputs = typical_inputs(ortfuse.load(path), sizes=sizes)
    whole = ortfuse.load(path)
    report = manager.run(whole)
    changes: dict[str, int] = {}
    hits: dict[str, int] = {}
    for leaf in (leaf for item in report.passes for leaf in item.leaves()):
        changes[leaf.name] = changes.get(leaf.name, 0) + leaf.changes
        for rule, count in leaf.hits.items():
            hits[rule] = hits.get(rule, 0) + count
    passes = {name: count for name, count in changes.items() if count and name not in ALWAYS and only in name}
    rules = {name: count for name, count in hits.items() if with_rules and count and only in name}
    row = {
        "list": report.pass_list.partition(",")[0].partition(";")[0],
        "original": weigh(ortfuse.load(path), inputs),
        "all": weigh(whole, inputs),
        "idle": sorted(name for name, count in changes.items() if not count),
        "passes": {
            name: {"changes": count, **_without_pass(manager, path, inputs, name)} for name, count in passes.items()
        },
        "rules": {name: {"hits": count, **_without_rule(manager, path, inputs, name)} for name, count in rules.items()},
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


def _without_rule(manager: ortfuse.PassManager, path: Path, inputs: Inputs, name: str) -> dict[str, Any]:
    model = ortfuse.load(path)
    try:
        manager.run(model, inspector=WithoutRule(name))
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


def rules_to_judge() -> list[str]:
    """The rules that `optimize` may apply unasked: of its own passes, not those that only pins or other targets ask for."""
    allowed, catalogue = (Exactness.EXACT, Exactness.ROUNDING), ortfuse.PassManager().catalogue
    own = [rule for name, rules in catalogue.passes().items() if not name.startswith(LOWERING) for rule in rules]
    asked = [rule for rule in own if rule.on_request or rule.by_definition or rule.spells_out]
    return [rule.name for rule in own if rule.exactness in allowed and rule not in asked]


def store(results: Results, command: str, rows: Mapping[str, Any], *, rules: bool) -> None:
    """Write the summary.

    Args:
        results: Their files.
        command: The command that measured.
        rows: All raw rows by model.
        rules: Whether rules were left out too.
    """
    estimate = {"microseconds for each operator": 1e6 * DISPATCH, **NOMINAL.to_dict()}
    found = brief(summed(rows, rules_to_judge()))
    if not rules:
        del found["rules"]
    results.store(command, {"estimate": estimate, **found})


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
    only: Annotated[
        str, typer.Argument(help="Leave out only passes and rules with this in their names; stores nothing.")
    ] = "",
    model: Annotated[list[str] | None, typer.Option(help="Models by the beginning of their names.")] = None,
    models: Annotated[
        Path | None, typer.Option(help="A folder with models of full size instead of the golden ones.")
    ] = None,
    rules: Annotated[bool, typer.Option(help="Leave out rules too, and not only passes.")] = True,
    latency: Annotated[bool, typer.Option(help="Measure the latency without each pass too.")] = False,
    minutes: Annotated[float, typer.Option(help="Begin no further model after that; 0 is without end.")] = 0.0,
    output: Annotated[Path | None, typer.Option(help="File of the raw result; the summary goes beside it.")] = None,
) -> None:
    """Measure, store after each model, and count the rules that save nothing."""
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
            rows[path.stem] = measure(path, only, latency, rules, sizes)
        console.print(f"{number}/{len(paths)} {_line(path.stem, rows[path.stem])}", markup=False, highlight=False)
        if not only:
            results.add({path.stem: rows[path.stem]})
    if not only and not chosen(models or GOLDEN, [], rows, []):
        command = COMMAND if models is None else f"{COMMAND} --models benchmarks/.models"
        store(results, command if rules else f"{command} --no-rules", rows, rules=rules)
    if not rules:
        return
    found = summed(rows, rules_to_judge())["rules"]
    console.print(f"rules: {', '.join(f'{kind} {len(names)}' for kind, names in found.items())}", highlight=False)


def _line(name: str, row: Mapping[str, Any]) -> str:
    return f"{name} ({row['list']}): " + ", ".join(
        f"{price} {row['original'][price]:g} -> {row['all'][price]:g}" for price in PRICES
    )
