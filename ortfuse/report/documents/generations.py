"""The document of `ortfuse bench --generate`: generations measured side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortfuse.report.document import Document, Notes, Rows
from ortfuse.report.documents.latencies import short_names

if TYPE_CHECKING:
    from ortfuse.generation.measure import GenerationLatencies


def generations_document(found: GenerationLatencies) -> Document:
    """Show generations of several models: speeds, and times of steps by the number of tokens before them."""
    names = short_names([one.name for one in found.models])
    marks = list(found.models[0].steps)
    headings = [
        "model",
        "prompt ms",
        "ratio",
        "tokens/s",
        "ratio",
        *(f"step {mark} ms" for mark in marks),
        "peak MB",
    ]
    rows = [
        (
            name,
            f"{one.first * 1e3:.1f}",
            f"{one.ratio_first:.2f}",
            f"{one.tokens_per_second:.1f}",
            f"{one.ratio:.2f}",
            *(f"{one.steps[mark] * 1e3:.2f}" for mark in marks),
            "" if one.memory is None else f"{one.memory / 1e6:.1f}",
        )
        for name, one in zip(names, found.models, strict=True)
    ]
    about = f"Medians of {found.rounds} interleaved rounds. Ratios are times of {names[0]} over those of the model. "
    about += "“step N” is the time of a step with N tokens before it, and “peak MB” the most memory that a process holds while "
    about += "it generates, less that with a model of one node."
    numbers = frozenset(range(1, len(headings)))
    table = Rows("Generations", tuple(headings), rows, about, numbers, whole=frozenset({0}))
    same = "all take the same tokens" if found.same_tokens else "their tokens differ: see `ortfuse generator --verify`"
    best = max(zip(names, found.models, strict=True), key=lambda one: one[1].ratio)
    what = f"{found.new_tokens} tokens after a prompt of {found.prompt}"
    summary = f"{best[0]} generates {best[1].ratio:.2f} times as fast as {names[0]}: {what}."
    return Document("Generations side by side", summary, [table, Notes("", [f"{what}; {same}"], on="terminal")])
