"""Evidence for each rule and pass: the models in which it fires, and the loss without it.

    python -m benchmarks.rules --exports FOLDER --jobs 2     # everything; goes on where it was stopped
    python -m benchmarks.rules gelu swish                    # only rules with this in their names; stores no summary
    python -m benchmarks.rules --source golden --minutes 20  # only these models; begins nothing after that
    python -m benchmarks.rules --max-opset 17                # results of older opsets, too
    python -m benchmarks.rules --table                       # the evidence so far, by the raw result; also stores it

Each model is optimised once with everything, which tells the rules that fire. A rule is then left out of models in which it
fires, the cheapest first, until one shows a saving: of operators that the runtime executes after its own optimisations, or of
time estimated from these (`benchmarks.estimate`). Rules that saved nothing in one model are left out of further ones together,
and one by one if that changes a price. Golden models, exports and trained models come before tests of the standard.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks import isolated
from benchmarks.estimate import ESTIMATE
from benchmarks.jobs import ROOT
from benchmarks.results import Results
from benchmarks.rules.corpus import SOURCES, samples
from benchmarks.rules.search import Search
from benchmarks.rules.summary import IDLE, NEVER, UNTRIED, counted, evidence, passes_of, table
from benchmarks.rules.trial import PASS
from benchmarks.rules.versions import rules_to_judge, versions
from ortfuse.rewrite import Rule
from ortfuse.targets import default_spec, shipped_tables

COMMAND = "python -m benchmarks.rules"
EXPORTS = tuple(ROOT / "benchmarks" / name for name in (".varied", ".formulas", ".unseen"))
"""The folders of exports, as far as they are there."""


def measured_speedups(rules: Mapping[str, Rule]) -> dict[str, float]:
    """The largest median of the speedups that a shipped table of costs of the newest releases has for a rule."""
    found: dict[str, float] = {}
    for cost_table in shipped_tables(default_spec()):
        if cost_table.releases is not None:
            continue
        for name in rules:
            if numbers := [one.speedup for one in cost_table.speedups.get(name, ())]:
                found[name] = max(found.get(name, 0.0), round(statistics.median(numbers), 3))
    return found


def main(
    only: Annotated[list[str] | None, typer.Argument(help="Parts of the names of rules; stores no summary.")] = None,
    exports: Annotated[list[Path] | None, typer.Option(help="Folders with exports.")] = None,
    source: Annotated[list[str] | None, typer.Option(help=f"Kinds of models: {', '.join(SOURCES)}.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="Models by the beginning of their names.")] = None,
    max_opset: Annotated[
        list[int] | None, typer.Option(help="Try each model for results of at most this opset, too.")
    ] = None,
    tries: Annotated[int, typer.Option(help="The most models from which a rule is left out.")] = 12,
    jobs: Annotated[int, typer.Option(help="Models that are worked on at a time.")] = 1,
    minutes: Annotated[float, typer.Option(help="Begin no further model after that; 0 is without end.")] = 0.0,
    fresh: Annotated[bool, typer.Option(help="Forget the raw result.")] = False,
    passes: Annotated[bool, typer.Option(help="Leave out passes too.")] = True,
    show: Annotated[bool, typer.Option("--table", help="Measure nothing; print the evidence so far.")] = False,
    output: Annotated[Path | None, typer.Option(help="File of the raw result; the summary goes beside it.")] = None,
) -> None:
    """Search for evidence, print it, and store the summary when the search is done."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    results = Results("rules", output)
    if fresh:
        results.raw.unlink(missing_ok=True)
    chosen = samples(source or SOURCES, exports or [folder for folder in EXPORTS if folder.is_dir()])
    chosen = [one for one in chosen if not model or any(f"{one.name}.".startswith(f"{name}.") for name in model)]
    limited = [one.limited(opset) for opset in max_opset or () for one in chosen]
    search = Search(
        [*chosen, *limited],
        versions(),
        results.raw_rows(),
        lambda name, row: results.add({name: row}),
        tries=tries,
        jobs=jobs,
        until=time.monotonic() + 60 * minutes if minutes else float("inf"),
    )
    judged = rules_to_judge()
    if not show:
        isolated.preload(["benchmarks.rules.trial"])
        search.optimise_all(console.print)
    every = (*judged, *(passes_of(search) if passes else ()))
    names = [name for name in every if not only or any(part in name for part in only)]
    done = show or search.leave_out(names, console.print)
    found = evidence(search, names, measured_speedups(judged))
    for line in table(found):
        console.print(line)
    console.print(", ".join(f"{kind} {number}" for kind, number in counted(found).items()))
    if done and not (only or model or source):
        results.store(COMMAND, summary(search, found))


def summary(search: Search, found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the result for the summary: passes apart, and of rules without effect only what the catalogue tells."""
    rows = [search.rows[sample.name] for sample in search.samples if sample.name in search.rows]
    sources = {kind: sum(row["source"] == kind for row in rows) for kind in SOURCES}
    passes = {name.removeprefix(PASS): _told(row) for name, row in found.items() if name.startswith(PASS)}
    rules = {name: row for name, row in found.items() if not name.startswith(PASS)}
    named = {name: _told(row) for name, row in rules.items() if row["kind"] not in (NEVER, IDLE, UNTRIED)}
    return {
        "estimate": ESTIMATE,
        "models": sources,
        "counts": counted(rules),
        "rules": named,
        **{
            kind: {name: row["model"] for name, row in rules.items() if row["kind"] == kind} for kind in (IDLE, UNTRIED)
        },
        NEVER: sorted(name for name, row in rules.items() if row["kind"] == NEVER),
        "passes": passes,
    }


def _told(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: one for key, one in row.items() if key != "tried"}
