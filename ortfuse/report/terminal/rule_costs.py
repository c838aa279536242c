"""The reports of `ortfuse calibrate` for people: what was measured here, and what it changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from ortfuse.report.terminal.console import show_notes
from ortfuse.report.terminal.long_names import Names
from ortfuse.runtime.bench.latency_table import speedup_cell

if TYPE_CHECKING:
    from ortfuse.tuning.rule_costs import Calibration, Effect, MeasuredSettings

MOST_NAMED = 3


def show_calibration(console: Console, found: Calibration) -> None:
    """Print what was measured, the decisions that it changes, and where it is kept."""
    sizes, rules = sum(len(rows) for rows in found.speedups.values()), len(found.speedups)
    count = f"{found.threads} thread{'s' if found.threads > 1 else ''}"
    threads = count if found.threads else "threads as the runtime chooses"
    console.print(
        f"{found.measured} measured now, {sizes} in all ({rules} rule{'s' if rules != 1 else ''}), {found.left} left: "
        f"{found.runtime}, {found.processor}, {threads}",
        markup=False,
        highlight=False,
    )
    kind, fits = found.table
    word = "is of this kind of processor" if fits else f"is of another kind of processor ({kind})"
    console.print(f"the table that comes with ortfuse {word}", markup=False, highlight=False)
    made = Table(title="Decided otherwise than by that table", title_justify="left")
    made.add_column("rule")
    made.add_column("sizes", overflow="fold")
    for heading in ("speedup there", "here"):
        made.add_column(heading, justify="right")
    for one in found.changed:
        made.add_row(Names(one.rule), Names(one.sizes), f"{one.shipped:.2f}", f"{one.here:.2f}")
    if made.row_count:
        console.print(made)
    elif sizes:
        console.print("all decisions are as by that table", highlight=False)
    if sizes:
        text = f"kept in {found.file}; `ortfuse optimize` chooses by it"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    show_notes(console, _notes(found))


def show_settings(console: Console, found: MeasuredSettings) -> None:
    """Print what each setting of a session buys, and what is recommended now."""
    made = Table(title=f"{found.model} with {found.inputs}", title_justify="left")
    made.add_column("setting", overflow="fold")
    for heading in ("speedup", "(95 %)"):
        made.add_column(heading, justify="right")
    made.add_column("why not", overflow="fold")
    for effect in found.effects:
        made.add_row(*_row(effect))
    if found.together is not None:
        made.add_section()
        made.add_row(*_row(found.together))
    console.print(made)
    recommended = ", ".join(map(str, found.session)) or "the runtime's defaults"
    console.print(f"recommended: {recommended}", markup=False, highlight=False)
    show_notes(console, [found.problem] if found.problem else [])


def _row(effect: Effect) -> tuple[str, str, str, str]:
    settings = ", ".join(f"{name} = {value}" for name, value in effect.settings.items())
    if effect.reason:
        return settings, "", "", effect.reason
    bounds = "{:.2f}..{:.2f}".format(*effect.bounds) if effect.bounds else ""
    return settings, speedup_cell(effect.speedup, effect.bounds), bounds, "" if effect.pays else "not worth it for sure"


def _notes(found: Calibration) -> list[str]:
    notes = [found.problem] if found.problem else []
    if found.left:
        notes.append(
            f"{found.left} measurements are left for the next run; until then the table of ortfuse decides there"
        )
    if found.unsure:
        notes.append(
            f"the machine is too busy to tell: {_listed(found.unsure)}; end what can be ended, and run it again"
        )
    if found.silent:
        notes.append(f"cannot be measured here: {_listed(found.silent)}")
    return notes


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
