"""What several pages show: the environment, latencies, parts of a model before and after."""

from __future__ import annotations

import datetime
import math
import os
import platform
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from ortfuse.bench import Latency, SessionLatency
from ortfuse.bench.digits import digits
from ortfuse.page.blocks import Bar, Bars, Rows, Site
from ortfuse.page.drawing import svg
from ortfuse.page.pictures import Pair
from ortfuse.profiling import Group, Profile
from ortfuse.targets.processor import processor_name
from ortfuse.version import __version__

MOST_OPERATORS = 14
"""The most operators of two profiles that have a bar of their own."""

MOST_UNFOLDED = 24
"""The rows of the longest table of operators that is not folded."""

RATIOS = (
    "A speedup is the median of the ratios of runs side by side, which can differ from the ratio of the median times."
)
"""What is to be known about speedups beside median times."""

_PACKAGES = ("onnx", "onnxruntime", "onnx_ir", "numpy")


def environment() -> list[tuple[str, str]]:
    """What results depend on, by name."""
    return [
        ("ortfuse", __version__),
        *((name, version(name)) for name in _PACKAGES),
        ("Python", platform.python_version()),
        ("processor", f"{processor_name()}, {os.cpu_count()} of them"),
        ("system", platform.platform(terse=True)),
        ("made", datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="minutes")),
    ]


def command() -> str:
    """The command line of this process, as it can be given again."""
    return shlex.join(["ortfuse", *sys.argv[1:]])


def is_faster(row: Latency) -> bool | None:
    """Whether a model is faster than the first; `None` where its bounds, or too few runs for any, do not tell."""
    low, high = row.speedup_bounds or (0.0, math.inf)
    return True if low > 1 else False if high < 1 else None


def latency_bars(rows: Sequence[Latency], title: str, sizes: str = "") -> Bars:
    """The speedups over the first row, with the bounds of each."""
    bars = [
        Bar(
            row.name,
            row.speedup,
            f"{row.speedup:.2f}×, {digits(row.median_ms)} ms, {row.executed} executed",
            row.speedup_bounds[0] if row.speedup_bounds else None,
            row.speedup_bounds[1] if row.speedup_bounds else None,
            row is rows[-1],
        )
        for row in rows
        if not row.crash
    ]
    where = f" at {sizes}" if sizes else ""
    bounds = "; the thin line spans the 95 % interval" if any(row.speedup_bounds for row in rows) else ""
    about = f"Speed relative to {rows[0].name}, which is the vertical line{where}; runs interleaved{bounds}. {RATIOS}"
    return Bars(title, bars, about, 1.0)


def session_bars(rows: Sequence[SessionLatency]) -> Bars:
    """The speedups of sessions over the first."""
    bars = [
        Bar(
            row.name,
            row.speedup,
            f"{row.speedup:.2f}×, {digits(row.median_ms)} ms, {row.peak_mb:.0f} MB",
            *(row.speedup_bounds or (None, None)),
        )
        for row in rows
    ]
    return Bars("Sessions", bars, "Each in a process of its own, runs interleaved.", 1.0)


def profile_bars(before: Profile, after: Profile) -> Bars:
    """Where the time of two models goes, operator by operator; what takes longest in either comes first."""
    was, now = ({group.name: group for group in found.by("operator")} for found in (before, after))
    names = sorted({**was, **now}, key=lambda name: -max(_seconds(was, [name]), _seconds(now, [name])))
    rows = [(name, [name]) for name in names[:MOST_OPERATORS]]
    if rest := names[MOST_OPERATORS:]:
        rows.append(("1 other" if len(rest) == 1 else f"{len(rest)} others", rest))
    bars = [
        Bar(
            label,
            1e3 * _seconds(now, some),
            f"{_times(now, some)}, was {_times(was, some)}",
            was=1e3 * _seconds(was, some),
        )
        for label, some in rows
    ]
    about = (
        f"What the runtime executes in a run at {after.sizes}: for each operator, the milliseconds of all its nodes and how many "
        f"they are. All operators together take {digits(1e3 * after.seconds)} ms; they took {digits(1e3 * before.seconds)} ms. "
        "Both were measured apart from the speeds, and the profiler takes time itself, so that sums need not agree with the "
        "latencies."
    )
    return Bars("Where the time goes, before and after", bars, about, key=("now", "before"))


def _seconds(groups: Mapping[str, Group], names: Iterable[str]) -> float:
    return sum(groups[name].seconds for name in names if name in groups)


def _times(groups: Mapping[str, Group], names: Sequence[str]) -> str:
    kernels = sum(groups[name].kernels for name in names if name in groups)
    return f"{digits(1e3 * _seconds(groups, names))} ms ×{kernels}" if kernels else "none"


def short_names(names: Sequence[str]) -> list[str]:
    """The last parts of paths, as many as tell them apart."""
    parts = [Path(name).parts for name in names]
    for count in range(1, max(map(len, parts), default=1)):
        short = [str(Path(*part[-count:])) for part in parts]
        if len(set(short)) == len(set(names)):
            return short
    return list(names)


def latency_rows(rows: Sequence[Latency]) -> Rows:
    """All that was measured."""
    headings = (
        "model",
        "median ms",
        "10 %",
        "90 %",
        "speedup",
        "95 % from",
        "to",
        "session ms",
        "nodes",
        "executed",
        "file MB",
    )
    cells = [
        (
            row.name, digits(row.median_ms, 4), digits(row.low_ms, 4), digits(row.high_ms, 4), f"{row.speedup:.2f}",
            *((f"{row.speedup_bounds[0]:.2f}", f"{row.speedup_bounds[1]:.2f}") if row.speedup_bounds else ("", "")),
            f"{row.session_ms:.0f}", str(row.nodes), str(row.executed), f"{row.file_mb:.2f}",
        )
        for row in rows
        if not row.crash
    ]  # fmt: skip
    return Rows("Latency in numbers", headings, cells, numbers=frozenset(range(1, len(headings))), folded=True)


def counted(operators: Mapping[str, int], most: int = 6) -> str:
    """Operators with their numbers, in words."""
    said = [
        name.removeprefix("com.microsoft.") + (f" ×{count}" if count > 1 else "") for name, count in operators.items()
    ]
    more = f" and {len(said) - most} more" if len(said) > most else ""
    return ", ".join(said[:most]) + more if said else "nothing"


def site(title: str, about: str, pair: Pair, places: Sequence[str] = ()) -> Site:
    """A part of a model before and after, drawn."""
    drawn = [
        "" if picture is None else svg(picture, f"{title}, {when}: {counted(operators)}") + _omitted(picture.omitted)
        for picture, when, operators in ((pair.before, "before", pair.was), (pair.after, "after", pair.became))
    ]
    return Site(title, about, drawn[0], drawn[1], counted(pair.was), counted(pair.became), max(1, len(places)), places)


def _omitted(count: int) -> str:
    return f"<p>and {count} more nodes</p>" if count else ""


def grouped(pairs: Iterable[tuple[str, Pair, str]]) -> list[tuple[str, Pair, list[str]]]:
    """Titles and pairs, those of the same title and operators as one, with the places of all."""
    found: dict[tuple[object, ...], tuple[str, Pair, list[str]]] = {}
    for title, pair, place in pairs:
        key = title, tuple(sorted(pair.was.items())), tuple(sorted(pair.became.items()))
        found.setdefault(key, (title, pair, []))[2].append(place)
    return list(found.values())


def change(before: Mapping[str, int], after: Mapping[str, int]) -> Rows:
    """The operators of two models side by side."""
    names = sorted({*before, *after}, key=lambda name: (before.get(name, 0) - after.get(name, 0)) * -1)
    rows = [
        (name, str(before.get(name, 0)), str(after.get(name, 0)), f"{after.get(name, 0) - before.get(name, 0):+d}")
        for name in names
        if before.get(name, 0) != after.get(name, 0)
    ]
    return Rows(
        "Operators",
        ("operator", "before", "after", "change"),
        rows,
        numbers=frozenset({1, 2, 3}),
        folded=len(rows) > MOST_UNFOLDED,
    )
