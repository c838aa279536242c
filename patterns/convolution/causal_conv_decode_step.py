"""Fuse one decoding step of a causal convolution, whose window is a cached state, into CausalConvWithState.

conv(concat(past, x), W, b) = causal_conv_with_state(x, W, b, past)        depthwise, with x of one position
sum(concat(past, x) w, -1) + b = the same, without its axis of positions   as Mamba and others write the step

The state of the next step stays a Slice of the Concat.

Rationale: state space models and gated delta nets decode so (Mamba, arXiv:2312.00752). The runtime's kernel is 1.5 to 4.6 times
as fast as Conv for one position. For more it is slower (0.4 to 0.9 times as fast for 64 to 2048), and Conv stays.
"""

from __future__ import annotations

from ortfuse.analysis.linear_maps.windows import Axis, Window, window
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, attr, computed, const, ms, op, opt, redundant, var

from .._rule_test_inputs import COST
from .._shared_guards import ints
from ._conv_weights import CONV, Array, bias, weight

x, past = var("x", "b c l"), var("past", "b c p")


def fills_the_window(match: Match) -> Refusal | None:
    """The Conv is depthwise, and the state is one shorter than its kernel."""
    sizes = match.shape("weight") or ()
    kernel, channels, before = sizes[2] if len(sizes) == 3 else None, match.size("c"), match.size("p")
    if not isinstance(kernel, int) or not isinstance(channels, int) or before != kernel - 1 or kernel < 2:
        return match.refuse("condition", "past", "all positions but one of a kernel of known size")
    if sizes != (channels, 1, kernel) or window(match["conv"], [kernel]) != Window((Axis(kernel),), channels):
        return match.refuse(
            "condition", "layer", "a convolution of each channel alone, without padding, strides and gaps"
        )
    return None


@redundant(COST)
def is_one_position(match: Match) -> Refusal | None:
    """x has one position."""
    return None if match.size("l") == 1 else match.refuse("condition", "x", "one position")


taps, offset = const("taps"), const("offset", "c")
_LAST = attr("axes", lambda axes, facts: list(axes or ()) in ([2], [-1]), "the last one")


def taps_fill_the_window(match: Match) -> Refusal | None:
    """Each channel has as many taps as there are positions."""
    sizes, channels, before = match.shape("taps") or (), match.size("c"), match.size("p")
    if (
        channels is None
        or before is None
        or before < 1
        or sizes not in ((channels, before + 1), (1, channels, before + 1))
    ):
        return match.refuse("condition", "taps", "a tap for each channel and position")
    return None


def _kernel(match: Match) -> Array:
    """The taps as the weights of a convolution of each channel alone."""
    numbers = match.const("taps")
    assert numbers is not None
    kernel: Array = numbers.reshape(numbers.shape[-2], 1, numbers.shape[-1])
    return kernel


_STEP = ms.CausalConvWithState(x, computed("kernel", _kernel), opt(offset), past, outputs=2)
_AXIS = computed("axis", lambda match: ints([2]))

RULES = [
    Rule(
        name="causal_conv.reduce_sum_of_taps_to_causal_conv_with_state",
        pattern=op.ReduceSum(op.Concat(past, x, axis=2).named("joined") * taps, axes=_LAST, keepdims=0) + opt(offset),
        replace=op.Squeeze(_STEP[0], _AXIS),
        intermediates={"joined": op.Concat(past, x, axis=2)},
        guards=(taps_fill_the_window, is_one_position),
        exactness=Exactness.ROUNDING,
        source="ONNX Runtime contrib operator CausalConvWithState",
        test=RuleTest(
            shapes=({"c": 6, "l": 1, "p": 3, "taps": "6 4"}, {"c": 6, "l": 1, "p": 3, "taps": "1 6 4"}),
            attributes={"axes": [(2,), (-1,)]},
            never_empty={"b": "the runtime's ReduceSum of nothing keeps the axes that it sums over"},
            opset=17,
        ),
    ),
    Rule(
        name="causal_conv.conv_of_concat_to_causal_conv_with_state",
        pattern=op.Conv(op.Concat(past, x, axis=2).named("joined"), weight, opt(bias), attributes=CONV).named("layer"),
        replace=ms.CausalConvWithState(x, weight, opt(bias), past, outputs=2),
        intermediates={"joined": op.Concat(past, x, axis=2)},
        guards=(fills_the_window, is_one_position),
        exactness=Exactness.ROUNDING,
        source="ONNX Runtime contrib operator CausalConvWithState",
        test=RuleTest(
            shapes={"c": 6, "l": 1, "p": 3, "weight": "6 1 4", "bias": "6"},
            attributes={"conv": [{"kernel_shape": (4,), "group": 6}]},
            typical_attributes=({"conv": {"kernel_shape": (4,), "group": 512}},),
            typical=(
                {
                    "x": "1 512 1",
                    "past": "1 512 3",
                    "weight": "512 1 4",
                    "bias": "512",
                    "b": 1,
                    "c": 512,
                    "l": 1,
                    "p": 3,
                },
            ),
        ),
    ),
]
