"""Normalisations and softmax, in ai.onnx and in the runtime's own domain."""

from __future__ import annotations

import math

import onnx_ir as ir

from ortfuse.analysis.costs import cost, per_result
from ortfuse.analysis.ranges.interval_arithmetic import SLACK, bounded
from ortfuse.analysis.ranges.queries import Asking, ranges
from ortfuse.analysis.ranges.vector_norms import Bound, magnitude_of, norm_of, norm_question, norms
from ortfuse.analysis.transfer.elementwise_shape_functions import same_shape
from ortfuse.analysis.transfer.transfer_function_registry import Op, normalize_axis, transfer
from ortfuse.analysis.transfer.value_fact import NOTHING, Fact, Shape
from ortfuse.ir.operator_registry import describe
from ortfuse.ir.traits import MICROSOFT


@transfer("InstanceNormalization", "GroupNormalization", "RMSNormalization")
def like_input(op: Op) -> Fact:
    """The normalised input."""
    return Fact(op.dtype(), op.shape())


def _normalized_norm(scale: int, bias: int | None) -> Bound:
    def bound(op: Asking) -> float | None:
        asked = norm_question(op)
        shape = op.known_shape(0)
        is_last = op.axis("axis", -1, len(shape)) == len(shape) - 1
        if asked.axis != -1 or not is_last or not isinstance(shape[-1], int) or op.output is not op.node.outputs[0]:
            return None
        found = math.sqrt(shape[-1]) * (magnitude_of(op, scale) if op.has(scale) else 1.0)
        return found + norm_of(op, bias) if bias is not None and op.has(bias) else found

    return bound


norms("RMSNormalization", "SimplifiedLayerNormalization", f"{MICROSOFT}.SimplifiedLayerNormalization")(
    _normalized_norm(1, None)
)

transfer("GroupNorm", domain=MICROSOFT)(like_input)


@transfer("SkipGroupNorm", domain=MICROSOFT)
def skip_group_norm(op: Op) -> tuple[Fact, ...]:
    """The normalised sum, and the sum."""
    return (Fact(op.dtype(), op.shape()),) * 2


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


norms("LayerNormalization", f"{MICROSOFT}.LayerNormalization")(_normalized_norm(1, 2))
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


ranges("Softmax")(
    bounded(0.0, 1.0 + SLACK, infinity_is_lost=True)
)  # powers of e by their sum, none of which is negative


@norms("Softmax")
def softmax_norm(op: Asking) -> float | None:
    """Numbers that are not negative and sum to 1."""
    rank = len(op.known_shape(0))
    along = op.version >= 13 and op.axis("axis", -1, rank) == norm_question(op).axis + rank
    return 1.0 if along else None


@norms("LpNormalization")
def lp_normalization_norm(op: Asking) -> float | None:
    """Unit vectors."""
    rank = len(op.known_shape(0))
    return 1.0 if op.attr_int("p", 2) == 2 and op.axis("axis", -1, rank) == norm_question(op).axis + rank else None


norms(f"{MICROSOFT}.SkipLayerNormalization")(_normalized_norm(2, 3))
norms(f"{MICROSOFT}.SkipSimplifiedLayerNormalization")(_normalized_norm(2, None))
transfer("Hardmax", "LogSoftmax", "LpNormalization", "LRN", "MeanVarianceNormalization", "Softmax")(same_shape)
cost("Hardmax", "BatchNormalization")(per_result(2))
cost("LpNormalization")(per_result(4))
cost("Softmax", "LogSoftmax", "RMSNormalization", "SimplifiedLayerNormalization")(per_result(5))
cost("MeanVarianceNormalization", "LRN", f"{MICROSOFT}.SkipSimplifiedLayerNormalization", f"{MICROSOFT}.BiasSoftmax")(
    per_result(6)
)
cost("InstanceNormalization")(per_result(7))
cost("GroupNormalization", "LayerNormalization")(per_result(8))
cost(f"{MICROSOFT}.SkipLayerNormalization")(per_result(9))

describe("BatchNormalization", "InstanceNormalization", channel_axes=(1, 1, 0))
describe("BatchNormalization", linear=((0, 2, 3),))  # in inference
describe("LayerNormalization", "RMSNormalization", channel_axes=(-1, 1, -1))

# The two above compute at least in their input's precision, whatever their `stash_type`, and ONNX's reference supports no type
# other than float32.
describe("GroupNormalization", float32_unless="stash_type")
