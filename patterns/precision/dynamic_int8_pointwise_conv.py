"""Quantise 1x1 convolutions dynamically to 8 bits, as MatMul between Transposes.

act(conv(x, W) + b + y)  ~  act(t'(t(dq(q(x))) dq(W8)) + b + y)                          act: none, Relu, Clip

q is DynamicQuantizeLinear, t moves the channels to the end, t' moves them back; W8 is signed, with one scale for each channel.
"""

from __future__ import annotations

import numpy as np

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Guard, Match, Pattern, built, ms, op, opt, scalar

from ._linear_pattern import in_float32, signed_limit
from ._weight_quantization import Array, is_weight, read_later, symmetric
from .static_int8_conv import (
    CLIP,
    PLAIN,
    WITH_SUM,
    bias,
    channels,
    has_several_filters,
    is_active,
    shape,
    sum_is_plain,
    sums_fit,
    x,
    y,
)

SOURCE = "ONNX operators DynamicQuantizeLinear, Conv and MatMulInteger"

DEFAULTS = {"strides": 1, "pads": 0, "group": 1, "auto_pad": "NOTSET"}
"""Attributes that have to be so; the dilations of a window of one position mean nothing."""


def is_a_product(match: Match) -> Refusal | None:
    """Each position is computed from itself alone, and from all channels."""
    if any(size != 1 for size in shape(match)[2:]):
        return match.refuse("value", "weight", "of one position")
    for name, value in match["how"].items():
        if name in DEFAULTS and any(one != DEFAULTS[name] for one in np.atleast_1d(value)):
            return match.refuse("value", "how", f"without {name}", value)
    return None


def activation_is_simple(match: Match) -> Refusal | None:
    """There is no activation, or Relu."""
    simple = match.get("activation") in (None, "", "Relu")
    return None if simple else match.refuse("value", "activation", "none or Relu")


def _matrix(array: Array) -> tuple[Array, Array]:
    """The weight [channels in, channels out] in 8 bits, and the scales."""
    return symmetric(array.reshape(array.shape[0], -1).T, 1, signed_limit())


whole = read_later("W8", np.int8, lambda match: shape(match)[1::-1], lambda array: _matrix(array)[0])
scale = read_later("W8_scale", np.float32, channels, lambda array: _matrix(array)[1])
zero = read_later("W8_zero", np.int8, channels, lambda array: np.zeros(array.shape[0]))


def _last(match: Match) -> tuple[int, ...]:
    rank = len(shape(match))
    return (0, *range(2, rank), 1)


def _second(match: Match) -> tuple[int, ...]:
    rank = len(shape(match))
    return (0, rank - 1, *range(1, rank - 1))


x8 = op.DynamicQuantizeLinear(x, outputs=3)
moved = op.Transpose(x8[0], perm=_last)
product = ms.MatMulIntegerToFloat(moved, whole, x8[1], scale, x8[2], zero, opt(bias))
near_x = op.Transpose(op.DequantizeLinear(*x8), perm=_last)
near = op.MatMul(near_x, op.DequantizeLinear(whole, scale, zero, axis=1)) + opt(bias)


def _finished(made: Pattern, *makes: str) -> Pattern:
    """The result of the product: with its channels second, the summand, and the activation."""

    def rest(match: Match) -> Pattern:
        found: Pattern = op.Transpose(made, perm=_second)
        if match.get("y") is not None:
            found = found + y
        if match.choices.get("form") == CLIP:
            return op.Clip(found, scalar("low"), scalar("high"))
        return op.Relu(found) if is_active(match) else found

    return built(rest, makes=(*makes, "Transpose", "Add", "Relu", "Clip"))


def _rule(name: str, pattern: Pattern, guards: tuple[Guard, ...], test: RuleTest) -> Rule:
    return Rule(
        name=f"dynamic_int8_conv.{name}",
        formula=f"act(conv(x, W) + b{' + y' if name == 'pointwise_sum' else ''})",
        pattern=pattern,
        replace=_finished(product, "DynamicQuantizeLinear", "com.microsoft.MatMulIntegerToFloat"),
        definition=_finished(near, "DynamicQuantizeLinear", "DequantizeLinear", "MatMul"),
        guards=(
            in_float32,
            is_weight("weight"),
            is_weight("bias"),
            sums_fit,
            has_several_filters,
            is_a_product,
            activation_is_simple,
            *guards,
        ),
        exactness=Exactness.LOSSY,
        source=SOURCE,
        test=test,
    )


RULES = [
    _rule(
        "pointwise",
        PLAIN,
        (),
        RuleTest(
            shapes={"x": "b 4 5 6", "weight": "5 4 1 1", "bias": "5"},
            attributes={"how": [{"group": 1}], "activation": ["Relu"]},
            scalars={"low": [-1.0], "high": [3.0]},
        ),
    ),
    _rule(
        "pointwise_sum",
        WITH_SUM,
        (sum_is_plain,),
        RuleTest(
            shapes={"x": "b 4 6 6", "weight": "5 4 1 1", "bias": "5", "y": "b 5 6 6"},
            attributes={"how": [{"kernel_shape": (1, 1)}], "activation": ["Relu"]},
        ),
    ),
]
