"""The documents of `ortfuse quantize`: after a search under an error bound, and without one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ortfuse.report.document import Block, Card, Cards, Document, Dot, Notes, Rows, Scatter
from ortfuse.report.documents.model_growth import size_text
from ortfuse.report.documents.operators import signed
from ortfuse.runtime.bench.speedup_words import speedup_words

if TYPE_CHECKING:
    from ortfuse.api.quantize import Lowered, Quantized
    from ortfuse.profiling import SideBySide
    from ortfuse.quantization.outcome import Outcome, SiteReport

MOST_SITES = 40
"""The sites on the terminal, those that save most first."""

MOST_LEFT = 8
"""The weights without a site on the terminal."""

LEAST_SECONDS = 0.1
"""The shortest phase that is named."""

UNTIMED = "not timed, since another tool runs the result"

_SITES = (
    "A site is an operator with weights, or what works on them; a scheme is a way to compute it in lower precision, such as "
    "`dynamic_int8`. For each site: what was chosen, what a run of it takes in float32 and so, and the error that this makes at "
    "the site itself and, alone, at the outputs. The range is that of the values that go in; outliers say how far the largest "
    "lies beyond the usual ones."
)


def quantization_document(name: str, found: Quantized, profiles: SideBySide | None = None) -> Document:
    """Show the sites in lower precision, their speedup and their error."""
    outcome = found.outcome
    blocks: list[Block] = [
        Cards(list(_cards(outcome))),
        Notes("Inputs", [outcome.inputs], "inputs: "),
        *_bars(outcome, profiles),
        *_plane(outcome),
        _sites(outcome),
        _schemes(outcome),
        _curve(outcome),
        Notes("Outcome", [*_told(outcome), *_spent(outcome)]),
        _left(outcome.unquantized),
        Notes("Remarks", [*([outcome.reason] if outcome.reason else []), *outcome.notes], on="page"),
        Notes("", outcome.notes, "note: ", "yellow", on="terminal"),
        Notes("", [] if outcome.reason else [_written(found.written)], on="terminal"),
    ]
    return Document(f"{Path(name).name} under an error bound", _summary(outcome), blocks)


def lowering_document(name: str, found: Lowered) -> Document:
    """Show what was lowered without a search."""
    made = found.uniform
    schemes = list(made.choice.values())
    lowered = _listed({scheme: schemes.count(scheme) for scheme in schemes})
    notes = [*found.notes, "the error is not known: ortfuse verify MODEL RESULT --max-error NUMBER compares the two"]
    if made.without_ranges:
        notes.append(
            f"{len(made.without_ranges)} sites need ranges of values; give inputs with --inputs to observe them on"
        )
    told = [f"{len(schemes)} sites lowered: {lowered}", _weights(made.size, made.float_size)]
    blocks = [
        Notes("Outcome", told),
        _left(made.unquantized),
        Notes("Remarks", notes, "note: ", "yellow"),
        Notes("", [_written(found.written)], on="terminal"),
    ]
    return Document(f"{Path(name).name} in lower precision", "; ".join(told) + ".", blocks)


def _summary(outcome: Outcome) -> str:
    if outcome.reason:
        return f"The float32 model is the result: {outcome.reason}."
    return (
        f"{len(outcome.chosen.choice)} of {len(outcome.sites)} sites are in lower precision: {_speed(outcome)}, "
        f"with an error ({outcome.metric}) of {_largest(outcome):.2g} where {outcome.bound:.2g} is allowed."
    )


def _largest(outcome: Outcome) -> float:
    return max(outcome.error, outcome.held_out_error or 0.0)


def _speed(outcome: Outcome) -> str:
    return speedup_words(outcome.speedup, _bounds(outcome), "float32") if outcome.latency else UNTIMED


def _bounds(outcome: Outcome) -> tuple[float, float] | None:
    return outcome.latency[-1].speedup_bounds if outcome.latency else None


def _listed(schemes: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {scheme}" for scheme, count in schemes.items())


def _weights(size: int, before: int) -> str:
    return f"weights {size_text(size)} instead of {size_text(before)}"


def _written(path: Path | None) -> str:
    return f"written: {path}" if path is not None else "nothing was written; -o RESULT writes the model"


def _left(left: Mapping[str, str]) -> Notes:
    """The reasons why weights have no site."""
    return Notes("Weights that stay in float32", list(left.values()), "float32: ", most=MOST_LEFT)


def _told(outcome: Outcome) -> Iterator[str]:
    """The outcome in a few lines."""
    if not outcome.reason:
        memory = ""
        if outcome.memory is not None:
            memory = "; at most {1} of memory instead of {0}".format(*map(size_text, outcome.memory))
        yield f"{len(outcome.chosen.choice)} of {len(outcome.sites)} sites lowered: {_listed(outcome.lowered)}"
        yield f"{_speed(outcome)}; {_weights(outcome.chosen.size or 0, outcome.float_size)}{memory}"
    unseen = (
        "" if outcome.held_out_error is None else f", {outcome.held_out_error:.3g} on inputs that the search never saw"
    )
    yield f"{outcome.metric} error {outcome.error:.3g}{unseen}; the bound is {outcome.bound:.3g}"


def _spent(outcome: Outcome) -> Iterator[str]:
    """The time of each phase, in a line; nothing where that is not known."""
    phases = [f"{phase.seconds:.1f} s {phase.name}" for phase in outcome.phases if phase.seconds >= LEAST_SECONDS]
    if phases:
        yield f"it took {sum(phase.seconds for phase in outcome.phases):.1f} s: {', '.join(phases)}"


def _cards(outcome: Outcome) -> Iterator[Card]:
    from ortfuse.report.documents.latencies import speedup_card

    yield (
        speedup_card("speedup over float32", outcome.speedup, _bounds(outcome))
        if outcome.latency
        else Card("speedup over float32", "none" if outcome.timed else "not timed")
    )
    held_out = (
        "on inputs that the search never saw" if outcome.held_out_error is not None else "no inputs were held out"
    )
    largest = _largest(outcome)
    kept = largest <= outcome.bound
    yield Card(f"error ({outcome.metric})", f"{largest:.2g}", f"bound {outcome.bound:.2g}, {held_out}", kept)
    yield Card("sites lowered", f"{len(outcome.chosen.choice)} of {len(outcome.sites)}")
    if outcome.chosen.size:
        yield Card("weights", size_text(outcome.chosen.size), f"were {size_text(outcome.float_size)}")


def _bars(outcome: Outcome, profiles: SideBySide | None) -> Iterator[Block]:
    from ortfuse.report.documents.latencies import latency_rows, profile_rows

    yield replace(latency_rows(outcome.latency, "Speed over float32"), on="page")
    if profiles is not None:
        yield profile_rows(profiles, outcome.latency)


def _plane(outcome: Outcome) -> Iterator[Scatter]:
    """The choices as points of a plane, for a page."""
    dots = [
        Dot(
            error,
            speedup,
            f"{point.label}: error {error:.2g}, {speedup:.2f}×" + ("" if point.speedup else " (predicted)"),
            point.choice == outcome.chosen.choice,
            hollow=not point.speedup,
        )
        for point in outcome.curve
        if (error := point.error if point.error is not None else point.predicted_error) is not None
        for speedup in [point.speedup or point.predicted_speedup]
    ]
    if outcome.timed:
        taken = ", what was taken in green" if any(dot.strong for dot in dots) else ""
        about = (
            f"Every choice that was considered{taken}; float32 is the horizontal line, and what keeps the bound lies left of the "
            "vertical one. Speedups of hollow dots were not measured, but predicted."
        )
        bound, across = f"bound {outcome.bound:.2g}", f"error ({outcome.metric})"
        yield Scatter("Error against speed", across, "speedup", dots, about, outcome.bound, bound, level=1.0)


def _curve(outcome: Outcome) -> Rows:
    """The choices, slowest first; the one that was taken is marked."""
    headings = (
        "choice", "sites", "predicted error", "at most", "error", "on others", "predicted speedup", "speedup", "MB"
    )  # fmt: skip
    cells = [
        (
            ("* " if point.choice == outcome.chosen.choice else "") + point.label, str(len(point.choice)),
            _error(point.predicted_error), _error(point.linear_error), _error(point.error), _error(point.expected_error),
            f"{point.predicted_speedup:.2f}" if outcome.timed else "", f"{point.speedup:.2f}" if point.speedup else "",
            f"{point.size / 1e6:.1f}" if point.size is not None else "",
        )
        for point in outcome.curve
    ]  # fmt: skip
    spare = ("at most", "MB", "on others", "predicted error", "sites")
    return Rows("Error against time", headings, cells, numbers=frozenset(range(1, 9)), folded=True, spare=spare)


def _sites(outcome: Outcome) -> Rows:
    ranked = sorted(outcome.sites, key=lambda site: -(site.chosen.saved_seconds if site.chosen else -1.0))
    headings = (
        "site", "operator", "shapes", "scheme", "float32 µs", "scheme µs", "saved µs", "error there", "of outputs", "range",
        "outliers", "remark",
    )  # fmt: skip
    rows = [_site(site, outcome.labels[site.name]) for site in ranked]
    spare = ("outliers", "range", "operator", "error there", "float32 µs")
    title = "Sites, those that save most first" if len(rows) > MOST_SITES else "Sites"
    return Rows(
        title, headings, rows, _SITES, frozenset(range(4, 11)), page_only=frozenset({2, 5, 11}), spare=spare, most=MOST_SITES
    )  # fmt: skip


def _site(site: SiteReport, label: str) -> tuple[str, ...]:
    chosen, spread = site.chosen, site.spread
    return (
        label, site.operator, site.shapes, site.scheme or "float32", f"{1e6 * site.seconds:.0f}" if site.seconds else "",
        f"{1e6 * chosen.seconds:.0f}" if chosen else "", f"{1e6 * chosen.saved_seconds:.0f}" if chosen and site.seconds else "",
        _error(chosen.local_error if chosen else None), _error(chosen.output_error if chosen else None),
        f"{spread.low:.3g}..{spread.high:.3g}" if spread else "", f"{spread.outliers:.1f}×" if spread else "", site.unquantized,
    )  # fmt: skip


def _schemes(outcome: Outcome) -> Rows:
    rows = [
        (
            outcome.labels[site.name], one.scheme, signed(1e6 * one.saved_seconds), _error(one.local_error),
            _error(one.output_error), f"{one.size / 1e3:.0f}", one.dropped,
        )
        for site in outcome.sites
        for one in site.schemes
    ]  # fmt: skip
    headings = ("site", "scheme", "saved µs", "error there", "of outputs", "weights kB", "why not followed")
    return Rows(
        "Everything that was tried", headings, rows, numbers=frozenset({2, 3, 4, 5}), folded=True, on="page"
    )  # fmt: skip


def _error(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"
