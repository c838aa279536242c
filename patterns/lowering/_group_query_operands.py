"""Operands of com.microsoft GroupQueryAttention, and the size of its heads."""

from __future__ import annotations

from ortfuse.rewrite.pattern import Match, var

NEW = ("query", "key", "value")
query, key, value, past_key, past_value = (var(name) for name in (*NEW, "past_key", "past_value"))
seqlens, total, cos, sin = (var(name) for name in ("seqlens", "total", "cos", "sin"))
bias, sink, position_ids = var("bias"), var("sink"), var("position_ids")
SCALES = {"key": var("key_scale"), "value": var("value_scale")}
"""The steps of caches of integers."""

WEIGHTS = {"query": var("query_weight"), "key": var("key_weight")}
"""The factors of heads that are normalised."""


def is_packed(match: Match) -> bool:
    """Whether keys and values stand behind the queries in one input."""
    return match.get("key") is None


def head_size(match: Match) -> int:
    """The size of a head."""
    shape = match.shape("query")
    assert shape is not None and isinstance(shape[-1], int)
    return shape[-1] // (int(match["num_heads"]) + (2 * int(match["kv_num_heads"]) if is_packed(match) else 0))
