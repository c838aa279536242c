"""The page of `ortfuse optimize`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx_ir as ir

from ortfuse.api.result import Result
from ortfuse.pipeline.report import PassReport
from ortfuse.profiling import SideBySide
from ortfuse.report.document import Block, Card, Cards, Document, Notes, Rows, Sites, Step, Timeline
from ortfuse.report.documents.latencies import (
    is_faster,
    latency_bars,
    latency_rows,
    profile_bars,
    session_bars,
    speedup_card,
)
from ortfuse.report.documents.operators import change, counted, grouped, site
from ortfuse.report.model_pictures import Pair, Pictures
from ortfuse.report.terminal.cost_sources import sources_of_costs
from ortfuse.report.terminal.model_growth import growth_remarks, size_text
from ortfuse.runtime.bench import doubts
from ortfuse.runtime.bench.latency_table import NO_DIFFERENCE
from ortfuse.runtime.bench.number_format import digits

NOTABLE = 0.02
"""The share of the engine's time from which on a pass that changed nothing is shown."""

MOST = 60
"""The most different sites that are drawn."""


def optimisation_page(
    name: str,
    result: Result,
    original: ir.Model,
    optimised: ir.Model,
    formulas: Mapping[str, str],
    profiles: SideBySide | None = None,
) -> Document:
    """Show the rewrites of a model, their speedup, and the missed optimizations.

    Args:
        name: What the model is called.
        result: The result.
        original: The model as it was.
        optimised: The model as it is.
        formulas: The formula of each rule.
        profiles: Where the time of both goes, if that was measured.
    """
    report = result.report
    blocks: list[Block] = [Cards(_cards(result))]
    if result.latencies is not None:
        blocks += [latency_bars(result.latencies.rows, "Speed after each pass", result.latencies.sizes)]
        if result.latencies.sessions:
            blocks.append(session_bars(result.latencies.sessions))
    if profiles is not None:
        blocks.append(profile_bars(profiles, () if result.latencies is None else result.latencies.rows))
    blocks += _sites(result, original, optimised, formulas)
    blocks += _missed(result)
    blocks.append(_timeline(report.passes))
    blocks.append(change(report.before.operators, report.after.operators))
    blocks += _choices(result)
    if result.latencies is not None:
        blocks.append(latency_rows(result.latencies.rows))
    remarks = [
        *growth_remarks(report),
        *report.notes,
        *report.failures,
        *(line for wanted in result.forced for line in wanted.lines()),
    ]
    remarks += [f"{setting}: {setting.reason}" for setting in result.session]
    if result.latencies is not None:
        remarks += doubts(result.latencies.rows)
    if result.left_alone:
        remarks.append(result.left_alone)
    if remarks:
        blocks.append(Notes("Remarks", remarks))
    return Document(f"{Path(name).name}, optimised", _summary(result), blocks)


def _summary(result: Result) -> str:
    before, after = result.report.before.nodes, result.report.after.nodes
    said = f"{before} nodes became {after}"
    if result.latencies is not None and len(result.latencies.rows) > 1:
        last = result.latencies.rows[-1]
        if last.speedup_bounds is None:
            said += "; whether that is faster cannot be told from so few runs"
        elif is_faster(last) is None:
            said += f"; {NO_DIFFERENCE} in speed ({{:.2f}} to {{:.2f}} times as fast)".format(*last.speedup_bounds)
        else:
            bounds = " ({:.2f} to {:.2f} with 95 % confidence)".format(*last.speedup_bounds)
            said += f", which is {last.speedup:.2f} times as fast{bounds}"
    if result.verdict is not None:
        said += f"; the outputs are {result.verdict.state}"
    for what, families in (("Fused", result.report.families()), ("Improved", result.report.improved())):
        if families:
            said += f". {what}: {counted(families, len(families))}"
    return f"{said}."


def _cards(result: Result) -> list[Card]:
    report = result.report
    cards = [Card("nodes", f"{report.before.nodes} → {report.after.nodes}")]
    cards.append(Card("constants", size_text(report.after.constants), f"were {size_text(report.before.constants)}"))
    if result.latencies is not None and len(result.latencies.rows) > 1:
        first, last = result.latencies.rows[0], result.latencies.rows[-1]
        cards += [
            speedup_card("speedup", last.speedup, last.speedup_bounds),
            Card("median latency", f"{digits(last.median_ms)} ms", f"was {digits(first.median_ms)} ms"),
            Card("executed nodes", f"{first.executed} → {last.executed}", "after the runtime's own optimisations"),
            Card("file", f"{digits(last.file_mb)} MB", f"was {digits(first.file_mb)} MB"),
        ]
    if result.verdict is not None:
        cards.append(Card("verified", result.verdict.state, f"{len(result.verdict.trials)} runs", result.verdict.ok))
    sites = sum(report.families().values())
    improved = sum(report.improved().values())
    more = f"and {improved} improved that {'was' if improved == 1 else 'were'} one operator before" if improved else ""
    cards.append(Card("sites fused", str(sites), more))
    cards.append(Card("engine", f"{report.seconds:.2f} s", "without loading and saving"))
    return cards


def _timeline(passes: list[PassReport]) -> Timeline:
    steps, total = list(_steps(passes, 0.0, 0)), sum(report.seconds for report in passes)
    shown = [step for step in steps if step.changed or step.seconds >= NOTABLE * total]
    about = "Time of the engine in each pass. A pass that is repeated is shown once, with all its runs."
    if len(shown) < len(steps):
        about += f" Not shown are {len(steps) - len(shown)} that changed nothing and took less than {NOTABLE:.0%} of the time."
    return Timeline("Passes", shown, about)


def _steps(passes: list[PassReport], start: float, depth: int) -> Iterator[Step]:
    for report in passes:
        if report.only is not None:
            yield from _steps(report.parts, start, depth)
            start += report.seconds
            continue
        label = report.name if len(report.name) < 60 else report.kind
        text = f"{1e3 * report.seconds:.0f} ms, {_changed(report)}"
        yield Step(label, start, report.seconds, text, min(depth, 2), bool(report.changes))
        yield from _steps(report.parts, start, depth + 1)
        start += report.seconds


def _changed(report: PassReport) -> str:
    if not report.changes:
        return "nothing to do"
    if report.nodes_before == report.nodes_after:
        return f"{report.changes} {'change' if report.changes == 1 else 'changes'}, still {report.nodes_after} nodes"
    return f"{report.nodes_before} → {report.nodes_after} nodes"


def _sites(result: Result, original: ir.Model, optimised: ir.Model, formulas: Mapping[str, str]) -> Iterator[Block]:
    if result.explanation is None or not result.explanation.fused:
        return
    pictures = Pictures(original, optimised)
    pairs = [
        (one.rule, pictures.site(one.site, one.nodes, one.operators), one.site) for one in result.explanation.fused
    ]
    groups = sorted(grouped(pairs), key=lambda group: -_saved(group[1]) * len(group[2]))
    drawn = [site(rule, formulas.get(rule, ""), pair, places) for rule, pair, places in groups[:MOST]]
    more = f" The first {MOST} of {len(groups)} different ones." if len(groups) > MOST else ""
    about = f"What each rule found and what it made of it, the most nodes saved first; places that look alike are one.{more}"
    yield Sites("What was fused", drawn, about)


def _saved(pair: Pair) -> int:
    """How many nodes fewer a site has than it had; what was replaced counts a little where that is none."""
    return 10 * (sum(pair.was.values()) - sum(pair.became.values())) + sum(pair.was.values())


def _missed(result: Result) -> Iterator[Block]:
    if result.explanation is None or not result.explanation.missed:
        return
    rows = [
        (miss.rule, miss.site, f"{miss.matched} of at least {miss.least}", miss.refusal.reason, miss.refusal.remedy)
        for miss in result.explanation.missed
    ]
    headings = ("rule that came nearest", "place", "nodes matched", "what stopped it", "it would match if")
    yield Rows("What was not fused, and why", headings, rows)


def _choices(result: Result) -> Iterator[Block]:
    if not result.report.choices:
        return
    rows = [
        (
            choice.rule, choice.makes, f"{choice.estimate.speedup:.2f}" if choice.estimate else "forced",
            choice.estimate.sizes if choice.estimate else "", str(len(choice.sites)),
            choice.decision,
        )
        for choice in result.report.choices
    ]  # fmt: skip
    headings = ("rule", "makes", "speedup", "measured at", "places", "decision")
    sources = sources_of_costs(result.report.choices)
    about = "Where several operators are legal, what they were measured to take decides." + (sources and f" {sources}.")
    yield Rows("Choices by cost", headings, rows, about, frozenset({2, 4}), folded=len(rows) > 8)
