"""The blocks of checks: the verdict on a whole model, and the checks of single changes."""

from __future__ import annotations

from collections.abc import Sequence

from ortfuse.report.document import Block, Notes
from ortfuse.verification import SiteCheck, Verdict


def verdict_blocks(verdict: Verdict) -> list[Block]:
    """Show the verdict, the outputs that were excused, and what was left out."""
    said = f"{'verified' if verdict.ok else verdict.state.upper()}: {verdict.summary()}"
    excused = [f"output '{name}': {difference.reason}" for name, difference in verdict.excused.items()]
    runtime = [] if verdict.runtime is None else [verdict.runtime.text()]
    return [
        Notes("Verification", [said], style="green" if verdict.ok else "bold red"),
        Notes("", excused),
        Notes("", runtime, "warning: ", "yellow"),
        Notes("", verdict.notes, "note: ", "yellow"),
    ]


def check_blocks(checks: Sequence[SiteCheck], *, own: bool = False) -> list[Block]:
    """Show the checks of single changes: wrong rewrites, and those that could not be checked.

    Args:
        checks: The checks.
        own: Whether only changes of the user's own rules and passes were checked; the notes of the run say what was undone.
    """
    from ortfuse.verification.translation_validation import by_author, summary

    texts = {state: [one.text() for one in checks if one.state == state] for state in ("undone", "unchecked")}
    said = f"verified: {summary(checks)}"
    if own:
        said = f"checked: your own rules and passes, each change on its own nodes: {by_author(checks)}"
    return [
        Notes("Checks of changes", [said], style="bold red" if texts["undone"] else "green"),
        Notes("", [] if own else texts["undone"], "undone: ", "red"),
        Notes("", texts["unchecked"], "not checked: ", "yellow"),
    ]
