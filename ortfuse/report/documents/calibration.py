"""The documents of `ortfuse calibrate`: rule costs, and session settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ortfuse.report.document import Block, Document, Notes, Rows
from ortfuse.runtime.bench.speedup_words import speedup_cell

if TYPE_CHECKING:
    from ortfuse.tuning.rule_costs import Calibration, Effect, MeasuredSettings

MOST_NAMED = 3

DEFAULTS = "the runtime's defaults"


def calibration_document(found: Calibration) -> Document:
    """Show the measured rule costs: the number of them, and the decisions that they change."""
    sizes, rules = sum(len(rows) for rows in found.speedups.values()), len(found.speedups)
    counts = f"{found.measured} measured now, {sizes} in all ({rules} rule{'s' if rules != 1 else ''}), {found.remaining} left"
    count = f"{found.threads} thread{'s' if found.threads > 1 else ''}"
    threads = count if found.threads else "threads as the runtime chooses"
    kind, fits = found.table
    table = "is of this kind of processor" if fits else f"is of another kind of processor ({kind})"
    lines = [
        f"{counts}: {found.runtime}, {found.processor}, {threads}",
        f"the table that comes with ortfuse {table}",
        *(["all decisions are as by that table"] if sizes and not found.changed else []),
    ]
    changed = [(one.rule, one.sizes, f"{one.shipped:.2f}", f"{one.measured:.2f}") for one in found.changed]
    headings = ("rule", "sizes", "speedup there", "here")
    blocks: list[Block] = [
        Notes("Measurements", lines),
        Rows("Decided otherwise than by that table", headings, changed, numbers=frozenset({2, 3})),
        Notes("", [f"kept in {found.file}; `ortfuse optimize` chooses by it"] if sizes else []),
        Notes("Remarks", list(_remarks(found)), "note: ", "yellow"),
    ]
    return Document("Rule costs on this machine", f"{counts}.", blocks)


def settings_document(found: MeasuredSettings) -> Document:
    """Show the speedup of each setting of a session, and the recommended ones."""
    rows = [_row(effect) for effect in (*found.effects, *([found.combined] if found.combined else []))]
    recommended = f"recommended: {', '.join(map(str, found.session)) or DEFAULTS}"
    headings = ("setting", "speedup", "(95 %)", "why not")
    blocks: list[Block] = [
        Rows(f"{found.model} with {found.inputs}", headings, rows, numbers=frozenset({1, 2})),
        Notes("", [recommended], on="terminal"),
        Notes("Remarks", [found.problem] if found.problem else [], "note: ", "yellow"),
    ]
    return Document(f"Session settings for {Path(found.model).name}", f"{recommended.capitalize()}.", blocks)


def _row(effect: Effect) -> tuple[str, str, str, str]:
    settings = ", ".join(f"{name} = {value}" for name, value in effect.settings.items())
    if effect.reason:
        return settings, "", "", effect.reason
    bounds = "{:.2f}..{:.2f}".format(*effect.bounds) if effect.bounds else ""
    return settings, speedup_cell(effect.speedup, effect.bounds), bounds, "" if effect.pays else "not worth it for sure"


def _remarks(found: Calibration) -> Iterator[str]:
    if found.problem:
        yield found.problem
    if found.remaining:
        yield f"{found.remaining} measurements are left for the next run; until then the table of ortfuse decides there"
    if found.inconclusive:
        yield f"the machine is too busy to tell: {_listed(found.inconclusive)}; end what can be ended, and run it again"
    if found.unmeasurable:
        yield f"cannot be measured here: {_listed(found.unmeasurable)}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
