"""Attention and rotary embedding, in ai.onnx (opset 23) and in the runtime's own domain."""

from __future__ import annotations

import math

from ortfuse.analysis.costs import NodeSizes, UnknownCostError, cost, macs, per_result
from ortfuse.analysis.ranges.queries import Asking
from ortfuse.analysis.ranges.vector_norms import magnitude_of, norm_of, norm_question, norms
from ortfuse.analysis.transfer.transfer_function_registry import Op, UnknownError, transfer
from ortfuse.analysis.transfer.value_fact import UNKNOWN, Fact, Shape
from ortfuse.ir.dims import DimLike, exact_div, floor_div
from ortfuse.ir.traits import MICROSOFT


@transfer("Attention")
def attention(op: Op) -> tuple[Fact, ...]:
    """[batch, heads, sequence, size] or [batch, sequence, heads*size], present key and value, and the scores."""
    query, key, value = op.known_shape(0), op.known_shape(1), op.known_shape(2)
    if len(query) == 3:
        query = _heads_apart(query, op.attr_int("q_num_heads", 0))
        key = _heads_apart(key, op.attr_int("kv_num_heads", 0))
        value = _heads_apart(value, op.attr_int("kv_num_heads", 0))
    batch, heads, sequence, _ = query
    past = op.shape(4)
    total: DimLike = key[2] if past is None else key[2] + past[2]
    if op.has(4) and past is None:
        total = UNKNOWN
    output: Shape = (batch, heads, sequence, value[3])
    if len(op.known_shape(0)) == 3:
        output = (batch, sequence, heads * value[3])
    dtype = op.dtype(0)
    return (
        Fact(dtype, output),
        Fact(op.dtype(1), (key[0], key[1], total, key[3])),
        Fact(op.dtype(2), (value[0], value[1], total, value[3])),
        Fact(dtype, (batch, heads, sequence, total)),
    )


def _heads_apart(shape: Shape, heads: int) -> tuple[DimLike, int, DimLike, DimLike]:
    size = exact_div(shape[2], heads)
    if size is None:
        raise UnknownError
    return shape[0], heads, shape[1], size


@transfer("RotaryEmbedding")
def rotary_embedding(op: Op) -> Fact:
    """The rotated input."""
    return Fact(op.dtype(), op.shape())


@norms(f"{MICROSOFT}.RotaryEmbedding", "RotaryEmbedding")
def rotary_norm(op: Asking) -> float | None:
    """Rotated by angles whose cosines and sines have a known range, every pair for itself."""
    first = 1 if not op.node.domain else 2
    if norm_question(op).axis != -1 or len(op.known_shape(0)) != 4:
        return None
    return norm_of(op, 0, part=None) * max(1.0, math.hypot(magnitude_of(op, first), magnitude_of(op, first + 1)))


transfer("RotaryEmbedding", domain=MICROSOFT)(rotary_embedding)


@transfer("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(op: Op) -> tuple[Fact, ...]:
    """[batch, sequence, value hidden size], then present key and value [batch, heads, total, size]."""
    query, dtype = op.known_shape(0), op.dtype()
    heads = op.attr_int("num_heads", 0)
    if len(query) == 5:  # packed [batch, sequence, heads, 3, size]
        return (Fact(dtype, (query[0], query[1], query[2] * query[4])),)
    if not op.has(2):  # packed key and value: [batch, sequence, heads, 2, size]
        return (Fact(dtype, query),)
    key, value = op.known_shape(1), op.known_shape(2)
    hidden = value[2] if len(value) == 3 else value[1] * value[3]
    present = [_present(op, shape, heads, past) for shape, past in ((key, 6), (value, 7))]
    return Fact(dtype, (query[0], query[1], hidden)), Fact(dtype, present[0]), Fact(dtype, present[1])


@transfer("PackedMultiHeadAttention", domain=MICROSOFT)
def multi_head_attention_of_packed_tokens(op: Op) -> Fact:
    """[tokens, value hidden size]."""
    query = op.known_shape(0)
    if len(query) == 4:  # packed [tokens, heads, 3, size]
        return Fact(op.dtype(), (query[0], query[1] * query[3]))
    return Fact(op.dtype(), (query[0], op.known_shape(2)[1]))


def _present(op: Op, shape: Shape, heads: int, past: int) -> Shape:
    """The shape of the new keys (or values) appended to those of input `past`."""
    if len(shape) == 4:  # [batch, heads, sequence, size], of cross attention
        return shape
    batch, heads, total, size = _heads_apart(shape, heads)
    if op.has(past):
        before = op.shape(past)
        total = UNKNOWN if before is None else total + before[2]
    return batch, heads, total, size


@transfer("LinearAttention", domain=MICROSOFT)
def linear_attention(op: Op) -> tuple[Fact, ...]:
    """[batch, sequence, heads*size of values] if queries have no more heads than values; the state, of the shape that it had."""
    query, value = op.known_shape(0), op.known_shape(2)
    if op.attr_int("q_num_heads", 0) > op.attr_int("kv_num_heads", 0) or op.attr_int("state_window", 0):
        raise UnknownError
    return Fact(op.dtype(), (query[0], query[1], value[2])), Fact(op.dtype(), op.shape(3) if op.has(3) else None)


@transfer("CausalConvWithState", domain=MICROSOFT)
def causal_convolution(op: Op) -> tuple[Fact, ...]:
    """The shape of the input, [batch, channels, length], and the last positions that the next call needs."""
    shape, weight = op.known_shape(0), op.known_shape(1)
    dilation = op.attr_int("dilation", 1)
    if len(shape) != 3 or op.attr_int("channels_last", 0) or op.attr_int("state_window", 0) or dilation != 1:
        raise UnknownError
    return Fact(op.dtype(), shape), Fact(op.dtype(), (shape[0], shape[1], weight[2] - 1))


@transfer("Attention", domain=MICROSOFT)
def packed_attention(op: Op) -> tuple[Fact, ...]:
    """Attention that includes the input projection: [batch, sequence, value hidden size]."""
    data, weight = op.known_shape(0), op.known_shape(1)
    sizes = op.attr_ints("qkv_hidden_sizes")
    hidden = sizes[2] if sizes else exact_div(weight[1], 3)
    output = Fact(op.dtype(), (data[0], data[1], UNKNOWN if hidden is None else hidden))
    heads = op.attr_int("num_heads", 0)
    return output, Fact(op.dtype(), (2, data[0], heads, UNKNOWN, UNKNOWN))


@transfer("QAttention", domain=MICROSOFT)
def integer_attention(op: Op) -> tuple[Fact, ...]:
    """The same with an input and weights of integers, as floats of the type of their scales."""
    data, hidden = op.known_shape(0), exact_div(op.known_shape(1)[1], 3)
    output = Fact(op.dtype(3), (data[0], data[1], UNKNOWN if hidden is None else hidden))
    return output, Fact(op.dtype(3), (2, data[0], op.attr_int("num_heads", 0), UNKNOWN, UNKNOWN))


@transfer("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(op: Op) -> tuple[Fact, ...]:
    """[batch, sequence, heads*size]; packed inputs contain query, key and value side by side."""
    query = op.known_shape(0)
    heads, groups = op.attr_int("num_heads", 0), op.attr_int("kv_num_heads", 0)
    size = exact_div(query[2], heads if op.has(1) else heads + 2 * groups)
    if size is None:
        raise UnknownError
    present = Fact(op.dtype(3 if op.has(3) else 0), (query[0], groups, UNKNOWN, size))
    return Fact(op.dtype(), (query[0], query[1], size * heads)), present, present


def _attention_macs(at: NodeSizes) -> DimLike:
    """Scores and weighted values of ai.onnx Attention."""
    heads, kv_heads = at.integer("q_num_heads"), at.integer("kv_num_heads")
    query, key, value = (_with_heads(at.shape(index), count) for index, count in enumerate((heads, kv_heads, kv_heads)))
    total = key[2] + (at.shape(4)[2] if at.has(4) else 0)
    return query[0] * query[1] * query[2] * total * (query[3] + value[3])


def _with_heads(shape: Shape, heads: int) -> Shape:
    if len(shape) == 4:
        return shape
    if len(shape) != 3 or not heads:
        raise UnknownCostError
    return shape[0], heads, shape[1], floor_div(shape[2], heads)


def _multi_head_attention_macs(at: NodeSizes) -> DimLike:
    """Scores and weighted values of com.microsoft.MultiHeadAttention, unless its operands are packed."""
    query, key, value = at.shape(0), at.shape(1), at.shape(2)
    if len(query) != 3:
        raise UnknownCostError
    merged = len(key) == 3
    total = key[1] if merged else key[2]
    if at.has(6):
        total = total + at.shape(6)[2]
    width = value[2] if merged else value[1] * value[3]
    return query[0] * query[1] * total * (query[2] + width)


def _packed_attention_macs(at: NodeSizes) -> DimLike:
    """com.microsoft.Attention: the projections of query, key and value, then scores and weighted values."""
    batch, length, _ = at.shape(0)
    widths = at.integers("qkv_hidden_sizes") or (floor_div(at.shape(1)[1], 3),) * 3
    total = length + (at.shape(4)[3] if at.has(4) else 0)
    return batch * length * at.size(1) + batch * length * total * (widths[0] + widths[2])


def _group_query_attention_macs(at: NodeSizes) -> DimLike:
    batch, length, width = at.shape(0)
    heads, groups = at.integer("num_heads"), at.integer("kv_num_heads")
    if not at.has(1):
        width = floor_div(width, heads + 2 * groups) * heads
    total = length + (at.shape(3)[2] if at.has(3) else 0)
    return 2 * batch * length * total * width


def _linear_attention_macs(at: NodeSizes) -> DimLike:
    """For each position and head, the state is changed and read, and read once more where it is corrected (the delta rule)."""
    batch, length, width = at.shape(0)
    state = floor_div(width, at.integer("q_num_heads")) * at.shape(2)[2]
    return batch * length * state * (3 if "delta" in at.text("update_rule") else 2)


cost("Attention")(macs(_attention_macs))
cost(f"{MICROSOFT}.LinearAttention")(macs(_linear_attention_macs))
cost(f"{MICROSOFT}.MultiHeadAttention")(macs(_multi_head_attention_macs))
cost(f"{MICROSOFT}.Attention")(macs(_packed_attention_macs))
cost(f"{MICROSOFT}.GroupQueryAttention")(macs(_group_query_attention_macs))
cost("RotaryEmbedding", f"{MICROSOFT}.RotaryEmbedding")(per_result(3))
