"""The page of `ortfuse bench`."""

from __future__ import annotations

from ortfuse.bench import Latencies, doubts
from ortfuse.page.blocks import Block, Notes, Page
from ortfuse.report.pages.common import command, environment, latency_bars, latency_rows, session_bars


def bench_page(found: Latencies) -> Page:
    """Models measured side by side."""
    rows = [row for row in found.rows if not row.crash]
    fastest = max(rows, key=lambda row: row.speedup, default=None)
    summary = "No model could be run."
    if fastest is not None:
        summary = (
            f"{fastest.name} is the fastest: {fastest.speedup:.2f} times as fast as {rows[0].name}, at {found.sizes}."
        )
        if fastest is rows[0]:
            summary = f"Nothing is faster than {fastest.name}, at {found.sizes}."
    blocks: list[Block] = [latency_bars(rows, "Speed", found.sizes)] if rows else []
    if found.sessions:
        blocks.append(session_bars(found.sessions))
    blocks.append(latency_rows(found.rows))
    if said := doubts(found.rows):
        blocks.append(Notes("How far to trust it", said))
    return Page("Latency side by side", summary, blocks, command(), environment())
