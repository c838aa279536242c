"""Replace a two-dimensional Conv, ConvTranspose or pool between Unsqueeze and Squeeze by a one-dimensional one.

squeeze(conv(unsqueeze(x), W)) = conv(x, squeeze(W))      over one axis, or over fewer axes than before; likewise pools
squeeze(conv(transpose(unsqueeze(x)), W)) = conv(transpose(x), squeeze(W))
squeeze(conv(y, W)) = conv(squeeze(y), squeeze(W))        where other layers make y of such an image

Along an axis of size 1, a kernel of size 1 without padding reads the one element, whatever the strides. Where two dimensions are
faster than one, `patterns.convolution.depthwise_conv1d_to_conv2d` puts the axis in again.

Rationale: TensorFlow has no convolution over one axis. A bias, normalisation or activation behind the Squeeze is then next to the
convolution.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, Pattern, all_attributes, attr, built, computed, op, opt, redundant, var

from .._rule_test_inputs import COST
from .._shared_guards import ints, is_not_quantised

x, y, weight, bias = var("x"), var("y"), var("weight"), var("bias")

_EACH_AXIS = ("kernel_shape", "strides", "dilations", "output_padding")
"""Attributes with one number for each spatial axis."""


def _are_axes(axes: Any, facts: Any) -> bool:
    return isinstance(axes, tuple | list) and all(isinstance(axis, int) for axis in axes)


image = op.Unsqueeze(x, axes=attr("inserted", _are_axes, "known")).kept()
turned = op.Transpose(image, perm=attr("perm", _are_axes, "known")).kept()


def _rank(match: Match) -> int | None:
    """The number of axes of the image."""
    if match.get("y") is not None:
        return match.rank("y")
    rank = match.rank("x")
    return None if rank is None else rank + len(match["inserted"])


def _axes(match: Match, name: str) -> list[int]:
    """Axes of the image, counted from the front and in order."""
    rank = _rank(match) or 1
    return sorted(axis % rank for axis in match[name])


def _unit_axes(match: Match) -> list[int] | None:
    """The axes that are taken out, as the window has them; `None` if they are not those that were put in, or not of size 1."""
    if _rank(match) is None:
        return None
    dropped = _axes(match, "dropped")
    if match.get("y") is not None:
        shape = match.shape("y") or ()
        return dropped if all(shape[axis] == 1 for axis in dropped) else None
    inserted = _axes(match, "inserted")
    if match.get("perm") is not None:
        inserted = sorted(match["perm"].index(axis) for axis in inserted)
    return inserted if inserted == dropped else None


def takes_out_what_was_put_in(match: Match) -> Refusal | None:
    """The Squeeze drops the axes of the Unsqueeze, and leaves at least one spatial axis."""
    axes, rank = _unit_axes(match), _rank(match)
    if rank is None:
        return match.refuse("rank", "x" if match.get("y") is None else "y")
    spatial = axes is not None and min(axes) > 1 and rank - len(axes) > 2
    return match.unless_value("dropped", spatial, "the spatial axes that were put in, and not all spatial axes")


@redundant(COST)
def is_computed_in_floats(match: Match) -> Refusal | None:
    """x is not the result of a DequantizeLinear."""
    return None if match.get("x") is None else is_not_quantised(match)


LAYERS = frozenset({"Conv", "ConvTranspose", "MaxPool", "AveragePool"})


@redundant(COST)
def comes_from_a_sequence(match: Match) -> Refusal | None:
    """Only Convs and pools with one user each are between the Unsqueeze and y."""
    value = match.get("y")
    while value is not None:
        node = value.producer()
        if node is None or len(value.uses()) > 1 or node.op_type not in LAYERS | {"Transpose", "Unsqueeze"}:
            return match.refuse("needless", "y", found="it is no sequence")
        if node.op_type == "Unsqueeze":
            return None
        value = node.inputs[0]
    return None


def reads_one_element(match: Match) -> Refusal | None:
    """Along these axes, the kernel has size 1 and there is no padding."""
    axes, window = _unit_axes(match) or [], match["window"]
    spatial = (_rank(match) or 0) - 2
    shape = match.shape("weight") if match.get("weight") is not None else None
    kernel = window.get("kernel_shape") or (shape or ())[2:]
    if len(kernel) != spatial or any(kernel[axis - 2] != 1 for axis in axes):
        return match.refuse("condition", "layer", "one with a kernel of size 1 along the axes that were put in")
    pads = window.get("pads") or (0,) * 2 * spatial
    more = window.get("output_padding") or (0,) * spatial
    if window.get("output_shape") or len(pads) != 2 * spatial or len(more) != spatial:
        return match.refuse("condition", "layer", "one with known padding of each spatial axis")
    padded = any(pads[axis - 2] or pads[axis - 2 + spatial] or more[axis - 2] for axis in axes)
    return match.refuse("condition", "layer", "not padded along the axes that were put in") if padded else None


def gives_no_indices(match: Match) -> Refusal | None:
    """The output with indices is not used."""
    others = [output for output in match["layer"].producer().outputs[1:] if output.name]
    return match.refuse("needless", "root", found="its indices are asked for") if others else None


def _window(match: Match) -> dict[str, Any]:
    """The attributes without the axes of size 1."""
    window, dropped = dict(match["window"]), {axis - 2 for axis in _unit_axes(match) or ()}
    for name in _EACH_AXIS:
        if window.get(name):
            window[name] = tuple(number for axis, number in enumerate(window[name]) if axis not in dropped)
    if window.get("pads"):
        spatial = len(window["pads"]) // 2
        window["pads"] = tuple(number for place, number in enumerate(window["pads"]) if place % spatial not in dropped)
    return window


def _image(match: Match) -> Pattern:
    """x, its axes in the order in which the image has them, or the image without the axes of size 1."""
    if match.get("y") is not None:
        flat: Pattern = op.Squeeze(y, computed("axes", lambda match: ints(_unit_axes(match) or [])))
        return flat
    if match.get("perm") is None:
        return x
    inserted = _axes(match, "inserted")
    kept = [axis for axis in match["perm"] if axis not in inserted]
    made: Pattern = op.Transpose(x, perm=tuple(sorted(kept).index(axis) for axis in kept))
    return made


def _layers(image: Pattern, weights: Pattern, **window: Any) -> Pattern:
    """Any of the layers on an image."""
    layers = (op.Conv(image, weights, opt(bias), **window) | op.ConvTranspose(image, weights, opt(bias), **window)
              | op.MaxPool(image, **window) | op.AveragePool(image, **window))  # fmt: skip
    return layers.named("layer")


def _flat(match: Match) -> Pattern:
    flat = op.Squeeze(weight, computed("axes", lambda match: ints(_unit_axes(match) or [])))
    return _layers(_image(match), flat, **_window(match))


_WINDOWS: list[dict[str, Any]] = [
    {"kernel_shape": (1, 3)},
    {"kernel_shape": (1, 3), "pads": (0, 1, 0, 2), "strides": (2, 1), "dilations": (1, 2)},
    {"kernel_shape": (1, 3), "strides": (2, 2), "auto_pad": "SAME_UPPER"},
]


def _convolved(build: Any) -> ir.Value:
    """An image whose rows are made of a sequence by a layer."""
    count, channels, _, length = build.dims("y")
    sequence = build.input("sequence", [count, channels, length])
    rows = build.node("Unsqueeze", [sequence, build.constant([2])]).outputs[0]
    made: ir.Value = build.node("AveragePool", [rows], {"kernel_shape": [1, 1]}).outputs[0]
    return made


RULES = [
    Rule(
        name="conv.layer_2d_to_1d",
        formula="Squeeze(layer(Unsqueeze(x))), layer Conv, ConvTranspose, MaxPool or AveragePool",
        pattern=op.Squeeze(
            _layers(turned | image | y, weight, attributes=all_attributes("window")),
            axes=attr("dropped", _are_axes, "known"),
        ),
        replace=built(_flat, makes=(*sorted(LAYERS), "Transpose", "Squeeze")),
        guards=(
            takes_out_what_was_put_in,
            reads_one_element,
            comes_from_a_sequence,
            gives_no_indices,
            is_computed_in_floats,
        ),
        exactness=Exactness.ROUNDING,
        source="ONNX operators Conv, ConvTranspose, MaxPool and AveragePool",
        # A sequence with channels last, one with channels second, and one of which a layer makes an image
        test=RuleTest(
            shapes=tuple({"x": x, "y": "n 4 1 7", "weight": "4 4 1 3", "bias": "4"} for x in ("n 7 4", "n 4 7")),
            inputs={"y": _convolved},
            attributes=(
                {"inserted": [(1,), (-3,)], "perm": [(0, 3, 1, 2)], "dropped": [(2,)], "window": _WINDOWS},
                {"inserted": [(2,)], "perm": [(0, 1, 2, 3)], "dropped": [(2,), (-2,)], "window": _WINDOWS},
            ),
            counterexamples={
                "another axis": Variation(
                    shapes={"x": "n 1 4"},
                    attributes={"dropped": (3,), "window": {"kernel_shape": (1, 3), "pads": (0, 1, 0, 1)}},
                ),
                "padded": Variation(
                    shapes={"weight": "4 4 3 3"},
                    attributes={"window": {"kernel_shape": (3, 3), "pads": (1, 0, 1, 0)}},
                ),
            },
        ),
    ),
]
