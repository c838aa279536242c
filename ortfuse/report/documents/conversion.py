"""The document of `ortfuse convert`: the converted nodes, and the errors of the outputs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortfuse.report.document import Document, Notes

if TYPE_CHECKING:
    from ortfuse.quantization.half import Conversion

MOST = 12
"""The reasons for float32, and the errors, that the terminal shows."""


def conversion_document(name: str, done: Conversion) -> Document:
    """Show what a conversion did, and its errors.

    Args:
        name: The name of the model.
        done: The conversion.
    """
    saved = f"{done.bytes_before:,} bytes of weights became {done.bytes_after:,}"
    counts = (
        f"{done.operators} operators in {done.precision}, {len(done.islands)} in float32, {done.casts} Casts; {saved}"
    )
    if done.token_bytes is not None:
        before, after = done.token_bytes
        counts = (
            f"{len(done.caches)} caches of {done.operators} operators hold 8-bit integers: {after:,} bytes for each token "
            f"instead of {before:,}"
        )
    reasons = Counter(done.islands.values())
    first = {reason: name for name, reason in reversed([*done.islands.items()])}
    islands = [f"{count}, such as {first[reason]}: {reason}" for reason, count in reasons.most_common()]
    written = "nothing was written; -o RESULT writes the model" if done.written is None else f"written: {done.written}"
    weak = ["the ranges are those on generated inputs: give your own with --inputs"] if done.generated_ranges else []
    blocks = [
        Notes("", [counts], on="terminal"),
        Notes("In float32", islands, "float32: ", most=MOST),
        Notes("Errors", list(_errors(done)), most=MOST),
        Notes("Ranges", weak),
        Notes("Warnings", done.warnings, "warning: ", "yellow"),
        Notes("Remarks", done.notes, "note: ", "yellow"),
        Notes("", [written], on="terminal"),
    ]
    return Document(f"{name}, converted to {done.precision}", f"{counts}.", blocks)


def _errors(done: Conversion) -> Iterator[str]:
    """A line for each output that is off, the worst first."""
    how = f"rounded to {done.precision} after every operator" if done.emulated else "run on the CPU"
    for name, error in sorted(done.errors.items(), key=lambda item: -item[1]):
        if name in done.integer_outputs:
            if error:
                yield f"error of '{name}', {how}: {error:.2%} of its elements differ"
            continue
        size = (
            f"{error:.2g} of its norm" if math.isfinite(error) else "infinity or NaN stands elsewhere than in float32"
        )
        ordered = done.errors_in_float32_order.get(name, error)
        yield f"error of '{name}', {how}: {size}{f'; {ordered:.2g} in the order of float32' if ordered < error else ''}"
