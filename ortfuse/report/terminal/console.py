"""Human-readable reports on the console: verdicts and explanations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from ortfuse.report.terminal.long_names import Names

if TYPE_CHECKING:
    # Needed for type checking only: these modules are not loaded unless a command uses them.

    from ortfuse.verification import Verdict
    from ortfuse.verification.explanation import Explanation, Missed

MOST_MISSES = 40
LONGEST_REASON = 240


def show_written(console: Console, path: Path | None, what: str = "model") -> None:
    """The place of the result, or how to get it written."""
    if path is not None:
        console.print(f"written: {path}", markup=False, highlight=False)
    else:
        console.print(f"nothing was written; -o RESULT writes the {what}", highlight=False)


def show_notes(console: Console, notes: Iterable[str]) -> None:
    """Print the remarks of a run, one per line."""
    for note in notes:
        console.print(f"note: {note}", style="yellow", markup=False, highlight=False)


def show_verdict(console: Console, verdict: Verdict) -> None:
    """Print the verdict, the worst comparison of each output, and what was left out."""
    console.print(
        f"verified: {verdict.summary()}" if verdict.ok else f"{verdict.state.upper()}: {verdict.summary()}",
        style="green" if verdict.ok else "bold red",
        highlight=False,
    )
    for name, difference in verdict.excused.items():
        console.print(f"output '{name}': {difference.reason}", markup=False, highlight=False)
    if verdict.runtime is not None:
        console.print(f"warning: {verdict.runtime.text()}", style="yellow", markup=False, highlight=False)
    show_notes(console, verdict.notes)


def show_explanation(console: Console, found: Explanation) -> None:
    """Print the fused sites in a table, then the nearest misses, one paragraph each."""
    made = Table(title="Fused", title_justify="left")
    made.add_column("rule", no_wrap=True)
    for heading in ("site", "made", "replaces"):
        made.add_column(heading, overflow="fold")
    for site in found.fused:
        made.add_row(site.rule, Names(site.site), Names(", ".join(site.operators)), Names(_originals(site.nodes)))
    if found.fused:
        console.print(made)
    alike = _alike(found.missed)
    for misses in alike[:MOST_MISSES]:
        miss = misses[0]
        where = f"'{miss.site}' ({miss.root})"
        if len(misses) > 1:
            where = f"{len(misses)} sites, {where} and others"
        console.print(f"{miss.rule} at {where}: {_matched(miss)}", style="bold", markup=False, highlight=False)
        console.print(f"  stopped by: {_short(miss.refusal.reason)}", markup=False, highlight=False)
        console.print(f"  would match if {miss.refusal.remedy}", markup=False, highlight=False)
    if len(alike) > MOST_MISSES:
        console.print(f"and {sum(map(len, alike[MOST_MISSES:]))} more misses; --json has them all")
    for taken in found.taken:
        console.print(f"{taken.rule}: {taken.text()}", markup=False, highlight=False)
    reasons: dict[str, list[str]] = {}
    for rule, why in found.absent.items():
        reasons.setdefault(why, []).append(rule)
    for why, rules in reasons.items():
        console.print(f"{', '.join(rules)}: {why}", markup=False, highlight=False)
    if not (found.missed or found.absent or found.taken):
        console.print(
            "no other site comes near to a fusion"
            if found.fused
            else "no fusion has a site in this model, nor comes near to one"
        )


def _alike(found: Sequence[Missed]) -> list[list[Missed]]:
    """The misses, those of one rule with the same reason together."""
    groups: dict[tuple[str, str, str, int], list[Missed]] = {}
    for miss in found:
        key = (miss.rule, miss.refusal.reason, miss.refusal.remedy, miss.matched)
        groups.setdefault(key, []).append(miss)
    return list(groups.values())


def _matched(miss: Missed) -> str:
    """How much of a pattern matched."""
    if miss.step != "pattern":
        return f"all of the pattern matched, {_nodes(miss.matched)}"
    return f"{_nodes(miss.matched)} matched" + (f" of at least {miss.least}" if miss.matched < miss.least else "")


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"


def _short(text: str) -> str:
    """A reason, with a long pattern cut short."""
    return text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]}..."


def _originals(names: Sequence[str]) -> str:
    """How many nodes a fused one replaces, with the name of the first."""
    more = ", ..." if len(names) > 1 else ""
    return f"{_nodes(len(names))}: {names[0]}{more}" if names else "none"
