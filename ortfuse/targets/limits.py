"""What kernels of the CPU build refuse although the registry lists them; found by trying (`benchmarks.kernels`)."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from ortfuse.dims import DimLike
from ortfuse.facts.facts import Facts

Limit = Callable[[ir.Node, Facts], "str | None"]
"""`None` if the kernel takes the node, else why not."""

_ACTIVATIONS = frozenset({"Relu", "Tanh", "Sigmoid", "LeakyRelu", "Clip", "HardSigmoid", "HardSwish"})


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _biased_activation(node: ir.Node, facts: Facts) -> str | None:
    x = facts.shape(node.inputs[0])
    if not x:
        return f"{node.op_type} needs an input of known rank, at least 1"
    bias = _input(node, 1)
    if bias is not None and facts.shape(bias) != (x[-1],):
        return f"{node.op_type} takes a vector as bias, provably as long as the last axis of its input"
    return None


def _normalises_something(node: ir.Node, facts: Facts) -> str | None:
    shape = facts.shape(node.inputs[0])
    attribute = node.attributes.get("axis")
    axis = -1 if attribute is None or attribute.is_ref() else attribute.value
    if shape is not None and 0 in shape[axis:]:
        return f"{node.op_type} refuses to normalise axes of size 0"
    return None


def _skip_normalization(node: ir.Node, facts: Facts) -> str | None:
    x, skip = facts.shape(node.inputs[0]), facts.shape(node.inputs[1])
    if x is None or len(x) not in (2, 3):
        return f"{node.op_type} takes inputs of rank 2 or 3, not {None if x is None else len(x)}"
    if skip is None or len(skip) not in (2, 3) or skip[-2:] != x[-2:]:
        return f"{node.op_type} takes a skip input with the last two dimensions of its input"
    for vector in node.inputs[2:]:
        if vector is not None and facts.rank(vector) != 1:
            return f"{node.op_type} takes vectors of rank 1, and '{vector.name}' has rank {facts.rank(vector)}"
    epsilon = node.attributes.get("epsilon")
    if epsilon is not None and not epsilon.is_ref() and not epsilon.value >= 0:
        return f"{node.op_type} takes no negative epsilon such as {epsilon.value:g}"
    return None


def _scale(node: ir.Node) -> float | None:
    attribute = node.attributes.get("scale")
    return None if attribute is None or attribute.is_ref() else float(attribute.value)


def _nothing_is_empty(node: ir.Node, facts: Facts) -> str | None:
    for value in node.inputs[:3]:
        shape = None if value is None else facts.shape(value)
        if shape is not None and 0 in shape:
            return f"{node.op_type} refuses empty tensors such as '{value.name if value else ''}'"
    return None


def _attention(node: ir.Node, facts: Facts) -> str | None:
    scale = _scale(node)
    if scale is not None and not scale > 0:
        return f"Attention takes only a positive scale, not {scale:g}"
    return _nothing_is_empty(node, facts) or _mask_is_whole(node, facts)


def _mask_is_whole(node: ir.Node, facts: Facts) -> str | None:
    mask = _input(node, 3)
    if mask is None:
        return None
    shape, query, key = facts.shape(mask), facts.shape(node.inputs[0]), facts.shape(node.inputs[1])
    if shape is None or query is None or key is None or len(shape) < 2 or len(key) != len(query):
        return "the shape of the attention mask, the query or the key is not known"
    axis = 2 if len(query) == 4 else 1
    if shape[-2] != query[axis]:
        return f"the attention mask is broadcast over the queries ({shape[-2]} instead of {query[axis]})"
    total: DimLike = key[axis]
    past = _input(node, 4)
    if past is not None:
        past_shape = facts.shape(past)
        if past_shape is None or len(past_shape) != 4:
            return "the shape of the past keys is not known"
        total = past_shape[2] + total
    if shape[-1] != total:
        return f"the attention mask does not provably cover the keys ({shape[-1]} instead of {total})"
    return None


def _multi_head(node: ir.Node, facts: Facts) -> str | None:
    if _scale(node) == 0:
        return "MultiHeadAttention takes a scale of 0 for none given"
    query, added = facts.shape(node.inputs[0]), _input(node, 5)
    if query is None or len(query) not in (3, 5):
        return "MultiHeadAttention takes a query of rank 3 or 5"
    if added is None or len(query) == 5:
        return None
    shape = facts.shape(added)
    if shape is None or len(shape) != 4:
        return "MultiHeadAttention takes an attention bias of rank 4"
    return None if shape[2] == query[1] else f"the attention bias is broadcast over the queries ({shape[2]})"


def _grouped_query(node: ir.Node, facts: Facts) -> str | None:
    if _scale(node) == 0:
        return "GroupQueryAttention takes a scale of 0 for none given"
    query, past = facts.shape(node.inputs[0]), _input(node, 3)
    if query is None or len(query) != 3:
        return "GroupQueryAttention takes a query of rank 3"
    past_shape = None if past is None else facts.shape(past)
    is_empty = past is None or (past_shape is not None and len(past_shape) == 4 and past_shape[2] == 0)
    if is_empty or query[0] == 1 or query[1] == 1:
        return None
    return "GroupQueryAttention takes several tokens after a past only for a batch of 1"


def _rotary_caches(node: ir.Node, facts: Facts) -> str | None:
    if _input(node, 3) is not None:
        return None
    x = facts.shape(node.inputs[0])
    length = None if x is None or len(x) not in (3, 4) else x[2 if len(x) == 4 else 1]
    for cache in node.inputs[1:3]:
        shape = facts.shape(cache)
        if x is None or shape is None or len(shape) != 3 or shape[0] != x[0] or shape[1] != length:
            return "RotaryEmbedding without position_ids takes caches of shape [batch, length, size], not broadcast"
    return None


def _fused_convolution(node: ir.Node, facts: Facts) -> str | None:
    activation = node.attributes.get("activation")
    if activation is not None and (activation.is_ref() or activation.value not in _ACTIVATIONS):
        return f"FusedConv does not know the activation {activation.value}"
    added = _input(node, 3)
    if added is None:
        return None
    result = facts.shape(node.outputs[0])
    if result is None or facts.shape(added) != result:
        return "FusedConv adds only a tensor of the shape of its result"
    return None


MICROSOFT = "com.microsoft"

LIMITS: dict[tuple[str, str], Limit] = {
    (MICROSOFT, "FastGelu"): _biased_activation,
    (MICROSOFT, "BiasGelu"): _biased_activation,
    (MICROSOFT, "SkipLayerNormalization"): _skip_normalization,
    (MICROSOFT, "SkipSimplifiedLayerNormalization"): _skip_normalization,
    (MICROSOFT, "MultiHeadAttention"): _multi_head,
    (MICROSOFT, "GroupQueryAttention"): _grouped_query,
    (MICROSOFT, "FusedConv"): _fused_convolution,
    ("", "Attention"): _attention,
    ("", "LayerNormalization"): _normalises_something,
    ("", "RMSNormalization"): _normalises_something,
    ("", "SimplifiedLayerNormalization"): _normalises_something,
    ("", "RotaryEmbedding"): _rotary_caches,
}
