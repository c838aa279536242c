"""Normalisations, in ai.onnx and in the runtime's own domain."""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.analysis.transfer.fact import NOTHING, Fact, Shape
from ortfuse.analysis.transfer.op import Op, normalize_axis, transfer
from ortfuse.ir.traits import MICROSOFT


@transfer("InstanceNormalization", "GroupNormalization", "RMSNormalization")
def like_input(op: Op) -> Fact:
    """The normalised input."""
    return Fact(op.dtype(), op.shape())


transfer("GroupNorm", "SkipGroupNorm", domain=MICROSOFT)(like_input)


@transfer("BatchNormalization")
def batch_normalization(op: Op) -> tuple[Fact, ...]:
    """The normalised input and, in training, the statistics."""
    statistics = Fact(op.dtype(3), op.shape(3))
    return (Fact(op.dtype(), op.shape()),) + (statistics,) * (op.output_count - 1)


@transfer("LayerNormalization", "SimplifiedLayerNormalization")
def layer_normalization(op: Op) -> tuple[Fact, ...]:
    """The normalised input, with the mean and inverse standard deviation over the axes from `axis`."""
    shape = op.shape()
    # SimplifiedLayerNormalization (an operator of the runtime in domain "") has the output type of its scale.
    dtype = op.dtype(1) if op.node.op_type == "SimplifiedLayerNormalization" else op.dtype(0)
    statistics = NOTHING
    if op.output_count > 1 and shape is not None:
        axis = normalize_axis(op.attr_int("axis", -1), len(shape))
        reduced: Shape = shape[:axis] + (1,) * (len(shape) - axis)
        statistics = Fact(op.attr_dtype("stash_type", ir.DataType.FLOAT), reduced)
    return Fact(dtype, shape), statistics, statistics


transfer("LayerNormalization", "SimplifiedLayerNormalization", domain=MICROSOFT)(layer_normalization)


@transfer("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(op: Op) -> tuple[Fact, ...]:
    """The normalised sum of input, skip and bias; statistics, which inference leaves unknown; and the sum itself."""
    output = Fact(op.dtype(), op.shape())
    return output, NOTHING, NOTHING, output


@transfer("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(op: Op) -> tuple[Fact, ...]:
    """Sum of word, position and segment embeddings, normalised: [batch, sequence, hidden]; mask index; the sum."""
    tokens, table = op.shape(0), op.shape(2)
    known = tokens is not None and table is not None and len(tokens) == 2
    shape = (*tokens, table[-1]) if known and tokens is not None and table is not None else None
    hidden = Fact(op.dtype(2), shape)
    return hidden, Fact(ir.DataType.INT32, None if tokens is None else tokens[:1]), hidden
