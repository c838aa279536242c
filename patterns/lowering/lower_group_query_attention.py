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

from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, attr, built, computed, ms, op, opt

from .._shared_guards import array_like, constant
from ._group_query_caches import (
    all_of,
    cached_keys,
    cached_values,
    heads_of,
    keys_range,
    lengths,
    positions,
    room,
    rows,
    size_of_axis,
)
from ._group_query_guards import (
    heads_are_known,
    rotates_by_tables,
    rotates_nothing,
    scales_are_known,
    weights_are_known,
)
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
from ._group_query_operands import (
    SCALES,
    WEIGHTS,
    bias,
    cos,
    head_size,
    key,
    past_key,
    past_value,
    position_ids,
    query,
    seqlens,
    sin,
    sink,
    total,
    value,
)
from ._present_outputs import presents_are_used, with_presents

PASS = "canonicalize"


def _has_window(match: Match) -> bool:
    return match["window"] is not None and match["window"] > 0


def _seen(match: Match) -> Pattern:
    """[batch, 1, rows, room], whether a query sees a key. Rows of padding see none behind the last token."""
    query_positions = op.Unsqueeze(positions(), constant(2))
    is_own = op.Less(keys_range(), op.Unsqueeze(lengths(), constant(2)))
    made: Pattern = op.And(op.LessOrEqual(keys_range(), query_positions), is_own)
    if _has_window(match):
        first = op.Sub(query_positions, computed("window", lambda match: np.int64(match["window"])))
        made = op.And(made, op.Greater(keys_range(), first))
    return op.Unsqueeze(made, constant(1))


def _bias_of_room(match: Match, *, is_grouped: bool) -> Pattern:
    """The bias with a column for each present key, as it broadcasts to the scores."""
    missing = op.Sub(room(), size_of_axis(op.Shape(bias), 3))
    wide = op.Pad(bias, op.Concat(constant(0, 0, 0, 0, 0, 0, 0), missing, axis=0))
    if not is_grouped:
        return wide
    if (match.shape("bias") or (1, 1))[1] == 1:
        return op.Unsqueeze(wide, constant(2))
    groups = match["kv_num_heads"]
    apart: Pattern = op.Concat(constant(0, groups, match["num_heads"] // groups), rows(), room(), axis=0)
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
    column = op.Expand(
        column, op.Concat(size_of_axis(op.Shape(query), 0), constant(*shape[1:-2]), rows(), constant(1), axis=0)
    )
    weights = op.Softmax(op.Concat(scores, column, axis=-1), axis=-1)
    made: Pattern = op.Slice(weights, constant(0), room(), constant(-1))
    return made


def _attended(match: Match) -> Pattern:
    heads, groups, size = match["num_heads"], match["kv_num_heads"], head_size(match)
    scale = match["scale"] or 1 / math.sqrt(size)
    queries: Pattern = op.Mul(heads_of(match, "query"), scale)
    keys, values, seen = all_of(match, "key"), all_of(match, "value"), _seen(match)
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
    scales = (*SCALES.values(),) if integers else (None, None)
    weights = (*WEIGHTS.values(),) if norms else ()
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
        intermediates={"present_key": built(cached_keys, makes=_MAKES), "present_value": built(cached_values, makes=_MAKES)},
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
    _rule("lower_group_query_attention_with_int8_caches", (), "", 0, integers=True),
    _rule("lower_group_query_attention_with_int8_caches_and_rotary", (cos, sin), "8", 1, integers=True),
]
