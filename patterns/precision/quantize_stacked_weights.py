"""Quantise MatMul with a stack of constant matrices, such as the weights of experts or heads.

x W  ~  dq(q(x)) dq(W8)                 W [..., k, n]        dynamic_int8_batched, static_int8_batched
x W  ~  concat(x_e dq(W_e))             W [e, k, n]          weight_int8_batched, weight_int4_batched

In 8 bits, W8 has one scale for all, or one for each column of each matrix; the runtime multiplies the stack at once. With
weight-only schemes each matrix has a MatMulNBits of its own. x_e is x if x has no axis of experts.
"""

from __future__ import annotations

from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import ms, op

from ._block_quantized_weights import blocks_of, fills_a_block
from ._static_activation_quantization import grid_of, was_observed
from ._weight_layouts import (
    BATCHED,
    GUARDS_OF_INTEGER_STACKS,
    GUARDS_OF_STACKS,
    WholeStack,
    each_matrix,
    has_one_axis,
    near,
    numbers_of_each,
    shape,
    x,
)
from .weight_only_quantization import NEVER_EMPTY, rounded_in_blocks

SOURCE = "ONNX operators MatMulInteger and DynamicQuantizeLinear"

SHAPES = (
    {"x": "3 m 24", "weight": "3 24 5"},
    {"x": "m 24", "weight": "3 24 5"},
    {"x": "b 1 m 24", "weight": "3 24 5"},
    {"x": "2 3 m 24", "weight": "2 3 24 5"},
)


def _dynamic(name: str, whole: WholeStack) -> Rule:
    integers, scale, zero = whole.parts()
    x8 = op.DynamicQuantizeLinear(x, outputs=3)
    return Rule(
        name=f"dynamic_int8_batched.{name}",
        pattern=BATCHED,
        replace=ms.MatMulIntegerToFloat(x8[0], integers, x8[1], scale, x8[2], zero),
        definition=op.MatMul(op.DequantizeLinear(x8[0], x8[1], x8[2]), near(integers, scale, zero)),
        guards=GUARDS_OF_INTEGER_STACKS,
        exactness=Exactness.LOSSY,
        source=SOURCE,
        test=RuleTest(shapes=SHAPES),
    )


def _static(method: str) -> Rule:
    step, offset = grid_of("x", method)
    integers, scale, zero = WholeStack(columns=True, signed=True).parts()
    x8 = op.QuantizeLinear(x, step, offset)
    return Rule(
        name=f"static_int8_batched.{method}",
        pattern=BATCHED,
        replace=ms.MatMulIntegerToFloat(x8, integers, step, scale, offset, zero),
        definition=op.MatMul(op.DequantizeLinear(x8, step, offset), near(integers, scale, zero)),
        guards=(*GUARDS_OF_INTEGER_STACKS, was_observed(method, "x")),
        exactness=Exactness.LOSSY,
        is_fitted=True,
        source=SOURCE,
        test=RuleTest(shapes=SHAPES, ranges={"x": (-5.0, 4.5)}),
    )


def _weight_only(bits: int, block: int, level: int) -> Rule:
    given = rounded_in_blocks(block, lambda match: shape(match)[-2]) if level == 4 else x
    return Rule(
        name=f"weight_int{bits}_batched.block{block}_level{level}",
        pattern=BATCHED,
        replace=each_matrix(bits, block, level, left=False),
        definition=op.MatMul(given, numbers_of_each(blocks_of(bits, block, zeros=False), left=False)),
        guards=(*GUARDS_OF_STACKS, has_one_axis, fills_a_block(block, lambda match: shape(match)[-2])),
        exactness=Exactness.LOSSY,
        source="ONNX Runtime operator com.microsoft.MatMulNBits",
        test=RuleTest(
            shapes=(
                {"x": f"3 m {2 * block}", "weight": f"3 {2 * block} 5"},
                {"x": f"m {block + 5}", "weight": f"2 {block + 5} 17"},
                {"x": f"b 1 m {block}", "weight": f"1 3 {block} 5"},
                {"x": f"e m {block}", "weight": f"3 1 {block} 5", "e": 3},
            ),
            never_empty=NEVER_EMPTY if level == 4 else {},
        ),
    )


RULES = [
    _dynamic("tensor", WholeStack(columns=False, signed=True)),
    _dynamic("channel", WholeStack(columns=True, signed=True)),
    *(_static(method) for method in ("extremes", "least_squares")),
    *(_weight_only(bits, block, level) for bits in (8, 4) for block in (32, 128) for level in (4, 1)),
]
