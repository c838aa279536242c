"""The page of `ortfuse sweep`."""

from __future__ import annotations

from pathlib import Path

from ortfuse.report.html.page_blocks import Bar, Bars, Block, Card, Cards, Page, Rows
from ortfuse.report.html.pages.common import BOUNDS, RATIOS, command, environment, times
from ortfuse.report.terminal.sweep import done, summary
from ortfuse.runtime.bench.number_format import digits
from ortfuse.sweeping import Row, Sweep

_RELATIVE = "Speed of each result relative to its own original, which is the vertical line, runs interleaved."

_EVERY = (
    "Node counts are before → after; the bounds of the speedup are those with 95 % confidence; “took” is the time for all of the "
    "work on a model; what was fused is counted by family, as in the catalogue of rules."
)


def fleet_page(found: Sweep) -> Page:
    """Many models in one table."""
    bad = [row for row in found.rows if row.outcome != "ok"]
    fine = [row for row in found.rows if row.status == "ok"]
    before, after = sum(row.nodes_before for row in fine), sum(row.nodes_after for row in fine)
    cards = [
        Card("models ok", f"{len(fine)} of {len(found.rows)}", good=found.ok),
        Card("nodes", f"{before} → {after}"),
        Card("sites fused", str(sum(sum(row.families.values()) for row in fine))),
    ]
    blocks: list[Block] = [Cards(cards)]
    measured = sorted((row for row in fine if row.speedup), key=lambda row: -row.speedup)
    if measured:
        bounds = f" {BOUNDS}" if any(row.speedup_bounds for row in measured) else ""
        blocks.append(Bars("Speed", [_bar(row) for row in measured], f"{_RELATIVE}{bounds} {RATIOS}", 1.0))
    if bad:
        reasons = [(row.model, row.status, row.remark().removeprefix(f"{row.model}: ")) for row in bad]
        title = "What is not ok" if any(row.status != "ok" for row in bad) else "What is ok and was not expected to be"
        blocks.append(Rows(title, ("model", "status", "reason"), reasons))
    rows = [
        (
            row.model, row.status, _nodes(row), times(row.speedup, row.speedup_bounds) if row.speedup else "",
            f"{row.seconds:.1f} s", row.verdict or ("see above" if row.status != "ok" else row.reason), done(row),
        )
        for row in found.rows
    ]  # fmt: skip
    headings = ("model", "status", "nodes", "speedup", "took", "outputs", "fused")
    blocks.append(Rows("Every model", headings, rows, _EVERY, frozenset({2, 3, 4})))
    count = "1 model" if len(found.rows) == 1 else f"{len(found.rows)} models"
    return Page(f"Sweep of {count}", f"{summary(found)}.", blocks, command(), environment())


def _nodes(row: Row) -> str:
    return f"{row.nodes_before} → {row.nodes_after}" if row.nodes_before else ""


def _bar(row: Row) -> Bar:
    low, high = row.speedup_bounds or (None, None)
    text = f"{times(row.speedup, row.speedup_bounds)}, {digits(row.median_ms[1])} ms instead of {digits(row.median_ms[0])} ms"
    return Bar(Path(row.model).name, row.speedup, text, low, high)
