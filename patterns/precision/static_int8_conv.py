"""Quantise convolutions statically to 8 bits: inputs and outputs have ranges observed at calibration.

act(conv(x, W) + b)  ~  dq(q(conv(dq(q(x)), dq(W8)) + dq(b32)))                           act: none, Relu, Clip

act(conv(x, W) + b + y)  ~  dq(q(act(dq(q(conv(dq(q(x)), dq(W8)) + dq(b32))) + dq(q(y)))))      act: none, Relu

q(x) = clip(round(x / s) + z, 0, 255), with constants s and z such that the range becomes all 8-bit numbers. If nothing is
below 0, z is 0, so that quantising is Relu or Clip, too. W8 is signed, with one scale s_w for each channel; b32 are
multiples of s s_w. If two convolutions follow each other, the second takes the integers of the first (pass `precision.cleanup`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortfuse.ir.refusal import Refusal
from ortfuse.quantization.quantization_parameters import SMALLEST_SCALE
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import (
    Match,
    Pattern,
    all_attributes,
    attr,
    built,
    const,
    ms,
    op,
    opt,
    redundant,
    scalar,
    var,
)

from .._rule_test_inputs import COST
from ._linear_pattern import LONGEST, in_float32, signed_limit
from ._static_activation_quantization import grid, grid_of, was_observed
from ._weight_quantization import Array, is_weight, read_later, read_later_as, tensor_of

SOURCE = "ONNX operator QLinearConv, ONNX Runtime operator com.microsoft.QLinearAdd"

LARGEST_BIAS = 1 << 30
"""The most steps that a bias may have: of channels whose weights are small next to it, these get fewer."""

RELU, CLIP = 0, 1
"""The forms with an activation of its own."""

HOW = all_attributes("how")
x, y = var("x"), var("y")
weight, bias = const("weight"), const("bias", "_")


def channels(match: Match) -> tuple[int, ...]:
    """One for each channel that is made."""
    return (int(tensor_of(match, "weight").shape.numpy()[0]),)


def shape(match: Match) -> tuple[int, ...]:
    """The shape of the weight."""
    return tuple(int(dim) for dim in tensor_of(match, "weight").shape.numpy())


def sums_fit(match: Match) -> Refusal | None:
    """A sum of all products fits into 32 bits, and there are as many biases as channels."""
    found = match.shape("weight")
    if found is None or len(found) < 3:
        return match.refuse("rank", "weight", "at least 3")
    terms = int(np.prod([dim for dim in found[1:] if isinstance(dim, int)]))
    if terms > LONGEST:
        return match.refuse("value", "weight", f"of at most {LONGEST} numbers a channel")
    return match.unless_shape(found[:1], "bias")


@redundant(COST)
def has_several_filters(match: Match) -> Refusal | None:
    """There is more than one filter: one alone reads each number once, which rounding all of them takes as long as."""
    alone = (match.shape("weight") or ())[:1] == (1,)
    return match.refuse("needless", "weight", found="it is one filter") if alone else None


def is_active(match: Match) -> bool:
    """Whether there is an activation."""
    alone = match.choices.get("form") in (RELU, CLIP) or match.choices.get("sum") == RELU
    return alone or bool(match.get("activation"))


def sum_is_plain(match: Match) -> Refusal | None:
    """Require that the summand has the shape of the result."""
    return match.unless_same_shape("y", "root")


def is_rounded_so(method: str) -> Callable[[Match], Refusal | None]:
    """The activation is none, or one that rounding to a grid without negative and without larger numbers does, too."""

    def guard(match: Match) -> Refusal | None:
        if match.get("activation") not in (None, "", "Relu"):
            return match.refuse("value", "activation", "none or Relu")
        seen = match.observed("root", method)
        if match.choices.get("form") != CLIP or seen is None:
            return None
        if match["low"] != 0:
            return match.refuse("value", "low", "0")
        return match.unless_value(
            "high", seen[1] <= match["high"], f"at least {seen[1]:.4g}, as results were seen to be"
        )

    return guard


@dataclass(frozen=True)
class _Channels:
    """Rounding of the weight and the bias, given the scale of what comes in."""

    step: float
    bias: Array | None

    def scales(self, array: Array) -> Array:
        """The scale of each channel: by its largest weight or, where that is small next to the bias, by the bias."""
        most: Array = np.abs(array).reshape(array.shape[0], -1).max(axis=1) / signed_limit()
        if self.bias is not None:
            most = np.maximum(most, np.abs(self.bias) / (self.step * LARGEST_BIAS))
        found: Array = np.maximum(most, SMALLEST_SCALE).astype(np.float32)
        return found

    def weights(self, array: Array) -> Array:
        """The weights in steps of the scales."""
        limit, scales = signed_limit(), self.scales(array).reshape(-1, *[1] * (array.ndim - 1))
        rounded: Array = np.clip(np.rint(array / scales), -limit, limit)
        return rounded

    def bias_scales(self, array: Array) -> Array:
        """The scale of each bias: that of the products."""
        found: Array = np.maximum(self.scales(array) * np.float32(self.step), SMALLEST_SCALE)
        return found

    def biases(self, array: Array) -> Array:
        """The biases in steps of their scales."""
        found: Array = np.zeros(array.shape[0]) if self.bias is None else np.rint(self.bias / self.bias_scales(array))
        return found


class _Spelled:
    """Convolutions of 8-bit integers for one way to tell ranges: as the kernels compute them, and in standard operators."""

    def __init__(self, method: str) -> None:
        def rounding(match: Match) -> _Channels:
            found = None if match.get("bias") is None else match.const("bias").astype(np.float64)
            return _Channels(grid(match, "x", method)[0], found)

        self.step, self.offset = grid_of("x", method)
        self.whole = read_later_as("W8", np.int8, shape, lambda match: rounding(match).weights)
        self.scale = read_later_as("W8_scale", np.float32, channels, lambda match: rounding(match).scales)
        self.zero = read_later("W8_zero", np.int8, channels, lambda array: np.zeros(array.shape[0]))
        self.bias = read_later_as("b32", np.int32, channels, lambda match: rounding(match).biases)
        self.bias_scale = read_later_as("b32_scale", np.float32, channels, lambda match: rounding(match).bias_scales)
        self.x8 = op.QuantizeLinear(x, self.step, self.offset)

    def integers(self, *grid: Pattern) -> Pattern:
        """The result on a grid."""
        return op.QLinearConv(
            self.x8, self.step, self.offset, self.whole, self.scale, self.zero, *grid, self.bias, attributes=HOW
        )

    def floats(self) -> Pattern:
        """The result, not rounded."""
        near_x = op.DequantizeLinear(self.x8, self.step, self.offset)
        near_weight = op.DequantizeLinear(self.whole, self.scale, self.zero, axis=0)
        return op.Conv(near_x, near_weight, op.DequantizeLinear(self.bias, self.bias_scale, axis=0), attributes=HOW)


def _rounded(value: Pattern, *grid: Pattern) -> Pattern:
    return op.DequantizeLinear(op.QuantizeLinear(value, *grid), *grid)


GUARDS = (in_float32, is_weight("weight"), is_weight("bias"), sums_fit, has_several_filters)
FUSED: dict[str, Any] = {"activation": attr("activation"), "attributes": HOW}
LAYER = op.Conv(x, weight, opt(bias), attributes=HOW)
CLIPPED = op.Clip(LAYER, scalar("low"), scalar("high"))
PLAIN = (op.Relu(LAYER) | CLIPPED | LAYER | ms.FusedConv(x, weight, opt(bias), **FUSED)).named("form")
SUM = op.Add(op.Conv(x, weight, opt(bias), attributes=HOW), y)
WITH_SUM = (op.Relu(SUM) | SUM | ms.FusedConv(x, weight, opt(bias), y, **FUSED)).named("sum")
ASSUMES = {"*1e5 times as large*": "the results were seen to be in another range"}


def _plain(method: str) -> Rule:
    spelled = _Spelled(method)
    grid = grid_of("root", method, from_zero=is_active)

    def meant(match: Match) -> Pattern:
        near: Pattern = op.Relu(spelled.floats()) if is_active(match) else spelled.floats()
        if match.choice("form") == CLIP:
            near = op.Clip(spelled.floats(), scalar("low"), scalar("high"))
        return _rounded(near, *grid)

    return Rule(
        name=f"static_int8_conv.{method}",
        formula="act(conv(x, W) + b)",
        pattern=PLAIN,
        replace=op.DequantizeLinear(spelled.integers(*grid), *grid),
        definition=built(meant, makes=("Conv", "Relu", "Clip", "QuantizeLinear", "DequantizeLinear")),
        guards=(*GUARDS, is_rounded_so(method), was_observed(method, "x", "root")),
        exactness=Exactness.LOSSY,
        source=SOURCE,
        test=RuleTest(
            shapes=({"x": "b 4 6 6", "weight": "5 4 3 3", "bias": "5"}, {"x": "b 4 9", "weight": "6 2 3", "bias": "6"}),
            attributes=(
                {"how": [{"pads": (1, 1, 1, 1)}, {"strides": (2, 2)}], "activation": ["Relu"]},
                {"how": [{"group": 2}], "activation": ["Relu"]},
            ),
            scalars={"low": [0.0], "high": [23.0]},
            ranges={"x": (-5.0, 4.5), "root": (-20.0, 22.0)},
            step=42.0 / 255,
            assumes=ASSUMES,
        ),
    )


def _residual(method: str) -> Rule:
    spelled = _Spelled(method)
    grid, inner = grid_of("root", method, from_zero=is_active), grid_of("root/product", method)
    other = grid_of("y", method)
    y8 = op.QuantizeLinear(y, *other)

    def meant(match: Match) -> Pattern:
        near = _rounded(spelled.floats(), *inner) + _rounded(y, *other)
        return _rounded(op.Relu(near) if is_active(match) else near, *grid)

    return Rule(
        name=f"static_int8_conv.{method}_sum",
        formula="act(conv(x, W) + b + y)",
        pattern=WITH_SUM,
        replace=op.DequantizeLinear(ms.QLinearAdd(spelled.integers(*inner), *inner, y8, *other, *grid), *grid),
        definition=built(meant, makes=("Conv", "Add", "Relu", "QuantizeLinear", "DequantizeLinear")),
        guards=(*GUARDS, sum_is_plain, is_rounded_so(method), was_observed(method, "x", "y", "root", "root/product")),
        exactness=Exactness.LOSSY,
        source=SOURCE,
        test=RuleTest(
            shapes={"x": "b 4 6 6", "weight": "5 4 3 3", "bias": "5", "y": "b 5 6 6"},
            attributes={"how": [{"pads": (1, 1, 1, 1)}], "activation": ["Relu"]},
            ranges={"x": (-5.0, 4.5), "y": (-5.0, 5.0), "root": (-20.0, 22.0), "root/product": (-20.0, 20.0)},
            step=82.0 / 255,
            assumes=ASSUMES,
        ),
    )


METHODS = ("extremes", "percentile_9999", "least_squares", "entropy")
RULES = [made(method) for made in (_plain, _residual) for method in METHODS]
