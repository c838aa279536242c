"""Constraints of the CPU kernels beyond their registered types, found by `benchmarks.kernels`."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import DimLike
from ortfuse.ir.refusal import Refusal, words
from ortfuse.ir.traits import ACTIVATES, MICROSOFT
from ortfuse.targets.kernel_constraints import (
    Limits,
    attribute_limit,
    bias_has_all_rows,
    input_at,
    input_limit,
    scale_of,
    shape_words,
)


def _normalises_something(node: ir.Node, facts: Facts) -> Refusal | None:
    shape = facts.shape(node.inputs[0])
    attribute = node.attributes.get("axis")
    axis = -1 if attribute is None or attribute.is_ref() else attribute.value
    if shape is not None and 0 in shape[axis:]:
        return input_limit(node, 0, "X", shape_words(shape), "no size 0 among the normalised axes")
    return None


def _nothing_is_empty(node: ir.Node, facts: Facts) -> Refusal | None:
    for index, value in enumerate(node.inputs[:3]):
        shape = None if value is None else facts.shape(value)
        if shape is not None and 0 in shape:
            return input_limit(node, index, "QKV"[index], shape_words(shape), "no empty tensors")
    return None


def _attention(node: ir.Node, facts: Facts) -> Refusal | None:
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


def _bias_is_of_every_head(node: ir.Node, facts: Facts) -> Refusal | None:
    """Releases up to 1.20 refuse a bias for all heads or batches, or compute other results with it."""
    query, shape = facts.shape(node.inputs[0]), facts.shape(input_at(node, 5))
    heads = node.attributes.get("num_heads")
    if query is None or shape is None or heads is None or heads.is_ref() or shape[:2] == (query[0], heads.value):
        return None
    needed = f"a bias for each batch and head: {words((query[0], heads.value))}"
    return input_limit(node, 5, "attention_bias", shape_words(shape), needed)


def _one_token_after_a_past(node: ir.Node, facts: Facts) -> Refusal | None:
    query, past = facts.shape(node.inputs[0]), input_at(node, 3)
    if query is None:
        return None
    past_shape = None if past is None else facts.shape(past)
    is_empty = past is None or (past_shape is not None and len(past_shape) == 4 and past_shape[2] == 0)
    if is_empty or query[0] == 1 or query[1] == 1:
        return None
    return input_limit(node, 0, "query", shape_words(query), "several tokens after a past only for a batch of 1")


def _fused_convolution(node: ir.Node, facts: Facts) -> Refusal | None:
    activation = node.attributes.get("activation")
    if activation is not None and (activation.is_ref() or activation.value not in ACTIVATES):
        return attribute_limit(node, "activation", activation.value, words(ACTIVATES))
    added = input_at(node, 3)
    if added is None:
        return None
    result = facts.shape(node.outputs[0])
    if result is None or facts.shape(added) != result:
        return input_limit(
            node, 3, "Z", shape_words(facts.shape(added)), f"the shape of the result {words(result)} alone"
        )
    return None


def _adds_nothing(node: ir.Node, facts: Facts) -> Refusal | None:
    """Releases up to 1.26 fail on a strided convolution in blocks of channels that adds what is not in blocks."""
    if input_at(node, 3) is None:
        return None
    return input_limit(node, 3, "Z", "given", "none: the runtime may compute it in another layout")


def _gathers_no_text(node: ir.Node, facts: Facts) -> Refusal | None:
    """The kernel of 1.32 leaves all but the first string of each gathered block empty."""
    dtype = facts.dtype(input_at(node, 0))
    return input_limit(node, 0, "data", dtype, "numbers") if dtype in (None, ir.DataType.STRING) else None


CONSTRAINTS: Limits = {
    (MICROSOFT, "GroupQueryAttention"): _one_token_after_a_past,
    (MICROSOFT, "MultiHeadAttention"): bias_has_all_rows,
    (MICROSOFT, "FusedConv"): _fused_convolution,
    ("", "Attention"): _attention,
    ("", "Gather"): _gathers_no_text,
    ("", "LayerNormalization"): _normalises_something,
    ("", "RMSNormalization"): _normalises_something,
    ("", "SimplifiedLayerNormalization"): _normalises_something,
}
"""Checks besides those that the operators' documentation states."""

FORMER_CONSTRAINTS: Mapping[str, Limits] = {
    "1.26": {(MICROSOFT, "FusedConv"): _adds_nothing},
    "1.20": {(MICROSOFT, "MultiHeadAttention"): _bias_is_of_every_head},
}
"""Checks that releases up to the named one need besides."""
