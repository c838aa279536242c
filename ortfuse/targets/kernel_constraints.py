"""What kernels refuse although they are registered for the types: certain shapes, attributes and optional inputs.

Some limits are in the operators' documentation; the others were found by trying (`benchmarks.kernels`) and apply only to the
provider they were found on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import DimLike
from ortfuse.ir.remark import Refusal, Subject, refuse, words
from ortfuse.ir.traits import MICROSOFT

Limit = Callable[[ir.Node, Facts], "Refusal | None"]
"""`None` if the kernel takes the node, else why it does not."""

_ACTIVATIONS = frozenset({"Relu", "Tanh", "Sigmoid", "LeakyRelu", "Clip", "HardSigmoid", "HardSwish"})


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _limit(node: ir.Node, index: int, role: str, found: object, needed: str) -> Refusal:
    """A refusal of an input that the kernel does not take; `role` is the operator's name for the input."""
    return refuse(
        "kernel_limit", Subject.of(_input(node, index), f"{role} of {node.op_type}"), found=found, needed=needed
    )


def _attribute_limit(node: ir.Node, name: str, found: object, needed: str) -> Refusal:
    return refuse("kernel_limit", Subject("attribute", name, node.op_type), found=found, needed=needed)


def _shaped(shape: tuple[DimLike, ...] | None) -> str:
    return "of a shape that is not known" if shape is None else f"of shape {words(shape)}"


def _biased_activation(node: ir.Node, facts: Facts) -> Refusal | None:
    x = facts.shape(node.inputs[0])
    if not x:
        return _limit(node, 0, "X", _shaped(x), "a known rank of at least 1")
    bias = _input(node, 1)
    if bias is not None and facts.shape(bias) != (x[-1],):
        return _limit(node, 1, "bias", _shaped(facts.shape(bias)), f"a vector, provably of length {x[-1]}")
    return None


def _normalises_something(node: ir.Node, facts: Facts) -> Refusal | None:
    shape = facts.shape(node.inputs[0])
    attribute = node.attributes.get("axis")
    axis = -1 if attribute is None or attribute.is_ref() else attribute.value
    if shape is not None and 0 in shape[axis:]:
        return _limit(node, 0, "X", _shaped(shape), "no size 0 among the normalised axes")
    return None


def _skip_normalization(node: ir.Node, facts: Facts) -> Refusal | None:
    x, skip = facts.shape(node.inputs[0]), facts.shape(node.inputs[1])
    if x is None or len(x) not in (2, 3):
        return _limit(node, 0, "input", _shaped(x), "rank 2 or 3")
    if skip is None or len(skip) not in (2, 3) or skip[-2:] != x[-2:]:
        return _limit(node, 1, "skip", _shaped(skip), f"rank 2 or 3, with the last two dimensions {words(x[-2:])}")
    for index, vector in enumerate(node.inputs[2:], 2):
        if vector is not None and facts.rank(vector) != 1:
            return _limit(node, index, "vector", _shaped(facts.shape(vector)), "rank 1")
    epsilon = node.attributes.get("epsilon")
    if epsilon is not None and not epsilon.is_ref() and not epsilon.value >= 0:
        return _attribute_limit(node, "epsilon", epsilon.value, "none below 0")
    return None


def _scale(node: ir.Node) -> float | None:
    attribute = node.attributes.get("scale")
    return None if attribute is None or attribute.is_ref() else float(attribute.value)


def _nothing_is_empty(node: ir.Node, facts: Facts) -> Refusal | None:
    for index, value in enumerate(node.inputs[:3]):
        shape = None if value is None else facts.shape(value)
        if shape is not None and 0 in shape:
            return _limit(node, index, "QKV"[index], _shaped(shape), "no empty tensors")
    return None


def _attention(node: ir.Node, facts: Facts) -> Refusal | None:
    scale = _scale(node)
    if scale is not None and not scale > 0:
        return _attribute_limit(node, "scale", scale, "only a positive one")
    return _nothing_is_empty(node, facts) or _mask_is_whole(node, facts)


def _mask_is_whole(node: ir.Node, facts: Facts) -> Refusal | None:
    mask = _input(node, 3)
    if mask is None:
        return None
    shape, query, key = facts.shape(mask), facts.shape(node.inputs[0]), facts.shape(node.inputs[1])
    if shape is None or query is None or key is None or len(shape) < 2 or len(key) != len(query):
        unknown = next((index for index in (0, 1) if facts.shape(node.inputs[index]) is None), 3)
        role = {0: "Q", 1: "K", 3: "attn_mask"}[unknown]
        return _limit(node, unknown, role, _shaped(facts.shape(node.inputs[unknown])), "a known shape")
    axis = 2 if len(query) == 4 else 1
    total: DimLike = key[axis]
    past = _input(node, 4)
    if past is not None:
        past_shape = facts.shape(past)
        if past_shape is None or len(past_shape) != 4:
            return _limit(node, 4, "past_key", _shaped(past_shape), "a known shape of rank 4")
        total = past_shape[2] + total
    if shape[-1] != total:
        return _limit(node, 3, "attn_mask", _shaped(shape), f"one that provably covers the keys: {total}")
    # Last, as a mask with a row for each query can be had.
    if shape[-2] != query[axis]:
        return _limit(
            node, 3, "attn_mask", f"broadcast over the queries ({words(shape)})", f"a row for each: {query[axis]}"
        )
    return None


def _multi_head(node: ir.Node, facts: Facts) -> Refusal | None:
    if _scale(node) == 0:
        return _attribute_limit(node, "scale", 0, "0 for none given")
    query, added = facts.shape(node.inputs[0]), _input(node, 5)
    if query is None or len(query) not in (3, 5):
        return _limit(node, 0, "query", _shaped(query), "rank 3 or 5")
    if added is None or len(query) == 5:
        return None
    shape = facts.shape(added)
    return (
        None if shape is not None and len(shape) == 4 else _limit(node, 5, "attention_bias", _shaped(shape), "rank 4")
    )


def _bias_is_whole(node: ir.Node, facts: Facts) -> Refusal | None:
    query, shape = facts.shape(node.inputs[0]), facts.shape(_input(node, 5))
    if query is None or len(query) == 5 or shape is None or shape[2] == query[1]:
        return None
    return _limit(
        node, 5, "attention_bias", f"broadcast over the queries ({words(shape)})", f"a row for each: {query[1]}"
    )


def _grouped_query(node: ir.Node, facts: Facts) -> Refusal | None:
    if _scale(node) == 0:
        return _attribute_limit(node, "scale", 0, "0 for none given")
    query = facts.shape(node.inputs[0])
    return None if query is not None and len(query) == 3 else _limit(node, 0, "query", _shaped(query), "rank 3")


def _one_token_after_a_past(node: ir.Node, facts: Facts) -> Refusal | None:
    query, past = facts.shape(node.inputs[0]), _input(node, 3)
    if query is None:
        return None
    past_shape = None if past is None else facts.shape(past)
    is_empty = past is None or (past_shape is not None and len(past_shape) == 4 and past_shape[2] == 0)
    if is_empty or query[0] == 1 or query[1] == 1:
        return None
    return _limit(node, 0, "query", _shaped(query), "several tokens after a past only for a batch of 1")


def _rotary_caches(node: ir.Node, facts: Facts) -> Refusal | None:
    if _input(node, 3) is not None:
        return None
    x = facts.shape(node.inputs[0])
    length = None if x is None or len(x) not in (3, 4) else x[2 if len(x) == 4 else 1]
    for index, cache in enumerate(node.inputs[1:3], 1):
        shape = facts.shape(cache)
        if x is None or shape is None or len(shape) != 3 or shape[0] != x[0] or shape[1] != length:
            role = ("cos_cache", "sin_cache")[index - 1]
            return _limit(node, index, role, _shaped(shape), "caches [batch, length, size], not broadcast")
    return None


def _fused_convolution(node: ir.Node, facts: Facts) -> Refusal | None:
    activation = node.attributes.get("activation")
    if activation is not None and (activation.is_ref() or activation.value not in _ACTIVATIONS):
        return _attribute_limit(node, "activation", activation.value, words(_ACTIVATIONS))
    added = _input(node, 3)
    if added is None:
        return None
    result = facts.shape(node.outputs[0])
    if result is None or facts.shape(added) != result:
        return _limit(node, 3, "Z", _shaped(facts.shape(added)), f"the shape of the result {words(result)} alone")
    return None


def _gathers_no_text(node: ir.Node, facts: Facts) -> Refusal | None:
    """Of blocks of strings that are gathered, the kernel of 1.32 leaves all but the first string empty."""
    dtype = facts.dtype(_input(node, 0))
    return _limit(node, 0, "data", dtype, "numbers") if dtype in (None, ir.DataType.STRING) else None


BROADCASTS_FROM: Mapping[str, int] = {"Max": 8, "Min": 8, "Mean": 8, "Sum": 8}
"""The opset from which an operator of ai.onnx takes operands of several shapes."""


def unless_alike(node: ir.Node, facts: Facts) -> Refusal | None:
    """A refusal unless all operands have provably one shape."""
    first = facts.shape(node.inputs[0])
    other = next((at for at, value in enumerate(node.inputs) if first is None or facts.shape(value) != first), None)
    if other is None:
        return None
    return _limit(node, other, "operand", _shaped(facts.shape(node.inputs[other])), "one shape for all operands")


Limits = Mapping[tuple[str, str], Limit]
"""Checks of what an operator's kernels refuse, by domain and operator."""

DOCUMENTED: Limits = {
    (MICROSOFT, "FastGelu"): _biased_activation,
    (MICROSOFT, "BiasGelu"): _biased_activation,
    (MICROSOFT, "SkipLayerNormalization"): _skip_normalization,
    (MICROSOFT, "SkipSimplifiedLayerNormalization"): _skip_normalization,
    (MICROSOFT, "MultiHeadAttention"): _multi_head,
    (MICROSOFT, "GroupQueryAttention"): _grouped_query,
    ("", "RotaryEmbedding"): _rotary_caches,
}
"""Shape limits stated in the documentation of an operator: they apply to every provider."""

FOUND: Mapping[str, Limits] = {
    "CPUExecutionProvider": {
        (MICROSOFT, "GroupQueryAttention"): _one_token_after_a_past,
        (MICROSOFT, "MultiHeadAttention"): _bias_is_whole,
        (MICROSOFT, "FusedConv"): _fused_convolution,
        ("", "Attention"): _attention,
        ("", "Gather"): _gathers_no_text,
        ("", "LayerNormalization"): _normalises_something,
        ("", "RMSNormalization"): _normalises_something,
        ("", "SimplifiedLayerNormalization"): _normalises_something,
    }
}
"""Additional limits found on a provider's kernels, by provider."""
