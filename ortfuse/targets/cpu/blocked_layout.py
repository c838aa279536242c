"""Find where the runtime's CPU kernels keep an image in their blocked layout, [batch, channels / block, height, width, block].

At session creation the runtime moves convolutions whose weights it knows into this layout, and with them the operators between
them. FusedConv adds its fourth input in the layout in which it runs. If that input is not blocked, the convolution itself leaves
the blocked layout, and runs up to 1.4 times slower than Conv, Add and Relu.

The conditions are those of the runtime's NchwcTransformer for every size of its blocks (8 elements with AVX, 16 with AVX-512).
`unless_blocked` tells of images that are in blocks on every processor, and `may_be_blocked` of those that are on some.
"""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import DimLike
from ortfuse.ir.refusal import Refusal, refuse, words
from ortfuse.ir.traits import MICROSOFT

SMALLEST_BLOCK, LARGEST_BLOCK = 8, 16
"""The sizes of a block of channels; a convolution of fewer channels than a block reads its input as it is."""

_CONVOLUTIONS = frozenset({("", "Conv"), (MICROSOFT, "FusedConv")})
_POOLS = frozenset({("", "MaxPool"), ("", "AveragePool")})
_GLOBAL_POOLS = frozenset({("", "GlobalAveragePool"), ("", "GlobalMaxPool")})
_SUMS = frozenset({("", name) for name in ("Add", "Sum", "Mul")})
_FOLLOWING = _SUMS | {("", name) for name in ("Relu", "Sigmoid", "Tanh", "HardSigmoid")}
"""Operators that run in blocks if all of their inputs are blocked, of one shape."""

_IN_CONVOLUTIONS = frozenset({("", "LeakyRelu"), ("", "Clip")})
"""Operators that are computed by the convolution before them, and nowhere else in blocks."""

_PERHAPS = (
    _FOLLOWING
    | {("", name) for name in ("BatchNormalization", "Concat", "Dropout", "Gelu", "HardSwish", "Identity", "Pad")}
    | {("", "Resize"), ("", "Upsample"), (MICROSOFT, "Gelu"), (MICROSOFT, "QuickGelu")}
)
"""Operators that may run in blocks, or become part of what does."""

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
        elif operator not in _FOLLOWING or (operator in _SUMS and not _are_alike(sources, facts)):
            return _unblocked(one, words(node))
        pending += [source for source in sources if source not in seen]
        seen.update(sources)
    return None


def may_be_blocked(value: ir.Value, facts: Facts) -> bool:
    """Whether the runtime may compute an image in its blocked layout on some processor."""
    pending, seen = [value], {value}
    while pending:
        one = pending.pop()
        node = one.producer()
        if node is None or len(seen) > _MOST_NODES or not _fills_blocks(one, facts):
            return False
        operator = (node.domain, node.op_type)
        if operator in _CONVOLUTIONS:
            if not any(_convolves(node, size, size, facts) for size in (SMALLEST_BLOCK, LARGEST_BLOCK)):
                return False
            continue
        source = node.inputs[0]
        before = None if source is None else source.producer()
        is_in_convolution = before is not None and len(before.outputs[0].uses()) == 1
        if operator in _IN_CONVOLUTIONS and not is_in_convolution:
            return False
        if operator not in _POOLS | _GLOBAL_POOLS | _IN_CONVOLUTIONS | _PERHAPS:
            return False
        if operator not in _POOLS:
            sources = [one for one in node.inputs if one is not None and not facts.is_const(one) and one not in seen]
            pending += sources
            seen.update(sources)
    return True


def leaves_blocks(value: ir.Value, facts: Facts, but: ir.Node | None) -> bool:
    """Whether something other than a node reads a value outside of the blocked layout."""
    return value.is_graph_output() or any(
        not _reads_blocks(node, facts) for node in value.consumers() if node is not but
    )


def reads_blocks(value: ir.Value, facts: Facts) -> bool:
    """Whether something that runs in blocks reads a value, so that whoever computes it in blocks need not reorder it for that."""
    return any(_reads_blocks(node, facts) for node in value.consumers())


def _reads_blocks(node: ir.Node, facts: Facts) -> bool:
    operator = (node.domain, node.op_type)
    if operator in _CONVOLUTIONS and convolves_in_blocks(node, facts):
        return True
    return operator in _FOLLOWING | _POOLS and unless_blocked(node.outputs[0], facts) is None


def _unblocked(value: ir.Value, what: str) -> Refusal:
    found = f"{what} is outside of the blocked layout, which the runtime would leave for a sum with it"
    return refuse("needless", value, found=found)


def convolves_in_blocks(node: ir.Node, facts: Facts) -> bool:
    """Whether a convolution runs in blocks of any size: float32 weights that are constant, and channels that fill the blocks."""
    return _convolves(node, SMALLEST_BLOCK, LARGEST_BLOCK, facts)


def _convolves(node: ir.Node, fewest: int, block: int, facts: Facts) -> bool:
    """The same for blocks of one size; of fewer channels than `fewest` the input is read as it is."""
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
        return inputs < fewest or inputs % block == 0
    if inputs == 1 and outputs == groups:
        return outputs % block == 0
    return inputs % block == 0 and outputs % groups == 0 and outputs // groups % block == 0


def _pools_blocks(node: ir.Node, facts: Facts) -> bool:
    """Whether a pool runs in blocks: a float32 image whose channels fill the blocks, and no indices asked for."""
    shape, dtype = facts.shape(node.inputs[0]), facts.dtype(node.inputs[0])
    channels = shape[1] if shape is not None and len(shape) == 4 else None
    full = isinstance(channels, int) and channels % LARGEST_BLOCK == 0
    return full and dtype == ir.DataType.FLOAT and not any(output.name for output in node.outputs[1:])


def _fills_blocks(value: ir.Value, facts: Facts) -> bool:
    """Whether the channels of an image may fill the smallest blocks."""
    shape = facts.shape(value)
    channels: DimLike | None = shape[1] if shape is not None and len(shape) == 4 else None
    is_image = shape is None or len(shape) == 4
    return is_image and (not isinstance(channels, int) or channels % SMALLEST_BLOCK == 0)


def _are_alike(values: list[ir.Value], facts: Facts) -> bool:
    shapes = {facts.shape(value) for value in values}
    return len(shapes) == 1 and None not in shapes
