"""Savings by the pass lists of families: the engine's work with `auto` against `all`, on golden models.

    python -m benchmarks.engine.lists              # of each golden architecture one export; writes the summary
    python -m benchmarks.engine.lists bert llama   # all exports whose names have one of these parts; only printed
    python -m benchmarks.engine.lists --rounds 5   # the processor time as well, which other work on the machine blurs

Work is counted in calls of functions, Python's own included, which are the same in every run. For each pass of `all` the raw
result has its share of the calls, which leaving it out would save, and the number of its changes. Time is the median over rounds
of the processor time with the family's list divided by that with `all`, both interleaved. Both must leave the same operators.
"""

from __future__ import annotations

import cProfile
import json
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import ortfuse
from benchmarks.models import GOLDEN, one_of_each
from benchmarks.results import Results
from ortfuse.pipeline import PassEvent, RunReport


class Calls:
    """Counts the calls in a run of a pipeline, and by pass."""

    def __init__(self) -> None:
        self.passes: Counter[str] = Counter()
        self._profile = cProfile.Profile()

    @property
    def total(self) -> int:
        """The calls so far."""
        return sum(entry.callcount for entry in self._profile.getstats())

    def run(self, manager: ortfuse.PassManager, path: Path) -> RunReport:
        """Run a pipeline over a model, counting."""
        model = ortfuse.load(path)
        self._profile.enable()
        try:
            return manager.run(model, on_pass=self._note)
        finally:
            self._profile.disable()

    def _note(self, event: PassEvent) -> None:
        self._profile.disable()
        if not event.report.parts:
            self.passes[event.report.name] += self.total - self.passes.total()
        self._profile.enable()


def seconds(manager: ortfuse.PassManager, path: Path) -> float:
    """The processor time of one run, without loading."""
    model = ortfuse.load(path)
    started = time.process_time()
    manager.run(model)
    return time.process_time() - started


def measure(path: Path, family: ortfuse.PassManager, everything: ortfuse.PassManager, rounds: int) -> dict[str, Any]:
    """The family of a model, its list's share of the work of `all`, what each pass does, whether the operators are the same."""
    everything.run(ortfuse.load(path))  # what is kept for later runs is made by the first
    ratios = [seconds(family, path) / seconds(everything, path) for _ in range(rounds)]
    few, many = Calls(), Calls()
    found, whole = few.run(family, path), many.run(everything, path)
    changes: Counter[str] = Counter()
    for report in whole.passes:
        for leaf in report.leaves():
            changes[leaf.name] += leaf.changes
    return {
        "list": found.pass_list.partition(",")[0].partition(";")[0],
        "calls": round(few.total / many.total, 3),
        **({"time": round(statistics.median(ratios), 3)} if rounds else {}),
        "same": found.after.operators == whole.after.operators,
        "passes": {name: [round(calls / many.total, 4), changes[name]] for name, calls in many.passes.items()},
    }


def summary(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """For each list the share of the calls (and of the time) of `all`, and of the passes the share and the changes."""
    found = {}
    for name in sorted({row["list"] for row in rows.values()}):
        chosen = [row for row in rows.values() if row["list"] == name]
        entry: dict[str, Any] = {"models": len(chosen)}
        for figure in ("calls", "time"):
            if all(figure in row for row in chosen):
                entry[figure] = round(statistics.geometric_mean(row[figure] for row in chosen), 3)
        found[name] = {**entry, "without_changes": _unneeded(chosen)}
    return found


def _unneeded(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The passes that change none of some models, with their mean share of the calls of `all`, the largest first."""
    names = {name for row in rows for name in row["passes"]}
    idle = [name for name in names if not any(row["passes"].get(name, (0, 0))[1] for row in rows)]
    shares = {name: statistics.mean(row["passes"].get(name, (0, 0))[0] for row in rows) for name in idle}
    return {name: round(share, 4) for name, share in sorted(shares.items(), key=lambda item: (-item[1], item[0]))}


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Parts of names of golden models.")] = None,
    rounds: Annotated[int, typer.Option(min=0, help="Runs of each for the time; 0 for calls alone.")] = 0,
) -> None:
    """Measure each model, and sum up by list."""
    every = sorted(GOLDEN.glob("*.onnx"))
    paths = [path for path in every if any(name in path.name for name in names)] if names else one_of_each(every)
    family, everything = ortfuse.PassManager("auto"), ortfuse.PassManager("all")
    rows = {}
    for path in paths:
        rows[path.stem] = measure(path, family, everything, rounds)
        typer.echo(
            f"{path.stem}: " + ", ".join(f"{key} {value}" for key, value in rows[path.stem].items() if key != "passes")
        )
    figures = {"share_of_all": summary(rows), "different": [name for name, row in rows.items() if not row["same"]]}
    typer.echo(json.dumps(figures, indent=1))
    if not names:
        command = "python -m benchmarks.engine.lists" + (f" --rounds {rounds}" if rounds else "")
        Results("engine.lists").store(command, brief(figures), raw=rows)


def brief(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary: the shares of each list, without those of single passes."""
    lists = {
        name: {key: value for key, value in entry.items() if key != "without_changes"}
        for name, entry in figures["share_of_all"].items()
    }
    return {"share_of_all": lists, "different": figures["different"]}


if __name__ == "__main__":
    typer.run(main)
