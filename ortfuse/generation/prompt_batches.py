"""Prompts of a batch: padding taken away, and the first tokens that all have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ortfuse.errors import GenerationError
from ortfuse.generation.token_embeddings import Prompt

Array = np.ndarray[Any, Any]


def without_padding(prompts: Sequence[Prompt], attention_mask: Array | Sequence[Sequence[int]]) -> list[Prompt]:
    """The tokens of each prompt that its row of the mask shows, padded on the left or on the right.

    Args:
        prompts: Rows of equal length: token ids [batch, tokens], or embeddings [batch, tokens, size].
        attention_mask: [batch, tokens], 1 for a token and 0 for padding.

    Raises:
        GenerationError: The mask does not fit the prompts, or hides a token between others.
    """
    mask = np.asarray(attention_mask)
    rows = [np.asarray(prompt) for prompt in prompts]
    wanted = (len(rows), len(rows[0]) if rows else 0)
    if mask.shape != wanted or any(len(row) != wanted[1] for row in rows):
        text = f"a row for each prompt, of as many numbers as it has tokens with its padding: {list(wanted)}"
        raise GenerationError(f"attention_mask has the shape {list(mask.shape)}, and needs {text}")
    if not np.isin(mask, (0, 1)).all():
        raise GenerationError("attention_mask has other numbers than 1 for a token and 0 for padding")
    shown = mask.astype(bool)
    for number, row in enumerate(shown):
        places = np.flatnonzero(row)
        if len(places) and places[-1] - places[0] + 1 != len(places):
            text = "padding stands on the left or on the right of its tokens, not between them"
            raise GenerationError(f"attention_mask of prompt {number} hides a token between others: {text}")
    return [row[kept] for row, kept in zip(rows, shown, strict=True)]


def common_prefix(prompts: Sequence[Prompt]) -> int:
    """The number of first tokens that all prompts have in common, each with at least one more behind them."""
    longest = min(len(prompt) for prompt in prompts) - 1
    columns = zip(*(prompt[:longest] for prompt in prompts), strict=True)
    return next((number for number, column in enumerate(columns) if len(set(column)) > 1), longest)
