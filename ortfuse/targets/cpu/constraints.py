"""Constraints of the CPU kernels beyond their registered types, found by `benchmarks.kernels`."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.refusal import Refusal, words
from ortfuse.ir.traits import ACTIVATES, MICROSOFT
from ortfuse.targets.attention_constraints import attention_is_plain, bias_has_all_rows, one_token_after_a_past
from ortfuse.targets.kernel_constraints import Limits, attribute_limit, input_at, input_limit, shape_words


def _normalises_something(node: ir.Node, facts: Facts) -> Refusal | None:
    shape = facts.shape(node.inputs[0])
    attribute = node.attributes.get("axis")
    axis = -1 if attribute is None or attribute.is_ref() else attribute.value
    if shape is not None and 0 in shape[axis:]:
        return input_limit(node, 0, "X", shape_words(shape), "no size 0 among the normalised axes")
    return None


def _bias_is_of_every_head(node: ir.Node, facts: Facts) -> Refusal | None:
    """Releases up to 1.20 refuse a bias for all heads or batches, or compute other results with it."""
    query, shape = facts.shape(node.inputs[0]), facts.shape(input_at(node, 5))
    heads = node.attributes.get("num_heads")
    if query is None or shape is None or heads is None or heads.is_ref() or shape[:2] == (query[0], heads.value):
        return None
    needed = f"a bias for each batch and head: {words((query[0], heads.value))}"
    return input_limit(node, 5, "attention_bias", shape_words(shape), needed)


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


def _has_no_window(node: ir.Node, facts: Facts) -> Refusal | None:
    """The kernels of releases up to 1.23 show one key more than `local_window_size`."""
    window = node.attributes.get_int("local_window_size", -1)
    if window is None or window < 0:
        return None
    return attribute_limit(node, "local_window_size", window, "none, as one key more is seen")


_PACKED = 5
"""The rank of packed operands of MultiHeadAttention."""


def _multi_head(node: ir.Node, facts: Facts) -> Refusal | None:
    """The kernel takes no packed operands, and no bias that is broadcast over the queries."""
    for index, role in ((0, "query"), (1, "key")):
        shape = None if input_at(node, index) is None else facts.shape(input_at(node, index))
        if shape is not None and len(shape) == _PACKED:
            return input_limit(node, index, role, "packed", "one operand each for queries, keys and values")
    return bias_has_all_rows(node, facts)


def _grouped_query(node: ir.Node, facts: Facts) -> Refusal | None:
    """The kernel normalises no heads, and takes several tokens after a past for a batch of 1 alone."""
    if input_at(node, 14) is not None:
        return input_limit(node, 14, "q_norm_weight", "given", "none")
    return one_token_after_a_past(node, facts)


CONSTRAINTS: Limits = {
    (MICROSOFT, "GroupQueryAttention"): _grouped_query,
    (MICROSOFT, "MultiHeadAttention"): _multi_head,
    (MICROSOFT, "FusedConv"): _fused_convolution,
    ("", "Attention"): attention_is_plain,
    ("", "Gather"): _gathers_no_text,
    ("", "LayerNormalization"): _normalises_something,
    ("", "RMSNormalization"): _normalises_something,
    ("", "SimplifiedLayerNormalization"): _normalises_something,
}
"""Checks besides those that the operators' documentation states."""

FORMER_CONSTRAINTS: Mapping[str, Limits] = {
    "1.26": {(MICROSOFT, "FusedConv"): _adds_nothing},
    "1.23": {(MICROSOFT, "GroupQueryAttention"): _has_no_window},
    "1.20": {(MICROSOFT, "MultiHeadAttention"): _bias_is_of_every_head},
}
"""Checks that releases up to the named one need besides."""
