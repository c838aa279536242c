"""Keys and values of com.microsoft GroupQueryAttention: the new ones, and those of the cache with the new ones in it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortfuse.rewrite.pattern import Match, Pattern, computed, op, var

from .._shared_guards import array_like, constant
from ._group_query_operands import (
    NEW,
    SCALES,
    WEIGHTS,
    cos,
    head_size,
    is_packed,
    past_key,
    past_value,
    position_ids,
    query,
    seqlens,
    sin,
    total,
)
from ._rotated_heads import rotated

_LEAST, _MOST = -128, 127
_EPSILON = 1e-6
"""The number that is added to the mean of squares, where no attribute says it."""

zero, one = computed("zero", lambda match: np.int64(0)), computed("one", lambda match: np.int64(1))


def _new(match: Match, name: str) -> Pattern:
    """New queries, keys or values, [batch, rows, heads * size]."""
    if not is_packed(match):
        return var(name)
    heads, groups, size = match["num_heads"], match["kv_num_heads"], head_size(match)
    ends = [0, heads * size, (heads + groups) * size, (heads + 2 * groups) * size]
    place = NEW.index(name)
    made: Pattern = op.Slice(query, constant(ends[place]), constant(ends[place + 1]), constant(-1))
    return made


def size_of_axis(shape: Pattern, axis: int) -> Pattern:
    """[1], the size of an axis."""
    made: Pattern = op.Gather(shape, constant(axis), axis=0)
    return made


def rows() -> Pattern:
    """[1], how many tokens are new."""
    return size_of_axis(op.Shape(query), 1)


def _all() -> Pattern:
    """[1], how many tokens there are."""
    made: Pattern = op.Reshape(op.Cast(total, to=ir.DataType.INT64), constant(1))
    return made


def lengths() -> Pattern:
    """[batch, 1], the length of each sequence."""
    made: Pattern = op.Add(op.Reshape(op.Cast(seqlens, to=ir.DataType.INT64), constant(-1, 1)), one)
    return made


def _start() -> Pattern:
    """[batch, 1], the position of the first new token."""
    made: Pattern = op.Where(op.Equal(rows(), _all()), zero, op.Sub(lengths(), rows()))
    return made


def positions() -> Pattern:
    """[batch, rows], the positions of the new tokens."""
    made: Pattern = op.Add(op.Range(zero, op.Squeeze(rows(), constant(0)), one), _start())
    return made


def _rotary_positions(match: Match) -> Pattern:
    """[batch, rows], the positions at which the new tokens are rotated: of a prompt, those from the first given one on."""
    if match.get("position_ids") is None:
        return positions()
    first = op.Gather(op.Reshape(position_ids, constant(-1)), constant(0), axis=0)
    counted = op.Add(op.Range(zero, op.Squeeze(rows(), constant(0)), one), first)
    made: Pattern = op.Where(op.Equal(rows(), _all()), counted, position_ids)
    return made


def room() -> Pattern:
    """[1], how many rows the present keys and values have."""
    made: Pattern = op.Max(size_of_axis(op.Shape(past_key), 2), _all())
    return made


def keys_range() -> Pattern:
    """[room], the numbers of the present keys."""
    made: Pattern = op.Range(zero, op.Squeeze(room(), constant(0)), one)
    return made


def _split(match: Match, part: Pattern, heads: int) -> Pattern:
    """[batch, heads, rows, size] of [batch, rows, heads * size]."""
    made: Pattern = op.Transpose(op.Reshape(part, constant(0, 0, heads, head_size(match))), perm=(0, 2, 1, 3))
    return made


def _rotated(match: Match, part: Pattern) -> Pattern:
    """[batch, heads, rows, size], rotated at the positions."""
    if match["do_rotary"] != 1:
        return part
    half, size = (match.shape("cos") or (0, 0))[1], head_size(match)
    assert isinstance(half, int)
    cosines, sines = (
        op.Unsqueeze(op.Gather(table, _rotary_positions(match), axis=0), constant(1)) for table in (cos, sin)
    )
    return rotated(part, half, size, cosines, sines, neighbours=match["interleaved"] == 1)


def _present(match: Match, new: Pattern, past: Pattern) -> Pattern:
    """[batch, groups, room, size], the past with what is new in its place."""
    groups, size = match["kv_num_heads"], head_size(match)
    last = op.Sub(rows(), one)
    indices = op.Max(op.Min(op.Sub(keys_range(), _start()), last), zero)
    sizes = op.Concat(size_of_axis(op.Shape(query), 0), constant(groups), room(), constant(size), axis=0)
    spread = op.Expand(op.Unsqueeze(indices, constant(1, 3)), sizes)
    added = op.Sub(room(), size_of_axis(op.Shape(past_key), 2))
    padded = op.Pad(past, op.Concat(constant(0, 0, 0, 0, 0, 0), added, constant(0), axis=0))
    is_past, is_known = (
        op.Unsqueeze(op.Less(keys_range(), end), constant(1, 3)) for end in (_start(), op.Add(_start(), rows()))
    )
    nothing = computed("nothing", lambda match: array_like(match, 0.0))
    made: Pattern = op.Where(is_past, padded, op.Where(is_known, op.GatherElements(new, spread, axis=2), nothing))
    return made


def heads_of(match: Match, name: str) -> Pattern:
    """[batch, heads, rows, size], the new queries, keys or values, normalised and rotated where they are."""
    made = _split(match, _new(match, name), match["num_heads" if name == "query" else "kv_num_heads"])
    if name == "value":
        return made
    return _rotated(match, _normalised(match, name, made))


def _normalised(match: Match, name: str, heads: Pattern) -> Pattern:
    """Heads that are divided by the root of the mean of their squares, times the weights, where there are any."""
    if match.get(f"{name}_weight") is None:
        return heads
    given = match[f"{name}_epsilon"] if match[f"{name}_epsilon"] is not None else match["epsilon"]
    mean = op.ReduceMean(op.Mul(heads, heads), axes=(-1,), keepdims=1)
    root = op.Sqrt(op.Add(mean, _EPSILON if given is None else given))
    made: Pattern = op.Mul(op.Div(heads, root), WEIGHTS[name])
    return made


def _is_integer(match: Match) -> bool:
    """Whether caches are integers."""
    return match.get("key_scale") is not None


def _stored(match: Match, name: str) -> Pattern:
    """[batch, groups, room, size], all keys or values as the cache has them, in float32."""
    new, past = heads_of(match, name), past_key if name == "key" else past_value
    if not _is_integer(match):
        return _present(match, new, past)
    steps = op.Clip(op.Round(op.Div(new, SCALES[name])), float(_LEAST), float(_MOST))
    return _present(match, steps, op.Cast(past, to=ir.DataType.FLOAT))


def all_of(match: Match, name: str) -> Pattern:
    """[batch, groups, room, size], all keys or values as attention reads them, in float32."""
    stored = _stored(match, name)
    return op.Mul(stored, SCALES[name]) if _is_integer(match) else stored


def _cache(match: Match, name: str) -> Pattern:
    stored = _stored(match, name)
    return op.Cast(stored, to=ir.DataType.INT8) if _is_integer(match) else stored


def cached_keys(match: Match) -> Pattern:
    """[batch, groups, room, size], the keys that the operator hands out, in the type of the past."""
    return _cache(match, "key")


def cached_values(match: Match) -> Pattern:
    """The values, in the same way."""
    return _cache(match, "value")
