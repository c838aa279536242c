"""Format speedups as text, and list reasons to doubt measurements."""

from __future__ import annotations

from collections.abc import Sequence

from ortfuse.runtime.bench.models_side_by_side import Latency
from ortfuse.runtime.bench.stopping_rule import NARROW

NOISY = 0.1
"""Relative interquartile range above which a machine is called noisy."""

WIDE = 0.2
"""Bounds that are this share of the speedup apart say little about how large it is."""

MOST_NAMED = 3
"""The most models named in one remark."""

NO_DIFFERENCE = "no difference beyond noise"
"""The words for a speedup whose bounds include 1."""


def is_noise(bounds: tuple[float, float] | None) -> bool:
    """Whether a speedup of these bounds may be none; `False` where they are not known."""
    return bounds is not None and bounds[0] <= 1 <= bounds[1]


def speedup_cell(speedup: float, bounds: tuple[float, float] | None) -> str:
    """A speedup for a cell of a table, whose bounds stand beside it."""
    return "no difference" if is_noise(bounds) else f"{speedup:.2f}"


def speedup_words(speedup: float, bounds: tuple[float, float] | None, than: str) -> str:
    """A speedup over a model in words, with its bounds."""
    if bounds is None:
        return f"{speedup:.2f} times as fast as {than}, in too few runs to tell"
    between = "{:.2f} to {:.2f}".format(*bounds)
    if is_noise(bounds):
        return f"{NO_DIFFERENCE} from {than} ({between} times as fast)"
    return f"{speedup:.2f} times as fast as {than} ({between})"


def doubts(rows: Sequence[Latency]) -> list[str]:
    """Reasons to doubt the measurements, as text; empty if there are none."""
    said = [f"{row.name}: {row.crash}" for row in rows if row.crash]
    rows = [row for row in rows if not row.crash]
    if not rows:
        return said
    noisy = max(rows, key=lambda row: row.spread)
    if noisy.spread > NOISY:
        said.append(
            f"the times scatter: the middle half of the runs of {noisy.name} is spread over {noisy.spread:.0%} of the "
            "median. Something else runs on this machine, or it changes its clock; end what can be ended"
        )
    first, more = rows[0].name, "more time may tell more: --bench-budget 60s"
    bounded = [(row, row.speedup_bounds) for row in rows if row.speedup_bounds is not None]
    unsure = [(row, bounds) for row, bounds in bounded if is_noise(bounds)]
    if alike := [(row, bounds) for row, bounds in unsure if bounds[1] - bounds[0] <= NARROW * row.speedup]:
        rows_alike, most = [row for row, _ in alike], max(abs(1 - bound) for _, bounds in alike for bound in bounds)
        said.append(
            f"{NO_DIFFERENCE} between {_named(rows_alike)} and {first}{_rounds(rows_alike)}: it is {most:.1%} at most"
        )
    if unknown := [row for row, bounds in unsure if (row, bounds) not in alike]:
        said.append(f"{NO_DIFFERENCE} between {_named(unknown)} and {first}{_rounds(unknown)}; {more}")
    wide = [row for row, bounds in bounded if not is_noise(bounds) and bounds[1] - bounds[0] > WIDE * row.speedup]
    if wide:
        said.append(f"how large the difference is between {_named(wide)} and {first} is known roughly; {more}")
    if any(row.speedup_bounds is None for row in rows[1:]):
        said.append("too few rounds to tell how far the speedups can be trusted; --rounds 6 is the least")
    return said


def _named(rows: Sequence[Latency]) -> str:
    left = len(rows) - MOST_NAMED
    more = f" and {left} other{'s' * (left > 1)}" if left > 0 else ""
    return ", ".join(row.name for row in rows[:MOST_NAMED]) + more


def _rounds(rows: Sequence[Latency]) -> str:
    count = min(row.rounds for row in rows)
    return f" in {count} rounds" if count else ""
