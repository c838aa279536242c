"""Merge a LoRA adapter beside a Conv into its weights.

conv(x, U, u) +- conv(conv(x, V, a), W, b) = conv(x, U +- W V, u +- (W a + b))      where one window has room for both

Rationale: an adapter is two convolutions with few channels between them (Hu et al., arXiv:2106.09685), trained beside one that is
frozen. A factor behind them is in their weights already.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ortfuse.analysis.linear_maps.windows import Window, placed, united
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Guard, Match, computed, op, redundant, var

from .._rule_test_inputs import COST
from ._multi_conv import Array, bias_of, numbered, rounded, unless_copied, window_of
from ._test_instances import PADDED
from .merge_consecutive_convs import are_one, joint, summed_bias, summed_weight

x = var("x")


def _together(match: Match) -> Window | None:
    """The window that the convolution and the adapter have room in."""
    one, other = window_of(match, 3), joint(match)
    return None if one is None or other is None or len(one.axes) != len(other.axes) else united(one, other)


def _weight(match: Match, sign: int) -> Array:
    """U +- W V, each in its place in the window of both."""
    one, other, new = window_of(match, 3), joint(match), _together(match)
    assert one is not None
    assert other is not None
    assert new is not None
    adapter = placed(summed_weight(match), other, new)
    return rounded(match, placed(match.const("weight3").astype(np.float64), one, new) + sign * adapter)


def _bias(match: Match, sign: int) -> Array | None:
    """u +- (W a + b)."""
    there = any(match[f"bias{number}"] is not None for number in (1, 2, 3))
    return rounded(match, bias_of(match, 3) + sign * summed_bias(match)) if there else None


def is_beside(match: Match) -> Refusal | None:
    """The other Conv has the type, channels, group and output positions of the adapter."""
    shape, dtype = match.shape("weight3") or (), match.dtype("weight1")
    wanted = ((match.shape("weight2") or (None,))[0], (match.shape("weight1") or (None, None))[1])
    if shape[:2] != wanted or dtype is None:
        return match.refuse("shape", "weight3", (*wanted, *shape[2:]))
    if _together(match) is None:
        return match.refuse("condition", "layer3", "a convolution with the strides of the adapter, and one group")
    return match.unless_dtype("weight3", dtype)


def _is_held(sign: int) -> Guard:
    def sum_is_held(match: Match) -> Refusal | None:
        """The sums fit the type of the weights."""
        made = [_weight(match, sign), _bias(match, sign)]
        finite = all(one is None or bool(np.all(np.isfinite(one))) for one in made)
        return match.unless_value("weight3", finite, "such that the sums of weights and of biases are finite")

    return sum_is_held


@redundant(COST)
def saves_work(match: Match) -> Refusal | None:
    """The merged Conv needs no more multiplications per output than the three, and no large weights are copied."""
    shapes, new = [match.const(f"weight{number}").shape for number in (1, 2, 3)], _together(match)
    assert new is not None
    before, after = sum(map(prod, shapes)), prod(shapes[2][:2]) * new.taps
    if after > before:
        return match.refuse("needless", "root", found=f"{after} multiplications instead of {before}")
    return unless_copied(match, "weight3")


def _attributes(name: str) -> object:
    def found(match: Match) -> object:
        new = _together(match)
        assert new is not None
        return new.attributes()[name]

    return found


_ATTRIBUTES = {name: _attributes(name) for name in ("kernel_shape", "strides", "dilations", "pads", "group")}
_STRIDED = {**PADDED, "strides": (2, 1)}
_BIASES = {"bias1": "2", "bias2": "5", "bias3": "5"}
_TYPICAL = {"x": "1 64 28 28", "weight1": "8 64 3 3", "weight2": "64 8 1 1", "weight3": "64 64 3 3", "bias3": "64"}


def _lora_rule(name: str, sign: int) -> Rule:
    adapter = numbered(2, numbered(1, x))
    return Rule(
        name=f"conv.{name}",
        formula=f"Conv(x, U, u) {'+' if sign > 0 else '-'} Conv(Conv(x, V, a), W, b)",
        pattern=numbered(3, x) + adapter if sign > 0 else numbered(3, x) - adapter,
        replace=op.Conv(
            x,
            computed("weight", lambda match: _weight(match, sign)),
            computed("bias", lambda match: _bias(match, sign)),
            **_ATTRIBUTES,
        ),
        guards=(are_one, is_beside, _is_held(sign), saves_work),
        allow_extra_operands=True,
        exactness=Exactness.ROUNDING,
        source="arXiv:2106.09685",
        test=RuleTest(
            shapes=(
                {"x": "n 3 6 6", "weight1": "2 3 3 3", "weight2": "5 2 1 1", "weight3": "5 3 3 3", **_BIASES},
                {"x": "n 3 6 6", "weight1": "2 3 3 3", "weight2": "5 2 1 1", "weight3": "5 3 3 3", **_BIASES},
                {"x": "n 3 6 6", "weight1": "2 3 1 1", "weight2": "5 2 1 1", "weight3": "5 3 3 3", **_BIASES},
                {"x": "n 3 s", "weight1": "2 3 1", "weight2": "5 2 1", "weight3": "5 3 1", **_BIASES},
            ),
            attributes=(
                {"conv1": [PADDED], "conv2": [{}], "conv3": [PADDED]},
                {"conv1": [_STRIDED], "conv2": [{}], "conv3": [_STRIDED]},
                {"conv1": [{}], "conv2": [{}], "conv3": [PADDED]},
                {"conv1": [{}], "conv2": [{}], "conv3": [{}]},
            ),
            typical=(_TYPICAL,),
            counterexamples={
                "padded between the two, with a bias before": Variation(
                    shapes={"weight1": "2 3 1 1", "weight2": "5 2 3 3"},
                    attributes={"conv1": {}, "conv2": PADDED},
                ),
                "that reads other places": Variation(
                    attributes={"conv3": {**PADDED, "dilations": (2, 2), "pads": (2, 2, 2, 2)}}
                ),
            },
        ),
    )


RULES = [_lora_rule("merge_lora", 1), _lora_rule("merge_subtracted_lora", -1)]
