"""The document of `ortfuse tune`: the trials and the best of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ortfuse.report.document import Block, Card, Cards, Chart, Document, Notes, Rows
from ortfuse.report.documents.latencies import BOUNDS, speed_bar, speedup_card, speedup_cells
from ortfuse.runtime.bench.number_format import digits
from ortfuse.runtime.bench.speedup_words import speedup_cell, speedup_words
from ortfuse.tuning import Point, TuningOutcome
from ortfuse.tuning.tune import Tuned

REASONS = 3
"""How many reasons why trials failed are printed; all are on the page."""

_RELATIVE = f"Bars are speeds relative to the original in a default session, the vertical line. {BOUNDS}"
_TRIALS = (
    "A choice is a model (`original`, or as `ortfuse optimize` makes it with the level or list of passes of that name, `auto` "
    "being the usual one) and what differs from the default in its session. Each is measured beside the original."
)


def tuning_document(name: str, tuned: Tuned) -> Document:
    """Show the trials and the best of them."""
    outcome = tuned.outcome
    best, usual = outcome.best, outcome.baseline.choice
    usual_is_best = best.number == outcome.baseline.number
    over = "over the original in a default session"
    speedup = speedup_card("speedup", best.speedup, best.speedup_bounds, over)
    cards = [
        Card("speedup", "none", over) if usual_is_best else speedup,
        Card("median latency", f"{digits(best.median_ms)} ms", f"was {digits(outcome.baseline.median_ms)} ms"),
        Card("95 % of the runs within", f"{digits(best.p95_ms)} ms"),
        Card("peak memory", f"{best.peak_mb:.0f} MB", f"was {outcome.baseline.peak_mb:.0f} MB"),
        Card("trials", str(len(outcome.trials)), f"in {outcome.seconds:.0f} s"),
    ]
    blocks: list[Block] = [Cards(cards)]
    if outcome.finalists or not outcome.confirmed:
        before = "Measured before the table below, so that the machine may have been in another state."
        about = before if outcome.confirmed else ""
        original = not outcome.confirmed
        blocks.append(
            _measurements("The best of the search, side by side", about, outcome, outcome.finalists, original)
        )
    if outcome.confirmed:
        title = "The choice and what optimize makes, measured once more"
        blocks.append(_measurements(title, "", outcome, outcome.confirmed, original=True))
    settings = [(setting.name, str(setting.value), setting.reason) for setting in tuned.session]
    if settings:
        blocks.append(Rows("Settings of the session", ("name", "value", "reason"), settings, on="page"))
    blocks += [_trials(outcome.trials, usual), Notes("", _counts(outcome), on="terminal")]
    if outcome.notes:
        blocks.append(Notes("Remarks", list(outcome.notes), "note: ", "yellow"))
    blocks.append(Notes("", [str(setting) for setting in tuned.session], "session: ", on="terminal"))
    blocks.append(Notes("", _written(tuned), on="terminal"))
    said = speedup_words(best.speedup, best.speedup_bounds, "the original in a default session")
    summary = f"The best that was found: {said}, with {changed(best, usual)}."
    if usual_is_best:
        summary = "Nothing was found that is faster than the original in a default session."
    return Document(f"{Path(name).name}, tuned", summary, blocks)


def failed_trials(tried: Sequence[Point]) -> list[Block]:
    """Show the trials of a search without a point that keeps all constraints."""
    return [_trials(tried, dict(tried[0].choice))] if tried else []


def _trials(points: Sequence[Point], usual: object) -> Rows:
    trials = [(str(point.number + 1), changed(point, usual), *_measured(point), point.failure) for point in points]
    headings = ("trial", "choice", "speedup", "median ms", "95 % under, ms", "peak MB", "error (l2)", "failure")
    return Rows("Every trial", headings, trials, _TRIALS, frozenset({0, 2, 3, 4, 5, 6}), len(trials) > 12, "page")


def _measured(point: Point) -> tuple[str, ...]:
    """The numbers of a trial; none of them where it was not measured. Trials that compute something else have them."""
    if not point.median_ms:
        return ("",) * 5
    speedup = "" if point.failure else speedup_cell(point.speedup, point.speedup_bounds)
    return (
        speedup, digits(point.median_ms), digits(point.p95_ms), f"{point.peak_mb:.0f}", f"{point.error:.1e}"
    )  # fmt: skip


def _counts(outcome: TuningOutcome) -> list[str]:
    """The number of trials, and why some failed."""
    failed = [point for point in outcome.trials if point.failure]
    count = "1 trial" if len(outcome.trials) == 1 else f"{len(outcome.trials)} trials"
    said = f"{count} in {outcome.seconds:.0f} s" + (f", {len(failed)} of them failed" if failed else "")
    reasons = Counter(point.failure for point in failed).most_common(REASONS)
    return [said, *(f"failed{f' {times} times' if times > 1 else ''}: {why}" for why, times in reasons)]


def _written(tuned: Tuned) -> list[str]:
    written = [f"written: {path}" for path in tuned.written]
    return written or ["nothing was written; -o RESULT writes the model and its settings"]


def _measurements(title: str, about: str, outcome: TuningOutcome, points: Sequence[Point], original: bool) -> Rows:
    """The numbers of choices, after those of the original if it was measured beside them."""
    rows = [(changed(point, outcome.baseline.choice), point) for point in points]
    if original:
        rows.insert(0, ("the original, default session", outcome.baseline))
    headings = ("choice", "median ms", "95 % under", "speedup", "(95 %)", "session ms", "peak MB", "error")
    cells = [
        (
            name, digits(point.median_ms, 4), digits(point.p95_ms, 4), *speedup_cells(point.speedup, point.speedup_bounds),
            f"{point.session_ms:.0f}", f"{point.peak_mb:.0f}", f"{point.error:.1e}",
        )
        for name, point in rows
    ]  # fmt: skip
    best = outcome.best.number
    chart = Chart([speed_bar(point.speedup, point.speedup_bounds, point.number == best) for _, point in rows], 1.0)
    spare = ("session ms", "95 % under")
    return Rows(title, headings, cells, f"{_RELATIVE} {about}", frozenset(range(1, 8)), spare=spare, chart=chart)


def changed(point: Point, usual: object) -> str:
    """The changes of a choice, in words."""
    plain = dict(usual) if isinstance(usual, dict) else {}
    names = [f"{name}={value}" for name, value in point.choice.items() if name != "model" and plain.get(name) != value]
    return ", ".join([str(point.choice["model"]), *names])
