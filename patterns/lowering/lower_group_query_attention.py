"""Lower com.microsoft GroupQueryAttention to operators of the standard.

present[t] = past[t] for t < start, new[t - start] for start <= t < start + S, 0 behind
y[s] = softmax(cap tanh(scale q[s] present_k^T / cap) where start + s - window < t <= start + s, t < length) present_v

`start` is 0 for a prompt (S = total), else the length of the sequence before the S new tokens. Keys and values have as many rows
as the past, or as there are tokens if these are more. With tables, queries and keys are rotated at start + s, by halves or by
neighbours (RoFormer, arXiv:2104.09864). Queries may have the keys and values behind them. A bias is added to the scores, and a
sink is one more score of each head, whose key has no value; it is 0 for a smooth softmax.

Positions of the rotation may be given. Of a prompt, kernels use the first one alone, and count from there. Heads of queries and
keys may be divided by the root of the mean of their squares before, and multiplied by weights. Caches may be 8-bit integers
clip(round(x / scale)); then attention reads these, also those of new tokens.

*Requires:* known numbers and sizes of heads. *Does not handle:* caches of 4 bits, windows of caches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, attr, built, computed, ms, op, opt, var

from .._shared_guards import array_like, constant
from ._group_query_instances import (
    ATTRIBUTES,
    EPSILONS,
    NORMALISED,
    OTHERS,
    QUANTISED,
    SCALE_KINDS,
    SCALE_SHAPES,
    SHAPES,
    WEIGHED,
    given_positions,
    last_tokens,
    tokens,
    without_norms,
)
from ._integer_operands import is_normal
from ._present_outputs import presents_are_used, with_presents
from ._rotated_heads import rotated

PASS = "canonicalize"

_NEW = ("query", "key", "value")
query, key, value, past_key, past_value = (var(name) for name in (*_NEW, "past_key", "past_value"))
seqlens, total, cos, sin = (var(name) for name in ("seqlens", "total", "cos", "sin"))
bias, sink, position_ids = var("bias"), var("sink"), var("position_ids")
_SCALES = {"key": var("key_scale"), "value": var("value_scale")}
_WEIGHTS = {"query": var("query_weight"), "key": var("key_weight")}

_LEAST, _MOST = -128, 127
_EPSILON = 1e-6
"""What is added to the mean of squares, where no attribute says it."""

zero, one = computed("zero", lambda match: np.int64(0)), computed("one", lambda match: np.int64(1))


def heads_are_known(match: Match) -> Refusal | None:
    """Queries, keys, values and their past have known numbers and sizes of heads, in float32."""
    heads, groups, shape = match["num_heads"], match["kv_num_heads"], match.shape("query")
    last = None if shape is None or len(shape) != 3 else shape[-1]
    merged = 0 if not heads or not groups else heads + 2 * groups if _is_packed(match) else heads
    if not merged or heads % groups or not isinstance(last, int) or not last or last % merged:
        return match.refuse_dimension("query", -1, "a known multiple of the number of heads")
    assert shape is not None
    if _is_packed(match) != (match.get("value") is None):
        return match.refuse("missing_input", "value", "one where there are keys")
    size = last // merged
    for name in () if _is_packed(match) else ("key", "value"):
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


def _is_packed(match: Match) -> bool:
    """Whether keys and values stand behind the queries in one input."""
    return match.get("key") is None


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
    return match.unless_value("cos", 2 * table[1] <= _size(match), "at most half of a head")


def rotates_nothing(match: Match) -> Refusal | None:
    """Nothing is rotated."""
    return match.unless_value("do_rotary", match["do_rotary"] in (None, 0), 0)


def scales_are_known(match: Match) -> Refusal | None:
    """Caches are int8 with a scale for all of them, or one for each number of a head."""
    groups = match["kv_num_heads"]
    for name, kind in (("key", "k_kind"), ("value", "v_kind")):
        wanted = {"PER_TENSOR": (1,), "PER_CHANNEL": (1, groups, 1, _size(match))}.get(match[kind])
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
    size = _size(match)
    for name in ("query_epsilon", "key_epsilon", "epsilon"):
        given = match[name]
        if given is not None and not (given > 0 and math.isfinite(given)):
            return match.refuse("attribute", name, "positive and finite")
    return match.unless_shape((size,), "query_weight") or match.unless_shape((size,), "key_weight")


def _size(match: Match) -> int:
    """The size of a head."""
    shape = match.shape("query")
    assert shape is not None and isinstance(shape[-1], int)
    return shape[-1] // (int(match["num_heads"]) + (2 * int(match["kv_num_heads"]) if _is_packed(match) else 0))


def _new(match: Match, name: str) -> Pattern:
    """New queries, keys or values, [batch, rows, heads * size]."""
    if not _is_packed(match):
        return var(name)
    heads, groups, size = match["num_heads"], match["kv_num_heads"], _size(match)
    ends = [0, heads * size, (heads + groups) * size, (heads + 2 * groups) * size]
    place = _NEW.index(name)
    made: Pattern = op.Slice(query, constant(ends[place]), constant(ends[place + 1]), constant(-1))
    return made


def _at(shape: Pattern, axis: int) -> Pattern:
    """[1], the size of an axis."""
    made: Pattern = op.Gather(shape, constant(axis), axis=0)
    return made


def _rows() -> Pattern:
    """[1], how many tokens are new."""
    return _at(op.Shape(query), 1)


def _all() -> Pattern:
    """[1], how many tokens there are."""
    made: Pattern = op.Reshape(op.Cast(total, to=ir.DataType.INT64), constant(1))
    return made


def _lengths() -> Pattern:
    """[batch, 1], the length of each sequence."""
    made: Pattern = op.Add(op.Reshape(op.Cast(seqlens, to=ir.DataType.INT64), constant(-1, 1)), one)
    return made


def _start() -> Pattern:
    """[batch, 1], the position of the first new token."""
    made: Pattern = op.Where(op.Equal(_rows(), _all()), zero, op.Sub(_lengths(), _rows()))
    return made


def _positions() -> Pattern:
    """[batch, rows], the positions of the new tokens."""
    made: Pattern = op.Add(op.Range(zero, op.Squeeze(_rows(), constant(0)), one), _start())
    return made


def _rotary_positions(match: Match) -> Pattern:
    """[batch, rows], the positions at which the new tokens are rotated: of a prompt, those from the first given one on."""
    if match.get("position_ids") is None:
        return _positions()
    first = op.Gather(op.Reshape(position_ids, constant(-1)), constant(0), axis=0)
    counted = op.Add(op.Range(zero, op.Squeeze(_rows(), constant(0)), one), first)
    made: Pattern = op.Where(op.Equal(_rows(), _all()), counted, position_ids)
    return made


def _room() -> Pattern:
    """[1], how many rows the present keys and values have."""
    made: Pattern = op.Max(_at(op.Shape(past_key), 2), _all())
    return made


def _keys_range() -> Pattern:
    """[room], the numbers of the present keys."""
    made: Pattern = op.Range(zero, op.Squeeze(_room(), constant(0)), one)
    return made


def _split(match: Match, part: Pattern, heads: int) -> Pattern:
    """[batch, heads, rows, size] of [batch, rows, heads * size]."""
    made: Pattern = op.Transpose(op.Reshape(part, constant(0, 0, heads, _size(match))), perm=(0, 2, 1, 3))
    return made


def _rotated(match: Match, part: Pattern) -> Pattern:
    """[batch, heads, rows, size], rotated at the positions."""
    if match["do_rotary"] != 1:
        return part
    half, size = (match.shape("cos") or (0, 0))[1], _size(match)
    assert isinstance(half, int)
    cosines, sines = (
        op.Unsqueeze(op.Gather(table, _rotary_positions(match), axis=0), constant(1)) for table in (cos, sin)
    )
    return rotated(part, half, size, cosines, sines, neighbours=match["interleaved"] == 1)


def _present(match: Match, new: Pattern, past: Pattern) -> Pattern:
    """[batch, groups, room, size], the past with what is new in its place."""
    groups, size = match["kv_num_heads"], _size(match)
    last = op.Sub(_rows(), one)
    indices = op.Max(op.Min(op.Sub(_keys_range(), _start()), last), zero)
    sizes = op.Concat(_at(op.Shape(query), 0), constant(groups), _room(), constant(size), axis=0)
    spread = op.Expand(op.Unsqueeze(indices, constant(1, 3)), sizes)
    added = op.Sub(_room(), _at(op.Shape(past_key), 2))
    padded = op.Pad(past, op.Concat(constant(0, 0, 0, 0, 0, 0), added, constant(0), axis=0))
    is_past, is_known = (
        op.Unsqueeze(op.Less(_keys_range(), end), constant(1, 3)) for end in (_start(), op.Add(_start(), _rows()))
    )
    nothing = computed("nothing", lambda match: array_like(match, 0.0))
    made: Pattern = op.Where(is_past, padded, op.Where(is_known, op.GatherElements(new, spread, axis=2), nothing))
    return made


def _heads_of(match: Match, name: str) -> Pattern:
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
    made: Pattern = op.Mul(op.Div(heads, root), _WEIGHTS[name])
    return made


def _is_integer(match: Match) -> bool:
    """Whether caches are integers."""
    return match.get("key_scale") is not None


def _stored(match: Match, name: str) -> Pattern:
    """[batch, groups, room, size], all keys or values as the cache has them, in float32."""
    new, past = _heads_of(match, name), past_key if name == "key" else past_value
    if not _is_integer(match):
        return _present(match, new, past)
    steps = op.Clip(op.Round(op.Div(new, _SCALES[name])), float(_LEAST), float(_MOST))
    return _present(match, steps, op.Cast(past, to=ir.DataType.FLOAT))


def _all_of(match: Match, name: str) -> Pattern:
    """All keys or values as attention reads them."""
    stored = _stored(match, name)
    return op.Mul(stored, _SCALES[name]) if _is_integer(match) else stored


def _cache(match: Match, name: str) -> Pattern:
    stored = _stored(match, name)
    return op.Cast(stored, to=ir.DataType.INT8) if _is_integer(match) else stored


def _keys(match: Match) -> Pattern:
    return _cache(match, "key")


def _values(match: Match) -> Pattern:
    return _cache(match, "value")


def _has_window(match: Match) -> bool:
    return match["window"] is not None and match["window"] > 0


def _seen(match: Match) -> Pattern:
    """[batch, 1, rows, room], whether a query sees a key. Rows of padding see none behind the last token."""
    query_positions = op.Unsqueeze(_positions(), constant(2))
    is_own = op.Less(_keys_range(), op.Unsqueeze(_lengths(), constant(2)))
    made: Pattern = op.And(op.LessOrEqual(_keys_range(), query_positions), is_own)
    if _has_window(match):
        first = op.Sub(query_positions, computed("window", lambda match: np.int64(match["window"])))
        made = op.And(made, op.Greater(_keys_range(), first))
    return op.Unsqueeze(made, constant(1))


def _bias_of_room(match: Match, *, is_grouped: bool) -> Pattern:
    """The bias with a column for each present key, as it broadcasts to the scores."""
    missing = op.Sub(_room(), _at(op.Shape(bias), 3))
    wide = op.Pad(bias, op.Concat(constant(0, 0, 0, 0, 0, 0, 0), missing, axis=0))
    if not is_grouped:
        return wide
    if (match.shape("bias") or (1, 1))[1] == 1:
        return op.Unsqueeze(wide, constant(2))
    groups = match["kv_num_heads"]
    apart: Pattern = op.Concat(constant(0, groups, match["num_heads"] // groups), _rows(), _room(), axis=0)
    return op.Reshape(wide, apart)


def _has_sink(match: Match) -> bool:
    return match.get("sink") is not None or match["smooth"] == 1


def _with_sink(match: Match, scores: Pattern, *, is_grouped: bool) -> Pattern:
    """The weights beside one of a key without a value."""
    heads, groups = match["num_heads"], match["kv_num_heads"]
    shape = (1, groups, heads // groups, 1, 1) if is_grouped else (1, heads, 1, 1)
    column: Pattern = computed("no sink", lambda match: np.zeros(shape, np.float32))
    if match.get("sink") is not None:
        column = op.Reshape(sink, constant(*shape))
    column = op.Expand(column, op.Concat(_at(op.Shape(query), 0), constant(*shape[1:-2]), _rows(), constant(1), axis=0))
    weights = op.Softmax(op.Concat(scores, column, axis=-1), axis=-1)
    made: Pattern = op.Slice(weights, constant(0), _room(), constant(-1))
    return made


def _attended(match: Match) -> Pattern:
    heads, groups, size = match["num_heads"], match["kv_num_heads"], _size(match)
    scale = match["scale"] or 1 / math.sqrt(size)
    queries: Pattern = op.Mul(_heads_of(match, "query"), scale)
    keys, values, seen = _all_of(match, "key"), _all_of(match, "value"), _seen(match)
    is_grouped = heads != groups
    if is_grouped:  # heads that share keys are an axis of their own
        queries = op.Reshape(queries, constant(0, groups, heads // groups, -1, size))
        keys, values, seen = (op.Unsqueeze(part, constant(2)) for part in (keys, values, seen))
    scores: Pattern = op.MatMul(queries, op.Transpose(keys, perm=(0, 1, 2, 4, 3) if is_grouped else (0, 1, 3, 2)))
    if match["softcap"]:
        scores = op.Mul(op.Tanh(op.Div(scores, match["softcap"])), match["softcap"])
    if match.get("bias") is not None:
        scores = op.Add(scores, _bias_of_room(match, is_grouped=is_grouped))
    hidden = computed("hidden", lambda match: array_like(match, -math.inf))
    scores = op.Where(seen, scores, hidden)
    weights: Pattern = (
        _with_sink(match, scores, is_grouped=is_grouped) if _has_sink(match) else op.Softmax(scores, axis=-1)
    )
    if _has_window(match):  # a row of padding may see no key: it is 0 then, as in the kernel
        weights = op.Where(seen, weights, computed("nothing", lambda match: array_like(match, 0.0)))
    found: Pattern = op.MatMul(weights, values)
    if is_grouped:
        found = op.Reshape(found, constant(0, heads, -1, size))
    return op.Reshape(op.Transpose(found, perm=(0, 2, 1, 3)), constant(0, 0, heads * size))


_MAKES = (
    *(
        "Add",
        "And",
        "Cast",
        "Clip",
        "Concat",
        "Div",
        "Equal",
        "Expand",
        "Gather",
        "GatherElements",
        "Greater",
        "Less",
        "LessOrEqual",
    ),
    *(
        "MatMul",
        "Max",
        "Min",
        "Mul",
        "Pad",
        "Range",
        "ReduceMean",
        "Reshape",
        "Round",
        "Shape",
        "Slice",
        "Softmax",
        "Sqrt",
        "Squeeze",
        "Sub",
        "Tanh",
    ),
    *("Transpose", "Unsqueeze", "Where"),
)


def _rule(
    name: str, tables: tuple[Pattern, ...], columns: str, rotary: int, *, norms: bool = False, integers: bool = False
) -> Rule:
    more = {"cos": f"9 {columns}", "sin": f"9 {columns}"} if tables else {}
    positions = opt(position_ids) if tables else None
    scales = (*_SCALES.values(),) if integers else (None, None)
    weights = (*_WEIGHTS.values(),) if norms else ()
    written = QUANTISED if integers else NORMALISED if norms else {}
    cases: Sequence[tuple[Mapping[str, str], Mapping[str, Sequence[Any]]]] = [*zip(SHAPES, OTHERS, strict=True)]
    extras: Sequence[tuple[Mapping[str, str], Mapping[str, Sequence[Any]]]] = ()
    if integers:
        extras = [*zip(SCALE_SHAPES, SCALE_KINDS, strict=True)]
    elif norms:
        extras = [({"query_weight": "16", "key_weight": "16"}, EPSILONS)] * 2
    if extras:
        pairs = zip((cases[3], cases[5]), extras, strict=True)
        cases = [({**shapes, **more}, {**given, **others}) for (shapes, given), (more, others) in pairs]
    return Rule(
        name=f"attention.{name}",
        formula="com.microsoft.GroupQueryAttention(query, key, value, past_key, past_value, seqlens, total, cos, sin)",
        pattern=ms.GroupQueryAttention(
            query, opt(key), opt(value), past_key, past_value, seqlens, total, *(tables or (None, None)), positions,
            opt(bias), opt(sink), *((*scales, *weights) if integers or norms else ()),
            num_heads=attr("num_heads"), kv_num_heads=attr("kv_num_heads"), scale=attr("scale"),
            local_window_size=attr("window"), softcap=attr("softcap"), do_rotary=attr("do_rotary"),
            rotary_interleaved=attr("interleaved"), smooth_softmax=attr("smooth"),
            **{attribute: attr(captured) for attribute, captured in written.items()},
        ).naming(present_key=1, present_value=2),
        replace=built(_attended, makes=_MAKES),
        intermediates={"present_key": built(_keys, makes=_MAKES), "present_value": built(_values, makes=_MAKES)},
        is_refinement=True,
        spells_out=True,
        guards=(
            heads_are_known, rotates_by_tables if tables else rotates_nothing, presents_are_used,
            *((scales_are_known,) if integers else ()), *((weights_are_known,) if norms else ()),
        ),
        exactness=Exactness.ROUNDING,
        source="com.microsoft operators of ONNX Runtime; arXiv:2305.13245",
        test=RuleTest(
            shapes=tuple({**sizes, **more} for sizes, _ in cases),
            attributes=tuple(
                {**ATTRIBUTES, "do_rotary": [rotary], "interleaved": [0, rotary], **others} for _, others in cases
            ),
            inputs={
                "seqlens": last_tokens, "total": tokens, "position_ids": given_positions,
                **({"past_key": "int8", "past_value": "int8"} if integers else {}),
            },
            constants={"key_scale": "positive", "value_scale": "positive"} if integers else {},
            never_empty={"*": "the kernel refuses empty tensors"},
            followed_by=with_presents,
            definitions={"com.microsoft.GroupQueryAttention": without_norms} if norms else {},
            assumes={
                "input 0 of GroupQueryAttention* is *inf*": "scores are taken to be finite",
                "input 2 of GroupQueryAttention* is *inf*": "values of padding are taken to be finite",
                **{
                    f"input {index} of GroupQueryAttention* is *inf*": "scores are taken to be finite"
                    for index in WEIGHED
                    if norms or integers
                },
            },
        ),
    )  # fmt: skip


RULES = [
    _rule("lower_group_query_attention", (), "", 0),
    _rule("lower_group_query_attention_with_rotary_embedding", (cos, sin), "8", 1),
    _rule("lower_group_query_attention_of_normalised_heads", (cos, sin), "8", 1, norms=True),
    _rule("lower_group_query_attention_with_integer_caches", (), "", 0, integers=True),
    _rule("lower_group_query_attention_with_integer_caches_and_rotary_embedding", (cos, sin), "8", 1, integers=True),
]
