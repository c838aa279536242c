"""Failures whose cause is known and tested elsewhere: counted apart, so that a run shows what is new."""

from __future__ import annotations

from .judge import Failure

KNOWN = {
    "Batch size must be greater than 0": "the runtime's Attention refuses empty batches",
}


TAKEN_FOR_GRANTED = {
    "attention.": "scores that are infinite, or beyond float16, which the runtime computes in float32 where it has no kernel for it",
    "conv.": "infinities in a product whose weights were merged",
}
"""What rules take for granted (docs/promises.md), by how the names of the rules begin."""


def known_cause(failure: Failure) -> str | None:
    """Why a failure is no news."""
    found = next((why for text, why in KNOWN.items() if text in failure.signature or text in failure.detail), None)
    if found is None and "NaN or infinity stands where" in failure.detail:
        return next((why for name, why in TAKEN_FOR_GRANTED.items() if f" {name}" in failure.where), None)
    return found
