"""Constraints of the CUDA kernels beyond their registered types, found by `benchmarks.targets.cuda.operators` on an H200."""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.refusal import Refusal, words
from ortfuse.ir.traits import MICROSOFT
from ortfuse.targets.attention_constraints import attention_is_plain, bias_has_all_rows, one_token_after_a_past
from ortfuse.targets.kernel_constraints import Limits, attribute_limit, input_at, input_limit, shape_words

_WEIGHTS = 3
"""The output of ai.onnx Attention that its weights are."""


def _attention(node: ir.Node, facts: Facts) -> Refusal | None:
    weights = node.outputs[_WEIGHTS] if len(node.outputs) > _WEIGHTS else None
    if weights is not None and (weights.uses() or weights.is_graph_output()):
        return attribute_limit(node, "qk_matmul_output_mode", "given", "no output of weights")
    return attention_is_plain(node, facts)


def _is_single(node: ir.Node, facts: Facts) -> Refusal | None:
    """The kernel computes float64 as float32, or to nothing."""
    dtype = facts.dtype(node.inputs[0])
    return input_limit(node, 0, "X", dtype, "float32 or a shorter type") if dtype == ir.DataType.DOUBLE else None


def _has_axes(node: ir.Node, facts: Facts) -> Refusal | None:
    shape = facts.shape(node.inputs[0])
    return None if shape else input_limit(node, 0, "X", shape_words(shape), "rank 1 or more")


def _activation(node: ir.Node, facts: Facts) -> Refusal | None:
    return _is_single(node, facts) or _has_axes(node, facts)


def _normalization(node: ir.Node, facts: Facts) -> Refusal | None:
    """The kernel reads as many numbers of the scale as it normalises, whatever the shape of the scale."""
    attribute = node.attributes.get("axis")
    axis = -1 if attribute is None or attribute.is_ref() else attribute.value
    shape = facts.shape(node.inputs[0])
    for index, role in ((1, "scale"), (2, "bias")):
        value = input_at(node, index)
        if value is None:
            continue
        found = facts.shape(value)
        kept = found
        while kept and kept[0] == 1 and shape is not None and len(kept) > len(shape[axis:]):
            kept = kept[1:]
        if shape is None or kept != tuple(shape[axis:]):
            needed = "the shape that is normalised" if shape is None else f"the shape {words(tuple(shape[axis:]))}"
            return input_limit(node, index, role, shape_words(found), needed)
    return _is_single(node, facts)


def _fused_convolution(node: ir.Node, facts: Facts) -> Refusal | None:
    activation = node.attributes.get("activation")
    if activation is None or activation.is_ref() or activation.value != "Relu":
        return attribute_limit(node, "activation", None if activation is None else activation.value, "Relu")
    if input_at(node, 3) is None:
        return None
    if input_at(node, 2) is None:  # the process ends
        return input_limit(node, 2, "B", "absent", "given where Z is")
    result, added = facts.shape(node.outputs[0]), facts.shape(input_at(node, 3))
    if result is None or added != result:
        return input_limit(node, 3, "Z", shape_words(added), f"the shape of the result {words(result)} alone")
    return None


def _resize(node: ir.Node, facts: Facts) -> Refusal | None:
    """The kernel interpolates the last two axes alone: of images with channels last it mixes channels."""
    mode = node.attributes.get("mode")
    if mode is None or mode.is_ref() or mode.value == "nearest":
        return None
    given, made = facts.shape(node.inputs[0]), facts.shape(node.outputs[0])
    if given is not None and made is not None and given[:-2] == made[:-2]:
        return None
    return input_limit(node, 0, "X", shape_words(given), "sizes that are kept but for the last two")


def _grouped_query(node: ir.Node, facts: Facts) -> Refusal | None:
    """The kernel refuses a bias, by its documentation; that was not tried."""
    bias = input_at(node, 10)
    if bias is not None:
        return input_limit(node, 10, "attention_bias", "given", "none")
    return one_token_after_a_past(node, facts)


MOST_CHANNELS_OF_GROUP = 512
"""The most channels of a group that the kernel of GroupNorm takes; their number is even."""


def _group_norm(node: ir.Node, facts: Facts) -> Refusal | None:
    """The kernel has the channels last, reads pairs of them, and scales in float32; by its source, that was not tried."""
    last = node.attributes.get("channels_last")
    if last is not None and (last.is_ref() or last.value != 1):
        return attribute_limit(node, "channels_last", None if last.is_ref() else last.value, "1")
    for index, role in ((1, "gamma"), (2, "beta")):
        dtype = facts.dtype(input_at(node, index))
        if dtype != ir.DataType.FLOAT:
            return input_limit(node, index, role, dtype, "float32")
    shape, groups = facts.shape(node.inputs[0]), node.attributes.get("groups")
    if shape is None or len(shape) != 4 or not isinstance(shape[3], int):
        return input_limit(node, 0, "X", shape_words(shape), "[batch, height, width, channels], with known channels")
    if groups is None or groups.is_ref() or groups.value < 1:
        return attribute_limit(node, "groups", None, "1 or more")
    size, left = divmod(shape[3], groups.value)
    if left or size % 2 or not 0 < size <= MOST_CHANNELS_OF_GROUP:
        needed = f"an even number of channels in each of {groups.value} groups, {MOST_CHANNELS_OF_GROUP} at most"
        return input_limit(node, 0, "X", shape_words(shape), needed)
    return None


CONSTRAINTS: Limits = {
    (MICROSOFT, "GroupNorm"): _group_norm,
    (MICROSOFT, "SkipGroupNorm"): _group_norm,
    ("", "Resize"): _resize,
    ("", "Attention"): _attention,
    (MICROSOFT, "MultiHeadAttention"): bias_has_all_rows,
    (MICROSOFT, "GroupQueryAttention"): _grouped_query,
    (MICROSOFT, "FusedConv"): _fused_convolution,
    **dict.fromkeys(
        (("", "LayerNormalization"), ("", "RMSNormalization"), ("", "SimplifiedLayerNormalization")), _normalization
    ),
    **dict.fromkeys(
        (("", "Gelu"), (MICROSOFT, "Gelu"), (MICROSOFT, "FastGelu"), (MICROSOFT, "QuickGelu")), _activation
    ),
}
"""Checks besides those that the operators' documentation states."""
