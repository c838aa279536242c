"""The table of passes with their times, which add up: of each repetition, and of the whole run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from ortfuse.report.terminal.long_names import Names

if TYPE_CHECKING:
    from ortfuse.pipeline import PassReport, RunReport


def passes_table(report: RunReport) -> Table:
    """The passes that changed something, in order, with the rest of the time; no rows if none did."""
    made = Table(title="Passes", title_justify="left")
    made.add_column("pass", no_wrap=True)
    for heading in ("ms", "changes", "nodes"):
        made.add_column(heading, justify="right", no_wrap=True)
    made.add_column("rules", overflow="fold")
    if any(entry.changes for entry in report.passes):
        _add_parts(made, report.passes, _tenths(report.seconds), 0, "", ("analysis",))
        nodes = f"{report.before.nodes} -> {report.after.nodes}"
        changes = sum(entry.changes for entry in report.passes)
        made.add_row("all", _ms(_tenths(report.seconds)), str(changes), nodes, "")
    return made


def _add_pass(made: Table, entry: PassReport, indent: str) -> int:
    """Add a pass and its parts to the table; returns its time. A repetition of one repetition alone is one row."""
    seconds, parts, idle = _tenths(entry.seconds), entry.parts, 0
    while (only := entry.only) is not None:
        idle += len(entry.parts) - 1
        entry, parts = only, only.parts
    name = entry.kind if entry.parts else entry.name
    rules = ", ".join(f"{rule} {hits}" for rule, hits in entry.hits.items())
    nodes = f"{entry.nodes_before} -> {entry.nodes_after}"
    made.add_row(f"{indent}{name}", _ms(seconds), str(entry.changes), nodes, Names(rules))
    if parts:
        _add_parts(made, parts, seconds, idle, indent + "  ")
    return seconds


def _add_parts(
    made: Table, parts: Sequence[PassReport], total: int, idle: int, indent: str, others: Sequence[str] = ()
) -> None:
    """Add the parts that changed something, and one row for what is left of the total: others, and what is between them."""
    left = total
    for part in parts:
        if part.changes:
            left -= _add_pass(made, part, indent)
        else:
            idle += 1
    said = [*others, *([f"{idle} more that changed nothing"] if idle else [])]
    if idle or left > 0:
        made.add_row(f"{indent}rest: {', '.join(said) or 'between passes'}", _ms(max(left, 0)), "0", "", "")


def _tenths(seconds: float) -> int:
    """A time as it is shown: in tenths of a millisecond."""
    return round(seconds * 1e4)


def _ms(tenths: int) -> str:
    return f"{tenths / 10:.1f}"
