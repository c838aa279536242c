"""Replace a depthwise one-dimensional Conv by a two-dimensional one, for which the runtime has faster kernels.

conv(x, W) over one axis, each channel for itself = squeeze(conv(unsqueeze(x), unsqueeze(W)))

The table of costs says at which sizes it pays.
"""

from __future__ import annotations

from typing import Any

from ortfuse.analysis.linear_maps.windows import Axis, Window, window
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import (
    Guard,
    Match,
    Pattern,
    all_attributes,
    attr,
    computed,
    const,
    ms,
    op,
    opt,
    redundant,
    var,
)

from .._rule_test_inputs import COST
from .._shared_guards import ints, is_not_quantised

PASS = "target_decompositions"
TARGETS = ("cpu",)

x, weight, bias = var("x"), const("weight"), var("bias")


def window_of_layer(match: Match) -> Window | None:
    """The window of the convolution; `None` if it is not known."""
    shape = match.shape("weight") or ()
    return window(match["conv"], [dim for dim in shape[2:] if isinstance(dim, int)]) if len(shape) > 2 else None


@redundant(COST)
def is_depthwise(match: Match) -> Refusal | None:
    """The Conv is depthwise: others are as fast over one axis."""
    shape, found = match.const("weight").shape, window_of_layer(match)
    depthwise = found is not None and shape[1] == 1 and found.groups == shape[0]
    return None if depthwise else match.refuse("needless", "root", found="it does not convolve each channel for itself")


def is_over_one_axis(match: Match) -> Refusal | None:
    """The convolution is over one axis, with known padding."""
    if window_of_layer(match) is None:
        return match.refuse("condition", "layer", "a convolution with known padding")
    return match.unless_rank("weight", 3)


def _with_second_axis(match: Match) -> dict[str, Any]:
    """The attributes of the convolution over two axes, of which the first has size 1."""
    found = window_of_layer(match)
    assert found is not None
    return {**match["conv"], **Window((Axis(1), *found.axes), found.groups).attributes(), "auto_pad": "NOTSET"}


def _layers(*inputs: Pattern, **window: Any) -> Pattern:
    fused = ms.FusedConv(*inputs, activation=attr("activation"), **window)
    return (op.Conv(*inputs, **window) | fused).named("layer")


def _over_two_axes(match: Match) -> Pattern:
    axis = computed("axis", lambda match: ints([2]))
    inputs = op.Unsqueeze(x, axis), computed("weight", lambda match: match.const("weight")[:, :, None]), opt(bias)
    squeezed: Pattern = op.Squeeze(_layers(*inputs, **_with_second_axis(match)), axis)
    return squeezed


def convolution_rule(
    name: str, formula: str, pattern: Pattern, replace: Any, test: RuleTest, *guards: Guard, **more: Any
) -> Rule:
    """A rule of convolutions with another operator around them."""
    return Rule(
        name=f"conv.{name}",
        formula=formula,
        pattern=pattern,
        replace=replace,
        guards=guards,
        exactness=Exactness.ROUNDING,
        source="ONNX operators Conv and Resize",
        test=test,
        **more,
    )


ACTIVATED = {"activation": "Relu"}


_FAR = {"pads": (1, 2), "strides": (2,), "dilations": (2,), "kernel_shape": (3,)}

RULES = [
    convolution_rule(
        "conv1d_to_conv2d",
        "Conv(x, W) or FusedConv(x, W) over one axis, depthwise",
        _layers(x, weight, opt(bias), attributes=all_attributes("conv")),
        _over_two_axes,
        RuleTest(
            shapes={"x": "n 4 9", "weight": "4 1 3", "bias": "4"},
            attributes={"conv": [{"group": 4}, {"group": 4, **_FAR}], "activation": ["Relu"]},
            typical=tuple(
                {"x": f"1 256 {length}", "weight": f"256 1 {width}", "bias": "256"}
                for length, width in ((200, 1), (200, 3), (200, 31), (1500, 7))
            ),
            typical_attributes=({"conv": {"group": 256}},) * 4,
        ),
        is_over_one_axis,
        is_depthwise,
        is_not_quantised,
        makes=("Unsqueeze", "Conv", "com.microsoft.FusedConv", "Squeeze"),
    ),
]
