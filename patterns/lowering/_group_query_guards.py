"""Conditions under which com.microsoft GroupQueryAttention is lowered: what its operands and attributes have to be."""

from __future__ import annotations

import math

import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite.pattern import Match

from ._group_query_operands import head_size, is_packed
from ._integer_operands import is_normal


def heads_are_known(match: Match) -> Refusal | None:
    """Queries, keys, values and their past have known numbers and sizes of heads, in float32."""
    heads, groups, shape = match["num_heads"], match["kv_num_heads"], match.shape("query")
    last = None if shape is None or len(shape) != 3 else shape[-1]
    merged = 0 if not heads or not groups else heads + 2 * groups if is_packed(match) else heads
    if not merged or heads % groups or not isinstance(last, int) or not last or last % merged:
        return match.refuse_dimension("query", -1, "a known multiple of the number of heads")
    assert shape is not None
    if is_packed(match) != (match.get("value") is None):
        return match.refuse("missing_input", "value", "one where there are keys")
    size = last // merged
    for name in () if is_packed(match) else ("key", "value"):
        if match.shape(name) != (*shape[:2], groups * size):
            return match.refuse("shape", name, "the batch and rows of the queries, and heads of their size")
    for name in ("past_key", "past_value"):
        found = match.shape(name)
        if found is None or len(found) != 4 or (found[0], found[1], found[3]) != (shape[0], groups, size):
            return match.refuse("shape", name, "heads of the size of the new ones")
    if match.shape("past_key") != match.shape("past_value"):
        return match.refuse("shape", "past_value", "that of the past of the keys")
    lengths = match.shape("seqlens")
    if lengths is None or lengths[0] != shape[0] or math.prod(lengths[1:]) != 1:
        return match.refuse("shape", "seqlens", "a length for each batch")
    return match.unless_dtype("query", ir.DataType.FLOAT) or _bounds_are_usual(match) or _extras_are_known(match)


def _extras_are_known(match: Match) -> Refusal | None:
    """A bias has known heads and a number for each query, and a sink a number for each head."""
    heads, shape = match["num_heads"], match.shape("bias")
    if match.get("bias") is not None and (shape is None or len(shape) != 4 or shape[1] not in (1, heads)):
        return match.refuse("shape", "bias", "four axes with one head or all of them")
    if match.get("sink") is not None:
        return match.unless_shape((heads,), "sink") or match.unless_value("smooth", match["smooth"] != 1, "not 1")
    return None


def _bounds_are_usual(match: Match) -> Refusal | None:
    """There is no window or one of keys, and no bound of scores or one above 0."""
    window, cap = match["window"], match["softcap"]
    found = match.unless_value("window", window in (None, -1) or window > 0, "-1 or more than 0")
    return found or match.unless_value("softcap", cap is None or cap >= 0, "at least 0")


def rotates_by_tables(match: Match) -> Refusal | None:
    """Queries and keys are rotated, by tables no wider than a head."""
    if match["do_rotary"] != 1:
        return match.refuse("attribute", "do_rotary", 1)
    table = match.shape("cos")
    if table is None or len(table) != 2 or table != match.shape("sin") or not isinstance(table[1], int):
        return match.refuse("shape", "cos", "a table as that of the sines, with a known number of columns")
    if match.get("position_ids") is not None:
        shape = match.shape("query")
        assert shape is not None
        if (found := match.unless_shape(shape[:2], "position_ids")) is not None:
            return found
    return match.unless_value("cos", 2 * table[1] <= head_size(match), "at most half of a head")


def rotates_nothing(match: Match) -> Refusal | None:
    """Nothing is rotated."""
    return match.unless_value("do_rotary", match["do_rotary"] in (None, 0), 0)


def scales_are_known(match: Match) -> Refusal | None:
    """Caches are int8 with a scale for all of them, or one for each number of a head."""
    groups = match["kv_num_heads"]
    for name, kind in (("key", "k_kind"), ("value", "v_kind")):
        wanted = {"PER_TENSOR": (1,), "PER_CHANNEL": (1, groups, 1, head_size(match))}.get(match[kind])
        if wanted is None:
            return match.refuse("attribute", kind, "PER_TENSOR or PER_CHANNEL")
        found = match.unless_dtype(f"past_{name}", ir.DataType.INT8) or match.unless_shape(wanted, f"{name}_scale")
        if found is not None:
            return found
        numbers = match.facts.const(match[f"{name}_scale"])
        if numbers is None or not is_normal(numbers):
            return match.refuse("value", f"{name}_scale", "constants that are positive and normal numbers")
    return match.unless_value("bits", match["bits"] in (None, 8), "8")


def weights_are_known(match: Match) -> Refusal | None:
    """There is a weight for each number of a head, and what is added to the mean of squares is positive."""
    size = head_size(match)
    for name in ("query_epsilon", "key_epsilon", "epsilon"):
        given = match[name]
        if given is not None and not (given > 0 and math.isfinite(given)):
            return match.refuse("attribute", name, "positive and finite")
    return match.unless_shape((size,), "query_weight") or match.unless_shape((size,), "key_weight")
