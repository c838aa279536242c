"""The document of `ortfuse optimize`: rewrites, speedup and missed optimizations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ortfuse.report.document import Block, Card, Cards, Document, Notes, Rows, Sites
from ortfuse.report.documents.model_growth import growth_remarks, size_line, size_text
from ortfuse.report.documents.operators import change, counted
from ortfuse.report.documents.pass_times import pass_rows

if TYPE_CHECKING:
    # Needed for type checking only: these modules are not loaded unless a result has what they are for.
    import onnx_ir as ir

    from ortfuse.api.result import Result
    from ortfuse.profiling import SideBySide
    from ortfuse.report.model_pictures import Pair

MOST = 60
"""The most different sites that are drawn."""


@dataclass(frozen=True)
class Drawn:
    """The material of a page beyond the result.

    Attributes:
        original: The model as it was.
        optimised: The model as it is.
        profiles: The time of both by operators, if that was measured.
    """

    original: ir.Model
    optimised: ir.Model
    profiles: SideBySide | None = None


def optimization_document(name: str, result: Result, drawn: Drawn | None = None, *, offered: bool = True) -> Document:
    """Show the rewrites of a model, their speedup, and the missed optimizations.

    Args:
        name: The name of the model.
        result: The result.
        drawn: The models to draw sites from, for a page.
        offered: Whether to say how a result is written that was not.
    """
    report = result.report
    latencies = list(_latencies(result))
    forced = [line for wanted in result.forced for line in wanted.lines()]
    blocks: list[Block] = [
        Cards(_cards(result)),
        Notes("", _sizes(result), on="terminal"),
        Notes("Passes and sites", _sites(result)),
        *(replace(block, on="page") for block in latencies),
        *([] if drawn is None else _pictures(result, drawn)),
        pass_rows(report),
        replace(change(report.before.operators, report.after.operators), on="page"),
        _choices(result),
        Notes("Forced choices", forced),
        *_checks(result),
        *(replace(block, on="terminal") for block in latencies),
        Notes("Remarks", [*growth_remarks(report), *report.notes, *report.failures], "note: ", "yellow"),
        Notes("Settings of the session", [f"{one} ({one.reason})" for one in result.session], "session: "),
        Notes("", list(_written(result, offered)), on="terminal"),
    ]
    if result.explanation is not None:
        from ortfuse.report.documents.explanation import explanation_blocks

        blocks += explanation_blocks(result.explanation)
    return Document(f"{Path(name).name}, optimised", _summary(result), blocks)


def _summary(result: Result) -> str:
    said = f"{result.report.before.nodes} nodes became {result.report.after.nodes}"
    if result.latencies is not None and len(result.latencies.latency) > 1:
        from ortfuse.runtime.bench.speedup_words import speedup_words

        last = result.latencies.latency[-1]
        said += f"; {speedup_words(last.speedup, last.speedup_bounds, 'the original')}"
    if result.verdict is not None:
        said += f"; the outputs are {result.verdict.state}"
    for what, families in (("Fused", result.report.families()), ("Improved", result.report.improved())):
        if families:
            said += f". {what}: {counted(families, len(families))}"
    return f"{said}."


def _sizes(result: Result) -> list[str]:
    """The nodes and bytes before and after."""
    report = result.report
    nodes = f"nodes: {report.before.nodes} -> {report.after.nodes}   engine: {report.seconds:.3f} s"
    oldest = result.oldest_runtime
    loads = [] if oldest is None else [f"loads in: ONNX Runtime {oldest} and newer"]
    return [nodes, size_line(report, result.file_bytes), *loads]


def _sites(result: Result) -> list[str]:
    """The pass list, and the families with their sites."""
    report = result.report
    fused, improved = (
        ", ".join(f"{name} {count}" for name, count in families.items())
        for families in (report.families(), report.improved())
    )
    return [
        f"auto takes {report.pass_list}" if report.pass_list else f"passes: {report.pipeline}",
        f"fused sites: {fused or 'none'}",
        *([f"improved, which were one operator before: {improved}"] if improved else []),
    ]


def _cards(result: Result) -> list[Card]:
    report = result.report
    cards = [Card("nodes", f"{report.before.nodes} → {report.after.nodes}")]
    cards.append(Card("constants", size_text(report.after.constants), f"were {size_text(report.before.constants)}"))
    if result.latencies is not None and len(result.latencies.latency) > 1:
        from ortfuse.report.documents.latencies import speedup_card
        from ortfuse.runtime.bench.number_format import digits

        first, last = result.latencies.latency[0], result.latencies.latency[-1]
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


def _pictures(result: Result, drawn: Drawn) -> Iterator[Block]:
    """The time of both models by operators, and the fused sites."""
    from ortfuse.pipeline import load_catalogue
    from ortfuse.report.documents.operators import grouped, site
    from ortfuse.report.model_pictures import Pictures

    if drawn.profiles is not None:
        from ortfuse.report.documents.latencies import profile_rows

        yield profile_rows(drawn.profiles, () if result.latencies is None else result.latencies.latency)
    if result.explanation is None:
        return
    pictures = Pictures(drawn.original, drawn.optimised)
    pairs = (
        (one.rule, pictures.site(one.site, one.nodes, one.operators), one.site) for one in result.explanation.fused
    )
    formulas = {rule.name: rule.formula for rule in load_catalogue(result.options.rules).rules()}
    groups = sorted(grouped(pairs), key=lambda group: -_saved(group[1]) * len(group[2]))
    sites = [site(rule, formulas.get(rule, ""), pair, places) for rule, pair, places in groups[:MOST]]
    more = f" The first {MOST} of {len(groups)} different ones." if len(groups) > MOST else ""
    about = f"What each rule found and what it made of it, the most nodes saved first; places that look alike are one.{more}"
    yield Sites("What was fused", sites, about)


def _saved(pair: Pair) -> int:
    """How many nodes fewer a site has than it had; what was replaced counts a little where that is none."""
    return 10 * (sum(pair.was.values()) - sum(pair.became.values())) + sum(pair.was.values())


def _choices(result: Result) -> Rows:
    choices = result.report.choices
    rows = [
        (
            choice.rule, choice.produces, f"{choice.estimate.speedup:.2f}" if choice.estimate else "",
            choice.estimate.sizes if choice.estimate else "forced", str(len(choice.sites)), choice.decision,
        )
        for choice in choices
    ]  # fmt: skip
    headings = ("rule", "makes", "speedup", "measured at", "sites", "choice")
    sources = "; ".join(dict.fromkeys(choice.estimate.source for choice in choices if choice.estimate is not None))
    about = "Where several operators are legal, the times that were measured for them decide."
    caption = "Speedups are over what stood there, at the nearest size that was measured."
    caption += f" Costs: {sources}" if sources else ""
    return Rows("Chosen by cost", headings, rows, about, frozenset({2, 4}), len(rows) > 8, caption=caption)


def _checks(result: Result) -> Iterator[Block]:
    if result.verdict is None and result.sites is None:
        return
    from ortfuse.report.documents.verification import check_blocks, verdict_blocks

    if result.verdict is not None:
        yield from verdict_blocks(result.verdict)
    if result.blame:
        yield Notes("", [f"{result.blame}; nothing was written"], style="bold red")
    if result.sites is not None:
        yield from check_blocks(result.sites, own=result.options.verify != "sites")


def _latencies(result: Result) -> Iterator[Rows | Notes]:
    found = result.latencies
    if found is not None:
        from ortfuse.report.documents.latencies import latency_blocks

        yield from latency_blocks(found, f"Latency at {found.inputs}, interleaved with the original")
    if result.slowdown is not None:
        yield Notes("Slower than the original", [result.slowdown.text()], style="bold red")


def _written(result: Result, offered: bool) -> Iterator[str]:
    if result.written is not None:
        yield f"written: {result.written}"
    elif result.ok and offered:
        yield "nothing was written; -o RESULT writes the optimised model"
    if result.session_file is not None and len(result.session):
        yield f"written: {result.session_file}; ortfuse.session(...) applies it"
