"""Merge two consecutive Convs without an activation between them, where that needs fewer multiplications.

conv(conv(x, V, a), W, b) = conv(x, W V, W a + b)      if W has a single tap, or V has one and W pads nothing or a = 0
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.linear_maps.windows import Axis, Window
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, computed, op, redundant, var

from .._rule_test_inputs import COST
from ._multi_conv import Array, bias_of, numbered, rounded, unless_copied, window_of
from ._test_instances import PADDED

SOURCE = "a convolution is linear"

x = var("x")


def joint(match: Match) -> Window | None:
    """The window of both together: that of the one with several taps, with the strides of both."""
    first, second = window_of(match, 1), window_of(match, 2)
    if (
        first is None
        or second is None
        or first.groups != 1
        or second.groups != 1
        or len(first.axes) != len(second.axes)
    ):
        return None
    axes = [_merged_axis(one, other) for one, other in zip(first.axes, second.axes, strict=True)]
    return None if None in axes else Window(tuple(axis for axis in axes if axis is not None), 1)


def _merged_axis(one: Axis, other: Axis) -> Axis | None:
    if other.kernel == 1 and not (other.front or other.back):
        return Axis(one.kernel, one.stride * other.stride, one.dilation, one.front, one.back)
    return other if one == Axis(1, 1, one.dilation) else None


def summed_weight(match: Match) -> Array:
    """W V: summed over the channels between, in float64."""
    first, second = (match.const(f"weight{number}").astype(np.float64) for number in (1, 2))
    taps = tuple(max(sizes) for sizes in zip(first.shape[2:], second.shape[2:], strict=True))
    made: Array = np.einsum("mit,omt->oit", _spread(first, taps), _spread(second, taps))
    return made.reshape(*made.shape[:2], *taps)


def _spread(weights: Array, taps: tuple[int, ...]) -> Array:
    """Weights [out, in, taps], where an axis of one tap is repeated along all of the other convolution's."""
    return np.broadcast_to(weights, (*weights.shape[:2], *taps)).reshape(*weights.shape[:2], -1)


def summed_bias(match: Match) -> Array:
    """W a + b, in float64."""
    second = match.const("weight2").astype(np.float64)
    made: Array = second.reshape(*second.shape[:2], -1).sum(2) @ bias_of(match, 1) + bias_of(match, 2)
    return made


def _weight(match: Match) -> Array:
    return rounded(match, summed_weight(match))


def _bias(match: Match) -> Array | None:
    there = match["bias1"] is not None or match["bias2"] is not None
    return rounded(match, summed_bias(match)) if there else None


def are_one(match: Match) -> Refusal | None:
    """Along each axis one of the two Convs has a kernel of size 1; padding between them does not miss a bias."""
    dtype = match.dtype("weight1")
    if dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16):
        return match.refuse("dtype", "weight1", "float32")
    if joint(match) is None:
        return match.refuse("condition", "layer2", "one of two convolutions of which one has a single tap")
    second = window_of(match, 2)
    padded = second is not None and any(axis.front or axis.back for axis in second.axes)
    if padded and np.any(bias_of(match, 1)):
        return match.refuse("value", "layer1", "without a bias before a padded convolution")
    return match.unless_dtype("weight2", dtype)


def product_is_held(match: Match) -> Refusal | None:
    """The products fit the type of the weights."""
    held = all(one is None or bool(np.all(np.isfinite(one))) for one in (_weight(match), _bias(match)))
    return match.unless_value("weight1", held, "such that the products of the weights are finite")


@redundant(COST)
def saves_work(match: Match) -> Refusal | None:
    """The merged Conv needs fewer multiplications per output than both, and no large weights are copied."""
    first, second = match.const("weight1").shape, match.const("weight2").shape
    both = joint(match)
    assert both is not None
    before = prod(first) + prod(second)
    after = second[0] * first[1] * both.taps
    if after > before:
        return match.refuse("needless", "root", found=f"{after} multiplications instead of {before}")
    return unless_copied(match, "weight1", "weight2")


def _attributes(name: str) -> Any:
    def found(match: Match) -> Any:
        both = joint(match)
        assert both is not None
        return both.attributes()[name]

    return found


_ATTRIBUTES = {name: _attributes(name) for name in ("kernel_shape", "strides", "dilations", "pads", "group")}
_TYPICAL = {"x": "1 64 28 28", "weight1": "256 64 3 3", "bias1": "256", "weight2": "64 256 1 1", "bias2": "64"}

RULES = [
    Rule(
        name="conv.merge_consecutive_convs",
        pattern=numbered(2, numbered(1, x)),
        replace=op.Conv(x, computed("weight", _weight), computed("bias", _bias), **_ATTRIBUTES),
        guards=(are_one, product_is_held, saves_work),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=RuleTest(
            shapes=(
                {"x": "n 2 6 6", "weight1": "6 2 3 3", "bias1": "6", "weight2": "3 6 1 1", "bias2": "3"},
                {"x": "n 2 6 6", "weight1": "6 2 1 1", "weight2": "2 6 3 3", "bias2": "2"},
                {"x": "n 2 6 7", "weight1": "9 2 3 1", "bias1": "9", "weight2": "2 9 1 3", "bias2": "2"},
            ),
            attributes=(
                {"conv1": [PADDED, {**PADDED, "strides": (2, 1)}], "conv2": [{}, {"strides": (1, 2)}]},
                {"conv1": [{}], "conv2": [{**PADDED, "strides": (2, 2)}]},
                {"conv1": [{}], "conv2": [{"dilations": (1, 2)}]},
            ),
            typical=(_TYPICAL,),
        ),
    ),
]
