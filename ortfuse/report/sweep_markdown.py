"""Write a sweep as a Markdown table, one row per model."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ortfuse.errors.escape_control_characters import visible
from ortfuse.report.documents.sweep import done, speed, summary
from ortfuse.sweeping import Row, Sweep

_HEADINGS = ("model", "status", "nodes", "speedup (95 %)", "fused", "remark")

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~])")
"""Characters that Markdown does not show as they are."""


def markdown(found: Sweep) -> str:
    """The text of the file."""
    lines = ["## Models", "", f"{_text(summary(found))}.", "", _line(_HEADINGS), _line(["---"] * len(_HEADINGS))]
    lines += [_line(map(_text, _cells(row))) for row in found.rows]
    return "\n".join(lines) + "\n"


def _cells(row: Row) -> tuple[str, ...]:
    nodes = f"{row.nodes_before} → {row.nodes_after}" if row.nodes_before else ""
    status = row.status if row.outcome in ("ok", "failed") else f"{row.status} ({row.outcome})"
    return row.model, status, nodes, speed(row), done(row), row.remark()


def _text(text: str) -> str:
    """A text that shows as it is, in one line."""
    return _SPECIAL.sub(r"\\\1", visible(text))


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
