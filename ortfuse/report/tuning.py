"""The result of a search as text."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from ortfuse.report.pages.tuning import changed
from ortfuse.tuning.tune import Tuned


def show_tuned(console: Console, tuned: Tuned) -> None:
    """Print the finalists beside the original, what was chosen, and what was written."""
    outcome = tuned.outcome
    usual = outcome.baseline.choice
    table = Table(
        title="The best, measured side by side",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("choice", overflow="fold", min_width=12)
    for heading in ("median ms", "95 % under", "speedup", "session ms", "peak MB", "error"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, point in (
        ("the original, default session", outcome.baseline),
        *((changed(one, usual), one) for one in outcome.finalists),
    ):
        table.add_row(
            name, f"{point.median_ms:.4g}", f"{point.p95_ms:.4g}", f"{point.speedup:.2f}", f"{point.session_ms:.0f}",
            f"{point.peak_mb:.0f}", f"{point.error:.1e}",
        )  # fmt: skip
    console.print(table)
    failed = [point for point in outcome.points if point.failure]
    said = f"{len(outcome.points)} trials in {outcome.seconds:.0f} s" + (
        f", {len(failed)} of them failed" if failed else ""
    )
    console.print(said, highlight=False)
    for note in outcome.notes:
        console.print(f"note: {note}", style="yellow", markup=False, highlight=False)
    for setting in tuned.session:
        console.print(f"session: {setting}", markup=False, highlight=False)
    for path in tuned.written:
        console.print(f"written: {path}", markup=False, highlight=False)
    if not tuned.written:
        console.print("nothing was written; -o RESULT writes the model and its settings", highlight=False)
