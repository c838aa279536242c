"""The document of `ortfuse targets`: a table of the targets, and a remark for each that does not run here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ortfuse.report.document import Block, Document, Item, Items, Notes, Rows

if TYPE_CHECKING:
    from ortfuse.inspection.describe_targets import TargetInfo


def targets_document(targets: Sequence[TargetInfo], written: str | None = None) -> Document:
    """Show targets in a table, and the details of each.

    Args:
        targets: The targets.
        written: A line on the file that was written; `None` if none was.
    """
    headings = ("target", "provider", "kernels", "releases", "costs", "runs here")
    blocks: list[Block] = [
        Rows("Targets", headings, [_cells(one) for one in targets], whole=frozenset({0, 5})),
        Items("Details", [Item(one.name, list(_details(one))) for one in targets]),
        Notes("Written", [] if written is None else [written]),
    ]
    here = sum(one.runs_here is True for one in targets)
    counts = f"{len(targets)} targets" if len(targets) != 1 else "1 target"
    said = f"{counts}, {here} of which run here." if all(one.runs_here is not None for one in targets) else f"{counts}."
    return Document("Targets", said, blocks)


def _cells(one: TargetInfo) -> tuple[str, ...]:
    kernels = f"{one.operators} operators, {one.kernels}" if one.kernels else "not known here"
    releases = f"{one.releases[0]} to {one.releases[-1]}" if one.releases else "-"
    runs = {True: "yes", False: "no", None: "not tried"}[one.runs_here]
    name = f"{one.name} (default)" if one.is_default else one.name
    return name, one.provider, kernels, releases, "measured" if one.costs else "none", runs


def _details(one: TargetInfo) -> Iterator[str]:
    if one.problem:
        yield one.problem
    if one.tried:
        yield f"tried: {one.tried}"
    if one.untried:
        yield f"never run on a device, and made where --force asks for them: {', '.join(one.untried)}"
    if one.costs:
        yield f"costs: {one.costs}"
    if one.constraints:
        yield f"constraints on the inputs and attributes of {one.constraints} operators"
    if one.known_bugs:
        yield f"known bugs: {', '.join(one.known_bugs)}"
