"""Table of passes with their times, for each repetition and for the whole run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortfuse.report.document import Bar, Chart, Rows

if TYPE_CHECKING:
    from ortfuse.pipeline import PassReport, RunReport

NOTABLE = 0.02
"""The share of the engine's time from which on a pass that changed nothing is named."""

_ABOUT = (
    "The time of the engine in each pass. A pass that is repeated is shown once, with all its runs. Passes that changed nothing "
    f"are one row, in which those are named that took {NOTABLE:.0%} of the time or more."
)


@dataclass(frozen=True)
class _Row:
    """A row: times are in tenths of a millisecond, as they are shown."""

    name: str
    start: int
    time: int
    cells: tuple[str, str, str]

    def shown(self) -> tuple[str, ...]:
        return self.name, f"{self.time / 10:.1f}", *self.cells


def pass_rows(report: RunReport) -> Rows:
    """The passes that changed something, in order, with the rest of the time; no rows if none did."""
    rows: list[_Row] = []
    total = _tenths(report.seconds)
    if changes := sum(entry.changes for entry in report.passes):
        rows = list(_parts(report.passes, 0, total, [], "", NOTABLE * report.seconds, ("analysis",)))
        rows.append(_Row("all", 0, total, (str(changes), f"{report.before.nodes} -> {report.after.nodes}", "")))
    chart = Chart([Bar(row.time, start=row.start) for row in rows])
    headings = ("pass", "ms", "changes", "nodes", "rules")
    numbers, names = frozenset({1, 2, 3}), frozenset({0})
    return Rows("Passes", headings, [row.shown() for row in rows], _ABOUT, numbers, chart=chart, whole=names)


def _pass(entry: PassReport, start: int, indent: str, notable: float) -> Iterator[_Row]:
    """The rows of a pass and its parts. A repetition of one repetition alone is one row."""
    time, parts = _tenths(entry.seconds), entry.parts
    idle: list[PassReport] = []
    while (only := entry.only) is not None:
        idle += [part for part in entry.parts if part is not only]
        entry, parts = only, only.parts
    rules = ", ".join(f"{rule} {hits}" for rule, hits in entry.hits.items())
    nodes = f"{entry.nodes_before} -> {entry.nodes_after}"
    yield _Row(f"{indent}{entry.kind if parts else entry.name}", start, time, (str(entry.changes), nodes, rules))
    if parts:
        yield from _parts(parts, start, time, idle, f"{indent}  ", notable)


def _parts(
    parts: Sequence[PassReport],
    start: int,
    total: int,
    idle: Sequence[PassReport],
    indent: str,
    notable: float,
    others: Sequence[str] = (),
) -> Iterator[_Row]:
    """The parts that changed something, and one row for what is left of the total: others, and what is between them."""
    place = start
    for part in parts:
        if part.changes:
            yield from _pass(part, place, indent, notable)
            place += _tenths(part.seconds)
    idle = [*idle, *(part for part in parts if not part.changes)]
    left = start + total - place
    if idle or left > 0:
        said = [*others, *([f"{len(idle)} more that changed nothing"] if idle else [])]
        slow = ", ".join(f"{part.name} {1e3 * part.seconds:.1f} ms" for part in idle if part.seconds >= notable > 0)
        yield _Row(f"{indent}rest: {', '.join(said) or 'between passes'}", place, max(left, 0), ("0", "", slow))


def _tenths(seconds: float) -> int:
    return round(seconds * 1e4)
