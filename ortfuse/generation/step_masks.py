"""The mask of a step in which no token is hidden: which tokens are visible, or which keys each query sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def step_mask(sizes: Sequence[int], kind: np.dtype[Any], batch: int, columns: int, length: int) -> Array:
    """The mask that a step of a decoder takes.

    Args:
        sizes: The declared sizes of the input, -1 for open ones: [batch, tokens] or [batch, heads, new tokens, keys].
        kind: Its element type.
        batch: How many sequences there are.
        columns: How many tokens it tells of, the new ones last.
        length: How many tokens are new.

    Returns:
        Ones, for tokens. For keys, those up to the query are seen: True, or 0 beside the lowest number.
    """
    if len(sizes) == 2:
        return np.ones((batch, columns), kind)
    seen = np.arange(columns) <= columns - length + np.arange(length)[:, None]
    values = seen if kind == np.bool_ else np.where(seen, 0, np.finfo(kind).min).astype(kind)
    first = [size if size >= 0 else other for size, other in zip(sizes[:2], (batch, 1), strict=True)]
    return np.ascontiguousarray(np.broadcast_to(values, (*first, length, columns)))
