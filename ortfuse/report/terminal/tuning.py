"""The result of a search as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console

from ortfuse.runtime.bench.latency_table import speedup_cell
from ortfuse.runtime.bench.number_format import digits
from ortfuse.runtime.bench.table_fitting import Fitting
from ortfuse.tuning import Point
from ortfuse.tuning.tune import Tuned

REASONS = 3
"""How many reasons why trials failed are printed; all are in the report."""


def show_tuned(console: Console, tuned: Tuned) -> None:
    """Print the finalists, the choice beside the original and what `optimize` makes, and what was written."""
    outcome = tuned.outcome
    usual = outcome.baseline.choice
    original = ("the original, default session", outcome.baseline)
    finalists = [(changed(one, usual), one) for one in outcome.finalists]
    confirmed = [(changed(one, usual), one) for one in outcome.confirmed]
    if confirmed:
        if finalists:
            console.print(_table("The best of the search, side by side", finalists))
        console.print(_table("The choice and what optimize makes, measured once more", [original, *confirmed]))
    else:
        console.print(_table("The best of the search, side by side", [original, *finalists]))
    failed = [point for point in outcome.points if point.failure]
    count = "1 trial" if len(outcome.points) == 1 else f"{len(outcome.points)} trials"
    said = f"{count} in {outcome.seconds:.0f} s" + (f", {len(failed)} of them failed" if failed else "")
    console.print(said, highlight=False)
    reasons = Counter(point.failure for point in failed)
    for why, times in reasons.most_common(REASONS):
        console.print(f"failed{f' {times} times' if times > 1 else ''}: {why}", markup=False, highlight=False)
    for note in outcome.notes:
        console.print(f"note: {note}", style="yellow", markup=False, highlight=False)
    for setting in tuned.session:
        console.print(f"session: {setting}", markup=False, highlight=False)
    for path in tuned.written:
        console.print(f"written: {path}", markup=False, highlight=False)
    if not tuned.written:
        console.print("nothing was written; -o RESULT writes the model and its settings", highlight=False)


def _table(title: str, rows: Sequence[tuple[str, Point]]) -> Fitting:
    headings = ("choice", "median ms", "95 % under", "speedup", "(95 %)", "session ms", "peak MB", "error")
    cells = [
        (
            name, digits(point.median_ms, 4), digits(point.p95_ms, 4),
            speedup_cell(point.speedup, point.speedup_bounds),
            "{:.2f}..{:.2f}".format(*point.speedup_bounds) if point.speedup_bounds else "",
            f"{point.session_ms:.0f}", f"{point.peak_mb:.0f}", f"{point.error:.1e}",
        )
        for name, point in rows
    ]  # fmt: skip
    return Fitting(title, headings, cells, ("session ms", "95 % under"))


def changed(point: Point, usual: object) -> str:
    """The changes of a choice, in words."""
    plain = dict(usual) if isinstance(usual, dict) else {}
    names = [f"{name}={value}" for name, value in point.choice.items() if name != "model" and plain.get(name) != value]
    return ", ".join([str(point.choice["model"]), *names])
