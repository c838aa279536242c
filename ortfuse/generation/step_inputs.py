"""Inputs of a step in which no token is hidden: masks of tokens, or of keys for each query, and positions."""

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
        columns: How many tokens it tells of, the new ones last; all others of a fixed number are hidden, behind them.
        length: How many tokens are new.

    Returns:
        Ones, for tokens, and zeros behind them. For keys, those up to the query are seen: True, or 0 beside the lowest number.
    """
    places = max(columns, sizes[-1])
    if len(sizes) == 2:
        return np.broadcast_to(np.arange(places) < columns, (batch, places)).astype(kind)
    seen = np.arange(places) <= columns - length + np.arange(length)[:, None]
    values = seen if kind == np.bool_ else np.where(seen, 0, np.finfo(kind).min).astype(kind)
    first = [size if size >= 0 else other for size, other in zip(sizes[:2], (batch, 1), strict=True)]
    return np.ascontiguousarray(np.broadcast_to(values, (*first, length, places)))


def step_positions(sizes: Sequence[int], kind: np.dtype[Any], batch: int, past: int, length: int) -> Array:
    """The positions of the new tokens.

    Args:
        sizes: The declared sizes of the input, -1 for open ones: those of the sequences, and the new tokens; or [] or [1] for the
            position of the first one.
        kind: Its element type.
        batch: How many sequences there are.
        past: The position of the first one.
        length: How many tokens are new.
    """
    if not sizes:
        return np.array(past, kind)
    row = np.arange(past, past + (1 if sizes[-1] == 1 else length), dtype=kind)
    return np.broadcast_to(row, (*(batch if size < 0 else size for size in sizes[:-1]), len(row))).copy()
