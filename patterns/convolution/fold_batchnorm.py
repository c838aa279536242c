"""Fold BatchNormalization, and Mul, Div, Add, Sub and Neg with constants, into the weights and bias of the Conv before them.

s conv(x, W, b) + t = conv(x, s W, s b + t)
bn(y) = (y - mean) / sqrt(var + eps) * scale + B                              Ioffe & Szegedy, arXiv:1502.03167

Chains are folded one node after the other. ConvTranspose likewise.
"""

from __future__ import annotations

from typing import Any

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Op, Pattern, all_attributes, computed, op

from . import _conv_weights as layers
from ._test_instances import BARE, NORMALISATION, PADDED, POSITIVE, attributes, images, typical

BATCH_NORM = "arXiv:1502.03167"
LINEAR = "a convolution is linear in its weights and bias"


def _map(match: Match) -> layers.Affine:
    found = layers.affine(match, layers.output_channels(match))
    assert isinstance(found, layers.Affine)
    return found


def _bias(match: Match) -> Any:
    found = _map(match)
    return layers.rounded_bias(match, layers.bias_vector(match) * found.factor + found.offset)


def maps_channels(match: Match) -> Refusal | None:
    """The scale and shift are finite, with one number for each output channel."""
    if refused := layers.unless_layer(match):
        return refused
    found = layers.affine(match, layers.output_channels(match))
    return found if isinstance(found, Refusal) else None


def result_is_held(match: Match) -> Refusal | None:
    """The new weights and bias fit the type of the weights."""
    refused = layers.unless_held(match, _map(match).factor, of_inputs=False)
    return refused or layers.unless_finite(match, _bias(match))


new_weight = computed("weight", lambda match: layers.scaled(match, _map(match).factor, of_inputs=False)) | layers.weight


def _epilogue(name: str, source: str, pattern: Pattern, layer: Op, test: RuleTest) -> Rule:
    made = getattr(op, layer.op_type)
    of_batch_norm = (layers.only_the_result,) if source == BATCH_NORM else ()
    return Rule(
        name=f"conv.{name}",
        formula=layers.formula_of(pattern)
        if of_batch_norm
        else f"x * s, x = {layer.op_type}(y, weight, bias); {layers.LIKEWISE}",
        pattern=pattern.named("mapped"),
        replace=made(layers.x, new_weight, computed("bias", _bias), attributes=all_attributes("conv")),
        guards=(maps_channels, *of_batch_norm, result_is_held, layers.growth_is_bounded),
        exactness=Exactness.ROUNDING,
        source=source,
        test=test,
    )


def _batch_norm_rule_test(*shapes: dict[str, str]) -> RuleTest:
    return RuleTest(
        shapes=shapes,
        attributes=attributes(PADDED, {**PADDED, "group": 2}, **NORMALISATION),
        constants=POSITIVE,
        redundant={"check of attribute training": layers.CANNOT_TRAIN},
        typical=(typical(statistics="64"),),
    )


def _affine_rule_test(*shapes: dict[str, str]) -> RuleTest:
    grouped, one_sided = {**BARE, "group": 2}, {"pads": (2, 0)}
    return RuleTest(
        shapes=shapes,
        attributes=attributes(PADDED, grouped, one_sided, {"group": 4})[: len(shapes)],
        typical=(typical(operands="64 1 1"),),
    )


def _arithmetic(y: Pattern) -> Pattern:
    return layers.one_of((*layers.factors(y), *layers.offsets(y)))


RULES = [
    _epilogue(
        "fold_batchnorm",
        BATCH_NORM,
        layers.batch_norm(layers.convolution()),
        layers.convolution(),
        _batch_norm_rule_test(
            images("n 3 6 6", "4 3 3 3", statistics="4"),
            images("n 4 6 6", "4 2 3 3", statistics="4"),
        ),
    ),
    _epilogue(
        "fold_batchnorm_into_conv_transpose",
        BATCH_NORM,
        layers.batch_norm(layers.transposed()),
        layers.transposed(),
        _batch_norm_rule_test(
            images("n 3 5 5", "3 4 3 3", statistics="4"),
            images("n 4 5 5", "4 2 3 3", statistics="4"),
        ),
    ),
    _epilogue(
        "fold_output_scale_shift",
        LINEAR,
        _arithmetic(layers.convolution()),
        layers.convolution(),
        _affine_rule_test(
            images("n 3 6 6", "4 3 3 3", operands="4 1 1"),
            images("n 4 6 6", "4 2 3 3", operands="1 4 1 1"),
            images("n 4 s", "4 4 3", operands="1"),
            images("n 4 3 4 3", "4 1 2 2 2", operands=""),
        ),
    ),
    _epilogue(
        "fold_output_scale_shift_into_conv_transpose",
        LINEAR,
        _arithmetic(layers.transposed()),
        layers.transposed(),
        _affine_rule_test(
            images("n 3 5 5", "3 4 3 3", operands="4 1 1"),
            images("n 4 5 5", "4 2 3 3", operands="1 4 1 1"),
            images("n 4 s", "4 4 3", operands="1"),
        ),
    ),
]
