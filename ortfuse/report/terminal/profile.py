"""The report of `ortfuse profile`: tables for people, a table of all kernels as CSV, and a picture."""

from __future__ import annotations

import csv
import importlib.util
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from ortfuse.errors import OptionError
from ortfuse.errors.printable import cell, visible
from ortfuse.io.atomic_write import write_bytes
from ortfuse.report.terminal.console import show_notes
from ortfuse.report.terminal.long_names import Names
from ortfuse.runtime.bench.number_format import digits

if TYPE_CHECKING:
    from ortfuse.profiling import Creation, Group, Profile

MOST_ROWS = 12
"""The rows of each table; --json has them all."""

MOST_CHANGES = 12

WORTH_A_WORD = 0.95
"""Times under the profiler that are scaled by less than this are said to be."""

FEWEST_BARS = 6
"""The bars that a part of the picture has room for at least."""

_TITLES = {
    "operator": "By operator",
    "block": "By fused block",
    "module": "By module of the original network",
    "role": "By module, alike layers together",
    "rule": "By what made it",
}

_COLUMNS = (
    "name", "operator", "provider", "calls", "seconds", "share", "module", "rule", "origin", "nodes", "flops", "bytes",
    "bound", "roofline_seconds", "roofline_fraction",
)  # fmt: skip


def show_profile(console: Console, found: Profile) -> None:
    """Print where the time goes, and what can be done."""
    one = found.timing
    memory = "" if one.memory is None else f", peak memory {one.memory / 1e6:.1f} MB"
    _say(
        console,
        f"latency at {found.sizes}: p50 {one.p50_ms:.3f} ms, p95 {one.p95_ms:.3f} ms, {one.throughput:.4g} runs/s "
        f"({one.rounds} rounds, {_threads(found.threads)}); session {one.session_ms:.0f} ms{memory}",
    )
    scale = found.scale * 1e3
    scaled = f", a factor of {1 / found.scale:.2f}, which is taken out here" if found.scale < WORTH_A_WORD else ""
    _say(
        console,
        f"of a run {len(found.kernels)} kernels take {found.seconds * scale:.3f} ms, and what lies between them "
        f"{found.between * scale:.3f} ms (under the profiler a run takes {found.run_seconds * 1e3:.3f} ms{scaled})",
    )
    _show_roof(console, found)
    for view, title in _TITLES.items():
        _show_groups(console, title, found.blocks if view == "block" else found.by(view), scale)
    _show_creation(console, found.creation, scale)
    _show_bottlenecks(console, found)
    show_notes(console, found.notes)


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False)


def _threads(count: int) -> str:
    return "threads as the runtime chooses" if not count else f"{count} thread{'s' if count > 1 else ''}"


def _show_roof(console: Console, found: Profile) -> None:
    if found.peaks is not None and found.reached is not None:
        peaks = found.peaks
        at = "at what this machine can do" if found.reached >= 1 else f"{found.reached:.0%} of what this machine can do"
        _say(
            console,
            f"roofline: {at} ({peaks.flops / 1e9:.3g} GFLOP/s in a product of "
            f"matrices, {peaks.bandwidth / 1e9:.3g} GB/s in a copy; {peaks.processor})",
        )


def _show_groups(console: Console, title: str, rows: Sequence[Group], scale: float) -> None:
    """Print the times of groups in milliseconds, which a second has `scale` of."""
    if not rows:
        return
    made = Table(title=title, title_justify="left")
    made.add_column(title.removeprefix("By "), overflow="fold")
    for heading in ("ms", "share", "kernels", "runs", "of the roof"):
        made.add_column(heading, justify="right")
    for row in rows[:MOST_ROWS]:
        roof = "" if row.reached is None else f"{row.reached:.0%}"
        made.add_row(
            Names(row.name), f"{row.seconds * scale:.3f}", f"{row.share:.1%}", str(row.kernels), str(row.calls), roof
        )
    rest = rows[MOST_ROWS:]
    if rest:
        seconds, share = sum(row.seconds for row in rest), sum(row.share for row in rest)
        kernels, calls = sum(row.kernels for row in rest), sum(row.calls for row in rest)
        made.add_row(
            f"{len(rest)} other{'s' * (len(rest) > 1)}",
            f"{seconds * scale:.3f}",
            f"{share:.1%}",
            str(kernels),
            str(calls),
            "",
            style="dim",
        )
    console.print(made)


def _show_creation(console: Console, found: Creation, scale: float) -> None:
    if not found.after:
        return
    before, after = sum(found.before.values()), sum(found.after.values())
    _say(console, f"at session creation the runtime makes {after} nodes of {before}:")
    changes = list(found.changes().items())
    listed = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in changes[:MOST_CHANGES])
    more = f" and {len(changes) - MOST_CHANGES} other operators" if len(changes) > MOST_CHANGES else ""
    _say(console, f"  operators: {listed or 'all as in the model'}{more}")
    if found.inserted:
        inserted = ", ".join(f"{count} {name}" for name, count in found.inserted.items())
        _say(console, f"  inserted: {inserted}, which take {found.inserted_seconds * scale:.3f} ms a run")
    if found.fused:
        counts: dict[str, list[int]] = {}
        for one in found.fused:
            counts.setdefault(one.operator, []).append(len(one.nodes))
        fused = ", ".join(f"{len(sizes)} {name} of {sum(sizes)} nodes" for name, sizes in counts.items())
        _say(console, f"  fused by the runtime: {fused}")


def _show_bottlenecks(console: Console, found: Profile) -> None:
    made = Table(title="What takes the time, and what can be done", title_justify="left")
    for heading in ("what", "share", "remedy"):
        made.add_column(heading, overflow="fold", justify="right" if heading == "share" else "left")
    for one in found.bottlenecks:
        made.add_row(Names(one.what), f"{one.share:.1%}", Names(one.remedy))
    if made.row_count:
        console.print(made)


def check_plot(path: Path | None) -> None:
    """Check that a picture can be drawn.

    Raises:
        OptionError: matplotlib is missing.
    """
    if path is not None and importlib.util.find_spec("matplotlib") is None:
        raise OptionError("png", "a picture needs matplotlib, which is not installed: pip install 'ortfuse[plot]'")


def write_csv(path: Path | None, found: Profile) -> None:
    """Write a row for each kernel.

    Raises:
        OutputError: It cannot be written.
    """
    if path is not None:
        _write(path, lambda: _as_csv(found))


def write_png(path: Path | None, found: Profile, model: str = "") -> None:
    """Draw the time by operator and by module, and the kernels under the roof.

    Raises:
        OutputError: It cannot be written.
    """
    if path is not None:
        _write(path, lambda: _as_png(found, model))


def _write(path: Path, content: Callable[[], bytes]) -> None:
    write_bytes(path, content())


def _as_csv(found: Profile) -> bytes:
    made = io.StringIO()
    rows = csv.DictWriter(made, _COLUMNS, extrasaction="ignore", lineterminator="\n")
    rows.writeheader()
    for one in found.kernels:
        share = one.seconds / found.seconds if found.seconds else 0.0
        row = {**one.to_dict(), "share": share, "nodes": ";".join(one.nodes)}
        rows.writerow({name: cell(value) for name, value in row.items()})
    return made.getvalue().encode()


def _as_png(found: Profile, model: str) -> bytes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 8), layout="constrained")
    (operators, roof), (modules, rules) = figure.subplots(2, 2)
    for axes, view in ((operators, "operator"), (modules, "role"), (rules, "rule")):
        _bars(axes, _TITLES[view], found.by(view), found.scale * 1e3)
    _roofline(roof, found)
    name, one = f"{model}: " if model else "", found.timing
    title = (
        f"{name}{digits(one.p50_ms, 4)} ms at {found.sizes} (p95 {digits(one.p95_ms, 4)} ms), {_threads(found.threads)}"
    )
    figure.suptitle(_plain(title))
    made = io.BytesIO()
    figure.savefig(made, format="png", dpi=110)
    return made.getvalue()


def _bars(axes: Any, title: str, rows: Sequence[Group], scale: float) -> None:
    shown = list(rows[:MOST_ROWS])[::-1]
    axes.barh([_short(row.name) for row in shown], [row.seconds * scale for row in shown], color="#3b6fb6")
    axes.set_title(title)
    axes.set_xlabel("ms a run")
    for index, row in enumerate(shown):
        axes.annotate(f" {row.share:.1%}", (row.seconds * scale, index), va="center")
    axes.margins(x=0.2)
    axes.set_ylim(
        min(-0.6, len(shown) - FEWEST_BARS), len(shown) - 0.4
    )  # a few bars are not drawn as thick as they could be


def _short(name: str) -> str:
    shown = visible(name)
    return _plain(shown if len(shown) <= 40 else f"...{shown[-37:]}")


def _plain(text: str) -> str:
    """A text for a picture, in which no part is a formula."""
    return visible(text).replace("$", r"\$")


def _roofline(axes: Any, found: Profile) -> None:
    axes.set_title("Roofline: one dot a kernel, by its time")
    axes.set_xlabel("FLOP/byte")
    axes.set_ylabel("GFLOP/s")
    dots = [
        (one.flops / one.bytes, one.flops / one.seconds / 1e9, one.seconds)
        for one in found.kernels
        if one.flops and one.bytes and one.seconds
    ]
    if not dots or found.peaks is None:
        axes.text(0.5, 0.5, "not known", ha="center", transform=axes.transAxes)
        return
    peaks, longest = found.peaks, max(seconds for *_, seconds in dots)
    xs, ys, sizes = zip(*((x, y, 10 + 190 * seconds / longest) for x, y, seconds in dots), strict=True)
    axes.scatter(xs, ys, s=sizes, alpha=0.5, color="#3b6fb6")
    ends = (min(*xs, peaks.ridge) / 2, max(*xs, peaks.ridge) * 2)
    at = (ends[0], peaks.ridge, ends[1])
    axes.plot(at, [min(peaks.flops, peaks.bandwidth * x) / 1e9 for x in at], color="#b6503b")
    axes.set_xscale("log")
    axes.set_yscale("log")
