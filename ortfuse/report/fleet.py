"""A sweep as text."""

from __future__ import annotations

import statistics

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ortfuse.fleet import Row, Sweep

_STYLES = {"ok": "", "wrong": "bold red", "refused": "yellow", "crashed": "bold red", "hung": "bold red"}


def show_sweep(console: Console, found: Sweep) -> None:
    """Print a row for each model, and what they come to."""
    table = Table(title="Models", title_justify="left")
    table.add_column("model", overflow="fold")
    for heading in ("status", "nodes", "speedup", "(95 %)", "seconds"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("remark", overflow="fold")
    for row in found.rows:
        nodes = f"{row.nodes_before} → {row.nodes_after}" if row.status == "ok" else ""
        bounds = "{:.2f}..{:.2f}".format(*row.speedup_bounds) if row.speedup_bounds else ""
        remark = row.reason or done(row)
        speedup = f"{row.speedup:.2f}" if row.speedup else ""
        style = _STYLES[row.status]
        cells = (row.model, row.status, nodes, speedup, bounds, f"{row.seconds:.1f}", remark)
        table.add_row(*map(escape, cells), style=style)
    console.print(table)
    console.print(summary(found), highlight=False)


def done(row: Row) -> str:
    """The sites that were fused and those that were improved, by family."""
    fused, improved = (
        ", ".join(f"{name} {count}" for name, count in one.items()) for one in (row.families, row.improved)
    )
    return "; ".join([*([fused] if fused else []), *([f"improved: {improved}"] if improved else [])])


def summary(found: Sweep) -> str:
    """What a sweep comes to, in a line."""
    fine = [row for row in found.rows if row.status == "ok"]
    said = f"{len(fine)} of {len(found.rows)} models are ok"
    ratios = [row.speedup for row in fine if row.speedup]
    if ratios:
        said += f"; speedup {statistics.geometric_mean(ratios):.2f} as the geometric mean, {min(ratios):.2f} to {max(ratios):.2f}"
    return said + (f"; {found.kept} known from before" if found.kept else "")
