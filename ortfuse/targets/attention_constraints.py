"""Constraints of attention that kernels of several providers share, as they use the same checks of inputs."""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import DimLike
from ortfuse.ir.refusal import Refusal, words
from ortfuse.targets.kernel_constraints import attribute_limit, input_at, input_limit, scale_of, shape_words


def _nothing_is_empty(node: ir.Node, facts: Facts) -> Refusal | None:
    for index, value in enumerate(node.inputs[:3]):
        shape = None if value is None else facts.shape(value)
        if shape is not None and 0 in shape:
            return input_limit(node, index, "QKV"[index], shape_words(shape), "no empty tensors")
    return None


def attention_is_plain(node: ir.Node, facts: Facts) -> Refusal | None:
    """Refuse ai.onnx Attention with a scale not above 0, with empty tensors, or with a mask that is broadcast over the scores."""
    scale = scale_of(node)
    if scale is not None and not scale > 0:
        return attribute_limit(node, "scale", scale, "only a positive one")
    return _nothing_is_empty(node, facts) or _mask_is_whole(node, facts)


def _mask_is_whole(node: ir.Node, facts: Facts) -> Refusal | None:
    mask = input_at(node, 3)
    if mask is None:
        return None
    shape, query, key = facts.shape(mask), facts.shape(node.inputs[0]), facts.shape(node.inputs[1])
    if shape is None or query is None or key is None or len(shape) < 2 or len(key) != len(query):
        unknown = next((index for index in (0, 1) if facts.shape(node.inputs[index]) is None), 3)
        role = {0: "Q", 1: "K", 3: "attn_mask"}[unknown]
        return input_limit(node, unknown, role, shape_words(facts.shape(node.inputs[unknown])), "a known shape")
    axis = 2 if len(query) == 4 else 1
    total: DimLike = key[axis]
    past = input_at(node, 4)
    if past is not None:
        past_shape = facts.shape(past)
        if past_shape is None or len(past_shape) != 4:
            return input_limit(node, 4, "past_key", shape_words(past_shape), "a known shape of rank 4")
        total = past_shape[2] + total
    if shape[-1] != total:
        return input_limit(node, 3, "attn_mask", shape_words(shape), f"one that provably covers the keys: {total}")
    # Last, as a mask with a row for each query can be had.
    if shape[-2] != query[axis]:
        return input_limit(
            node, 3, "attn_mask", f"broadcast over the queries ({words(shape)})", f"a row for each: {query[axis]}"
        )
    return None


def bias_has_all_rows(node: ir.Node, facts: Facts) -> Refusal | None:
    """Refuse MultiHeadAttention whose bias is broadcast over the queries: the providers that share their checks do."""
    query, shape = facts.shape(node.inputs[0]), facts.shape(input_at(node, 5))
    if query is None or len(query) == 5 or shape is None or shape[2] == query[1]:
        return None
    return input_limit(
        node, 5, "attention_bias", f"broadcast over the queries ({words(shape)})", f"a row for each: {query[1]}"
    )


def one_token_after_a_past(node: ir.Node, facts: Facts) -> Refusal | None:
    """Refuse GroupQueryAttention with several new tokens after a past, unless the batch is 1."""
    query, past = facts.shape(node.inputs[0]), input_at(node, 3)
    if query is None:
        return None
    past_shape = None if past is None else facts.shape(past)
    is_empty = past is None or (past_shape is not None and len(past_shape) == 4 and past_shape[2] == 0)
    if is_empty or query[0] == 1 or query[1] == 1:
        return None
    return input_limit(node, 0, "query", shape_words(query), "several tokens after a past only for a batch of 1")
