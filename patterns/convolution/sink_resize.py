"""Sink an enlarging Resize below a Conv with a 1x1 kernel.

conv(resize(x), W) = resize(conv(x, W))      where W is a single tap and the Resize makes larger images

Rationale: an interpolation is a mean of pixels whose weights sum up
to 1. A linear map of the channels, with its bias, commutes with it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.linear_maps import leaves_channels
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Guard, Match, Pattern, all_attributes, ms, op, opt, redundant, var

from .._rule_test_inputs import COST
from ._enlarging_resize import becomes_larger, enlarged
from .depthwise_conv1d_to_conv2d import ACTIVATED, bias, convolution_rule, weight, window_of_layer, x

PASS = "target_decompositions"

roi, scales, sizes = var("roi"), var("scales"), var("sizes")
resized = op.Resize(x, opt(roi), opt(scales), opt(sizes), attributes=all_attributes("how")).named("resized")


def is_single_tap(match: Match) -> Refusal | None:
    """The Conv has a 1x1 kernel, without strides or padding."""
    found = window_of_layer(match)
    if found is None or not found.is_single_tap:
        return match.refuse("condition", "layer", "a convolution of a single tap, without padding or strides")
    return None


def takes_means(match: Match) -> Refusal | None:
    """The Resize is along spatial axes only, and does not crop."""
    if leaves_channels(_resize(match), match.facts):
        return None
    return match.refuse("condition", "resized", "enlarged along spatial axes alone")


def may_be_activated_before(match: Match) -> Refusal | None:
    """The Resize copies pixels (mode nearest), so that the activation commutes with it."""
    mode = match["how"].get("mode", "nearest")
    return None if mode == "nearest" else match.refuse("attribute", "how", "nearest", mode)


@redundant(COST)
def is_less_work(match: Match) -> Refusal | None:
    """The Resize provably enlarges the image, and the Conv adds no channels."""
    outputs, inputs = match.const("weight").shape[:2]
    if outputs <= inputs and becomes_larger(_resize(match), match.facts):
        return None
    return match.refuse("needless", "root", found="the image does not become provably larger")


def _resize(match: Match) -> ir.Node:
    node: ir.Node | None = match["resized"].producer()
    assert node is not None
    return node


def _resized_last(build: Any) -> Any:
    def made(match: Match) -> Pattern:
        layer = build(x, weight, opt(bias), attributes=all_attributes("conv"))
        return enlarged(match, _resize(match), layer, len(match.const("weight")))

    return made


_TWICE = np.array([1.0, 1.0, 2.0, 2.0], np.float32)
_NEAREST = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
_MEANS = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}


def _scales(build: Any) -> ir.Value:
    """Twice as large, or nothing where sizes say how large; scales are float32 whatever the image is."""
    made: ir.Value = build.constant(_TWICE[:0] if "sizes" in build.shapes else _TWICE, ir.DataType.FLOAT)
    return made


def _resized(name: str, build: Any, more: dict[str, Any], modes: list[dict[str, Any]], *guards: Guard) -> Rule:
    shapes = {"x": "1 4 4 5", "weight": "3 4 1 1", "bias": "3", "roi": "0"}
    return convolution_rule(
        name,
        f"{'FusedConv' if more else 'Conv'}(Resize(x), W), W a single tap",
        build(resized, weight, opt(bias), attributes=all_attributes("conv")).named("layer"),
        _resized_last(build),
        RuleTest(
            shapes=({**shapes, "scales": "4"}, {**shapes, "sizes": "4"}),
            attributes={"conv": [more, {"kernel_shape": (1, 1), **more}], "how": modes},
            inputs={"scales": _scales},
            constants={"sizes": np.array([1, 4, 8, 10]), "roi": np.zeros(0)},
            counterexamples={
                "of several taps": Variation(shapes={"weight": "3 4 3 3"}, attributes={"conv": more}),
                "with strides": Variation(attributes={"conv": {"strides": (2, 2), **more}}),
                "by means": Variation(attributes={"how": _MEANS}),
                "of a part": Variation(
                    attributes={
                        "how": {
                            **_MEANS,
                            "coordinate_transformation_mode": "tf_crop_and_resize",
                            "extrapolation_value": 7.0,
                        }
                    },
                    shapes={"roi": "8"},
                    constants={"roi": np.array([0, 0, 0, 0, 1, 1, 2, 2.0])},
                ),
            },
        ),
        is_single_tap,
        takes_means,
        *guards,
        is_less_work,
        makes=("com.microsoft.FusedConv" if more else "Conv", "Resize"),
    )


RULES = [
    _resized("sink_resize", op.Conv, {}, [_NEAREST, _MEANS]),
    _resized("sink_resize_below_fused_conv", ms.FusedConv, ACTIVATED, [_NEAREST], may_be_activated_before),
]
