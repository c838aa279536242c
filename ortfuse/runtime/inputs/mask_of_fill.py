"""Lengths of the sequences of a padded batch with a given share of visible tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

SPREAD = 0.5
"""Lengths differ from their mean by up to this share of it."""


def lengths(batch: int, longest: int, fill: float, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Draw lengths whose sum is the share `fill` of all tokens, as nearly as each is from 1 to the longest.

    Args:
        batch: The number of sequences.
        longest: The length of the padded batch.
        fill: The share of visible tokens, from 0 to 1.
        rng: The generator.

    Returns:
        int64 of shape [batch].
    """
    least = min(1, longest)
    drawn = fill * longest * rng.uniform(1 - SPREAD, 1 + SPREAD, batch)
    found = np.clip(np.rint(drawn), least, longest).astype(np.int64)
    left = round(fill * longest * batch) - int(found.sum())
    while left:
        step = 1 if left > 0 else -1
        free = np.flatnonzero(found < longest if step > 0 else found > least)
        if not free.size:
            break
        chosen = rng.permutation(free)[: abs(left)]
        found[chosen] += step
        left -= step * chosen.size
    return found
