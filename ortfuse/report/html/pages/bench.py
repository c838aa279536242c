"""The page of `ortfuse bench`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ortfuse.report.document import Block, Document, Notes
from ortfuse.report.documents.latencies import is_faster, latency_bars, latency_rows, session_bars, short_names
from ortfuse.runtime.bench import Latencies, Latency, doubts


def bench_page(found: Latencies) -> Document:
    """Models measured side by side."""
    full = [row.name for row in found.rows]
    names = dict(zip(full, short_names(full), strict=True))
    every = [replace(row, name=names[row.name]) for row in found.rows]
    rows = [row for row in every if not row.crash]
    surely = [row for row in rows if is_faster(row)]
    fastest = max(surely or rows, key=lambda row: row.speedup, default=None)
    summary = "No model could be run."
    if fastest is not None:
        summary = (
            f"{fastest.name} is the fastest: {fastest.speedup:.2f} times as fast as {rows[0].name}{_within(fastest)}, at "
            f"{found.sizes}."
        )
        if is_faster(fastest) is None and fastest.speedup_bounds is None:
            summary = f"Which is the fastest cannot be told from so few runs, at {found.sizes}."
        elif is_faster(fastest) is None:
            summary = (
                f"Nothing is faster than {rows[0].name} beyond noise, at {found.sizes}: {fastest.name} is between "
                "{:.2f} and {:.2f} times as fast.".format(*fastest.speedup_bounds or ())
            )
        if fastest is rows[0]:
            summary = f"Nothing is faster than {fastest.name}, at {found.sizes}."
    blocks: list[Block] = [latency_bars(rows, "Speed", found.sizes)] if rows else []
    if found.sessions:
        blocks.append(session_bars([replace(row, name=_shortened(row.name, names)) for row in found.sessions]))
    blocks.append(latency_rows(every))
    if said := doubts(every):
        blocks.append(Notes("How far to trust it", said))
    return Document("Latency side by side", summary, blocks)


def _shortened(session: str, names: Mapping[str, str]) -> str:
    """The name of a session, which begins with that of its model, with the name that the page has for the model."""
    model = max((name for name in names if session.startswith(f"{name}, ")), key=len, default="")
    return names[model] + session[len(model) :] if model else session


def _within(row: Latency) -> str:
    return " ({:.2f} to {:.2f} with 95 % confidence)".format(*row.speedup_bounds) if row.speedup_bounds else ""
