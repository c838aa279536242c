"""Quantise MatMul dynamically to 8 bits: the activation is quantised per tensor, to its range in this run.

x W + b  ~  dq(q(x)) dq(W8) + b

q(x) = clip(round(x / s) + z, 0, 255) with s = (max(x, 0) - min(x, 0)) / 255 (ONNX operator DynamicQuantizeLinear). W8 has one
scale for all, or one for each column: signed and symmetric, or unsigned with a zero point. On processors whose products of
unsigned and signed numbers saturate (x86 without VNNI), signed weights have 7 bits. The scheme `smooth` moves outliers into the
weight first (`_smooth_quant`).
"""

from __future__ import annotations

from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import ms, op

from ._linear_pattern import GUARDS_OF_INTEGERS, LINEAR, SHAPES, bias, weight8, x
from ._smooth_quant import COLUMNS, factors, smoothed
from ._smooth_quant import SOURCE as SMOOTH_SOURCE
from ._static_activation_quantization import was_observed

SOURCE = "ONNX operators DynamicQuantizeLinear and MatMulInteger"


def _rule(name: str, *, columns: bool, signed: bool, smooth: bool = False) -> Rule:
    whole, scale, zero = weight8(columns=columns, signed=signed, rows=factors if smooth else None)
    x8 = op.DynamicQuantizeLinear(smoothed if smooth else x, outputs=3)
    near_x = op.DequantizeLinear(x8[0], x8[1], x8[2])
    return Rule(
        name=f"dynamic_int8.{name}",
        pattern=LINEAR,
        replace=ms.MatMulIntegerToFloat(x8[0], whole, x8[1], scale, x8[2], zero, bias),
        definition=op.MatMul(near_x, op.DequantizeLinear(whole, scale, zero, axis=1)) + bias,
        guards=(*GUARDS_OF_INTEGERS, was_observed(COLUMNS, "x")) if smooth else GUARDS_OF_INTEGERS,
        exactness=Exactness.LOSSY,
        is_fitted=True,
        source=SMOOTH_SOURCE if smooth else SOURCE,
        test=RuleTest(shapes=SHAPES, ranges={"x": (-5.0, 4.5)} if smooth else {}),
    )


RULES = [
    _rule("tensor", columns=False, signed=True),
    _rule("channel", columns=True, signed=True),
    _rule("tensor_u8", columns=False, signed=False),
    _rule("channel_u8", columns=True, signed=False),
    _rule("smooth", columns=True, signed=True, smooth=True),
]
