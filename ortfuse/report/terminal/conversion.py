"""The report of `ortfuse convert` for people."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console

from ortfuse.report.terminal.console import show_notes, show_written

if TYPE_CHECKING:
    from ortfuse.quantization.half import Conversion

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
    lines += _errors(done)
    if done.weak:
        lines.append("the ranges are those on generated inputs: give your own with --inputs")
    for line in lines:
        console.print(line, markup=False, highlight=False)
    for warning in done.warnings:
        console.print(f"warning: {warning}", style="yellow", markup=False, highlight=False)
    show_notes(console, done.notes)
    show_written(console, done.written)


def _errors(done: Conversion) -> Iterator[str]:
    """A line for each output that is off, the worst first."""
    how = f"rounded to {done.to} after every operator" if done.emulated else "run on the CPU"
    worst = sorted(done.errors.items(), key=lambda item: -item[1])
    for name, error in [one for one in worst if one[1] or one[0] not in done.counted][:MOST_ISLANDS]:
        if name in done.counted:
            yield f"error of '{name}', {how}: {error:.2%} of its elements differ"
            continue
        size = (
            f"{error:.2g} of its norm" if math.isfinite(error) else "infinity or NaN stands elsewhere than in float32"
        )
        ordered = done.ordered.get(name, error)
        yield f"error of '{name}', {how}: {size}{f'; {ordered:.2g} in the order of float32' if ordered < error else ''}"
