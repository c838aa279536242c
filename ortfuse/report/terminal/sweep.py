"""A sweep as text."""

from __future__ import annotations

import statistics
from collections import Counter

from rich.console import Console
from rich.table import Table

from ortfuse.report.terminal.long_names import Names
from ortfuse.runtime.bench.latency_table import NO_DIFFERENCE, is_noise, speedup_cell
from ortfuse.sweeping import Row, Sweep

_STYLES = {"ok": "", "wrong": "bold red", "refused": "yellow", "crashed": "bold red", "hung": "bold red"}

WIDE = 100
"""On narrower lines the times of models are left out in favour of names."""


def show_sweep(console: Console, found: Sweep) -> None:
    """Print a row for each model, and what they come to."""
    table = Table(title="Models", title_justify="left")
    numbers = ("status", "nodes", "speedup", "(95 %)", *(["seconds"] if console.width >= WIDE else []))
    table.add_column("model", overflow="fold", min_width=12)
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("remark", overflow="fold", min_width=12)
    for row in found.rows:
        nodes = f"{row.nodes_before} → {row.nodes_after}" if row.status == "ok" else ""
        bounds = "{:.2f}..{:.2f}".format(*row.speedup_bounds) if row.speedup_bounds else ""
        remark = row.remark() or done(row)
        speedup = speedup_cell(row.speedup, row.speedup_bounds) if row.speedup else ""
        style = _style(row)
        seconds = [f"{row.seconds:.1f}"] if "seconds" in numbers else []
        table.add_row(*map(Names, (row.model, row.status, nodes, speedup, bounds, *seconds, remark)), style=style)
    console.print(table)
    console.print(summary(found), highlight=False)


def done(row: Row) -> str:
    """The sites that were fused and those that were improved, by family."""
    fused, improved = (
        ", ".join(f"{name} {count}" for name, count in one.items()) for one in (row.families, row.improved)
    )
    return "; ".join([*([fused] if fused else []), *([f"improved: {improved}"] if improved else [])])


def _style(row: Row) -> str:
    if row.outcome == "unexpected success":
        return "bold yellow"
    return "dim" if row.outcome == "known failure" else _STYLES[row.status]


def speed(row: Row) -> str:
    """The speedup of a result with its bounds; empty if it was not measured."""
    if not row.speedup:
        return ""
    bounds = " ({:.2f} to {:.2f})".format(*row.speedup_bounds) if row.speedup_bounds else ""
    return (NO_DIFFERENCE if is_noise(row.speedup_bounds) else f"{row.speedup:.2f}") + bounds


def summary(found: Sweep) -> str:
    """The summary of a sweep, in a line."""
    fine = [row for row in found.rows if row.status == "ok"]
    said = f"{len(fine)} of {len(found.rows)} models {'is' if len(fine) == 1 else 'are'} ok"
    outcomes = Counter(row.outcome for row in found.rows)
    for outcome, several in (("known failure", "known failures"), ("unexpected success", "unexpected successes")):
        if count := outcomes[outcome]:  # type: ignore[index]
            said += f", {count} {outcome if count == 1 else several}"
    ratios = [row.speedup for row in fine if row.speedup]
    if ratios:
        told = [row.speedup for row in fine if row.speedup and not is_noise(row.speedup_bounds)]
        mean = f"speedup {statistics.geometric_mean(ratios):.2f} as the geometric mean"
        said += f"; {mean}, {min(told):.2f} to {max(told):.2f}" if told else f"; {NO_DIFFERENCE} in speed"
        if told and (count := len(ratios) - len(told)):
            said += f", {NO_DIFFERENCE} for {count} of {len(ratios)}"
    return said + (f"; {found.kept} known from before" if found.kept else "")
