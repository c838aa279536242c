"""The document of `ortfuse verify`, and its blocks: the verdict on a whole model, and the checks of single edits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ortfuse.report.document import Block, Document, Notes, Rows
from ortfuse.verification import SiteCheck, Verdict

MOST_ROWS = 20
"""The comparisons that a page shows without folding them."""


def verification_document(first: str, second: str, verdict: Verdict) -> Document:
    """Show whether two models compute the same, with every comparison on the page.

    Args:
        first: The name of the original.
        second: The name of the model that is compared with it.
        verdict: The verdict.
    """
    rows = [
        (
            trial.inputs, "on" if trial.runtime_optimisations else "off", one.output, f"{one.relative:.3g}",
            f"{one.absolute:.3g}", "yes" if one.ok else "no", trial.refusal or one.reason,
        )
        for trial in verdict.trials
        for one in trial.outputs
    ]  # fmt: skip
    headings = ("inputs", "runtime's optimisations", "output", "error / scale", "error", "passes", "reason")
    every = Rows("Comparisons", headings, rows, numbers=frozenset({3, 4}), folded=len(rows) > MOST_ROWS, on="page")
    names = f"{Path(first).name} and {Path(second).name}"
    return Document(names, f"The outputs are {verdict.state}.", [*verdict_blocks(verdict), every])


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
        said = (
            f"checked: rules and passes of your own or of the target, each change on its own nodes: {by_author(checks)}"
        )
    return [
        Notes("Checks of changes", [said], style="bold red" if texts["undone"] else "green"),
        Notes("", [] if own else texts["undone"], "undone: ", "red"),
        Notes("", texts["unchecked"], "not checked: ", "yellow"),
    ]
