"""Measure the speedup by each rule on older releases of the runtime, for the cost tables that come with ortfuse.

    python -m benchmarks.kernels.release_costs --write                   # all rules on six releases, for 12 minutes
    python -m benchmarks.kernels.release_costs 1.17.3 --only attention   # print what is known of one, measured as far as needed

Kernels of older releases have other speeds. The measurements are those of `benchmarks.kernels.costs`, in float32, each in a
process with the wheel of that release. The shortest times count, which other processes do not lengthen: with `--threads 1` they
make no difference. A run that is stopped, or out of time, goes on where it was. Every pass is kept in `benchmarks/.results`, and
`--again` forgets it.

`--write` stores a table for each release in the folder of the target. It has the rules whose decisions are clearly others than
those by the tables of the newest releases, each at all sizes. These tables decide on all other rules there too.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.results import RAW
from benchmarks.targets.releases import environment
from ortfuse.io import python_subprocess
from ortfuse.io.atomic_write import write_text
from ortfuse.pipeline import load_catalogue
from ortfuse.runtime.current_execution_target import executing_for
from ortfuse.targets import CostTable, default_spec, spec_of
from ortfuse.targets.processor import number_formats, processor_in_full, processor_kind
from ortfuse.targets.rule_speedups import FLOAT32, WORTH_IT, Measured
from ortfuse.tuning.rule_costs import candidates
from ortfuse.tuning.rule_costs.speedup import speedup

ROOT = Path(__file__).parents[2]
RELEASES = ("1.17.3", "1.18.1", "1.20.1", "1.22.1", "1.25.1", "1.27.0")
"""Releases in which kernels changed, so that rules are decided otherwise than in the release before."""

LAST = "1.29"
"""The last release that the table of the newest of them counts for: rules are decided by the newest tables from 1.30 on."""

CLEAR = 0.03
"""The least distance of a speedup from the bound of what is worth it at which a decision is told to be another."""

SAME = 1.1
"""The most times by which passes differ that agree."""

LONGEST = 1.0
"""The seconds after which a measurement gets no further round."""

Rows = dict[str, dict[str, list[list[float] | None]]]
"""The speedup of each pass with its bounds, by sizes, by rule; `None` where there is nothing to measure."""

_MEASURE = "import sys; from benchmarks.kernels.release_costs import measure; measure(*sys.argv[1:])"


def measure(file: str, only: str, passes: str, threads: str, end: str) -> None:
    """Measure on the runtime of this process what a file lacks of so many passes, until a time, and add it to the file."""
    spec, place = default_spec(), Path(file)
    catalogue = load_catalogue([], spec)
    foreign = catalogue.for_others(spec.name)
    rules = [rule for rule in catalogue.rules() if rule.name not in foreign]
    found: Rows = json.loads(place.read_text()) if place.exists() else {}
    with executing_for(spec):
        for one in candidates(rules, only.split(), CostTable({})):
            runs = found.setdefault(one.rule.name, {}).setdefault(one.sizes, [])
            if one.dtype != FLOAT32 or len(runs) >= int(passes) or time.time() > float(end):
                continue
            measured = speedup(one, int(threads), longest=LONGEST, shortest_times=True)
            runs.append(None if measured is None else [measured.speedup, *measured.bounds])
            write_text(place, json.dumps(found))


def kept(version: str, threads: int) -> Path:
    """The file with the measurements of a release on this processor."""
    processor = processor_in_full().replace(" ", "_")
    return RAW / "kernels.release_costs" / f"{version}.{threads}.{processor}.json"


def medians(rows: Rows) -> dict[str, dict[str, float]]:
    """The median of the passes of each size in which they agree; of rules only if half of their sizes or more have one."""
    found = {}
    for rule, sizes in rows.items():
        runs = {size: [run[0] for run in some if run is not None] for size, some in sizes.items()}
        measured = {size: some for size, some in runs.items() if some}
        agreed = {size: round(statistics.median(some), 3) for size, some in measured.items() if _agree(some)}
        if agreed and 2 * len(agreed) >= len(measured):
            found[rule] = agreed
    return found


def _agree(runs: Sequence[float]) -> bool:
    """Whether several passes give much the same, or all say that a rule is worth it, or none."""
    return len(runs) > 1 and (max(runs) <= SAME * min(runs) or len({one >= WORTH_IT for one in runs}) == 1)


def others(rows: Mapping[str, Mapping[str, float]], newest: CostTable) -> dict[str, dict[str, float]]:
    """The rules of which a decision is clearly another than by the tables of the newest releases."""
    found = {}
    for rule, sizes in rows.items():
        for size, value in sizes.items():
            there = newest.estimate(rule, Measured.parse(size, 1.0).shapes.get)
            is_taken = there is None or there.worth_it
            if value < WORTH_IT - CLEAR if is_taken else value >= WORTH_IT + CLEAR:
                found[rule] = dict(sorted(sizes.items()))
    return found


def spans(versions: Sequence[str]) -> dict[str, tuple[str, str]]:
    """The first and the last release that each measured version counts for: up to the next one that was measured."""
    numbers = sorted({tuple(map(int, one.split(".")[:2])) for one in versions})
    ends = [*((major, minor - 1) for major, minor in numbers[1:]), tuple(map(int, LAST.split(".")))]
    return {
        version: (f"{first[0]}.{first[1]}", f"{last[0]}.{last[1]}")
        for first, last in zip(numbers, ends, strict=True)
        for version in versions
        if tuple(map(int, version.split(".")[:2])) == first
    }


def main(
    releases: Annotated[list[str] | None, typer.Argument(help="Versions of ONNX Runtime.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Families and rules to measure; by default all.")] = None,
    passes: Annotated[int, typer.Option(help="How often everything is measured, one pass after the other.")] = 2,
    threads: int = 2,
    minutes: Annotated[float, typer.Option(help="No measurement begins after so long.")] = 12.0,
    environments: Annotated[Path, typer.Option(help="Where environments are made and kept.")] = ROOT / ".environments",
    again: Annotated[bool, typer.Option(help="Forget what was measured before.")] = False,
    write: Annotated[bool, typer.Option(help="Store the tables that ortfuse ships.")] = False,
) -> None:
    """Measure, and print the decisions that are others than those of the newest releases; with --write, store them."""
    versions, end = releases or list(RELEASES), time.time() + 60 * minutes
    for version in versions if again else ():
        kept(version, threads).unlink(missing_ok=True)
    for number in range(passes):
        for version in versions:
            file = kept(version, threads)
            file.parent.mkdir(parents=True, exist_ok=True)
            places = [str(environment(version, environments.resolve())), str(ROOT)]
            subprocess.run(
                [
                    sys.executable,
                    "-c",
                    _MEASURE,
                    str(file),
                    " ".join(only or ()),
                    str(number + 1),
                    str(threads),
                    str(end),
                ],
                check=True,
                env=python_subprocess.environment(places),
            )
    spec = spec_of(default_spec().name)
    assert spec.costs_file is not None
    newest = CostTable.read(spec.costs_file, former=False)
    found = {version: medians(json.loads(kept(version, threads).read_text())) for version in versions}
    table = Table("rule", "size", "newest", *versions)
    different = {version: others(rows, newest) for version, rows in found.items()}
    for rule in sorted({rule for rows in different.values() for rule in rows}):
        sizes = dict.fromkeys(size for rows in found.values() for size in rows.get(rule, ()))
        for size in sizes:
            there = newest.estimate(rule, Measured.parse(size, 1.0).shapes.get)
            row = [found[version].get(rule, {}).get(size) for version in versions]
            cells = ["-" if one is None else f"{one:.2f}" for one in (there and there.speedup, *row)]
            table.add_row(rule, size, *cells)
    Console().print(table)
    if write:
        _store(spec.costs_file, different, threads)


def _store(path: Path, different: Mapping[str, Mapping[str, Any]], threads: int) -> None:
    """Replace the tables of releases for this processor in the file of a target."""
    content = json.loads(path.read_text())
    kind, formats = processor_kind(), number_formats()
    content["tables"] = [
        one
        for one in content["tables"]
        if "releases" not in one or (one["processor"], one.get("formats", "")) != (kind, formats)
    ]
    for version, span in spans([*different]).items():
        content["tables"].append(
            {
                "processor": kind,
                "formats": formats,
                "releases": list(span),
                "source": (
                    f"onnxruntime {version}, {default_spec().provider}, {threads} thread{'s' * (threads > 1)}, {kind}, "
                    "benchmarks.kernels.release_costs"
                ),
                "speedups": different[version],
            }
        )
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    typer.run(main)
