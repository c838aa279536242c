"""Convolutions with constant weights, and affine maps of channels that are folded into these weights.

layer(x) = conv(x, W) + b, a Conv or ConvTranspose:
s layer(x) + t = conv(x, s W) + (s b + t)     with one s and t for each channel of the result
layer(s x + t) = conv(x, W s) + (b + W t)     with one s and t for each channel of x; not padded, unless t = 0

All constants are computed in float64 and rounded once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite.pattern import Match, Op, Pattern, all_attributes, attr, const, ms, op, opt, redundant, var
from ortfuse.rewrite.pattern.language import bare

from .._rule_test_inputs import COST

Array = np.ndarray[Any, Any]

x, weight, bias = var("x"), const("weight"), const("bias")

CONV = all_attributes("conv")


def convolution(data: Pattern = x) -> Op:
    """Conv of `data` with constant weights."""
    return op.Conv(data, weight, opt(bias), attributes=CONV).named("layer")


def transposed(data: Pattern = x) -> Op:
    """ConvTranspose of `data` with constant weights."""
    return op.ConvTranspose(data, weight, opt(bias), attributes=CONV).named("layer")


def fused(data: Pattern = x) -> Op:
    """FusedConv of `data` with constant weights: an activation, and perhaps a residual sum before it."""
    return ms.FusedConv(data, weight, opt(bias), opt(var("residual")), attributes=CONV).named("layer")


OPERATORS = frozenset({"Conv", "ConvTranspose", "FusedConv"})

_STATISTICS = ("scale", "shift", "mean", "variance")


def batch_norm(y: Pattern) -> Op:
    """BatchNormalization of `y` by constant statistics."""
    made: Op = op.BatchNormalization(
        y,
        *(const(name, "_") for name in _STATISTICS),
        epsilon=attr("epsilon"),
        momentum=attr("momentum"),
        training_mode=attr("training", lambda mode, facts: not mode, "inference"),
    )
    return made


_PARAMETERS = ", scale, shift, mean, variance, epsilon=epsilon, momentum=momentum, training_mode=training: inference"


def formula_of(pattern: Pattern) -> str:
    """The formula of a pattern, without the parameters of BatchNormalization."""
    return bare(pattern).replace(_PARAMETERS, "")


LIKEWISE = "likewise x / s, -x, x + t, x - t and t - x"
"""The forms that `factors` and `offsets` match besides x * s, in formulas."""


def factors(y: Pattern) -> tuple[Op, ...]:
    """The single nodes that multiply `y` by constants."""
    return op.Mul(y, const("factor")), op.Div(y, const("divisor")), op.Neg(y)


def offsets(y: Pattern) -> tuple[Op, ...]:
    """The single nodes that add constants to `y`, or subtract `y` from them."""
    return op.Add(y, const("added")), op.Sub(y, const("subtracted")), op.Sub(const("minuend"), y)


def one_of(options: Iterable[Pattern]) -> Pattern:
    """Any of these patterns."""
    return reduce(or_, options)


OPERANDS = ("factor", "divisor", "added", "subtracted", "minuend")


@dataclass(frozen=True)
class Affine:
    """y -> factor * y + offset, with float64 vectors of one number for each channel."""

    factor: Array
    offset: Array


def layer_of(match: Match) -> ir.Node:
    """The node of the convolution."""
    node: ir.Node = match["layer"].producer()
    return node


def _weight_shape(match: Match) -> tuple[int, ...]:
    shape = match.shape("weight") or ()
    return tuple(dim for dim in shape if isinstance(dim, int))


def groups(match: Match) -> int:
    """The number of groups of channels."""
    return int(match["conv"].get("group", 1))


def output_channels(match: Match) -> int:
    """The number of channels of the result."""
    shape = _weight_shape(match)
    return shape[1] * groups(match) if layer_of(match).op_type == "ConvTranspose" else shape[0]


def input_channels(match: Match) -> int:
    """The number of channels of the input."""
    shape = _weight_shape(match)
    return shape[0] if layer_of(match).op_type == "ConvTranspose" else shape[1] * groups(match)


def by_group(match: Match) -> Array:
    """The weights as [group, output channel, input channel, *kernel]."""
    array, count = match.const("weight"), groups(match)
    made: Array = array.reshape(count, array.shape[0] // count, *array.shape[1:])
    return made.swapaxes(1, 2) if layer_of(match).op_type == "ConvTranspose" else made


def _as_stored(match: Match, grouped: Array) -> Array:
    """The inverse of `by_group`, in the type of the weights."""
    array = grouped.swapaxes(1, 2) if layer_of(match).op_type == "ConvTranspose" else grouped
    return array.reshape(_weight_shape(match)).astype(match.const("weight").dtype)


def unless_layer(match: Match) -> Refusal | None:
    """A refusal unless the weights have the rank of a convolution, and no size of 0."""
    shape = _weight_shape(match)
    if len(shape) < 3 or 0 in shape or groups(match) < 1 or shape[0] % groups(match):
        return match.refuse("shape", "weight", "[channels, channels, *kernel], none of them 0")
    return match.unless_dtype("weight", ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16)


def affine(match: Match, channels: int, among: Iterable[str] = OPERANDS) -> Affine | Refusal:
    """The captured map of that many channels; `among` are the operands that it may have."""
    if match.get("variance") is not None:
        return normalisation(match, channels)
    return arithmetic(match, channels, len(_weight_shape(match)), among)


def arithmetic(match: Match, channels: int, rank: int, among: Iterable[str] = OPERANDS) -> Affine | Refusal:
    """The captured node that does arithmetic with a constant and a value of that many channels and axes."""
    ones, zeros = np.ones(channels), np.zeros(channels)
    name = next((name for name in among if match.get(name) is not None), None)
    if name is None:  # Neg
        return Affine(-ones, zeros)
    found = _channel_vector(match, name, channels, rank)
    if isinstance(found, Refusal):
        return found
    with np.errstate(all="ignore"):
        made = {
            "factor": Affine(found, zeros), "divisor": Affine(1 / found, zeros), "added": Affine(ones, found),
            "subtracted": Affine(ones, -found), "minuend": Affine(-ones, found),
        }[name]  # fmt: skip
    finite = bool(np.all(np.isfinite(made.factor)) and np.all(np.isfinite(made.offset)))
    return made if finite else match.refuse("value", name, "finite, and not 0 as a divisor")


def is_one_number(match: Match) -> bool:
    """Whether one factor or offset serves all channels."""
    name = next((name for name in OPERANDS if match.get(name) is not None), None)
    return name is not None and all(dim == 1 for dim in match.shape(name) or ())


def normalisation(match: Match, channels: int) -> Affine | Refusal:
    """The captured BatchNormalization of that many channels."""
    for name in _STATISTICS:
        if refused := match.unless_shape((channels,), name):
            return refused
    scale, shift, mean, variance = (match.const(name).astype(np.float64) for name in _STATISTICS)
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + float(np.float32(match["epsilon"])))
        made = Affine(factor, shift - mean * factor)
    finite = bool(np.all(np.isfinite(made.factor)) and np.all(np.isfinite(made.offset)))
    return made if finite else match.refuse("value", "variance", "such that scale / sqrt(variance + epsilon) is finite")


def _channel_vector(match: Match, name: str, channels: int, rank: int) -> Array | Refusal:
    """The captured constant as one number for each channel of a value of so many axes."""
    shape = match.shape(name) or ()
    wanted = (1, channels, *[1] * (rank - 2))
    aligned = (1,) * (rank - len(shape)) + shape
    if aligned not in (wanted, (1,) * rank):
        return match.refuse("shape", name, wanted)
    return np.broadcast_to(match.const(name).astype(np.float64).reshape(-1), channels)


def unless_held(match: Match, factor: Array, *, of_inputs: bool) -> Refusal | None:
    """A refusal unless the weights times the factor are numbers of their type, neither too large nor too small.

    `factor` has one number for each channel of the result or, with `of_inputs`, of the input.
    """
    grouped = by_group(match)
    axes = (1, *range(3, grouped.ndim)) if of_inputs else tuple(range(2, grouped.ndim))
    return unless_products_held(match, np.abs(grouped).max(axes).reshape(-1), factor)


def unless_products_held(match: Match, largest: Array, factor: Array) -> Refusal | None:
    """A refusal unless the largest weight of each channel times its factor is a number of their type, or 0."""
    info = np.finfo(largest.dtype)
    with np.errstate(over="ignore"):
        products = largest.astype(np.float64) * np.abs(factor)
    held = (products == 0) | ((products >= float(info.tiny)) & (products <= float(info.max)))
    return match.unless_value(
        "weight", bool(np.all(held)), f"such that {info.dtype} holds its numbers times the factor"
    )


def unless_finite(match: Match, bias_: Array | None) -> Refusal | None:
    """A refusal unless the new bias, if there is one, is finite."""
    finite = bias_ is None or bool(np.all(np.isfinite(bias_)))
    return None if finite else match.refuse("value", "weight", "such that the new bias is finite")


def bias_vector(match: Match) -> Array:
    """The bias in float64; zeros if there is none."""
    if match["bias"] is None:
        return np.zeros(output_channels(match))
    found: Array = match.const("bias").astype(np.float64)
    return found


def scaled(match: Match, factor: Array, *, of_inputs: bool) -> Array | None:
    """The weights times a factor for each channel of the result or, with `of_inputs`, of the input; `None` if all are 1."""
    if np.all(factor == 1):
        return None
    grouped, axis = by_group(match), 2 if of_inputs else 1
    shape = [1] * grouped.ndim
    shape[0], shape[axis] = grouped.shape[0], grouped.shape[axis]
    return _as_stored(match, grouped * factor.reshape(shape))


def rounded_bias(match: Match, numbers: Array) -> Array | None:
    """A new bias in the type of the weights; `None` if there was none and there is no need for one."""
    if match["bias"] is None and not np.any(numbers):
        return None
    with np.errstate(over="ignore"):
        made: Array = numbers.astype(match.const("weight").dtype)
    return made


def is_padded(attributes: Mapping[str, Any]) -> bool:
    """Whether a convolution with these attributes reads zeros around its input."""
    automatic = attributes.get("auto_pad", "NOTSET")
    return automatic in ("SAME_UPPER", "SAME_LOWER") or (automatic == "NOTSET" and any(attributes.get("pads") or ()))


CANNOT_TRAIN = "the runtime cannot train"


@redundant(CANNOT_TRAIN)
def only_the_result(match: Match) -> Refusal | None:
    """Only the first output is used: before opset 14, a BatchNormalization with more outputs is in training mode."""
    node = match["mapped"].producer()
    if not any(other.name for other in node.outputs[1:]):
        return None
    return match.refuse(
        "condition", "mapped", "the one output of a BatchNormalization that is not training", "one of several outputs"
    )


MOST_COPIED = 1 << 16
"""The most bytes of weights that are copied because something else needs them as they are."""


@redundant(COST)
def growth_is_bounded(match: Match) -> Refusal | None:
    """The weights have no other user, are small, or are folded in the same way for each user."""
    weights = match["weight"]
    others = [use.node for use in weights.uses() if use.node not in match.nodes]
    size = match.const("weight").nbytes if others else 0
    if size <= MOST_COPIED or all(_is_mapped_alike(match, other) for other in others):
        return None
    return match.refuse("use", "weight", "one convolution", f"{len(others)} other nodes")


def _is_mapped_alike(match: Match, layer: ir.Node) -> bool:
    """Whether the same operator with the same constants stands before or behind another use of the weights."""
    mapping = match["mapped"].producer()
    constants = {value for value in mapping.inputs if match.facts.is_const(value)}
    above = layer.inputs[0].producer() if layer.inputs[0] is not None else None
    around = [above, *(use.node for output in layer.outputs for use in output.uses())]
    return any(node is not None and node.op_type == mapping.op_type and constants <= {*node.inputs} for node in around)
