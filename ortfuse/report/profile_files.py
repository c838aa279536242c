"""Write the files of `ortfuse profile`: a CSV table of kernels, and a plot."""

from __future__ import annotations

import csv
import importlib.util
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortfuse.errors import OptionError
from ortfuse.errors.escape_control_characters import cell, visible
from ortfuse.io.atomic_write import write_bytes
from ortfuse.runtime.bench.number_format import digits

if TYPE_CHECKING:
    from ortfuse.profiling import Group, Profile

MOST_ROWS = 12
"""The groups that a part of the picture has; --json has them all."""

FEWEST_BARS = 6
"""The bars that a part of the picture has room for at least."""

TITLES = {
    "operator": "By operator",
    "block": "By fused block",
    "module": "By module of the original network",
    "role": "By module, alike layers together",
    "rule": "By what made it",
}
"""The titles of the views."""

_COLUMNS = (
    "name", "operator", "provider", "calls", "seconds", "share", "module", "rule", "origin", "nodes", "flops", "bytes",
    "bound", "roofline_seconds", "roofline_fraction",
)  # fmt: skip


def threads_in_words(count: int) -> str:
    """The number of threads in words."""
    return "threads as the runtime chooses" if not count else f"{count} thread{'s' if count > 1 else ''}"


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
        _bars(axes, TITLES[view], found.by(view), found.scale * 1e3)
    _roofline(roof, found)
    name, one = f"{model}: " if model else "", found.timing
    threads = threads_in_words(found.threads)
    title = f"{name}{digits(one.p50_ms, 4)} ms at {found.inputs} (p95 {digits(one.p95_ms, 4)} ms), {threads}"
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
