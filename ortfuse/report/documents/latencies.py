"""The blocks of measurements that several documents share: speedups and latencies, profiles side by side."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ortfuse.profiling import Group, SideBySide, scale
from ortfuse.report.document import Bar, Card, Chart, Notes, Rows
from ortfuse.runtime.bench import Latencies, Latency, SessionLatency
from ortfuse.runtime.bench.number_format import digits
from ortfuse.runtime.bench.speedup_words import NO_DIFFERENCE, doubts, is_noise, speedup_cell

MOST_OPERATORS = 14
"""The most operators of two profiles that have a bar of their own."""

BOUNDS = (
    "Thin lines show the bounds of a speedup with 95 % confidence. It is the median of the ratios of runs side by side, which "
    "can differ from the ratio of the median times."
)
"""A note on speedups and their bounds beside median times."""


def is_faster(row: Latency) -> bool | None:
    """Whether a model is faster than the first; `None` where its bounds, or too few runs for any, do not tell."""
    low, high = row.speedup_bounds or (0.0, math.inf)
    return True if low > 1 else False if high < 1 else None


def times(speedup: float, bounds: tuple[float, float] | None = None) -> str:
    """A speedup with the bounds between which it lies, if they are known, or that there is none beyond noise."""
    said = NO_DIFFERENCE if is_noise(bounds) else f"{speedup:.2f}×"
    return said + (" ({:.2f} to {:.2f})".format(*bounds) if bounds else "")


def speedup_card(name: str, speedup: float, bounds: tuple[float, float] | None, than: str = "") -> Card:
    """A speedup in large type, but not one whose bounds include 1 or are not known.

    Args:
        name: What the card is called.
        speedup: The speedup.
        bounds: Its bounds.
        than: What the note begins with, such as what the speedup is over.
    """
    start = f"{than}, " if than else ""
    if bounds is None:
        return Card(name, "not known", f"{start}{speedup:.2f}× in too few runs to tell")
    note = f"{start}{bounds[0]:.2f} to {bounds[1]:.2f} with 95 % confidence"
    if is_noise(bounds):
        return Card(name, NO_DIFFERENCE, note)
    return Card(name, f"{speedup:.2f}×", note, speedup > 1)


def latency_blocks(found: Latencies, title: str) -> list[Rows | Notes]:
    """All measurements of models and sessions in numbers, and how far they can be trusted."""
    blocks: list[Rows | Notes] = [latency_rows(found.latency, title)]
    if found.sessions:
        blocks.append(_session_rows(found.sessions))
    return [*blocks, Notes("How far to trust it", [*found.notes, *doubts(found.latency)], "note: ", "yellow")]


def latency_rows(rows: Sequence[Latency], title: str) -> Rows:
    """The latencies of models with their speedups over the first."""
    headings = (
        "model", "median ms", "10%..90%", "speedup", "(95 %)", "rounds", "session ms", "nodes", "executed", "file MB",
    )  # fmt: skip
    first = next((row.name for row in rows if not row.crash), "")
    about = (
        f"Runs were interleaved. Bars are speeds relative to {first}, the vertical line. {BOUNDS} Eight of ten runs lie "
        "within “10%..90%”; “session ms” is the time of session creation; “executed” are the nodes that the runtime executes."
    )
    cells = [_cells(row) for row in rows]
    bars = [Bar(0.0) if row.crash else speed_bar(row.speedup, row.speedup_bounds, row is rows[-1]) for row in rows]
    spare = ("file MB", "session ms", "rounds", "nodes", "10%..90%")
    return Rows(title, headings, cells, about, frozenset(range(1, 10)), spare=spare, chart=Chart(bars, 1.0))


def _cells(row: Latency) -> tuple[str, ...]:
    if row.crash:
        return row.name, "crashes", *[""] * 8
    return (
        row.name, digits(row.median_ms, 4), f"{digits(row.low_ms)}..{digits(row.high_ms)}",
        *speedup_cells(row.speedup, row.speedup_bounds),
        str(row.rounds or ""), f"{row.session_ms:.0f}", str(row.nodes), str(row.executed), f"{row.file_mb:.2f}",
    )  # fmt: skip


def _session_rows(rows: Sequence[SessionLatency]) -> Rows:
    headings = ("session", "median ms", "95 % under", "speedup", "(95 %)", "session ms", "peak MB")
    cells = [
        (
            row.name, digits(row.median_ms, 4), digits(row.p95_ms, 4), *speedup_cells(row.speedup, row.speedup_bounds),
            f"{row.session_ms:.0f}", f"{row.peak_mb:.0f}",
        )
        for row in rows
    ]  # fmt: skip
    about = (
        "Each session has a process of its own, and runs were interleaved. Bars are speeds relative to the first, the vertical "
        f"line. {BOUNDS} “peak MB” is the most memory that the process held."
    )
    chart = Chart([speed_bar(row.speedup, row.speedup_bounds) for row in rows], 1.0)
    return Rows(
        "Sessions", headings, cells, about, frozenset(range(1, 7)), spare=("session ms", "95 % under"), chart=chart
    )


def speed_bar(speedup: float, bounds: tuple[float, float] | None, strong: bool = False) -> Bar:
    """A bar as long as a speedup, with its bounds."""
    low, high = bounds or (None, None)
    return Bar(speedup, low, high, strong=strong)


def speedup_cells(speedup: float, bounds: tuple[float, float] | None) -> tuple[str, str]:
    """A speedup and its bounds, for two cells of a table."""
    return speedup_cell(speedup, bounds), "{:.2f}..{:.2f}".format(*bounds) if bounds else ""


def profile_rows(found: SideBySide, latencies: Sequence[Latency] = ()) -> Rows:
    """The time of two models operator by operator; those that take longest in either come first.

    Args:
        found: Their profiles.
        latencies: The latencies of the first and the last of several models, which are those two: times under the profiler are
            scaled down to them.
    """
    measured = [1e-3 * row.median_ms for row in (latencies[0], latencies[-1])] if len(latencies) > 1 else [0.0, 0.0]
    profiled = found.before_seconds, found.after_seconds
    scales = [scale(*one) for one in zip(measured, profiled, strict=True)]
    was, now = (
        {group.name: replace(group, seconds=group.seconds * factor) for group in groups}
        for groups, factor in zip((found.before, found.after), scales, strict=True)
    )
    names = sorted({**was, **now}, key=lambda name: -max(_seconds(was, [name]), _seconds(now, [name])))
    rows = [(name, [name]) for name in names[:MOST_OPERATORS]]
    if rest := names[MOST_OPERATORS:]:
        rows.append(("1 other" if len(rest) == 1 else f"{len(rest)} others", rest))
    cells = [(label, _times(now, some), _times(was, some)) for label, some in rows]
    bars = [Bar(1e3 * _seconds(now, some), was=1e3 * _seconds(was, some)) for _, some in rows]
    totals = [digits(1e3 * _seconds(groups, groups)) for groups in (now, was)]
    about = (
        f"What the runtime executes in a run at {found.sizes}: for each operator, the milliseconds of all its nodes and how many "
        f"they are (×). All operators together take {totals[0]} ms; they took {totals[1]} ms. Medians of {found.runs} runs each, "
        f"the models in turns, under the profiler. That takes time itself, the more the shorter a node is: {_scaled(scales)}."
    )
    title = "Where the time goes, before and after"
    chart = Chart(bars, key=("now", "before"))
    return Rows(title, ("operator", "now", "before"), cells, about, frozenset({1, 2}), on="page", chart=chart)


def _scaled(scales: Sequence[float]) -> str:
    """How times under the profiler are to be compared with latencies."""
    if min(scales) >= 1:
        return "compare these numbers with each other, and not with the latencies, which are measured without it"
    was, now = map(digits, scales)
    return f"these numbers are multiplied by {now} ({was} before), so that they are parts of the latencies, measured without it"


def _seconds(groups: Mapping[str, Group], names: Iterable[str]) -> float:
    return sum(groups[name].seconds for name in names if name in groups)


def _times(groups: Mapping[str, Group], names: Sequence[str]) -> str:
    kernels = sum(groups[name].kernels for name in names if name in groups)
    return f"{digits(1e3 * _seconds(groups, names))} ms ×{kernels}" if kernels else "none"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def short_names(names: Sequence[str]) -> list[str]:
    """The last parts of paths, as many as tell them apart."""
    parts = [Path(name).parts for name in names]
    for count in range(1, max(map(len, parts), default=1)):
        short = [str(Path(*part[-count:])) for part in parts]
        if len(set(short)) == len(set(names)):
            return short
    return list(names)
