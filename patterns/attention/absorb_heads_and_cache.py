"""Absorb the nodes that split, merge and repeat heads, and the Concat of a KV cache, into Attention.

transpose(attention(split(q), split(k), split(v), mask)) = attention(q, k, v, mask; q_num_heads)
attention(q, repeat(k), repeat(v), mask) = attention(q, k, v, mask; kv_num_heads)          Ainslie et al., arXiv:2305.13245
attention(q, concat(past_k, k), concat(past_v, v), mask) = attention(q, k, v, mask, past_k, past_v)

The `3d_inputs` rules let the kernel read and write [batch, length, heads * size].
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, Op, Pattern, attr, computed, op, opt, rearrange, redundant, var

from .._rule_test_inputs import NEVER_EMPTY, masked
from .._shared_guards import ints
from .sdpa import PAPER

mask = opt(var("mask"))
query, key, value = var("query", "b s (h d)"), var("key", "b t (g d)"), var("value", "b t (g v)")
split_query = rearrange("b s (h d) -> b h s d", query)
split_key = rearrange("b t (g d) -> b g t d", key)
split_value = rearrange("b t (g v) -> b g t v", value)
queries, keys, values = var("queries", "s b (h d)"), var("keys", "t b (g d)"), var("values", "t b (g v)")
past_key, past_value = var("past_key", "b g p d"), var("past_value", "b g p v")
new_key, new_value = var("new_key", "b g n d"), var("new_value", "b g n v")
shared_key, shared_value = var("shared_key", "b g t d"), var("shared_value", "b g t v")
_LAYOUT: dict[str, list[Any]] = {"scale": [0.5], "is_causal": [0], "softcap": [0.0], "mode": [0, 3]}


@redundant("of unknown heads the replacement could not say the shape of its result")
def heads_are_known(match: Match) -> Refusal | None:
    """The numbers of heads are known."""
    for name, dim in (("query", "h"), ("key", "g")):
        if match.size(dim) is None:
            return match.refuse_dimension(name, -1, f"a known number of heads ({dim})")
    return None


@redundant("without it the rule would undo itself")
def heads_are_repeated(match: Match) -> Refusal | None:
    """Heads of keys and values are repeated, and not moved alone."""
    shapes = match.shapes("shared_key", "repeated")
    if isinstance(shapes, Refusal):
        return shapes
    return match.refuse("needless", "repeated", found="no head is repeated") if shapes[0][2] == shapes[1][1] else None


def attention(*inputs: Pattern, **more: Any) -> Op:
    """The operator, with the attributes that the rules leave unchanged."""
    kept = {"scale": attr("scale"), "softcap": attr("softcap"), "qk_matmul_output_mode": attr("mode"), **more}
    made: Op = op.Attention(*inputs, **kept)
    return made


def _rule(name: str, formula: str, source: str, pattern: Pattern, replace: Pattern, made: Op, others: tuple[str, ...],
          test: RuleTest, guards: Any = ()) -> Rule:  # fmt: skip
    """A rule; `others` are the results of the operator, from the second on, that other nodes may use."""
    names = ("present_key", "present_value", "weights")
    return Rule(
        name=f"attention.{name}", formula=formula, is_refinement=True, pattern=pattern, replace=replace,
        intermediates={other: made[1 + names.index(other)] for other in others}, guards=guards, may_raise_opset=True,
        exactness=Exactness.ROUNDING, source=source, test=dataclasses.replace(test, opset=23),
    )  # fmt: skip


def _mix_heads_with_positions(model: ir.Model) -> None:
    """Merge the repeated heads wrongly, to half as many of twice the length."""
    for value in model.graph.initializers.values():
        if value.const_value is not None and value.const_value.numpy().tolist() == [0, 6, -1, 4]:
            value.const_value = ir.tensor(np.array([0, 3, -1, 4]), name=value.name)


cached = attention(var("query", "b h s d"), new_key, new_value, mask, past_key, past_value, outputs=4)
grouped = attention(var("query"), shared_key, shared_value, mask, is_causal=attr("is_causal"), outputs=4)
grouped_apart = attention(
    var("query"), rearrange("b t g d -> b g t d", var("shared_key")), rearrange("b t g v -> b g t v", var("shared_value")),
    mask, is_causal=attr("is_causal"), outputs=4,
)  # fmt: skip
merged = attention(
    query, key, value, mask, opt(past_key), opt(past_value), is_causal=attr("is_causal"), outputs=4,
    q_num_heads=lambda match: match.size("h"), kv_num_heads=lambda match: match.size("g"),
)  # fmt: skip


def _swapped(operand: Pattern) -> Op:
    """The first two axes, length and batch, swapped."""
    made: Op = op.Transpose(operand, perm=(1, 0, 2))
    return made


length_first = attention(
    _swapped(queries), _swapped(keys), _swapped(values), mask, is_causal=attr("is_causal"), outputs=4,
    q_num_heads=lambda match: match.size("h"), kv_num_heads=lambda match: match.size("g"),
)  # fmt: skip


@redundant("of unknown heads the replacement could not say the shape of its result")
def heads_of_queries_are_known(match: Match) -> Refusal | None:
    """The numbers of heads are known."""
    for name, dim in (("queries", "h"), ("keys", "g")):
        if match.size(dim) is None:
            return match.refuse_dimension(name, -1, f"a known number of heads ({dim})")
    return None


fixed_keys, fixed_values = var("keys", "_ _ _"), var("values", "_ _ _")


def _fixed(operand: Pattern, name: str, sizes: str) -> Op:
    """Heads split off the last axis of [length, batch, size], with a number for the length, and moved before it."""
    apart = (
        op.Reshape(operand, var(f"{name}_target"), allowzero=attr(f"{name}_zero")).kept().named(f"{name}_apart", sizes)
    )
    made: Op = op.Transpose(apart, perm=(1, 2, 0, 3))
    return made


def lengths_are_fixed(match: Match) -> Refusal | None:
    """Keys and values have a number as their length, as they do in every run whose batch is not empty."""
    length, heads = match.size("n"), match.size("g")
    if not length or not heads or match.size("h") is None:
        return match.refuse("shape", "keys_apart", "known numbers of positions and heads")
    for name, dim in (("keys", "d"), ("values", "v")):
        before, size = match.shape(name) or (), match.size(dim)
        if len(before) != 3 or size is None or before[1:] != (match.dim("b"), heads * size):
            return match.refuse("shape", name, "[length, batch, heads * size]")
    return None


def _with_length(operand: Pattern, size: str) -> Op:
    """The first two axes swapped, the length as the number that it is."""
    sizes = computed(f"{size}_sizes", lambda match: ints([0, match.size("n"), match.size("g") * match.size(size)]))
    made: Op = op.Reshape(_swapped(operand), sizes)
    return made


length_fixed = attention(
    _swapped(queries), _with_length(fixed_keys, "d"), _with_length(fixed_values, "v"), mask, is_causal=attr("is_causal"),
    outputs=4, q_num_heads=lambda match: match.size("h"), kv_num_heads=lambda match: match.size("g"),
)  # fmt: skip


query_apart, key_apart, value_apart = var("query", "b s h d"), var("key", "b t g d"), var("value", "b t g v")


def _merged_apart(queries: Pattern, keys: Pattern) -> Op:
    """The operator on [batch, length, heads * size], of queries and keys like that and of values whose heads are apart."""
    return attention(
        queries, keys, rearrange("b t g v -> b t (g v)", value_apart), mask, opt(past_key), opt(past_value),
        is_causal=attr("is_causal"), outputs=4,
        q_num_heads=lambda match: match.size("h"), kv_num_heads=lambda match: match.size("g"),
    )  # fmt: skip


def _rotated(operand: Pattern, name: str, **more: Any) -> Op:
    """Rotary position embedding by the angles of queries or of keys."""
    kept = {"interleaved": attr(f"{name}_interleaved"), "rotary_embedding_dim": attr(f"{name}_rotary"), **more}
    made: Op = op.RotaryEmbedding(operand, var(f"{name}_cos", "_ _ _"), var(f"{name}_sin", "_ _ _"), **kept)
    return made


merged_query, merged_key = (
    rearrange("b s h d -> b s (h d)", query_apart),
    rearrange("b t g d -> b t (g d)", key_apart),
)
apart = _merged_apart(merged_query, merged_key)
rotated = _merged_apart(
    _rotated(merged_query, "query", num_heads=lambda match: match.size("h")),
    _rotated(merged_key, "key", num_heads=lambda match: match.size("g")),
)


def _heads_first(operand: Pattern) -> Op:
    """The middle axes, length and heads, swapped."""
    made: Op = op.Transpose(operand, perm=(0, 2, 1, 3)).kept()
    return made


def _normalised(operand: Pattern) -> Pattern:
    """The normalisation of each head, which all heads share the scale of."""
    gain, axis = var("gain", "d"), attr("axis", _is_last, "the last")
    kept = {"epsilon": attr("epsilon"), "stash_type": attr("stash"), "axis": axis}
    centred = op.LayerNormalization(operand, gain, opt(var("bias", "d")), **kept)
    return (op.RMSNormalization(operand, gain, **kept) | centred).named("normalised")


def _is_last(axis: Any, facts: Any) -> bool:
    return axis in (-1, 3)


first_heads, second_heads = var("first", "b s h d"), var("second", "b t h d")


def _along_length(axis: Any, facts: Any) -> bool:
    return axis in (2, -2)


@redundant("of unknown sizes the replacement could not say the shape of its result")
def heads_have_known_sizes(match: Match) -> Refusal | None:
    """The numbers of heads and their sizes are known."""
    for name, dim in (("query", "h"), ("query", "d"), ("key", "g"), ("value", "v")):
        if match.size(dim) is None:
            return match.refuse_dimension(name, -1 if dim in "dv" else -2, f"a known number ({dim})")
    return None


_APART: tuple[dict[str, Any], ...] = (
    {"h": 2, "g": 2, "d": 4, "v": 4, "mask": "b 1 s t"},
    {"h": 2, "g": 2, "d": 4, "v": 4, "t": 5, "p": 3, "mask": "b 1 s 8"},
)
_ANGLES: tuple[dict[str, Any], ...] = tuple(
    {"query_cos": "b s 2", "query_sin": "b s 2", "key_cos": f"b {length} 2", "key_sin": f"b {length} 2"}
    for length in "t5"
)

RULES = [
    _rule(
        # As torch.nn.MultiheadAttention writes it; what is transposed is as much as before, but in one piece with its heads.
        "split_heads_to_3d_inputs_sequence_first",
        "transpose(attention(split(queries), split(keys), split(values), mask))", PAPER,
        op.Transpose(
            attention(
                rearrange("s b (h d) -> b h s d", queries), rearrange("t b (g d) -> b g t d", keys),
                rearrange("t b (g v) -> b g t v", values), mask, is_causal=attr("is_causal"),
            ).naming(weights=3),
            perm=(2, 0, 1, 3),
        ),
        rearrange("s b (h v) -> s b h v", _swapped(length_first[0])), length_first, ("weights",),
        RuleTest(
            shapes={"h": 2, "g": 2, "d": 4, "v": 4, "mask": "b 1 s t"},
            attributes=_LAYOUT,
            inputs={"mask": masked(-math.inf)},
            redundant={"dimension *": "the operator on split heads asks for it too"},
        ),
        (heads_of_queries_are_known,),
    ),
    _rule(
        # So does its export with an open length, in which the keys have the length that it was traced with.
        "split_heads_to_3d_inputs_fixed_length", "transpose(attention(split(queries), split(keys), split(values), mask))", PAPER,
        op.Transpose(
            attention(
                rearrange("s b (h d) -> b h s d", queries), _fixed(fixed_keys, "keys", "n b g d"),
                _fixed(fixed_values, "values", "n b g v"), mask, is_causal=attr("is_causal"),
            ).naming(weights=3),
            perm=(2, 0, 1, 3),
        ),
        rearrange("s b (h v) -> s b h v", _swapped(length_fixed[0])), length_fixed, ("weights",),
        RuleTest(
            shapes={
                "h": 2, "d": 4, "keys": "5 b 8", "values": "5 b 8", "mask": "b 1 s 5", "keys_target": "4", "values_target": "4",
            },
            constants={"keys_target": [5, 0, 2, 4], "values_target": [5, 0, 2, 4]},
            attributes={**_LAYOUT, "keys_zero": [0], "values_zero": [0]},
            inputs={"mask": masked(-math.inf)},
            redundant={"dimension *": "the operator on split heads asks for it too"},
        ),
        (lengths_are_fixed,),
    ),
    _rule(
        # How a causal mask is aligned with the past keys is up to the operator: the pattern has no causal mask.
        "kv_cache_concat_to_past", "attention(query, concat(past_key, new_key), concat(past_value, new_value), mask)",
        "ONNX operator Attention",
        attention(
            var("query", "b h s d"), op.Concat(past_key, new_key, axis=2).named("present_key"),
            op.Concat(past_value, new_value, axis=2).named("present_value"), mask,
        ).naming(weights=3),
        cached[0], cached, ("present_key", "present_value", "weights"),
        RuleTest(
            shapes=({"h": 6, "g": 2, "d": 4}, {"h": 6, "g": 2, "d": 4, "p": 3, "n": 5, "mask": "b 1 s 8"}),
            attributes=_LAYOUT,
            never_empty=NEVER_EMPTY,
            redundant={
                "dimension [np]": "the other one and the product of weights and values ask for it too",
                "dimension [bdgv]": "Concat asks for it too",
            },
        ),
    ),
    _rule(
        "repeated_kv_to_grouped_query", "attention(query, repeat(key), repeat(value), mask)", "arXiv:2305.13245",
        attention(
            var("query"), rearrange("b g t d -> b (g r) t d", shared_key),
            rearrange("b g t v -> b (g r) t v", shared_value), mask, is_causal=attr("is_causal"),
        ).naming(weights=3),
        grouped[0], grouped, ("weights",),
        RuleTest(
            shapes={"g": 2, "r": 3, "d": 4, "v": 4, "query": "b 6 s 4", "mask": "b 1 s t"},
            inputs={"mask": masked(-math.inf)},
            attributes=_LAYOUT,
            redundant={"dimension *": "the operator asks for it too; of g and r either follows from the other"},
            counterexamples={
                "heads mixed with positions": Variation(options={"mask": "absent"}, change=_mix_heads_with_positions),
            },
        ),
    ),
    _rule(
        # Repeated before they are moved to the front, as TensorFlow's networks do
        "repeated_kv_to_grouped_query_bsnh", "attention(query, transpose(repeat(key)), transpose(repeat(value)), mask)",
        "arXiv:2305.13245",
        attention(
            var("query"), rearrange("b t g d -> b (g r) t d", var("shared_key", "b t g d")).named("repeated"),
            rearrange("b t g v -> b (g r) t v", var("shared_value", "b t g v")), mask, is_causal=attr("is_causal"),
        ).naming(weights=3),
        grouped_apart[0], grouped_apart, ("weights",),
        RuleTest(
            shapes={"g": 2, "r": 3, "d": 4, "v": 4, "query": "b 6 s 4", "mask": "b 1 s t"},
            inputs={"mask": masked(-math.inf)},
            attributes=_LAYOUT,
            redundant={"dimension *": "the operator asks for it too; of g and r either follows from the other"},
        ),
        (heads_are_repeated,),
    ),
    _rule(
        "split_heads_to_3d_inputs", "transpose(attention(split(query), split(key), split(value), mask))", PAPER,
        op.Transpose(
            attention(
                split_query, split_key, split_value, mask, opt(past_key), opt(past_value), is_causal=attr("is_causal")
            ).naming(present_key=1, present_value=2, weights=3),
            perm=(0, 2, 1, 3),
        ),
        rearrange("b s (h v) -> b s h v", merged[0]), merged, ("present_key", "present_value", "weights"),
        RuleTest(
            shapes=(
                {"h": 2, "g": 2, "d": 4, "v": 4, "mask": "b 1 s t"},
                {"h": 2, "g": 2, "d": 4, "v": 4, "t": 5, "p": 3, "mask": "b 1 s 8"},
            ),
            attributes=_LAYOUT,
            inputs={"mask": masked(-math.inf)},
            redundant={"dimension *": "the operator on split heads asks for it too"},
        ),
        (heads_are_known,),
    ),
    _rule(
        # Of positions in rows and columns, which are split after the heads, or not at all: merging the heads again moves nothing.
        "transposed_heads_to_3d_inputs", "transpose(attention(transpose(query), transpose(key), transpose(value), mask))", PAPER,
        op.Transpose(
            attention(
                _heads_first(query_apart), _heads_first(key_apart), _heads_first(value_apart), mask, opt(past_key),
                opt(past_value), is_causal=attr("is_causal"),
            ).naming(present_key=1, present_value=2, weights=3),
            perm=(0, 2, 1, 3),
        ),
        rearrange("b s (h v) -> b s h v", apart[0]), apart, ("present_key", "present_value", "weights"),
        RuleTest(
            shapes=_APART,
            attributes={**_LAYOUT, "mode": [0]},
            inputs={"mask": masked(-math.inf)},
            redundant={"dimension *": "the operator on split heads asks for it too"},
        ),
        (heads_have_known_sizes,),
    ),
    _rule(
        # Of queries and keys that were normalised in each head before they are rotated.
        "transposed_heads_to_3d_inputs_with_rotary",
        "transpose(attention(rotary(transpose(query)), rotary(transpose(key)), transpose(value), mask))", PAPER,
        op.Transpose(
            attention(
                _rotated(_heads_first(query_apart), "query"), _rotated(_heads_first(key_apart), "key"),
                _heads_first(value_apart), mask, opt(past_key), opt(past_value), is_causal=attr("is_causal"),
            ).naming(present_key=1, present_value=2, weights=3),
            perm=(0, 2, 1, 3),
        ),
        rearrange("b s (h v) -> b s h v", rotated[0]), rotated, ("present_key", "present_value", "weights"),
        RuleTest(
            shapes=tuple(shapes | angles for shapes, angles in zip(_APART, _ANGLES, strict=True)),
            attributes={
                **_LAYOUT, "mode": [0], "query_interleaved": [0, 1], "key_interleaved": [0], "query_rotary": [0],
                "key_rotary": [0],
            },
            inputs={"mask": masked(-math.inf)},
            never_empty=NEVER_EMPTY,
            redundant={"dimension *": "the operators on heads that are apart ask for it too"},
        ),
        (heads_have_known_sizes,),
    ),
    Rule(
        # Of two sequences that attend to each other, as in arXiv:2403.03206
        name="attention.concat_of_head_transposes",
        formula="concat(transpose(first), transpose(second))",
        is_refinement=True,
        pattern=op.Concat(
            op.Transpose(first_heads, perm=(0, 2, 1, 3)), op.Transpose(second_heads, perm=(0, 2, 1, 3)),
            axis=attr("axis", _along_length, "that of the length"),
        ),
        replace=op.Transpose(op.Concat(first_heads, second_heads, axis=1), perm=(0, 2, 1, 3)),
        exactness=Exactness.EXACT,
        source="ONNX operators Concat and Transpose",
        test=RuleTest(
            shapes={"h": 2, "d": 4},
            attributes={"axis": [2, -2]},
            opset=17,
            redundant={"dimension *": "Concat asks for the same sizes"},
        ),
    ),
    Rule(
        name="attention.hoist_norm_above_head_transpose",
        formula="LayerNormalization(transpose(x)) or RMSNormalization(transpose(x)) in each head",
        is_refinement=True,
        pattern=_normalised(op.Transpose(query_apart, perm=(0, 2, 1, 3))),
        replace=op.Transpose(_normalised(query_apart), perm=(0, 2, 1, 3)),
        exactness=Exactness.EXACT,
        source="ONNX operators LayerNormalization and RMSNormalization",
        test=RuleTest(
            shapes={"h": 2, "d": 4},
            attributes={"axis": [-1, 3], "epsilon": [1e-5], "stash": [1]},
            opset=23,
            redundant={"dimension *": "the operator asks for it too"},
        ),
    ),
]  # fmt: skip
