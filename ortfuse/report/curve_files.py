"""Write the files of `ortfuse quantize --curve`: choices with their errors and times as JSON, CSV or a plot."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ortfuse.errors import OptionError
from ortfuse.errors.escape_control_characters import cell
from ortfuse.io.atomic_write import write_bytes

if TYPE_CHECKING:
    from ortfuse.quantization.outcome import Outcome


_COLUMNS = (
    "label", "sites", "predicted_error", "linear_error", "error", "expected_error", "predicted_speedup", "speedup", "size"
)  # fmt: skip


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
    taken = [(outcome.error, outcome.speedup)] if outcome.chosen.choice and outcome.error else []
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
