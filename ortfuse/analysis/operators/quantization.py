"""Operators on quantised tensors: QuantizeLinear, DequantizeLinear, QLinearMatMul and other integer operators."""

from __future__ import annotations

import operator

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.costs import cost, macs, per_operand, per_result
from ortfuse.analysis.operators.concat_and_split import concatenated
from ortfuse.analysis.operators.conv_pool_resize import conv_shape, pooled_shape
from ortfuse.analysis.operators.matmul import gemm_shape, matmul_macs, product_shape
from ortfuse.analysis.ranges.interval_arithmetic import combine, multiply
from ortfuse.analysis.ranges.queries import Asking, ranges
from ortfuse.analysis.ranges.range import Range, one_of
from ortfuse.analysis.transfer.broadcasting import broadcast_shapes
from ortfuse.analysis.transfer.transfer_function_registry import Op, transfer
from ortfuse.analysis.transfer.value_fact import Fact
from ortfuse.ir.traits import MICROSOFT


@transfer("QuantizeLinear")
def quantize_linear(op: Op) -> Fact:
    """The input as integers of the zero point's type, of ``output_dtype``, or uint8."""
    named = op.attr_dtype("output_dtype")
    dtype = op.dtype(2) if op.has(2) else named or ir.DataType.UINT8
    return Fact(dtype, op.shape())


@transfer("DequantizeLinear")
def dequantize_linear(op: Op) -> Fact:
    """The dequantised numbers, in the type of the scale (or ``output_dtype``)."""
    return Fact(op.attr_dtype("output_dtype") or op.dtype(1), op.shape())


@ranges("DequantizeLinear")
def dequantize_range(op: Asking) -> Range | None:
    """Differences of integers of up to 16 bits, which float32 holds, times the scale."""
    source = op.dtype(0)
    if op.result_dtype != ir.DataType.FLOAT or source is None or not source.is_integer() or source.bitwidth > 16:
        return None
    numbers, zeros = op.range(0), op.range(2) if len(op.inputs) > 2 and op.inputs[2] is not None else one_of(0)
    centred = combine(np.subtract, operator.sub, numbers, zeros, ir.DataType.FLOAT)
    return None if centred is None else multiply(centred, op.range(1), ir.DataType.FLOAT)


transfer("QuantizeLinear", domain=MICROSOFT)(quantize_linear)
transfer("DequantizeLinear", domain=MICROSOFT)(dequantize_linear)


@transfer("DynamicQuantizeLinear")
def dynamic_quantize_linear(op: Op) -> tuple[Fact, ...]:
    """The input as uint8, with a scale and zero point computed from it."""
    return (
        Fact(ir.DataType.UINT8, op.shape()),
        Fact(ir.DataType.FLOAT, ()),
        Fact(ir.DataType.UINT8, ()),
    )


@transfer("QLinearMatMul")
def qlinear_matmul(op: Op) -> Fact:
    """Product of two quantised matrices (inputs 0 and 3), in the type of the result's zero point."""
    return Fact(op.dtype(7), product_shape(op.shape(0), op.shape(3)))


@transfer("QGemm", domain=MICROSOFT)
def qgemm(op: Op) -> Fact:
    """Product of two quantised matrices (inputs 0 and 3) and a bias, quantised again if there is a scale to do so."""
    return Fact(op.dtype(8) if op.has(8) else op.dtype(1), gemm_shape(op, op.known_shape(0), op.known_shape(3)))


@transfer("QLinearConv")
def qlinear_conv(op: Op) -> Fact:
    """Convolution of quantised data (input 0) with quantised weights (input 3)."""
    return Fact(op.dtype(7), conv_shape(op, op.known_shape(0), op.known_shape(3)))


@transfer("QLinearConv", domain=MICROSOFT)
def contrib_qlinear_conv(op: Op) -> Fact:
    """The same, with the channels of the data and of the result last if the attribute says so."""
    data, weight = op.known_shape(0), op.known_shape(3)
    if not op.attr_int("channels_last", 0):
        return Fact(op.dtype(7), conv_shape(op, data, weight))
    batch, channels, *sizes = conv_shape(op, (data[0], data[-1], *data[1:-1]), weight)
    return Fact(op.dtype(7), (batch, *sizes, channels))


@transfer("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def qlinear_binary(op: Op) -> Fact:
    """Sum or product of two quantised tensors (inputs 0 and 3)."""
    return Fact(op.dtype(0), broadcast_shapes(op.shape(0), op.shape(3)))


@transfer("QLinearWhere", domain=MICROSOFT)
def qlinear_where(op: Op) -> Fact:
    """Elements of two quantised tensors (inputs 1 and 4), chosen by a condition."""
    return Fact(op.dtype(1), broadcast_shapes(op.shape(0), broadcast_shapes(op.shape(1), op.shape(4))))


@transfer("QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax", domain=MICROSOFT)
def qlinear_elementwise(op: Op) -> Fact:
    """A function of each element of a quantised tensor."""
    return Fact(op.dtype(0), op.shape(0))


@transfer("QLinearConcat", domain=MICROSOFT)
def qlinear_concat(op: Op) -> Fact:
    """Quantised tensors, every third input from the third on, joined along an axis."""
    return concatenated([op.fact(index) for index in range(2, len(op.inputs), 3)], op.attr_int("axis", 0))


@transfer("DynamicQuantizeMatMul", "MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_to_float(op: Op) -> Fact:
    """Product of matrices, of which at least the second is quantised, as floats of the scale's type."""
    return Fact(op.dtype(2), product_shape(op.shape(0), op.shape(1)))


@transfer("MatMulNBits", domain=MICROSOFT)
def matmul_nbits(op: Op) -> Fact:
    """Product with a matrix of N columns stored with a few bits per number."""
    return Fact(op.dtype(), (*op.known_shape()[:-1], op.attr_int("N", 0)))


@transfer("GatherBlockQuantized", domain=MICROSOFT)
def gather_block_quantized(op: Op) -> Fact:
    """Rows of a table of small integers, several in each byte along the last axis, as floats of the scale's type."""
    shape, indices = list(op.known_shape(0)), op.known_shape(1)
    axis = op.axis("gather_axis", 0, len(shape))
    if op.dtype(0) == ir.DataType.UINT8:
        shape[-1] *= 8 // op.attr_int("bits", 4)
    return Fact(op.dtype(2), (*shape[:axis], *indices, *shape[axis + 1 :]))


@transfer("QLinearGlobalAveragePool", domain=MICROSOFT)
def qlinear_global_average_pool(op: Op) -> Fact:
    """The mean over all positions of an image, with axes of size 1 in their place."""
    shape = op.known_shape(0)
    ones = (1,) * (len(shape) - 2)
    last = op.attr_int("channels_last", 0)
    return Fact(op.dtype(0), (shape[0], *ones, shape[-1]) if last else (*shape[:2], *ones))


@transfer("QLinearAveragePool", domain=MICROSOFT)
def qlinear_average_pool(op: Op) -> Fact:
    """The mean over sliding windows of a quantised image."""
    return Fact(op.dtype(0), None if op.attr_int("channels_last", 0) else pooled_shape(op))


cost(f"{MICROSOFT}.DynamicQuantizeMatMul", f"{MICROSOFT}.MatMulIntegerToFloat")(macs(matmul_macs(0, 1)))
cost("QLinearMatMul", f"{MICROSOFT}.QGemm")(macs(matmul_macs(0, 3)))
cost(f"{MICROSOFT}.MatMulNBits")(macs(lambda at: at.size(0) * at.integer("N")))
cost(f"{MICROSOFT}.QLinearConcat")(per_result(0))
cost(f"{MICROSOFT}.QLinearAdd", f"{MICROSOFT}.QLinearMul", f"{MICROSOFT}.QLinearLeakyRelu")(per_result(1))
cost(f"{MICROSOFT}.QLinearSigmoid")(per_result(3))
cost(f"{MICROSOFT}.QLinearSoftmax")(per_result(5))
cost(f"{MICROSOFT}.QLinearGlobalAveragePool", f"{MICROSOFT}.QLinearReduceMean")(per_operand(1))
