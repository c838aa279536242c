"""Failures whose cause is known and tested elsewhere: counted apart, so that a run shows what is new."""

from __future__ import annotations

from .judge import Failure

KNOWN = {
    "Batch size must be greater than 0": "the runtime's Attention refuses empty batches",
}


def known_cause(failure: Failure) -> str | None:
    """Why a failure is no news."""
    return next((why for text, why in KNOWN.items() if text in failure.signature or text in failure.detail), None)
