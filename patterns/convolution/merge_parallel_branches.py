"""Merge added Convs of one input, an identity or a BatchNormalization branch into one Conv.

conv(x, V, a) +- conv(x, W, b) = conv(x, V +- W, a +- b)      with the smaller kernel placed in the larger one
conv(x, W, b) + x = conv(x, W + 1, b)                      with the identity in the middle of the kernel, one for each channel
conv(x, W, b) + bn(x) = conv(x, W + s, b + t)

Branches are merged only where the one Conv needs no more multiplications.

Rationale: RepVGG (arXiv:2101.03697) and MobileOne (arXiv:2206.04040) are trained with such branches.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.linear_maps.windows import Window, placed, pointwise, united
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Guard, Match, Pattern, all_attributes, computed, op, redundant, var

from .._rule_test_inputs import COST
from . import _conv_weights as layers
from ._multi_conv import Array, bias_of, numbered, rounded, unless_copied, window_of
from ._test_instances import NORMALISATION, PADDED, POSITIVE, STATISTICS

SOURCE = "arXiv:2101.03697"

x = var("x")


def _together(match: Match) -> Window | None:
    """The window that both branches have room in."""
    one, other = window_of(match, 1), window_of(match, 2)
    return None if one is None or other is None or len(one.axes) != len(other.axes) else united(one, other)


def _weight(match: Match, number: int) -> Array:
    """The weights of a branch, in float64 and in their place in the window of both."""
    old, new = window_of(match, number), _together(match)
    assert old is not None
    assert new is not None
    return placed(match.const(f"weight{number}").astype(np.float64), old, new)


def _summed_weight(match: Match, sign: int) -> Array:
    return rounded(match, _weight(match, 1) + sign * _weight(match, 2))


def _summed_bias(match: Match, sign: int) -> Array | None:
    if match["bias1"] is None and match["bias2"] is None:
        return None
    return rounded(match, bias_of(match, 1) + sign * bias_of(match, 2))


def are_branches(match: Match) -> Refusal | None:
    """Both branches have weights of one type, one group, and outputs of one size."""
    dtype = match.dtype("weight1")
    if dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16):
        return match.refuse("dtype", "weight1", "float32")
    if _together(match) is None:
        return match.refuse(
            "condition", "layer2", "a convolution with the strides and groups of the other one, and as many outputs"
        )
    return match.unless_dtype("weight2", dtype)


def agree_in_channels(match: Match) -> Refusal | None:
    """Both branches have the same numbers of input and output channels."""
    one, other = match.shape("weight1") or (), match.shape("weight2") or ()
    return None if one[:2] == other[:2] else match.refuse("shape", "weight2", (*one[:2], *other[2:]))


def _is_held(sign: int) -> Guard:
    def sum_is_held(match: Match) -> Refusal | None:
        """The sum fits the type of the weights."""
        made = [_summed_weight(match, sign), _summed_bias(match, sign)]
        finite = all(one is None or bool(np.all(np.isfinite(one))) for one in made)
        return match.unless_value("weight1", finite, "such that the sums of weights and of biases are finite")

    return sum_is_held


@redundant(COST)
def saves_work(match: Match) -> Refusal | None:
    """The merged kernel has no more taps than both together, and no large weights are copied."""
    one, other, new = window_of(match, 1), window_of(match, 2), _together(match)
    assert one is not None
    assert other is not None
    assert new is not None
    if new.taps > one.taps + other.taps:
        return match.refuse("needless", "root", found=f"{new.taps} multiplications instead of {one.taps + other.taps}")
    return unless_copied(match, "weight1", "weight2")


def _attributes(name: str) -> Any:
    def found(match: Match) -> Any:
        new = _together(match)
        assert new is not None
        return new.attributes()[name]

    return found


_ATTRIBUTES = {name: _attributes(name) for name in ("kernel_shape", "strides", "dilations", "pads", "group")}


def _map(match: Match) -> layers.Affine:
    """The map of the branch that is no convolution; the identity if there is none."""
    channels = len(match.const("weight1"))
    if match.get("variance") is None:
        return layers.Affine(np.ones(channels), np.zeros(channels))
    found = layers.normalisation(match, channels)
    assert isinstance(found, layers.Affine)
    return found


def _weight_with_identity(match: Match) -> Array:
    """W + s, each s where an output channel meets its own input channel in the tap that reads it where it is."""
    old, array = window_of(match, 1), match.const("weight1").astype(np.float64)
    assert old is not None
    middle = tuple(axis.front // axis.dilation for axis in old.axes)
    for channel, factor in enumerate(_map(match).factor):
        array[(channel, channel % array.shape[1], *middle)] += factor
    return rounded(match, array)


def _bias_with_offset(match: Match) -> Array | None:
    offset = _map(match).offset
    return None if match["bias1"] is None and not np.any(offset) else rounded(match, bias_of(match, 1) + offset)


def reads_its_place(match: Match) -> Refusal | None:
    """The Conv keeps the channels and size of x, and a tap reads each element at its own position."""
    shape, old = match.shape("weight1") or (), window_of(match, 1)
    if old is None or len(shape) < 3 or match.dtype("weight1") != match.dtype("x"):
        return match.refuse("condition", "layer1", "a convolution with known padding")
    if shape[0] != shape[1] * old.groups:
        return match.refuse("shape", "weight1", (shape[1] * old.groups, *shape[1:]))
    if united(old, pointwise(old)) != old:
        return match.refuse("condition", "layer1", "a convolution that keeps the size and reads each element")
    return match.unless_dtype("weight1", ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16)


def result_is_held(match: Match) -> Refusal | None:
    """The scale and shift are finite, and the sums fit the type of the weights."""
    if match.get("variance") is not None:
        found = layers.normalisation(match, len(match.const("weight1")))
        if isinstance(found, Refusal):
            return found
    sums = _weight_with_identity(match), _bias_with_offset(match)
    finite = all(one is None or bool(np.all(np.isfinite(one))) for one in sums)
    return match.unless_value("weight1", finite, "such that the sums of weights and of biases are finite")


@redundant(COST)
def copies_little(match: Match) -> Refusal | None:
    """No large weights are copied."""
    return unless_copied(match, "weight1")


def _with_identity(name: str, formula: str, branch: Pattern, test: RuleTest, *guards: Guard) -> Rule:
    return Rule(
        name=f"conv.{name}",
        formula=formula,
        pattern=numbered(1, x) + branch,
        replace=op.Conv(
            x,
            computed("weight", _weight_with_identity),
            computed("bias", _bias_with_offset),
            attributes=all_attributes("conv1"),
        ),
        guards=(*guards, reads_its_place, result_is_held, copies_little),
        allow_extra_operands=True,
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=test,
    )


_ONE = {"kernel_shape": (1, 1)}
_SHAPES = (
    {"x": "n 4 6 6", "weight1": "4 4 3 3", "bias1": "4", **dict.fromkeys(STATISTICS, "4")},
    {"x": "n 4 6 6", "weight1": "4 2 3 3", "bias1": "4", **dict.fromkeys(STATISTICS, "4")},
    {"x": "n 4 s", "weight1": "4 1 2", "bias1": "4", **dict.fromkeys(STATISTICS, "4")},
)
_CONVOLUTIONS = (
    {"conv1": [PADDED]},
    {"conv1": [{**PADDED, "group": 2, "dilations": (2, 1), "pads": (2, 1, 2, 1)}]},
    {"conv1": [{"pads": (0, 1), "group": 4}]},
)
_TYPICAL = {"x": "1 64 56 56", "weight1": "64 64 3 3", "bias1": "64"}


def _parallel(name: str, sign: int) -> Rule:
    one, other = numbered(1, x), numbered(2, x)
    return Rule(
        name=f"conv.{name}",
        formula=f"Conv(x, V, a) {'+' if sign > 0 else '-'} Conv(x, W, b)",
        pattern=one + other if sign > 0 else one - other,
        replace=op.Conv(
            x,
            computed("weight", lambda match: _summed_weight(match, sign)),
            computed("bias", lambda match: _summed_bias(match, sign)),
            **_ATTRIBUTES,
        ),
        guards=(are_branches, agree_in_channels, _is_held(sign), saves_work),
        allow_extra_operands=True,
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=RuleTest(
            shapes=(
                {"x": "n 3 6 6", "weight1": "4 3 3 3", "bias1": "4", "weight2": "4 3 1 1", "bias2": "4"},
                {"x": "n 4 6 6", "weight1": "4 2 3 3", "bias1": "4", "weight2": "4 2 3 3", "bias2": "4"},
                {"x": "n 4 s", "weight1": "4 1 1", "bias1": "4", "weight2": "4 1 4", "bias2": "4"},
            ),
            attributes=(
                {"conv1": [PADDED], "conv2": [_ONE]},
                {"conv1": [{**PADDED, "group": 2}], "conv2": [{**PADDED, "group": 2}]},
                {"conv1": [{"strides": (2,), "group": 4}], "conv2": [{"pads": (1, 2), "strides": (2,), "group": 4}]},
            ),
            typical=({**_TYPICAL, "weight2": "64 64 1 1", "bias2": "64"},),
        ),
    )


RULES = [
    _parallel("merge_added_branches", 1),
    _parallel("merge_subtracted_branches", -1),
    _with_identity(
        "merge_identity_branch",
        "Conv(x, W, b) + x",
        x,
        RuleTest(shapes=_SHAPES, attributes=_CONVOLUTIONS, typical=(_TYPICAL,)),
    ),
    _with_identity(
        "merge_batchnorm_branch",
        "Conv(x, W, b) + BatchNormalization(x)",
        layers.batch_norm(x).named("mapped"),
        RuleTest(
            shapes=_SHAPES,
            attributes=[{**one, **NORMALISATION} for one in _CONVOLUTIONS],
            constants=POSITIVE,
            redundant={"check of attribute training": layers.CANNOT_TRAIN},
        ),
        layers.only_the_result,
    ),
]
