"""The report of `ortfuse quantize`: the speedup and error of each site's scheme, and the curve of error against time."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from ortfuse.errors import OptionError
from ortfuse.errors.printable import cell
from ortfuse.io.atomic_write import write_bytes
from ortfuse.report.terminal.console import show_notes, show_written
from ortfuse.runtime.bench.fit_table_to_terminal import Fitting
from ortfuse.runtime.bench.latency_table import speedup_words

if TYPE_CHECKING:
    from ortfuse.api.quantize import Lowered, Quantized
    from ortfuse.quantization.outcome import Outcome, Point, SiteReport

MOST_SITES = 40
"""The sites that are shown, those that save most first; --json has them all."""

MOST_LEFT = 8
"""The weights without a site that are shown."""

LEAST_SECONDS = 0.1
"""The least share that is named."""

UNTIMED = "not timed, since another tool runs the result"

_COLUMNS = (
    "label", "sites", "predicted_error", "linear_error", "error", "expected_error", "predicted_speedup", "speedup", "size"
)  # fmt: skip


def show_quantized(console: Console, found: Quantized) -> None:
    """Print the whole result."""
    outcome = found.outcome
    console.print(f"inputs: {outcome.inputs}", markup=False, highlight=False)
    if outcome.sites:
        console.print(sites_table(outcome.sites, outcome.labels))
    if outcome.curve:
        console.print(curve_table(outcome.curve, outcome.taken, outcome.timed))
    for line in (*summary(outcome), *spent(outcome)):
        console.print(line, markup=False, highlight=False)
    show_left(console, outcome.left)
    show_notes(console, outcome.notes)
    if not outcome.reason:
        show_written(console, found.written)


def show_lowered(console: Console, found: Lowered) -> None:
    """Print what was lowered without a search."""
    made = found.uniform
    schemes = list(made.choice.values())
    lowered = ", ".join(f"{schemes.count(scheme)} {scheme}" for scheme in dict.fromkeys(schemes))
    console.print(f"{len(schemes)} sites lowered: {lowered}", markup=False, highlight=False)
    console.print(f"weights {size_text(made.size)} instead of {size_text(made.float_size)}", highlight=False)
    notes = [*found.notes, "the error is not known: ortfuse verify MODEL RESULT --max-error NUMBER compares the two"]
    if made.left:
        notes.append(f"{len(made.left)} sites need ranges of values; give inputs with --inputs to observe them on")
    show_left(console, made.kept)
    show_notes(console, notes)
    show_written(console, found.written)


def show_left(console: Console, left: Mapping[str, str]) -> None:
    """Print why weights have no site, of the first few."""
    for why in list(left.values())[:MOST_LEFT]:
        console.print(f"float32: {why}", markup=False, highlight=False)
    if len(left) > MOST_LEFT:
        console.print(f"float32: {len(left) - MOST_LEFT} more weights, which --json names", highlight=False)


def size_text(count: int) -> str:
    """A number of bytes."""
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def summary(outcome: Outcome) -> list[str]:
    """The outcome in a few lines."""
    unseen = "" if outcome.held_out is None else f", {outcome.held_out:.3g} on inputs that the search never saw"
    error = f"{outcome.metric} error {outcome.error:.3g}{unseen}; the bound is {outcome.bound:.3g}"
    if outcome.reason:
        return [error]
    lowered = ", ".join(f"{count} {scheme}" for scheme, count in outcome.lowered.items())
    row = outcome.latencies[-1] if outcome.latencies else None
    speed = UNTIMED if row is None else speedup_words(row.speedup, row.speedup_bounds, "float32")
    memory = ""
    if outcome.memory is not None:
        memory = "; at most {1:.1f} MB of memory instead of {0:.1f} MB".format(*(one / 1e6 for one in outcome.memory))
    size = f"weights {size_text(outcome.taken.size or 0)} instead of {size_text(outcome.float_size)}"
    return [
        f"{len(outcome.taken.choice)} of {len(outcome.sites)} sites lowered: {lowered}",
        f"{speed}; {size}{memory}",
        error,
    ]


def spent(outcome: Outcome) -> list[str]:
    """How long what took how long, in a line; nothing where that is not known."""
    phases = [f"{phase.seconds:.1f} s {phase.name}" for phase in outcome.phases if phase.seconds >= LEAST_SECONDS]
    total = sum(phase.seconds for phase in outcome.phases)
    return [f"it took {total:.1f} s: {', '.join(phases)}"] if phases else []


def sites_table(sites: Sequence[SiteReport], labels: Mapping[str, str]) -> Fitting:
    """One row per site: its scheme, the time saved, the errors, and the range of its input."""
    ranked = sorted(sites, key=lambda site: -(site.chosen.saved if site.chosen else -1.0))
    more = f" ({MOST_SITES} of {len(sites)}, those that save most)" if len(sites) > MOST_SITES else ""
    headings = (
        "site",
        "operator",
        "scheme",
        "float32 us",
        "saved us",
        "error there",
        "of outputs",
        "range",
        "outliers",
    )
    rows = [
        (labels[site.name], site.operator, site.scheme or "float32", *_numbers(site)) for site in ranked[:MOST_SITES]
    ]
    spare = ("outliers", "range", "operator", "error there", "float32 us")
    return Fitting(f"Sites{more}", headings, rows, spare, words=("operator", "scheme"))


def _numbers(site: SiteReport) -> list[str]:
    chosen, spread = site.chosen, site.spread
    return [
        f"{site.seconds * 1e6:.0f}" if site.seconds else "",
        f"{chosen.saved * 1e6:.0f}" if chosen and site.seconds else "",
        _error(chosen.local if chosen else None),
        _error(chosen.propagated if chosen else None),
        f"{spread.low:.3g}..{spread.high:.3g}" if spread else "",
        f"{spread.outliers:.1f}x" if spread else "",
    ]


def curve_table(curve: Sequence[Point], taken: Point | None = None, timed: bool = True) -> Fitting:
    """The choices, slowest first; the one that was taken is marked."""
    headings = (
        "choice", "sites", "predicted error", "at most", "error", "on others", "predicted speedup", "speedup", "MB"
    )  # fmt: skip
    rows = [
        (
            ("* " if taken is not None and point.choice == taken.choice else "") + point.label, str(len(point.choice)),
            _error(point.predicted_error), _error(point.linear_error), _error(point.error), _error(point.likely),
            f"{point.predicted_speedup:.2f}" if timed else "", f"{point.speedup:.2f}" if point.speedup is not None else "",
            f"{point.size / 1e6:.1f}" if point.size is not None else "",
        )
        for point in curve
    ]  # fmt: skip
    return Fitting("Error against time", headings, rows, ("at most", "MB", "on others", "predicted error", "sites"))


def _error(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"


def check_curve(path: Path) -> None:
    """Check that a curve can be written in the format that the name asks for.

    Raises:
        OptionError: There is no such format, or matplotlib is missing.
    """
    if path.suffix.lower() not in _WRITERS:
        raise OptionError("curve", f"write a name that ends in {', '.join(_WRITERS)}, not {path}")
    if path.suffix.lower() == ".png" and importlib.util.find_spec("matplotlib") is None:
        raise OptionError("curve", "a plot needs matplotlib, which is not installed: pip install 'ortfuse[plot]'")


def write_curve(path: Path, outcome: Outcome) -> None:
    """Write the curve as JSON, CSV or a plot, as the ending of the name says.

    Raises:
        OutputError: It cannot be written.
    """
    write_bytes(path, _WRITERS[path.suffix.lower()](outcome))


def _as_json(outcome: Outcome) -> bytes:
    return (json.dumps([point.to_dict() for point in outcome.curve], indent=1) + "\n").encode()


def _as_csv(outcome: Outcome) -> bytes:
    made = io.StringIO()
    rows = csv.DictWriter(made, _COLUMNS, extrasaction="ignore", lineterminator="\n")
    rows.writeheader()
    for point in outcome.curve:
        row = {**point.to_dict(), "sites": len(point.choice)}
        rows.writerow({name: cell(value) for name, value in row.items()})
    return made.getvalue().encode()


def _as_plot(outcome: Outcome) -> bytes:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    predicted = [(p.predicted_error, p.predicted_speedup) for p in outcome.curve if p.predicted_error]
    measured = [(p.error, p.speedup) for p in outcome.curve if p.error and p.speedup]
    taken = [(outcome.error, outcome.speedup)] if outcome.taken.choice and outcome.error else []
    kinds = ((predicted, "predicted", "o", 36), (measured, "measured", "s", 36), (taken, "the result", "*", 180))
    for points, label, mark, size in kinds:
        if points:
            axes.scatter([one for one, _ in points], [other for _, other in points], size, label=label, marker=mark)
    axes.axvline(outcome.bound, color="grey", linestyle="--", label="bound")
    axes.axhline(1.0, color="grey", linestyle=":", label="float32")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_title(f"Error against speed, {len(outcome.sites)} sites")
    axes.set_xlabel(f"{outcome.metric} error of the outputs")
    axes.set_ylabel("times as fast as float32")
    axes.grid(alpha=0.3)
    axes.legend()
    made = io.BytesIO()
    figure.savefig(made, format="png", dpi=120)
    return made.getvalue()


_WRITERS: Mapping[str, Callable[[Outcome], bytes]] = {".json": _as_json, ".csv": _as_csv, ".png": _as_plot}
