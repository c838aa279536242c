"""The document of `ortfuse sweep`: many models in one table."""

from __future__ import annotations

import statistics
from collections import Counter

from ortfuse.report.document import Bar, Block, Card, Cards, Chart, Document, Notes, Rows
from ortfuse.report.documents.latencies import BOUNDS, speed_bar, times
from ortfuse.runtime.bench.number_format import digits
from ortfuse.runtime.bench.speedup_words import NO_DIFFERENCE, is_noise
from ortfuse.sweeping import Row, Sweep

_STYLES = {"ok": "", "wrong": "bold red", "refused": "yellow", "crashed": "bold red", "hung": "bold red"}

_ABOUT = (
    f"Bars are speeds of results relative to their own originals, the vertical line, runs interleaved. {BOUNDS} Node counts are "
    "before → after; “took” is the time for all of the work on a model; a remark counts the fused sites by family, as in the "
    "catalogue of rules."
)


def sweep_document(found: Sweep) -> Document:
    """Many models in one table."""
    bad = [row for row in found.rows if row.outcome != "ok"]
    fine = [row for row in found.rows if row.status == "ok"]
    before, after = sum(row.nodes_before for row in fine), sum(row.nodes_after for row in fine)
    cards = [
        Card("models ok", f"{len(fine)} of {len(found.rows)}", good=found.ok),
        Card("nodes", f"{before} → {after}"),
        Card("sites fused", str(sum(sum(row.families.values()) for row in fine))),
    ]
    blocks: list[Block] = [Cards(cards)]
    if bad:
        reasons = [(row.model, row.status, row.remark().removeprefix(f"{row.model}: ")) for row in bad]
        title = "What is not ok" if any(row.status != "ok" for row in bad) else "What is ok and was not expected to be"
        blocks.append(Rows(title, ("model", "status", "reason"), reasons, on="page"))
    rows = [
        (
            row.model, row.status, _nodes(row), times(row.speedup, row.speedup_bounds) if row.speedup else "", _latencies(row),
            f"{row.seconds:.1f} s", row.verdict, row.remark() or done(row),
        )
        for row in found.rows
    ]  # fmt: skip
    headings = ("model", "status", "nodes", "speedup", "median ms", "took", "outputs", "remark")
    chart = Chart([_bar(row) for row in found.rows], 1.0) if any(row.speedup for row in fine) else None
    every = Rows(
        "Models", headings, rows, _ABOUT, frozenset({1, 2, 3, 4, 5}), page_only=frozenset({4, 6}), spare=("took",),
        styles=[_style(row) for row in found.rows], chart=chart,
    )  # fmt: skip
    blocks += [every, Notes("", [summary(found)], on="terminal")]
    count = "1 model" if len(found.rows) == 1 else f"{len(found.rows)} models"
    return Document(f"Sweep of {count}", f"{summary(found)}.", blocks)


def _nodes(row: Row) -> str:
    return f"{row.nodes_before} → {row.nodes_after}" if row.nodes_before else ""


def _bar(row: Row) -> Bar:
    return speed_bar(row.speedup, row.speedup_bounds) if row.status == "ok" else Bar(0.0)


def _latencies(row: Row) -> str:
    return "{1}, was {0}".format(*map(digits, row.median_ms)) if row.speedup else ""


def done(row: Row) -> str:
    """The sites that were fused and those that were improved, by family."""
    fused, improved = (
        ", ".join(f"{name} {count}" for name, count in one.items()) for one in (row.families, row.improved)
    )
    return "; ".join([*([fused] if fused else []), *([f"improved: {improved}"] if improved else [])])


def _style(row: Row) -> str:
    if row.outcome == "unexpected success":
        return "bold yellow"
    return "dim" if row.outcome == "known failure" else _STYLES[row.status]


def speed(row: Row) -> str:
    """The speedup of a result with its bounds; empty if it was not measured."""
    if not row.speedup:
        return ""
    bounds = " ({:.2f} to {:.2f})".format(*row.speedup_bounds) if row.speedup_bounds else ""
    return (NO_DIFFERENCE if is_noise(row.speedup_bounds) else f"{row.speedup:.2f}") + bounds


def summary(found: Sweep) -> str:
    """The summary of a sweep, in a line."""
    fine = [row for row in found.rows if row.status == "ok"]
    said = f"{len(fine)} of {len(found.rows)} models {'is' if len(fine) == 1 else 'are'} ok"
    outcomes = Counter(row.outcome for row in found.rows)
    for outcome, several in (("known failure", "known failures"), ("unexpected success", "unexpected successes")):
        if count := outcomes[outcome]:  # type: ignore[index]
            said += f", {count} {outcome if count == 1 else several}"
    ratios = [row.speedup for row in fine if row.speedup]
    if ratios:
        told = [row.speedup for row in fine if row.speedup and not is_noise(row.speedup_bounds)]
        mean = f"speedup {statistics.geometric_mean(ratios):.2f} as the geometric mean"
        said += f"; {mean}, {min(told):.2f} to {max(told):.2f}" if told else f"; {NO_DIFFERENCE} in speed"
        if told and (count := len(ratios) - len(told)):
            said += f", {NO_DIFFERENCE} for {count} of {len(ratios)}"
    return said + (f"; {found.resumed} known from before" if found.resumed else "")
