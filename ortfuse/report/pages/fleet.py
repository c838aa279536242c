"""The page of `ortfuse sweep`."""

from __future__ import annotations

from pathlib import Path

from ortfuse.bench.digits import digits
from ortfuse.fleet import Row, Sweep
from ortfuse.page.blocks import Bar, Bars, Block, Card, Cards, Page, Rows
from ortfuse.report.fleet import summary
from ortfuse.report.pages.common import RATIOS, command, environment

_RELATIVE = (
    "Speed of each result relative to its original, which is the vertical line, runs interleaved; the thin line spans the "
    "95 % interval."
)


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
        blocks.append(Bars("Speed", [_bar(row) for row in measured], f"{_RELATIVE} {RATIOS}", 1.0))
    if bad:
        reasons = [(row.model, row.status, row.reason) for row in bad]
        blocks.append(Rows("What is not ok", ("model", "status", "reason"), reasons))
    rows = [
        (
            row.model, row.status, *_nodes(row), f"{row.speedup:.2f}" if row.speedup else "",
            f"{row.seconds:.1f}", row.verdict or row.reason, ", ".join(f"{count} {name}" for name, count in row.families.items()),
        )
        for row in found.rows
    ]  # fmt: skip
    headings = ("model", "status", "nodes", "after", "speedup", "seconds", "verdict", "fused")
    blocks.append(Rows("Every model", headings, rows, numbers=frozenset({2, 3, 4, 5})))
    count = "1 model" if len(found.rows) == 1 else f"{len(found.rows)} models"
    return Page(f"Sweep of {count}", f"{summary(found)}.", blocks, command(), environment())


def _nodes(row: Row) -> tuple[str, str]:
    return (str(row.nodes_before), str(row.nodes_after)) if row.nodes_before else ("", "")


def _bar(row: Row) -> Bar:
    low, high = row.speedup_bounds or (None, None)
    text = f"{row.speedup:.2f}×, {digits(row.median_ms[1])} ms instead of {digits(row.median_ms[0])}"
    return Bar(Path(row.model).name, row.speedup, text, low, high)
