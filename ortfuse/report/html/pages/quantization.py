"""The page of `ortfuse quantize`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ortfuse.api.quantize import Quantized
from ortfuse.profiling import SideBySide
from ortfuse.quantization.outcome import Outcome, Point, SiteReport
from ortfuse.report.document import Block, Card, Cards, Document, Dot, Notes, Rows, Scatter
from ortfuse.report.documents.latencies import latency_bars, profile_bars, speedup_card
from ortfuse.report.documents.operators import signed
from ortfuse.report.terminal.quantization import UNTIMED
from ortfuse.runtime.bench.latency_table import speedup_words
from ortfuse.runtime.bench.number_format import digits


def quantisation_page(name: str, found: Quantized, profiles: SideBySide | None = None) -> Document:
    """Show the sites in lower precision, their speedup and their error."""
    outcome = found.outcome
    blocks: list[Block] = [Cards(_cards(outcome))]
    if outcome.latencies:
        blocks.append(latency_bars(outcome.latencies, "Speed over float32"))
    if profiles is not None:
        blocks.append(profile_bars(profiles, outcome.latencies))
    blocks += [*_curve(outcome), _sites(outcome), _schemes(outcome)]
    remarks = [*([outcome.reason] if outcome.reason else []), *outcome.notes]
    if remarks:
        blocks.append(Notes("Remarks", remarks))
    return Document(f"{Path(name).name} under an error bound", _summary(outcome), blocks)


def _summary(outcome: Outcome) -> str:
    if outcome.reason:
        return f"The float32 model is the result: {outcome.reason}."
    lowered = len(outcome.taken.choice)
    speed = speedup_words(outcome.speedup, _bounds(outcome), "float32") if outcome.timed else UNTIMED
    return (
        f"{lowered} of {len(outcome.sites)} sites are in lower precision: "
        f"{speed}, "
        f"with an error ({outcome.metric}) of {_largest(outcome):.2g} where {outcome.bound:.2g} is allowed."
    )


def _largest(outcome: Outcome) -> float:
    return max(outcome.error, outcome.held_out or 0.0)


def _cards(outcome: Outcome) -> list[Card]:
    size = outcome.taken.size
    held_out = "on inputs that the search never saw" if outcome.held_out is not None else "no inputs were held out"
    cards = [
        speedup_card("speedup over float32", outcome.speedup, _bounds(outcome))
        if outcome.latencies
        else Card("speedup over float32", "none" if outcome.timed else "not timed"),
        Card(
            f"error ({outcome.metric})",
            f"{_largest(outcome):.2g}",
            f"bound {outcome.bound:.2g}, {held_out}",
            _largest(outcome) <= outcome.bound,
        ),
        Card("sites lowered", f"{len(outcome.taken.choice)} of {len(outcome.sites)}"),
    ]
    if size:
        cards.append(Card("weights", f"{digits(size / 1e6)} MB", f"were {digits(outcome.float_size / 1e6)} MB"))
    return cards


def _bounds(outcome: Outcome) -> tuple[float, float] | None:
    return outcome.latencies[-1].speedup_bounds if outcome.latencies else None


def _curve(outcome: Outcome) -> Iterator[Block]:
    dots = [
        Dot(
            error,
            speedup,
            f"{point.label}: error {error:.2g}, {speedup:.2f}×" + ("" if point.speedup else " (predicted)"),
            point.choice == outcome.taken.choice,
            hollow=not point.speedup,
        )
        for point in outcome.curve
        if (error := _error(point)) is not None
        for speedup in [point.speedup or point.predicted_speedup]
    ]
    if dots and outcome.timed:
        taken = ", what was taken in green" if any(dot.strong for dot in dots) else ""
        about = (
            f"Every choice that was considered{taken}; float32 is the horizontal line, and what keeps the bound lies left of the "
            "vertical one. Speedups of hollow dots were not measured, but predicted."
        )
        bound, across = f"bound {outcome.bound:.2g}", f"error ({outcome.metric})"
        yield Scatter("Error against speed", across, "speedup", dots, about, outcome.bound, bound, level=1.0)


def _error(point: Point) -> float | None:
    return point.error if point.error is not None else point.predicted_error


def _sites(outcome: Outcome) -> Rows:
    rows, labels = [], outcome.labels
    for site in outcome.sites:
        chosen = site.chosen
        rows.append(
            (
                labels[site.name], site.operator, site.shapes, site.scheme or "float32",
                f"{1e6 * site.seconds:.0f}" if site.seconds else "", f"{1e6 * chosen.seconds:.0f}" if chosen else "",
                _optional(chosen.local if chosen else None),
                _optional(chosen.propagated if chosen else None), _spread(site), site.left,
            )
        )  # fmt: skip
    headings = (
        "site",
        "operator",
        "shapes",
        "scheme",
        "float32 µs",
        "scheme µs",
        "error here",
        "error of outputs",
        "values",
        "remark",
    )
    about = (
        "A site is an operator with weights, or what works on them; a scheme is a way to compute it in lower precision, such as "
        "`dynamic_int8`. For each site: what was chosen, what a run of it takes in float32 and so, and the error that this makes "
        "at the site itself and, alone, at the outputs. “Values” are those that go in; outliers say how far the largest lies "
        "beyond the usual ones."
    )
    return Rows("Site by site", headings, rows, about, frozenset({4, 5, 6, 7}))


def _spread(site: SiteReport) -> str:
    spread = site.spread
    return "" if spread is None else f"{spread.low:.3g} to {spread.high:.3g}, outliers {spread.outliers:.1f}×"


def _schemes(outcome: Outcome) -> Rows:
    labels = outcome.labels
    rows = [
        (
            labels[site.name], one.scheme, signed(1e6 * one.saved), _optional(one.local), _optional(one.propagated),
            f"{one.size / 1e3:.0f}", one.dropped,
        )
        for site in outcome.sites
        for one in site.tried
    ]  # fmt: skip
    headings = ("site", "scheme", "saved µs", "error here", "error of outputs", "weights kB", "why not followed")
    return Rows("Everything that was tried", headings, rows, numbers=frozenset({2, 3, 4, 5}), folded=True)


def _optional(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"
