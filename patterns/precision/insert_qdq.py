"""Insert QuantizeLinear and DequantizeLinear around MatMul and Conv, for compilers such as TensorRT and OpenVINO.

x W + b             ~  dq(q(x)) dq(W8) + b                 `static_int8_qdq`
conv(x, W) + b      ~  conv(dq(q(x)), dq(W8)) + b          `static_int8_qdq_conv`
x W + b             ~  x dq(W8) + b                        `weight_int8_qdq`
conv(x, W) + b      ~  conv(x, dq(W8)) + b                 `weight_int8_qdq_conv`

q(x) = clip(round(x / s), -128, 127), with a constant s such that the observed range of x becomes the 8-bit numbers. The range is
symmetric and the zero point 0, since TensorRT takes no other. W8 has one scale for each column or channel.
Results, sums and biases stay in float32, and all operators are standard: the reader chooses its kernels.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ortfuse.ir.refusal import Refusal
from ortfuse.quantization.scheme_families import QDQ
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, all_attributes, const, op, opt, var

from ._linear_pattern import GUARDS, GUARDS_OF_INTEGERS, LINEAR, SHAPES, bias, in_float32, weight8, x
from ._static_activation_quantization import grid_of, was_observed
from ._weight_quantization import Array, is_weight, read_later, symmetric, tensor_of

SOURCE = "ONNX operators QuantizeLinear and DequantizeLinear; TensorRT documentation, explicit quantisation"

METHODS = ("extremes", "percentile_9999", "least_squares", "entropy")
LARGEST = 127

whole, scale, zero = weight8(columns=True, signed=True, limit=LARGEST)
near_weight = op.DequantizeLinear(whole, scale, zero, axis=1)

HOW = all_attributes("how")
image, filters, channel_bias = var("x"), const("weight"), var("bias")


def has_channels(match: Match) -> Refusal | None:
    """The weight has the axes of a convolution."""
    found = match.shape("weight")
    return match.refuse("rank", "weight", "at least 3") if found is None or len(found) < 3 else None


def _shape(match: Match) -> tuple[int, ...]:
    return tuple(int(size) for size in tensor_of(match, "weight").shape.numpy())


def _channels(match: Match) -> tuple[int, ...]:
    return _shape(match)[:1]


def _integers(array: Array) -> Array:
    return symmetric(array, 0, LARGEST)[0]


def _scales(array: Array) -> Array:
    return symmetric(array, 0, LARGEST)[1]


def _zeros(array: Array) -> Array:
    return np.zeros(array.shape[0], np.int8)


near_filters = op.DequantizeLinear(
    read_later("W8", np.int8, _shape, _integers),
    read_later("W8_scale", np.float32, _channels, _scales),
    read_later("W8_zero", np.int8, _channels, _zeros),
    axis=0,
)


def _product(method: str) -> Rule:
    step, offset = grid_of("x", method, signed=True)
    made = op.MatMul(op.DequantizeLinear(op.QuantizeLinear(x, step, offset), step, offset), near_weight) + bias
    return Rule(
        name=f"static_int8_{QDQ}.{method}",
        pattern=LINEAR,
        replace=made,
        definition=made,
        guards=(*GUARDS_OF_INTEGERS, was_observed(method, "x")),
        exactness=Exactness.LOSSY,
        is_fitted=True,
        source=SOURCE,
        test=RuleTest(shapes=SHAPES, ranges={"x": (-5.0, 4.5)}),
    )


def _static_convolution(method: str) -> Rule:
    step, offset = grid_of("x", method, signed=True)
    near = op.DequantizeLinear(op.QuantizeLinear(image, step, offset), step, offset)
    return _convolution(f"static_int8_{QDQ}_conv.{method}", near, was_observed(method, "x"))


def _convolution(name: str, near: Pattern, *guards: Callable[[Match], Refusal | None]) -> Rule:
    made = op.Conv(near, near_filters, opt(channel_bias), attributes=HOW)
    return Rule(
        name=name,
        pattern=op.Conv(image, filters, opt(channel_bias), attributes=HOW),
        replace=made,
        definition=made,
        guards=(in_float32, is_weight("weight"), has_channels, *guards),
        exactness=Exactness.LOSSY,
        source=SOURCE,
        test=RuleTest(
            shapes=({"x": "b 4 6 6", "weight": "5 4 3 3", "bias": "5"}, {"x": "b 4 9", "weight": "6 2 3"}),
            attributes=({"how": [{"pads": (1, 1, 1, 1)}, {"strides": (2, 2)}]}, {"how": [{"group": 2}]}),
            ranges={"x": (-5.0, 4.5)},
        ),
    )


RULES = [
    *(_product(method) for method in METHODS),
    *(_static_convolution(method) for method in METHODS),
    Rule(
        name=f"weight_int8_{QDQ}.column",
        pattern=LINEAR,
        replace=op.MatMul(x, near_weight) + bias,
        definition=op.MatMul(x, near_weight) + bias,
        guards=GUARDS,
        exactness=Exactness.LOSSY,
        is_fitted=True,
        source=SOURCE,
        test=RuleTest(shapes=SHAPES),
    ),
    _convolution(f"weight_int8_{QDQ}_conv.channel", image),
]
