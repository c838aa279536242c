"""Quantise MatMul whose constant matrix is on the left.

W x  ~  dq(W8) dq(q(x))                         W [..., m, k]        dynamic_int8_left, static_int8_left
W x  ~  transpose(transpose(x) dq(W'))          W [..., m, k]        weight_int8_left, weight_int4_left

W8 are unsigned integers with one scale for all, as the runtime's kernels take the left operand.
"""

from __future__ import annotations

from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import ms, op

from ._block_quantized_weights import blocks_of, fills_a_block
from ._static_activation_quantization import grid_of, was_observed
from ._weight_layouts import (
    GUARDS_OF_INTEGER_LEFT,
    GUARDS_OF_LEFT,
    LEFT,
    WholeStack,
    each_matrix,
    has_one_axis,
    near,
    numbers_of_each,
    shape,
    x,
)

SHAPES = (
    {"x": "b 24 n", "weight": "5 24"},
    {"x": "24 n", "weight": "5 24"},
    {"x": "24 n", "weight": "1 5 24"},
    {"x": "3 24 n", "weight": "3 5 24"},
)

WHOLE = WholeStack(columns=False, signed=False)


def _dynamic() -> Rule:
    integers, scale, zero = WHOLE.parts()
    x8 = op.DynamicQuantizeLinear(x, outputs=3)
    return Rule(
        name="dynamic_int8_left.tensor_u8",
        pattern=LEFT,
        replace=ms.MatMulIntegerToFloat(integers, x8[0], scale, x8[1], zero, x8[2]),
        definition=op.MatMul(near(integers, scale, zero), op.DequantizeLinear(x8[0], x8[1], x8[2])),
        guards=GUARDS_OF_INTEGER_LEFT,
        exactness=Exactness.LOSSY,
        source="ONNX operators MatMulInteger and DynamicQuantizeLinear",
        test=RuleTest(shapes=SHAPES),
    )


def _static(method: str) -> Rule:
    step, offset = grid_of("x", method)
    integers, scale, zero = WHOLE.parts()
    x8 = op.QuantizeLinear(x, step, offset)
    return Rule(
        name=f"static_int8_left.{method}",
        pattern=LEFT,
        replace=ms.MatMulIntegerToFloat(integers, x8, scale, step, zero, offset),
        definition=op.MatMul(near(integers, scale, zero), op.DequantizeLinear(x8, step, offset)),
        guards=(*GUARDS_OF_INTEGER_LEFT, was_observed(method, "x")),
        exactness=Exactness.LOSSY,
        is_fitted=True,
        source="ONNX operators MatMulInteger and QuantizeLinear",
        test=RuleTest(shapes=SHAPES, ranges={"x": (-5.0, 4.5)}),
    )


def _weight_only(bits: int, block: int) -> Rule:
    near_weight = numbers_of_each(blocks_of(bits, block, zeros=False), left=True)
    return Rule(
        name=f"weight_int{bits}_left.block{block}_level1",
        pattern=LEFT,
        replace=each_matrix(bits, block, 1, left=True),
        definition=op.MatMul(near_weight, x),
        guards=(*GUARDS_OF_LEFT, has_one_axis, fills_a_block(block, lambda match: shape(match)[-1])),
        exactness=Exactness.LOSSY,
        source="ONNX Runtime operator com.microsoft.MatMulNBits",
        test=RuleTest(
            shapes=(
                {"x": f"b {2 * block} n", "weight": f"5 {2 * block}"},
                {"x": f"{block + 5} n", "weight": f"1 17 {block + 5}"},
                {"x": f"b 3 {block} n", "weight": f"3 5 {block}"},
            )
        ),
    )


RULES = [
    _dynamic(),
    *(_static(method) for method in ("extremes", "least_squares")),
    *(_weight_only(bits, block) for bits in (8, 4) for block in (32, 128)),
]
