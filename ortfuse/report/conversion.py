"""The report of `ortfuse convert` for people."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rich.console import Console

from ortfuse.report.console import show_notes, show_written

if TYPE_CHECKING:
    from ortfuse.precision.half import Conversion

MOST_ISLANDS = 12
"""The reasons for float32 that are shown; --json has them all."""


def show_conversion(console: Console, done: Conversion) -> None:
    """Print what a conversion did."""
    saved = f"{done.bytes_before:,} bytes of weights became {done.bytes_after:,}"
    lines = [f"{done.operators} operators in {done.to}, {len(done.islands)} in float32, {done.casts} Casts; {saved}"]
    if done.token_bytes is not None:
        before, after = done.token_bytes
        lines = [
            f"{len(done.caches)} caches of {done.operators} operators hold 8-bit integers: {after:,} bytes for each token "
            f"instead of {before:,}"
        ]
    reasons = Counter(done.islands.values())
    first = {reason: name for name, reason in reversed([*done.islands.items()])}
    lines += [
        f"float32: {count}, such as {first[reason]}: {reason}" for reason, count in reasons.most_common(MOST_ISLANDS)
    ]
    how = "emulated" if done.emulated else "run"
    worst = sorted(done.errors.items(), key=lambda item: -item[1])
    lines += [f"error of '{name}', {how} on the CPU: {error:.2g} of its norm" for name, error in worst[:MOST_ISLANDS]]
    if done.weak:
        lines.append("the ranges are those on generated inputs: give your own with --inputs")
    for line in lines:
        console.print(line, markup=False, highlight=False)
    show_notes(console, done.notes)
    show_written(console, done.written)
