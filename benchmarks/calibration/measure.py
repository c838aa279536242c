"""The choices of a freshly measured cost table beside those of measuring every site of every model.

    python -m benchmarks.calibration                      # calibrate, then all goldens and full-size models
    python -m benchmarks.calibration --minutes 20         # as far as it gets; the next run goes on
    python -m benchmarks.calibration --goldens --minutes 10   # small models only
    python -m benchmarks.calibration bert swin            # these again, by the table that is there

The shipped table does not count, as if it had been deleted. With `--goldens`, one model of each architecture, only the rules
are measured about which these models have a choice. Half of the time is for the table. Each site at which cost decides about a
rule is measured with the model's own weights and sizes, as `--measure` does, and the table is asked at the same site. A choice
differs if one of them takes the rewrite and the other does not. It is close if the measured speedup is within 3 % of the
threshold: there another measurement might say the opposite.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.models import FULL_SIZE, GOLDEN, one_of_each, sizes_of
from benchmarks.results import RAW, Results
from ortfuse import Options, PassManager, load
from ortfuse.ir.edit import Edit
from ortfuse.runtime.bench import SiteMeter
from ortfuse.targets import CostTable, Estimate
from ortfuse.targets.processor import processor_in_full
from ortfuse.targets.rule_speedups import WORTH_IT, Measured
from ortfuse.transforms.choose_legal_form import Choices
from ortfuse.tuning.rule_costs import calibrate

COSTS, SITES = "calibration.costs.json", "calibration.sites.json"
"""Files beside the raw result: the cost table, and the cache of measured sites."""

COMMAND = "python -m benchmarks.calibration"
CLOSE = 0.03
WANTED = 0.95


@dataclass
class Site:
    """A kind of site: what was measured there, and what the table says (`None` if it does not have the rule)."""

    rule: str
    sizes: str
    measured: float
    table: float | None
    names: set[str] = field(default_factory=set)

    @property
    def same(self) -> bool:
        """Whether both choose the same; a rule that the table lacks is applied."""
        return (self.measured >= WORTH_IT) == (self.table is None or self.table >= WORTH_IT)

    @property
    def close(self) -> bool:
        """Whether another measurement might choose the opposite."""
        return abs(math.log(max(self.measured, 1e-3) / WORTH_IT)) < CLOSE

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON data."""
        return {**vars(self), "names": len(self.names), "close": self.close}


@dataclass
class Comparing:
    """A meter that also asks a table.

    Attributes:
        measured: Measures a site.
        table: Asks the table.
        found: The sites by rule, sizes and answers.
    """

    measured: Callable[[Edit], Estimate | None]
    table: Callable[[Edit], Estimate | None]
    found: dict[tuple[Any, ...], Site] = field(default_factory=dict)

    def measure(self, site: Edit) -> Estimate | None:
        """The measurement at the site, which decides."""
        truth, known = self.measured(site), self.table(site)
        if truth is not None:
            said = None if known is None else known.speedup
            key = (site.rule.name, truth.sizes, truth.speedup, said)
            self.found.setdefault(key, Site(site.rule.name, truth.sizes, truth.speedup, said)).names.add(site.name)
        return truth


def at_stake(paths: Sequence[Path]) -> set[str]:
    """The rules about which models have a choice."""
    asked = Asked()
    for path in paths:
        PassManager(Options(measure=True)).run(load(path), meter=asked)
    return asked.rules


@dataclass
class Asked:
    """A meter that measures nothing and remembers what it was asked about."""

    rules: set[str] = field(default_factory=set)

    def measure(self, site: Edit) -> Estimate | None:
        """Nothing."""
        self.rules.add(site.rule.name)
        return None


def one_model(path: Path, sizes: Mapping[str, int], table: CostTable, threads: int, cache: Path) -> list[Site]:
    """Every kind of site of a model at which cost decides; those that an earlier model had too are not measured again."""
    model, choices = load(path), Choices(table)
    meter = SiteMeter.for_model(model, dict(sizes), threads=threads, cache=cache)
    both = Comparing(meter.measure, lambda site: choices.by_table(site.rule, site.match))
    PassManager(Options(threads=threads, measure=True)).run(model, meter=both)
    return list(both.found.values())


def verdict(sites: list[Site]) -> dict[str, Any]:
    """The share of sites where both choose the same, with and without those that are close."""
    every = sum(len(one.names) for one in sites)
    clear = sum(len(one.names) for one in sites if not one.close)
    return {
        "sites": every,
        "same": sum(len(one.names) for one in sites if one.same),
        "clear": clear,
        "same of clear": sum(len(one.names) for one in sites if one.same and not one.close),
    }


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Leading parts of names; all models by default.")] = None,
    models: Annotated[Path, typer.Option(help="Folder with the full-size models.")] = FULL_SIZE,
    goldens: Annotated[bool, typer.Option(help="Small models alone, one of each architecture.")] = False,
    minutes: Annotated[float, typer.Option(help="No measurement of a model is begun after these.")] = 60.0,
    calibration: Annotated[Path, typer.Option(help="The file of the table; delete it to begin again.")] = RAW / COSTS,
    threads: Annotated[int, typer.Option(help="Threads of the runtime.")] = 2,
    output: Annotated[Path | None, typer.Option(help="File of the raw result; the summary goes beside it.")] = None,
) -> None:
    """Calibrate, measure, print, and store after each model."""
    console, end = Console(), time.monotonic() + 60 * minutes
    calibration.parent.mkdir(parents=True, exist_ok=True)
    small = sorted(GOLDEN.glob("*.onnx"))
    every = one_of_each(small) if goldens else [*small, *models.glob("*.onnx")]
    paths = sorted(every, key=lambda path: path.stat().st_size)
    only = at_stake(paths) if goldens else ()
    made = calibrate(threads=threads, file=calibration, budget=30 * minutes, only=only)
    console.print(
        f"the table has {sum(map(len, made.speedups.values()))} rows; {made.remaining} are left", highlight=False
    )
    rows = {
        rule: tuple(Measured.parse(sizes, value) for sizes, value in found.items())
        for rule, found in made.speedups.items()
    }
    table = CostTable(rows, "calibrated")
    results = Results("calibration", output, processor_in_full())
    found, raw = results.rows(), results.raw_rows()
    for path in paths:
        name = f"{path.name.removesuffix('.onnx')}{'' if path.parent == GOLDEN else ' (full size)'}"
        if (name in found and not names) or (names and not any(name.startswith(part) for part in names)):
            continue
        if time.monotonic() > end:
            console.print(f"the time is used up before {name}; run again to go on", highlight=False)
            break
        sizes = {} if path.parent == GOLDEN else sizes_of(path.name)
        sites = one_model(path, sizes, table, threads, calibration.with_name(SITES))
        found[name] = verdict(sites)
        raw[name] = {**found[name], "different": [one.to_dict() for one in sites if not one.same]}
        said = {"threads": threads, "rows left": made.remaining, "total": total(found), "models": found}
        results.store(COMMAND, said, raw={name: raw[name]})
    shown(console, found, raw)


def total(found: Mapping[str, Any]) -> dict[str, int]:
    """The sums over all models."""
    return {name: sum(row[name] for row in found.values()) for name in ("sites", "same", "clear", "same of clear")}


def shown(console: Console, found: Mapping[str, Any], raw: Mapping[str, Any]) -> None:
    """Print the shares, and the rules whose choices differ most, as far as the raw result is on this machine."""
    sums = total(found)
    if not sums["sites"]:
        console.print("no site was measured")
        return
    console.print(
        f"{sums['same']} of {sums['sites']} choices are those of measuring every site "
        f"({sums['same'] / sums['sites']:.1%}, wanted {WANTED:.0%}); of those that are not close "
        f"{sums['same of clear']} of {sums['clear']}",
        highlight=False,
    )
    made = Table("rule", "sizes", "measured", "table", "sites", "close", "model")
    wrong = [(one, name) for name, row in raw.items() for one in row["different"]]
    for one, name in sorted(wrong, key=lambda pair: -pair[0]["names"])[:40]:
        said = "not there" if one["table"] is None else f"{one['table']:.2f}"
        made.add_row(
            one["rule"], one["sizes"], f"{one['measured']:.2f}", said, str(one["names"]), "yes" * one["close"], name
        )
    console.print(made)
