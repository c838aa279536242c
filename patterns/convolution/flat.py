"""Convolutions and pools of sequences, written as those of images with axes of size 1.

squeeze(conv(unsqueeze(x), W)) = conv(x, squeeze(W))      over one axis, or over fewer axes than before; likewise pools
squeeze(conv(transpose(unsqueeze(x)), W)) = conv(transpose(x), squeeze(W))

TensorFlow has no convolution over one axis. What follows the Squeeze (a bias, a normalisation, an activation) is then beside the
convolution. Along axes of size 1 a kernel of size 1 without padding reads the one element there is, whatever the strides. Where
images are faster than sequences, `patterns.convolution.respelled` puts the axis in again.
"""

from __future__ import annotations

from typing import Any

from ortfuse.pattern import Match, Pattern, all_attributes, attr, built, computed, op, opt, var
from ortfuse.refusal import Refusal
from ortfuse.rewrite import Exactness, Proof, Rule, Variation

from .._common import ints, is_not_quantised

x, weight, bias = var("x"), var("weight"), var("bias")

_EACH_AXIS = ("kernel_shape", "strides", "dilations", "output_padding")
"""Attributes with one number for each spatial axis."""


def _are_axes(axes: Any, facts: Any) -> bool:
    return isinstance(axes, tuple | list) and all(isinstance(axis, int) for axis in axes)


image = op.Unsqueeze(x, axes=attr("inserted", _are_axes, "known")).kept()
turned = op.Transpose(image, perm=attr("perm", _are_axes, "known")).kept()


def _axes(match: Match, name: str) -> list[int] | None:
    """Axes of the image, counted from the front and in order; `None` if its rank is not known."""
    rank = match.rank("x")
    return None if rank is None else sorted(axis % (rank + len(match["inserted"])) for axis in match[name])


def _unit_axes(match: Match) -> list[int] | None:
    """The axes of size 1 that are put in, as the window has them; `None` if they are not those that are taken out."""
    inserted, dropped = _axes(match, "inserted"), _axes(match, "dropped")
    if inserted is None or dropped is None:
        return None
    if match.get("perm") is not None:
        inserted = sorted(match["perm"].index(axis) for axis in inserted)
    return inserted if inserted == dropped else None


def takes_out_what_was_put_in(match: Match) -> Refusal | None:
    """The axes that are taken out are those that were put in, and leave at least one spatial axis."""
    axes, rank = _unit_axes(match), match.rank("x")
    if rank is None:
        return match.refuse("rank", "x")
    spatial = axes is not None and min(axes) > 1 and rank > 2
    return match.unless_value("dropped", spatial, "the spatial axes that were put in, and not all spatial axes")


def reads_one_element(match: Match) -> Refusal | None:
    """Along these axes, the window has size 1 and nothing is padded."""
    axes, window = _unit_axes(match) or [], match["window"]
    spatial = (match.rank("x") or 0) + len(axes) - 2
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
    """Only the maxima are asked for."""
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
    """x, its axes in the order in which the image has them."""
    if match.get("perm") is None:
        return x
    inserted = _axes(match, "inserted") or []
    kept = [axis for axis in match["perm"] if axis not in inserted]
    made: Pattern = op.Transpose(x, perm=tuple(sorted(kept).index(axis) for axis in kept))
    return made


def _flat(kind: str, *weights: Pattern) -> Any:
    def made(match: Match) -> Pattern:
        flat = (op.Squeeze(weight, computed("axes", lambda match: ints(_unit_axes(match) or []))), opt(bias))
        layer: Pattern = getattr(op, kind)(_image(match), *(flat if weights else ()), **_window(match))
        return layer

    return made


def _rule(kind: str, *weights: Pattern, **proof: Any) -> Rule:
    layer = getattr(op, kind)(turned | image, *weights, attributes=all_attributes("window")).named("layer")
    return Rule(
        name=f"conv.flat_{kind.lower()}",
        formula=f"Squeeze({kind}(Unsqueeze(x)))",
        pattern=op.Squeeze(layer, axes=attr("dropped", _are_axes, "known")),
        replace=built(_flat(kind, *weights), makes=(kind, "Transpose", *(("Squeeze",) if weights else ()))),
        guards=(
            takes_out_what_was_put_in,
            reads_one_element,
            *((gives_no_indices,) if kind == "MaxPool" else ()),
            is_not_quantised,
        ),
        exactness=Exactness.ROUNDING,
        source=f"ONNX operator {kind}",
        proof=_proof(**proof),
    )


def _proof(windows: list[dict[str, Any]], **shapes: str) -> Proof:
    """A sequence with channels last, and one with channels second."""
    axes = {"window": windows}
    return Proof(
        shapes=({"x": "n 7 4", **shapes}, {"x": "n 4 7", **shapes}),
        attributes=(
            {"inserted": [(1,), (-3,)], "perm": [(0, 3, 1, 2)], "dropped": [(2,)], **axes},
            {"inserted": [(2,)], "perm": [(0, 1, 2, 3)], "dropped": [(2,), (-2,)], **axes},
        ),
        counterexamples={
            "another axis": Variation(
                shapes={"x": "n 1 4"},
                attributes={"dropped": (3,), "window": {"kernel_shape": (1, 3), "pads": (0, 1, 0, 1)}},
            ),
            "padded": Variation(
                shapes={name: shape.replace("1 3", "3 3") for name, shape in shapes.items()},
                attributes={"window": {"kernel_shape": (3, 3), "pads": (1, 0, 1, 0)}},
            ),
        },
    )


_POOL: list[dict[str, Any]] = [
    {"kernel_shape": (1, 3)},
    {"kernel_shape": (1, 2), "strides": (2, 2), "auto_pad": "SAME_UPPER"},
    {"kernel_shape": (1, 3), "pads": (0, 1, 0, 1), "strides": (1, 2), "ceil_mode": 1},
]
_CONV: list[dict[str, Any]] = [
    {"kernel_shape": (1, 3)},
    {"pads": (0, 1, 0, 2), "strides": (2, 1), "dilations": (2, 2)},
    {"auto_pad": "SAME_UPPER", "strides": (2, 2)},
]
_TRANSPOSED: list[dict[str, Any]] = [
    {"kernel_shape": (1, 3)},
    {"pads": (0, 1, 0, 0), "strides": (2, 2), "output_padding": (0, 1)},
    {"group": 1, "dilations": (1, 2)},
]

RULES = [
    _rule("Conv", weight, opt(bias), windows=_CONV, weight="6 4 1 3", bias="6"),
    _rule("ConvTranspose", weight, opt(bias), windows=_TRANSPOSED, weight="4 6 1 3", bias="6"),
    _rule("MaxPool", windows=_POOL),
    _rule("AveragePool", windows=_POOL),
]
