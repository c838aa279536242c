"""The document of `ortfuse bench`: models measured side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ortfuse.report.document import Document
from ortfuse.report.documents.latencies import is_faster, latency_blocks, short_names
from ortfuse.runtime.bench import Latencies, Latency


def bench_document(measured: Latencies) -> Document:
    """Show models measured side by side, under the shortest names that tell them apart."""
    full = [row.name for row in measured.latency]
    names = dict(zip(full, short_names(full), strict=True))
    found = replace(
        measured,
        latency=tuple(replace(row, name=names[row.name]) for row in measured.latency),
        sessions=tuple(replace(row, name=_shortened(row.name, names)) for row in measured.sessions),
    )
    blocks = latency_blocks(found, f"Latency at {found.inputs}")
    return Document("Latency side by side", _summary(found), blocks)


def _summary(found: Latencies) -> str:
    rows = [row for row in found.latency if not row.crash]
    surely = [row for row in rows if is_faster(row)]
    fastest = max(surely or rows, key=lambda row: row.speedup, default=None)
    if fastest is None:
        return "No model could be run."
    if fastest is rows[0]:
        return f"Nothing is faster than {fastest.name}, at {found.inputs}."
    if is_faster(fastest):
        within = _within(fastest)
        return f"{fastest.name} is the fastest: {fastest.speedup:.2f} times as fast as {rows[0].name}{within}, at {found.inputs}."
    if fastest.speedup_bounds is None:
        return f"Which is the fastest cannot be told from so few runs, at {found.inputs}."
    return (
        f"Nothing is faster than {rows[0].name} beyond noise, at {found.inputs}: {fastest.name} is between "
        "{:.2f} and {:.2f} times as fast.".format(*fastest.speedup_bounds)
    )


def _shortened(session: str, names: Mapping[str, str]) -> str:
    """The name of a session, which begins with that of its model, with the name that the document has for the model."""
    model = max((name for name in names if session.startswith(f"{name}, ")), key=len, default="")
    return names[model] + session[len(model) :] if model else session


def _within(row: Latency) -> str:
    return " ({:.2f} to {:.2f} with 95 % confidence)".format(*row.speedup_bounds) if row.speedup_bounds else ""
