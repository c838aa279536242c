"""The page of `ortfuse sweep`."""

from __future__ import annotations

from pathlib import Path

from ortfuse.bench.digits import digits
from ortfuse.fleet import Row, Sweep
from ortfuse.page.blocks import Bar, Bars, Block, Card, Cards, Page, Rows
from ortfuse.report.fleet import summary
from ortfuse.report.pages.common import command, environment


def fleet_page(found: Sweep) -> Page:
    """Many models in one table."""
    bad = [row for row in found.rows if row.status != "ok"]
    fine = [row for row in found.rows if row.status == "ok"]
    before, after = sum(row.nodes_before for row in fine), sum(row.nodes_after for row in fine)
    cards = [
        Card("models ok", f"{len(fine)} of {len(found.rows)}", good=not bad),
        Card("nodes", f"{before} → {after}"),
        Card("sites fused", str(sum(sum(row.families.values()) for row in fine))),
    ]
    blocks: list[Block] = [Cards(cards)]
    measured = sorted((row for row in fine if row.speedup), key=lambda row: -row.speedup)
    if measured:
        blocks.append(
            Bars("Speed", [_bar(row) for row in measured], "Each result beside its original, runs interleaved.", 1.0)
        )
    if bad:
        reasons = [(row.model, row.status, row.reason) for row in bad]
        blocks.append(Rows("What is not ok", ("model", "status", "reason"), reasons))
    rows = [
        (
            row.model, row.status, str(row.nodes_before), str(row.nodes_after), f"{row.speedup:.2f}" if row.speedup else "",
            f"{row.seconds:.1f}", row.verdict or row.reason, ", ".join(f"{count} {name}" for name, count in row.families.items()),
        )
        for row in found.rows
    ]  # fmt: skip
    headings = ("model", "status", "nodes", "after", "speedup", "seconds", "verdict", "fused")
    blocks.append(Rows("Every model", headings, rows, numbers=frozenset({2, 3, 4, 5})))
    return Page("Sweep", f"{summary(found)}.", blocks, command(), environment())


def _bar(row: Row) -> Bar:
    low, high = row.speedup_bounds or (None, None)
    text = f"{row.speedup:.2f}×, {digits(row.median_ms[1])} ms instead of {digits(row.median_ms[0])}"
    return Bar(Path(row.model).name, row.speedup, text, low, high)
