"""Convolutions in other spellings, which the runtime executes faster on some machines and at some sizes.

conv(x, W) over one axis, each channel for itself = squeeze(conv(unsqueeze(x), unsqueeze(W)))
conv(resize(x), W) = resize(conv(x, W))      if W is a single tap and resize makes larger images

Some of the runtime's kernels are for images of two axes only; the table of costs says where that pays. An interpolation takes
means of pixels, with weights that sum up to 1, so that a linear map of the channels, with its bias, may be made before it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.remark import Refusal
from ortfuse.rewrite import Exactness, Proof, Rule, Variation
from ortfuse.rewrite.pattern import Guard, Match, Pattern, all_attributes, computed, const, ms, op, opt, redundant, var

from .._common import ints, is_not_quantised
from .._proofs import COST
from ._enlarging import becomes_larger, enlarged, leaves_channels
from ._windows import Axis, Window, window

PASS = "cpu_decompositions"

x, weight, bias = var("x"), const("weight"), var("bias")


def _window(match: Match) -> Window | None:
    """Where the convolution reads; `None` if that is not known."""
    shape = match.shape("weight") or ()
    return window(match["conv"], [dim for dim in shape[2:] if isinstance(dim, int)]) if len(shape) > 2 else None


# Over one axis


@redundant(COST)
def is_depthwise(match: Match) -> Refusal | None:
    """Each channel is convolved for itself: the runtime multiplies matrices otherwise, which are as fast over one axis."""
    shape, found = match.const("weight").shape, _window(match)
    depthwise = found is not None and shape[1] == 1 and found.groups == shape[0]
    return None if depthwise else match.refuse("needless", "root", found="it does not convolve each channel for itself")


def is_over_one_axis(match: Match) -> Refusal | None:
    """The convolution is over one axis, with known padding."""
    if _window(match) is None:
        return match.refuse("condition", "layer", "a convolution with known padding")
    return match.unless_rank("weight", 3)


def _with_second_axis(match: Match) -> dict[str, Any]:
    """The attributes of the convolution over two axes, of which the first has size 1."""
    found = _window(match)
    assert found is not None
    return {**match["conv"], **Window((Axis(1), *found.axes), found.groups).attributes(), "auto_pad": "NOTSET"}


def _over_two_axes(build: Any) -> Any:
    def made(match: Match) -> Pattern:
        axis = computed("axis", lambda match: ints([2]))
        inputs = op.Unsqueeze(x, axis), computed("weight", lambda match: match.const("weight")[:, :, None]), opt(bias)
        squeezed: Pattern = op.Squeeze(build(*inputs, **_with_second_axis(match)), axis)
        return squeezed

    return made


# Before a larger image is made

roi, scales, sizes = var("roi"), var("scales"), var("sizes")
resized = op.Resize(x, opt(roi), opt(scales), opt(sizes), attributes=all_attributes("how")).named("resized")


def is_single_tap(match: Match) -> Refusal | None:
    """The convolution maps the channels of each pixel."""
    found = _window(match)
    if found is None or not found.is_single_tap:
        return match.refuse("condition", "layer", "a convolution of a single tap, without padding or strides")
    return None


def takes_means(match: Match) -> Refusal | None:
    """The image is enlarged along its spatial axes alone, by means of its pixels, or copies of them."""
    if leaves_channels(_resize(match), match.facts):
        return None
    return match.refuse("condition", "resized", "enlarged along spatial axes alone")


def may_be_activated_before(match: Match) -> Refusal | None:
    """The image is enlarged by copies of its pixels, so that the activation may be applied before."""
    mode = match["how"].get("mode", "nearest")
    return None if mode == "nearest" else match.refuse("attribute", "how", "nearest", mode)


@redundant(COST)
def is_less_work(match: Match) -> Refusal | None:
    """The image becomes provably larger, and has no more channels afterwards."""
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


def _rule(name: str, formula: str, pattern: Pattern, replace: Any, proof: Proof, *guards: Guard, **more: Any) -> Rule:
    return Rule(
        name=f"conv.{name}",
        formula=formula,
        pattern=pattern,
        replace=replace,
        guards=guards,
        exactness=Exactness.ROUNDING,
        source="ONNX operators Conv and Resize",
        proof=proof,
        **more,
    )


_TWICE = np.array([1.0, 1.0, 2.0, 2.0], np.float32)
_NEAREST = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
_MEANS = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
_ACTIVATED = {"activation": "Relu"}


def _scales(build: Any) -> ir.Value:
    """Twice as large, or nothing where sizes say how large; scales are float32 whatever the image is."""
    made: ir.Value = build.constant(_TWICE[:0] if "sizes" in build.shapes else _TWICE, ir.DataType.FLOAT)
    return made


def _one_axis(name: str, build: Any, more: dict[str, Any]) -> Rule:
    far = {"pads": (1, 2), "strides": (2,), "dilations": (2,), "kernel_shape": (3,)}
    return _rule(
        name,
        "Conv(x, W) over one axis, for each channel",
        build(x, weight, opt(bias), attributes=all_attributes("conv")).named("layer"),
        _over_two_axes(build),
        Proof(
            shapes={"x": "n 4 9", "weight": "4 1 3", "bias": "4"},
            attributes={"conv": [{"group": 4, **more}, {"group": 4, **far, **more}]},
            typical=tuple(
                {"x": f"1 256 {length}", "weight": f"256 1 {width}", "bias": "256"}
                for length, width in ((200, 1), (200, 3), (200, 31), (1500, 7))
            ),
            typical_attributes=tuple({"conv": {"group": 256, **more}} for _ in range(4)),
        ),
        is_over_one_axis,
        is_depthwise,
        is_not_quantised,
        makes=("Unsqueeze", "com.microsoft.FusedConv" if more else "Conv", "Squeeze"),
    )


def _resized(name: str, build: Any, more: dict[str, Any], modes: list[dict[str, Any]], *guards: Guard) -> Rule:
    shapes = {"x": "1 4 4 5", "weight": "3 4 1 1", "bias": "3", "roi": "0"}
    return _rule(
        name,
        "Conv(Resize(x), W), W a single tap",
        build(resized, weight, opt(bias), attributes=all_attributes("conv")).named("layer"),
        _resized_last(build),
        Proof(
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
    _one_axis("over_two_axes", op.Conv, {}),
    _one_axis("over_two_axes_fused", ms.FusedConv, _ACTIVATED),
    _resized("resized_last", op.Conv, {}, [_NEAREST, _MEANS]),
    _resized("resized_last_fused", ms.FusedConv, _ACTIVATED, [_NEAREST], may_be_activated_before),
]
