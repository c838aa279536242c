"""Fuse group normalisation, and instance normalisation with the channels last; factor the mean out of scale-and-offset forms.

groupnorm(x)    = merge((y - mean(y)) / sqrt(mean((y - mean(y))^2) + eps) * scale + bias), y = split(x), the channels in groups
instancenorm(x) = the same of x itself, means over all axes but the first and the last
x f + (bias - mean(x) f) = (x - mean(x)) f + bias                     as TensorFlow and Keras have any of them

Channels that are last are transposed to the front and back again. In a network of convolutions these Transposes meet those
around the convolutions, and the pass `layout` removes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.dims import DimLike
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, Pattern, attr, computed, const, op, opt, redundant, scalar, var

from .._rule_test_inputs import COST
from .._shared_guards import array_like
from ._instance_norm_guards import convolved, has_pixels, keeps_digits
from .decompose_group_normalization import merged_groups, scaled_channels
from .layer_and_rms_normalization import bias, scale

x, term = var("x"), var("term")
split = op.Reshape(x, var("groups"), allowzero=attr("groups_allowzero")).named("split")
axes = attr("axes", lambda found, facts: isinstance(found, tuple) and len(found) > 0, "given")

MOST = 2.0**40
"""The largest gain."""


def _normalised(operand: Pattern) -> Pattern:
    """The mean is subtracted and the deviation divided by; then scale and bias."""
    deviation = operand - op.ReduceMean(operand, axes=axes, keepdims=1)
    # It may be the same node, or one that computes the same.
    again = operand - op.ReduceMean(operand, axes=axes, keepdims=1)
    variance = op.ReduceMean(again**2, axes=axes, keepdims=1) + scalar("epsilon")
    return deviation / variance**0.5 * opt(scale) + opt(bias)


factor = (opt(const("gain")) / op.Sqrt(var("spread"))).named("factor")
mean = op.ReduceMean(x, axes=attr("axes"), keepdims=1).kept().named("mean")
apart = op.Mul(x, factor) - op.Mul(mean, factor) + opt(term) | op.Mul(x, factor) + op.Mul(op.Neg(mean), factor) + opt(
    term
)


def factor_is_bounded(match: Match) -> Refusal | None:
    """The factor is provably far from infinite: infinity minus infinity is NaN in one form only."""
    values = match.facts.range(match["spread"])
    if values is None or not values.low > 0:
        return match.refuse("values_unknown", "spread", "above 0")
    gain = None if match["gain"] is None else match.const("gain")
    held = gain is None or bool(np.all(np.abs(gain) <= MOST))
    return match.unless_value("gain", held, f"at most {MOST:.3g} in size")


def is_larger_than_its_mean(match: Match) -> Refusal | None:
    """The result has the shape of x, so that the difference is no larger than it."""
    return match.unless_same_shape("x", "root")


def _spread(build: Any) -> ir.Value:
    """Numbers of at least 0.125."""
    numbers = build.input("numbers", build.dims("spread"))
    made: ir.Value = build.node("Clip", [numbers, build.constant(0.125), build.constant(8.0)]).outputs[0]
    return made


def _is_last(match: Match) -> bool:
    """Whether the channels are the last axis: then the second one is normalised too."""
    return bool(match["axes"][0] == 1)


def _to_front(match: Match) -> list[int]:
    rank = match.rank("x") or 0
    return [0, rank - 1, *range(1, rank - 1)]


def _to_back(match: Match) -> list[int]:
    return [0, *range(2, match.rank("x") or 0), 1]


def _kept(match: Match) -> tuple[str, int, int]:
    """The value that is normalised, and its axes of channels: where they begin and end."""
    name = "split" if match.get("split") is not None else "x"
    count, rank = 2 if name == "split" else 1, match.rank(name) or 0
    return (name, rank - count, rank) if _is_last(match) else (name, 1, 1 + count)


def _numbers(match: Match, name: str) -> Any:
    """The captured constant with a number for each channel; `None` if it has others."""
    of, start, stop = _kept(match)
    array, sizes = match.const(name), match.shape(of) or ()
    if array is None or array.ndim > len(sizes) or not np.all(np.isfinite(array)):
        return None
    found = array.reshape((1,) * (len(sizes) - array.ndim) + array.shape)
    if any(size != 1 for size in found.shape[:start] + found.shape[stop:]):
        return None
    return np.broadcast_to(found.reshape(found.shape[start:stop]), _known(sizes[start:stop])).reshape(-1)


def _known(sizes: Sequence[DimLike]) -> list[int]:
    return [size for size in sizes if isinstance(size, int)]


def _vector(name: str, default: float) -> Any:
    def made(match: Match) -> Any:
        of, start, stop = _kept(match)
        sizes = _known((match.shape(of) or ())[start:stop])
        found = np.full(math.prod(sizes), default) if match[name] is None else _numbers(match, name)
        return array_like(match, found)

    return computed(f"{name}_of_channels", made)


_VECTORS = (_vector("scale", 1.0), _vector("bias", 0.0))


def scales_channels(match: Match) -> Refusal | None:
    """Scale and bias, if present, are finite constants with a number for each channel, or one for all."""
    for name in ("scale", "bias"):
        if match[name] is not None and _numbers(match, name) is None:
            return match.refuse("value", name, "constant and finite, a number for each channel")
    return None


def normalises_groups(match: Match) -> Refusal | None:
    """The channels of x are in groups of known size, and the means are over all axes but the first and that of the groups."""
    shapes = match.shapes("x", "split")
    if isinstance(shapes, Refusal):
        return shapes
    whole, parts = shapes
    if len(whole) < 3 or len(parts) != len(whole) + 1:
        return match.refuse("rank", "x", "at least 3, and one less than that of the groups")
    _, at, _ = _kept(match)
    if match["axes"] != tuple(axis for axis in range(1, len(parts)) if axis != at):
        return match.refuse("attribute", "axes", "all but the first and that of the groups")
    groups, size = parts[at : at + 2]
    if not isinstance(groups, int) or not isinstance(size, int) or not groups or not size:
        return match.refuse("shape", "split", "one with known numbers of groups and of channels in each")
    if match["epsilon"] < 0:
        return match.refuse("value", "epsilon", "at least 0")
    return match.unless_shape((*parts[:at], groups * size, *parts[at + 2 :]), "x", "root")


def normalises_images(match: Match) -> Refusal | None:
    """The means are over all axes but the first and the last, the channels, whose number is known."""
    shape = match.shape("x")
    if shape is None or len(shape) < 3:
        return match.refuse("rank", "x", "at least 3")
    if match["axes"] != tuple(range(1, len(shape) - 1)):
        return match.refuse("attribute", "axes", "all but the first and the last")
    if not isinstance(shape[-1], int):
        return match.refuse_dimension("x", -1, "a known number of channels")
    return match.unless_value("epsilon", match["epsilon"] >= 0, "at least 0")


def _sizes_of(name: str) -> Callable[[Match], Sequence[DimLike] | None]:
    """The sizes along the normalised axes of a captured value."""

    def sizes(match: Match) -> Sequence[DimLike] | None:
        shape = match.shape(name)
        return None if shape is None else [shape[axis] for axis in match["axes"]]

    return sizes


def _groups(match: Match) -> int:
    of, at, _ = _kept(match)
    return int((match.shape(of) or ())[at])  # type: ignore[arg-type]


def _channels(match: Match) -> int:
    of, at, _ = _kept(match)
    return _groups(match) * int((match.shape(of) or ())[at + 1])  # type: ignore[arg-type]


def _group_normalisation(match: Match) -> Pattern:
    source: Pattern = op.Transpose(x, perm=_to_front) if _is_last(match) else x
    if _groups(match) == _channels(match):
        made = _each_channel(source)
    else:
        made = merged_groups(source, _groups, scalar("epsilon"))
        if match["scale"] is not None or match["bias"] is not None:
            made = scaled_channels(made, *_VECTORS, _channels)
    return op.Transpose(made, perm=_to_back) if _is_last(match) else made


def _each_channel(image: Pattern) -> Pattern:
    """InstanceNormalization of an image with the channels second."""
    made: Pattern = op.InstanceNormalization(image, *_VECTORS, epsilon=scalar("epsilon"))
    return made


def _instance_normalisation(match: Match) -> Pattern:
    made: Pattern = op.Transpose(_each_channel(op.Transpose(x, perm=_to_front)), perm=_to_back)
    return made


def _target(split: bool) -> Callable[[Any], ir.Value]:
    """The Reshape of x that brings its channels into groups, or back."""

    def made(build: Any) -> ir.Value:
        dims = build.dims("x")
        axis = 1 if dims[1] == 6 else len(dims) - 1
        kept = [0 if isinstance(dim, str) else dim for dim in dims]
        parts = [*kept[:axis], 2, int(dims[axis]) // 2, *kept[axis + 1 :]]
        target: ir.Value = build.constant(np.array(parts if split else kept))
        return target

    return made


_RESHAPES = {"groups_allowzero": [0], "allowzero": [0]}
_EPSILONS = {"epsilon": [2.0**-17, 0.125]}
_EMPTY = {"*": "the runtime cannot divide an empty image into groups"}

RULES = [
    Rule(
        name="normalization.factor_out_mean",
        is_refinement=True,
        formula="x f + (term - mean(x) f)",
        pattern=apart,
        replace=op.Mul(op.Sub(x, var("mean")), var("factor")) + opt(term),
        guards=(factor_is_bounded, redundant(COST)(is_larger_than_its_mean)),
        exactness=Exactness.ROUNDING,
        source="tf.nn.batch_normalization of tf.nn.moments",
        test=RuleTest(
            shapes={"x": "b 3 4", "spread": "b 1 1", "gain": "4", "term": "4"},
            inputs={"spread": _spread},
            constants={"gain": "normal"},
            attributes={"axes": [(1, 2)]},
            opset=18,
        ),
    ),
    Rule(
        name="groupnorm.decomposed_to_instance_normalization",
        formula="merge((y - mean(y)) / sqrt(mean((y - mean(y))^2) + epsilon) * scale + bias), y = split(x) in groups",
        pattern=op.Reshape(_normalised(split), var("shape"), allowzero=attr("allowzero")),
        replace=_group_normalisation,
        makes=("Transpose", "Reshape", "InstanceNormalization", "Shape", "BatchNormalization"),
        guards=(normalises_groups, scales_channels, has_pixels("x"), keeps_digits(_sizes_of("split"))),
        exactness=Exactness.ROUNDING,
        source="arXiv:1803.08494",
        test=RuleTest(
            shapes=(
                {"x": "n 3 4 8", "scale": "1 1 1 2 4", "bias": "2 4"},
                {"x": "n 6 5", "scale": "1 2 3 1", "bias": "2 3 1"},
            ),
            inputs={"groups": _target(True), "shape": _target(False)},
            attributes=({"axes": [(1, 2, 4)], **_RESHAPES}, {"axes": [(2, 3)], **_RESHAPES}),
            scalars=_EPSILONS,
            constants={"scale": "normal", "bias": "normal"},
            never_empty=_EMPTY,
            opset=18,
            counterexamples={"an axis left out": Variation(attributes={"axes": (1, 4)})},
            typical=tuple(
                {
                    "x": f"1 {size}",
                    "scale": f"2 {int(size.split()[-1]) // 2}",
                    "bias": f"2 {int(size.split()[-1]) // 2}",
                }
                for size in ("56 56 64", "32 32 320", "8 8 1280")
            ),
        ),
    ),
    Rule(
        name="instancenorm.from_decomposed_form_channels_last",
        formula="(x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon) * scale + bias, channels last",
        pattern=_normalised(x),
        replace=_instance_normalisation,
        makes=("Transpose", "InstanceNormalization"),
        guards=(normalises_images, scales_channels, has_pixels("x"), keeps_digits(_sizes_of("x"))),
        exactness=Exactness.ROUNDING,
        source="arXiv:1607.08022",
        test=RuleTest(
            shapes=(
                {"x": "n 3 s 4", "scale": "4", "bias": "1 1 1 4"},
                {"x": "n 5 2", "scale": "2", "bias": "2"},
            ),
            attributes=({"axes": [(1, 2)]}, {"axes": [(1,)]}),
            # For a single element, the kernel computes x f - mean f, with an error proportional to f = 1 / sqrt(epsilon).
            scalars={"epsilon": [0.125, 0.5]},
            constants={"scale": "normal", "bias": "normal"},
            inputs={"x": convolved(-1)},
            opset=18,
            counterexamples={"the channels too": Variation(attributes={"axes": (1, 2, 3)})},
            typical=tuple(
                {"x": f"1 {size}", **dict.fromkeys(("scale", "bias"), size.split()[-1])}
                for size in ("56 56 64", "14 14 256", "128 128 32")
            ),
        ),
    ),
]
