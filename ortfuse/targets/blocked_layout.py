"""Where the runtime's CPU kernels keep an image in their blocked layout, [batch, channels / block, height, width, block].

At session creation the runtime moves convolutions whose weights it knows into this layout, and with them the operators between
them. FusedConv adds its fourth input in the layout in which it runs. If that input is not blocked, the convolution itself leaves
the blocked layout, and runs up to 1.4 times slower than Conv, Add and Relu.

The conditions are those of the runtime's NchwcTransformer for every size of its blocks (8 elements with AVX, 16 with AVX-512): a
convolution that only some processors run in blocks is counted as one that is not.
"""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.facts.facts import Facts
from ortfuse.graph.traits import MICROSOFT
from ortfuse.refusal import Refusal, refuse, words

SMALLEST_BLOCK, LARGEST_BLOCK = 8, 16
"""The sizes of a block of channels; a convolution of fewer channels than a block reads its input as it is."""

_CONVOLUTIONS = frozenset({("", "Conv"), (MICROSOFT, "FusedConv")})
_POOLS = frozenset({("", "MaxPool"), ("", "AveragePool")})
_FOLLOWING = frozenset({("", name) for name in ("Relu", "Sigmoid", "Tanh", "Add", "Sum")})
"""Operators that run in blocks if all of their inputs are blocked."""

_MOST_NODES = 1000
"""The most nodes looked at for one answer; beyond that a value counts as not blocked."""


def unless_blocked(value: ir.Value, facts: Facts) -> Refusal | None:
    """A refusal unless the runtime computes a value in its blocked layout, on any processor that has one."""
    pending, seen = [value], {value}
    while pending:
        one = pending.pop()
        node = one.producer()
        if node is None or len(seen) > _MOST_NODES:
            return _unblocked(one, "it")
        operator = (node.domain, node.op_type)
        sources = [source for source in node.inputs if source is not None]
        if operator in _CONVOLUTIONS and convolves_in_blocks(node, facts):
            sources = sources[3:]  # the sum is made in the layout of the convolution
        elif operator in _POOLS and _pools_blocks(node, facts):
            sources = []
        elif operator == ("", "BatchNormalization"):
            sources = sources[:1]
        elif operator not in _FOLLOWING:
            return _unblocked(one, words(node))
        pending += [source for source in sources if source not in seen]
        seen.update(sources)
    return None


def reads_blocks(value: ir.Value, facts: Facts) -> bool:
    """Whether something that runs in blocks reads a value, so that whoever computes it in blocks need not reorder it for that."""
    for node in value.consumers():
        operator = (node.domain, node.op_type)
        if operator in _CONVOLUTIONS and convolves_in_blocks(node, facts):
            return True
        if operator in _FOLLOWING | _POOLS and unless_blocked(node.outputs[0], facts) is None:
            return True
    return False


def _unblocked(value: ir.Value, what: str) -> Refusal:
    found = f"{what} is outside of the blocked layout, which the runtime would leave for a sum with it"
    return refuse("needless", value, found=found)


def convolves_in_blocks(node: ir.Node, facts: Facts) -> bool:
    """Whether a convolution runs in blocks: constant float32 weights for two spatial axes, and channels that fill the blocks."""
    weight = node.inputs[1]
    shape = facts.shape(weight)
    if any(value is not None and not facts.is_const(value) for value in node.inputs[1:3]):
        return False
    if facts.dtype(weight) != ir.DataType.FLOAT or shape is None or len(shape) != 4:
        return False
    outputs, inputs = shape[:2]
    attribute = node.attributes.get("group")
    groups = 1 if attribute is None else 0 if attribute.is_ref() else attribute.as_int()
    if not (isinstance(outputs, int) and isinstance(inputs, int) and groups > 0):
        return False
    if groups == 1:
        return inputs < SMALLEST_BLOCK or inputs % LARGEST_BLOCK == 0
    if inputs == 1 and outputs == groups:
        return outputs % LARGEST_BLOCK == 0
    return inputs % LARGEST_BLOCK == 0 and outputs % groups == 0 and outputs // groups % LARGEST_BLOCK == 0


def _pools_blocks(node: ir.Node, facts: Facts) -> bool:
    """Whether a pool runs in blocks: a float32 image whose channels fill the blocks, and no indices asked for."""
    shape, dtype = facts.shape(node.inputs[0]), facts.dtype(node.inputs[0])
    channels = shape[1] if shape is not None and len(shape) == 4 else None
    full = isinstance(channels, int) and channels % LARGEST_BLOCK == 0
    return full and dtype == ir.DataType.FLOAT and not any(output.name for output in node.outputs[1:])
