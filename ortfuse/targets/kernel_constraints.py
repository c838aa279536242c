"""Constraints of kernels beyond the types that they are registered for: certain shapes, attributes and optional inputs.

The limits here are in the operators' documentation and apply to every target. Others are found by trying (`benchmarks.kernels`),
and stand in the folder of the target that they were found on. The helpers spell refusals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import DimLike
from ortfuse.ir.refusal import Refusal, Subject, refuse, words
from ortfuse.ir.traits import MICROSOFT

Limit = Callable[[ir.Node, Facts], "Refusal | None"]
"""`None` if the kernel takes the node, else why it does not."""


def input_at(node: ir.Node, index: int) -> ir.Value | None:
    """Return an input by its position; `None` if it is absent."""
    return node.inputs[index] if index < len(node.inputs) else None


def input_limit(node: ir.Node, index: int, role: str, found: object, needed: str) -> Refusal:
    """A refusal of an input that the kernel does not take; `role` is the operator's name for the input."""
    return refuse(
        "kernel_limit", Subject.of(input_at(node, index), f"{role} of {node.op_type}"), found=found, needed=needed
    )


def attribute_limit(node: ir.Node, name: str, found: object, needed: str) -> Refusal:
    """Return the refusal of an attribute that the kernel does not take."""
    return refuse("kernel_limit", Subject("attribute", name, node.op_type), found=found, needed=needed)


def shape_words(shape: tuple[DimLike, ...] | None) -> str:
    """Spell a shape for a refusal."""
    return "of a shape that is not known" if shape is None else f"of shape {words(shape)}"


def _biased_activation(node: ir.Node, facts: Facts) -> Refusal | None:
    x = facts.shape(node.inputs[0])
    if not x:
        return input_limit(node, 0, "X", shape_words(x), "a known rank of at least 1")
    bias = input_at(node, 1)
    if bias is not None and facts.shape(bias) != (x[-1],):
        return input_limit(node, 1, "bias", shape_words(facts.shape(bias)), f"a vector, provably of length {x[-1]}")
    return None


def _skip_normalization(node: ir.Node, facts: Facts) -> Refusal | None:
    x, skip = facts.shape(node.inputs[0]), facts.shape(node.inputs[1])
    if x is None or len(x) not in (2, 3):
        return input_limit(node, 0, "input", shape_words(x), "rank 2 or 3")
    if skip is None or len(skip) not in (2, 3) or skip[-2:] != x[-2:]:
        return input_limit(
            node, 1, "skip", shape_words(skip), f"rank 2 or 3, with the last two dimensions {words(x[-2:])}"
        )
    for index, vector in enumerate(node.inputs[2:], 2):
        if vector is not None and facts.rank(vector) != 1:
            return input_limit(node, index, "vector", shape_words(facts.shape(vector)), "rank 1")
    epsilon = node.attributes.get("epsilon")
    if epsilon is not None and not epsilon.is_ref() and not epsilon.value >= 0:
        return attribute_limit(node, "epsilon", epsilon.value, "none below 0")
    return None


def scale_of(node: ir.Node) -> float | None:
    """Return the attribute `scale`; `None` if it is not given."""
    attribute = node.attributes.get("scale")
    return None if attribute is None or attribute.is_ref() else float(attribute.value)


def _multi_head(node: ir.Node, facts: Facts) -> Refusal | None:
    if scale_of(node) == 0:
        return attribute_limit(node, "scale", 0, "0 for none given")
    query, added = facts.shape(node.inputs[0]), input_at(node, 5)
    if query is None or len(query) not in (3, 5):
        return input_limit(node, 0, "query", shape_words(query), "rank 3 or 5")
    if added is None or len(query) == 5:
        return None
    shape = facts.shape(added)
    return (
        None
        if shape is not None and len(shape) == 4
        else input_limit(node, 5, "attention_bias", shape_words(shape), "rank 4")
    )


def _grouped_query(node: ir.Node, facts: Facts) -> Refusal | None:
    if scale_of(node) == 0:
        return attribute_limit(node, "scale", 0, "0 for none given")
    query = facts.shape(node.inputs[0])
    return (
        None if query is not None and len(query) == 3 else input_limit(node, 0, "query", shape_words(query), "rank 3")
    )


def _rotary_caches(node: ir.Node, facts: Facts) -> Refusal | None:
    if input_at(node, 3) is not None:
        return None
    x = facts.shape(node.inputs[0])
    length = None if x is None or len(x) not in (3, 4) else x[2 if len(x) == 4 else 1]
    for index, cache in enumerate(node.inputs[1:3], 1):
        shape = facts.shape(cache)
        if x is None or shape is None or len(shape) != 3 or shape[0] != x[0] or shape[1] != length:
            role = ("cos_cache", "sin_cache")[index - 1]
            return input_limit(node, index, role, shape_words(shape), "caches [batch, length, size], not broadcast")
    return None


BROADCASTS_FROM: Mapping[str, int] = {"Max": 8, "Min": 8, "Mean": 8, "Sum": 8}
"""The opset from which an operator of ai.onnx takes operands of several shapes."""


def unless_alike(node: ir.Node, facts: Facts) -> Refusal | None:
    """A refusal unless all operands have provably one shape."""
    first = facts.shape(node.inputs[0])
    other = next((at for at, value in enumerate(node.inputs) if first is None or facts.shape(value) != first), None)
    if other is None:
        return None
    return input_limit(
        node, other, "operand", shape_words(facts.shape(node.inputs[other])), "one shape for all operands"
    )


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
