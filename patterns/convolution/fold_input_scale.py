"""Fold BatchNormalization, and Mul, Div, Add, Sub and Neg with constants, into the weights and bias of the Conv behind them.

conv(s x + t, W, b) = conv(x, W s, b + W t)     if t = 0 or nothing is padded
conv(s x + t, W, b) = conv(x + t / s, W s, b)   otherwise
bn(x) = (x - mean) / sqrt(var + eps) * scale + B                              Ioffe & Szegedy, arXiv:1502.03167

The zeros around a padded input are not shifted, so that no bias makes up for t there. A ConvTranspose has such borders even
without padding.

Rationale: images are normalised so, and some networks normalise before they convolve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import (
    Guard,
    Match,
    Op,
    Pattern,
    all_attributes,
    computed,
    const,
    ms,
    op,
    opt,
    redundant,
    var,
)

from .._rule_test_inputs import COST
from . import _conv_weights as layers
from ._test_instances import BARE, NORMALISATION, PADDED, POSITIVE, attributes, images, typical

BATCH_NORM = "arXiv:1502.03167"
LINEAR = "a convolution is linear in its input"

MOST_SHIFTED = 256.0
"""The largest offset that is moved behind the products, that of images of bytes: where x + t is much smaller, digits are lost."""


def _map(match: Match) -> layers.Affine:
    found = layers.affine(match, layers.input_channels(match))
    assert isinstance(found, layers.Affine)
    return found


def _bias(match: Match) -> Any:
    """b + W t."""
    offset, bias = _map(match).offset, layers.bias_vector(match)
    if not np.any(offset):
        return layers.rounded_bias(match, bias)
    grouped = layers.by_group(match)
    summed = grouped.sum(axis=tuple(range(3, grouped.ndim)), dtype=np.float64)  # [group, output channel, input channel]
    shifted = np.einsum("goi,gi->go", summed, offset.reshape(grouped.shape[0], -1))
    return layers.rounded_bias(match, bias + shifted.reshape(-1))


def maps_channels(match: Match) -> Refusal | None:
    """The scale and shift are finite, with one number for each channel of x."""
    if refused := layers.unless_layer(match):
        return refused
    channels, shape = layers.input_channels(match), match.shape("x")
    if shape is None or len(shape) != match.rank("weight"):
        return match.refuse("rank", "x", match.rank("weight"))
    broadcasts = match.get("variance") is None and not layers.is_one_number(match)
    if shape[1] != channels and broadcasts:
        return match.refuse_dimension("x", 1, channels)
    found = layers.affine(match, channels)
    return found if isinstance(found, Refusal) else None


def offset_stays_inside(match: Match) -> Refusal | None:
    """There is no shift, or the Conv has no padding with zeros."""
    if not np.any(_map(match).offset):
        return None
    if layers.layer_of(match).op_type == "ConvTranspose" or layers.is_padded(match["conv"]):
        return match.refuse("value", "mapped", "without an offset, or convolved without padding", "with an offset")
    return None


def offset_is_moderate(match: Match) -> Refusal | None:
    """x + t is not a small difference of large numbers. BatchNormalization subtracts x s and mean s itself."""
    largest = float(np.abs(_map(match).offset).max())
    return (
        None
        if largest <= MOST_SHIFTED
        else match.refuse("value", "mapped", f"shifted by at most {MOST_SHIFTED:.0f}", largest)
    )


def result_is_held(match: Match) -> Refusal | None:
    """The new weights and bias fit the type of the weights."""
    refused = layers.unless_held(match, _map(match).factor, of_inputs=True)
    return refused or layers.unless_finite(match, _bias(match))


@redundant(COST)
def leads_to_convolutions_alone(match: Match) -> Refusal | None:
    """All users of the scaled value are Convs with constant weights, which can all fold it."""
    value: ir.Value = match["mapped"]
    for use in value.uses():
        weights = use.node.inputs[1] if len(use.node.inputs) > 1 else None
        if use.idx != 0 or use.node.op_type not in layers.OPERATORS or not match.facts.is_const(weights):
            return match.refuse("use", "mapped", "convolutions", use.node.op_type)
    return match.refuse("graph_output", "mapped") if value.is_graph_output() else None


new_weight = computed("weight", lambda match: layers.scaled(match, _map(match).factor, of_inputs=True)) | layers.weight
new_bias = computed("bias", _bias)


def _prologue(name: str, source: str, pattern: Op, test: RuleTest, *guards: Guard, formula: str = "") -> Rule:
    makers = {"Conv": op.Conv, "ConvTranspose": op.ConvTranspose, "FusedConv": ms.FusedConv}
    residual = [opt(var("residual"))] if pattern.op_type == "FusedConv" else []
    return Rule(
        name=f"conv.{name}",
        formula=formula or layers.formula_of(pattern),
        pattern=pattern,
        replace=makers[pattern.op_type](layers.x, new_weight, new_bias, *residual, attributes=all_attributes("conv")),
        guards=(
            maps_channels,
            *guards,
            result_is_held,
            layers.growth_is_bounded,
            leads_to_convolutions_alone,
        ),
        exactness=Exactness.ROUNDING,
        source=source,
        test=test,
    )


def _two_maps(match: Match) -> tuple[Any, Any] | Refusal:
    """The factor, and the offset behind it."""
    channels = layers.input_channels(match)
    factor = layers.affine(match, channels, ("factor", "divisor"))
    offset = layers.affine(match, channels, ("added", "subtracted"))
    if isinstance(factor, Refusal):
        return factor
    return offset if isinstance(offset, Refusal) else (factor.factor, offset.offset)


def takes_the_factor(match: Match) -> Refusal | None:
    """The Conv is padded, and the shift divided by the scale fits its type."""
    if refused := layers.unless_layer(match):
        return refused
    found = _two_maps(match)
    if isinstance(found, Refusal):
        return found
    factor, offset = found
    if not layers.is_padded(match["conv"]):
        return match.refuse("other_rule", "mapped", "a convolution without padding")
    wanted, shape = layers.input_channels(match), match.shape("x")
    if shape is None or len(shape) != match.rank("weight") or shape[1] != wanted:
        return match.refuse_dimension("x", 1, wanted)
    with np.errstate(all="ignore"):
        held = (offset == 0) | (
            np.isfinite(_divided(match)) & (np.abs(_divided(match)) >= np.finfo(match.const("weight").dtype).tiny)
        )
    if not np.all(held & (factor != 0)):
        return match.refuse("value", "mapped", "a factor by which the offset can be divided")
    return layers.unless_held(match, factor, of_inputs=True)


def _divided(match: Match) -> Any:
    """t / s, in the type of the weights, as one number for each channel or for all."""
    found = _two_maps(match)
    assert not isinstance(found, Refusal)
    with np.errstate(all="ignore"):
        ratio = (found[1] / found[0]).astype(match.const("weight").dtype)
    ones = [1] * (len(match.const("weight").shape) - 2)
    return ratio[:1] if np.all(ratio == ratio[0]) else ratio.reshape(-1, *ones)


TYPICAL = typical(statistics="64", operands="64 1 1")


def _divided_offset() -> Rule:
    multiplied = op.Mul(layers.x, const("factor")) | op.Div(layers.x, const("divisor"))
    mapped = (op.Add(multiplied, const("added")) | op.Sub(multiplied, const("subtracted"))).named("mapped")
    factor = computed("weight", lambda match: layers.scaled(match, _two_maps(match)[0], of_inputs=True))  # type: ignore[index]
    return Rule(
        name="conv.fold_input_scale_keeping_shift",
        formula="Conv(x * s + t, weight, bias), padded; likewise x / s, and - t",
        pattern=layers.convolution(mapped),
        replace=op.Conv(
            op.Add(layers.x, computed("offset", _divided)),
            factor | layers.weight,
            opt(layers.bias),
            attributes=all_attributes("conv"),
        ),
        guards=(takes_the_factor, layers.growth_is_bounded),
        exactness=Exactness.ROUNDING,
        source=LINEAR,
        test=RuleTest(
            shapes=(
                images("n 3 6 6", "4 3 3 3", operands="3 1 1"),
                images("n 4 6 6", "4 2 3 3", operands="1"),
            ),
            attributes=attributes(PADDED, {**PADDED, "group": 2}),
            constants={"factor": "positive", "divisor": "positive"},
            typical=(TYPICAL,),
        ),
    )


_GROUPED = {**BARE, "group": 2}
_ACTIVATED = {**BARE, "activation": "Relu"}
CONV = (
    (images("n 3 6 6", "4 3 3 3", statistics="3", operands="3 1 1"), BARE),
    (images("n 4 6 6", "4 2 3 3", statistics="4", operands="1"), _GROUPED),
    (images("n 4 s", "4 1 3", statistics="4", operands="1 4 1"), {"group": 4}),
)
TRANSPOSED = (
    (images("n 3 5 5", "3 4 3 3", operands="3 1 1"), PADDED),
    (images("n 4 5 5", "4 2 3 3", operands="1 4 1 1"), _GROUPED),
)
FUSED = (({**images("n 3 6 6", "4 3 3 3", statistics="3", operands="3 1 1"), "residual": "n 4 4 4"}, _ACTIVATED),)

Sets = tuple[tuple[dict[str, str], dict[str, Any]], ...]


def _normalised(name: str, layer: Callable[[Pattern], Op], sets: Sets) -> Rule:
    # The map stays for the other convolutions that read it until they have taken it too.
    mapped = layers.batch_norm(layers.x).kept().named("mapped")
    test = RuleTest(
        shapes=[shapes for shapes, _ in sets],
        attributes=attributes(*(one for _, one in sets), **NORMALISATION),
        constants=POSITIVE,
        redundant={"check of attribute training": layers.CANNOT_TRAIN},
        typical=(TYPICAL,),
    )
    return _prologue(name, BATCH_NORM, layer(mapped), test, layers.only_the_result, offset_stays_inside)


def _mapped(name: str, layer: Callable[[Pattern], Op], maps: Iterable[Op], sets: Sets) -> Rule:
    mapped = layers.one_of(one.kept() for one in maps).named("mapped")
    test = RuleTest(
        shapes=[shapes for shapes, _ in sets],
        attributes=attributes(*(one for _, one in sets)),
        typical=(TYPICAL,),
    )
    shifts = () if maps is _FACTORS else (offset_stays_inside, offset_is_moderate)
    likewise = layers.LIKEWISE if shifts else "likewise x / s and -x"
    formula = f"{layer(mapped).op_type}(x * s, weight, bias); {likewise}"
    return _prologue(name, LINEAR, layer(mapped), test, *shifts, formula=formula)


_FACTORS = layers.factors(layers.x)
MAPS = (*_FACTORS, *layers.offsets(layers.x))

RULES = [
    _normalised("fold_input_batchnorm", layers.convolution, CONV),
    _normalised("fold_input_batchnorm_into_fused_conv", layers.fused, FUSED),
    _mapped("fold_input_scale_shift", layers.convolution, MAPS, CONV),
    _mapped("fold_input_scale_shift_into_fused_conv", layers.fused, MAPS, FUSED),
    _divided_offset(),
    _mapped("fold_input_scale_into_conv_transpose", layers.transposed, _FACTORS, TRANSPOSED),
]
