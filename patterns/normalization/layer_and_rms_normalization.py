"""Fuse LayerNormalization and RMSNormalization, and SkipLayerNormalization with the residual sum.

layernorm(x) = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * scale + bias     Ba et al., arXiv:1607.06450
             = x f + (bias - mean(x) f),  f = scale / sqrt(mean((x - mean(x))^2) + eps)          as TensorFlow has it
rmsnorm(x) = x / sqrt(mean(x^2) + eps) * scale                                      Zhang & Sennrich, arXiv:1910.07467
skip_layernorm(x, skip) = layernorm(x + skip + bias)

Before opset 23 the runtime has SimplifiedLayerNormalization for rmsnorm. It is in the domain of the standard, which lacks it:
onnx.checker refuses a model with it. The rules do not make it; the runtime makes it itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ortfuse.ir.dims import DimLike
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, Pattern, attr, built, computed, const, ms, op, opt, redundant, scalar, var

from .._rule_test_inputs import COST, KERNEL
from .._shared_guards import (
    array_like,
    is_suffix_axes,
    rank_in,
)

PAPER = "arXiv:1607.06450"
LARGEST_ONES = 1 << 20
"""The most elements of a scale of ones that is created for a normalisation without a scale."""

x, scale, bias = var("x"), var("scale"), var("bias")
axes = attr("axes", is_suffix_axes, "consecutive axes")
mean = op.ReduceMean(x, axes=axes, keepdims=1)
deviation = x - mean
again = x - op.ReduceMean(x, axes=axes, keepdims=1)
"""The deviation computed a second time for the variance, as torch.export does."""
variance = op.ReduceMean(deviation**2 | again**2, axes=axes, keepdims=1) + scalar("epsilon")
normalised = deviation / variance**0.5
by_power = deviation * op.Pow(variance, -0.5)
inverse = (opt(scale) / variance**0.5 | opt(scale) * op.Pow(variance, -0.5)).named("inverse")
expanded = x * inverse - mean * inverse + opt(bias)
by_opposite = x * inverse + op.Neg(mean) * inverse + opt(bias)
difference = op.ReduceMean(x**2, axes=axes, keepdims=1) - mean**2
variance_by_products = difference + scalar("epsilon") | op.Relu(difference) + scalar("epsilon")
"""The variance as a difference, perhaps kept from being negative, as flax has it."""
by_products = deviation / variance_by_products**0.5

mean_square = op.ReduceMean(x**2, axes=axes, keepdims=1)
mean_square_epsilon = mean_square + scalar("epsilon")
rms_normalised = x / mean_square_epsilon**0.5
rms_by_power = x * op.Pow(mean_square_epsilon, -0.5)


def normalises_last_axes(match: Match) -> Refusal | None:
    """The axes end at the last one; scale and bias have the shape of the normalised axes."""
    shape, normalised_axes = match.shape("x"), match["axes"]
    if shape is None:
        return match.refuse("rank", "x")
    if normalised_axes[-1] != len(shape) - 1:
        return match.refuse("attribute", "axes", f"axes up to the last one, {len(shape) - 1}")
    if match["epsilon"] < 0:
        return match.refuse("value", "epsilon", "at least 0")
    wanted = shape[normalised_axes[0] :]
    for name in ("scale", "bias"):
        if match.get(name) is not None and _without_leading_ones(match, name, len(wanted)) != wanted:
            return match.refuse("shape", name, wanted)
    return _unless_scale_can_be_made(match, wanted)


def _without_leading_ones(match: Match, name: str, rank: int) -> tuple[DimLike, ...] | None:
    """The shape of a captured value; of a constant of a higher rank without the axes of size 1 in front."""
    shape = match.shape(name)
    if shape is None or len(shape) <= rank or not match.facts.is_const(match[name]):
        return shape
    leading = len(shape) - rank
    return shape[leading:] if all(dim == 1 for dim in shape[:leading]) else shape


def _vector(name: str) -> Pattern:
    """The captured value, without axes of size 1 in front."""

    def made(match: Match) -> Pattern:
        rank = (match.rank("x") or 0) - match["axes"][0]
        if match.get(name) is None or match.rank(name) == rank:
            return var(name)
        return computed(f"{name}_vector", lambda match: match.const(name).reshape(match.const(name).shape[-rank:]))

    return built(made, makes=())


def _unless_scale_can_be_made(match: Match, shape: Sequence[DimLike]) -> Refusal | None:
    """A refusal if there is no scale and a scale of ones cannot be made: its shape is unknown, or it would be too large."""
    if match.get("scale") is not None:
        return None
    for axis, dim in enumerate(shape, -len(shape)):
        if not isinstance(dim, int):
            return match.refuse_dimension("x", axis, "a number, as there is no scale")
    if math.prod(dim for dim in shape if isinstance(dim, int)) > LARGEST_ONES:
        return match.refuse("shape", "x", "one for which a scale of ones takes less memory")
    return None


def scale_is_finite(match: Match) -> Refusal | None:
    """The scale, if there is one, is a constant of finite numbers: infinity minus infinity is NaN in one form only."""
    array = None if match["scale"] is None else match.const("scale")
    finite = match["scale"] is None or (array is not None and bool(np.all(np.isfinite(array))))
    return match.unless_value("scale", finite, "constant and finite")


def first_axis(match: Match) -> int:
    """The first normalised axis, counted from the end."""
    axis: int = match["axes"][0] - (match.rank("x") or 0)
    return axis


def ones(match: Match) -> Any:
    """A scale of ones, for a normalisation without a scale."""
    shape = match.shape("x")
    assert shape is not None
    return array_like(match, np.ones([int(dim) for dim in shape[match["axes"][0] :]]))  # type: ignore[arg-type]


_SHAPES = (
    {"x": "b s 8", "scale": "8", "bias": "8"},
    {"x": "b 6", "scale": "6", "bias": "6"},
    {"x": "b 3 4", "scale": "3 4", "bias": "3 4"},
)
_PROOF = RuleTest(
    shapes=_SHAPES,
    attributes=({"axes": [(-1,), (2,)]}, {"axes": [(-1,), (1,)]}, {"axes": [(-2, -1), (1, 2)]}),
    # Numbers that float32, the type of the attribute, holds exactly: others are refused in float64.
    scalars={"epsilon": [2.0**-17, 2.0**-40, 0.125]},
    dtypes=("float32", "float64"),
    counterexamples={
        "an axis left out": Variation(
            shapes={"x": "2 3 4", "scale": "2 3 4", "bias": "2 3 4"}, attributes={"axes": (0, 2)}
        )
    },
)

# x + skip + bias, in any order: two tensors of the same shape and optionally a vector
skip, sum_bias = var("skip", "...lead c"), const("sum_bias", "c")
total = (var("x", "...lead c") + skip + opt(sum_bias)).named("total")
gamma, beta = var("gamma", "c"), var("beta", "c")
fused_skip = ms.SkipLayerNormalization(x, skip, gamma, opt(beta), opt(sum_bias), epsilon=attr("epsilon"), outputs=4)


def last_axis_only(match: Match) -> Refusal | None:
    """The operator normalises only the last axis."""
    rank, axis = match.rank("x"), match["axis"]
    return match.unless_value("axis", rank is not None and axis in (-1, rank - 1), "the last axis alone")


# x / sqrt(sum(x^2) + eps) over a last axis of n elements is an RMS normalisation with epsilon eps / n, scaled by 1 / sqrt(n).
sum_square = op.ReduceSum(x**2, axes=axes, keepdims=1) + scalar("epsilon")
l2_normalised = scalar("gain") * x / sum_square**0.5


def _elements(match: Match) -> int:
    shape = match.shape("x") or ()
    return math.prod(dim for dim in shape[match["axes"][0] :] if isinstance(dim, int))


def mean_epsilon(match: Match) -> float:
    """The epsilon that is added to the mean of the squares."""
    return float(match["epsilon"]) / _elements(match)


def gains(match: Match) -> Any:
    """The scale of every element."""
    return ones(match) * array_like(match, match["gain"] / math.sqrt(_elements(match)))


@redundant("the kernel of this runtime gives NaN for a row of zeros too")
def has_epsilon(match: Match) -> Refusal | None:
    """Epsilon stays clear of 0 and of subnormal numbers: without it, the result for a row of zeros depends on the kernel."""
    if not _elements(match):
        return match.refuse("shape", "x", "one of elements along the normalised axes")
    return match.unless_value("epsilon", mean_epsilon(match) > 1e-30, "more than 1e-30 for each element")


RULES = [
    Rule(
        name="layernorm.from_decomposed_form",
        formula="(x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon) * scale + bias",
        pattern=normalised * opt(scale) + opt(bias) | by_power * opt(scale) + opt(bias),
        replace=op.LayerNormalization(
            x,
            _vector("scale") | computed("ones", ones),
            opt(_vector("bias")),
            axis=first_axis,
            epsilon=scalar("epsilon"),
        ),
        guards=(normalises_last_axes,),
        exactness=Exactness.ROUNDING,
        source=PAPER,
        test=_PROOF,
    ),
    Rule(
        name="layernorm.from_scale_and_offset_form",
        formula="x f + (bias - mean(x) f), f = scale / sqrt(mean((x - mean(x))^2) + epsilon)",
        pattern=expanded | by_opposite,
        replace=op.LayerNormalization(
            x,
            _vector("scale") | computed("ones", ones),
            opt(_vector("bias")),
            axis=first_axis,
            epsilon=scalar("epsilon"),
        ),
        guards=(normalises_last_axes, scale_is_finite),
        exactness=Exactness.ROUNDING,
        source="tf.nn.batch_normalization of tf.nn.moments",
        test=replace(
            _PROOF,
            shapes=_SHAPES[1:],
            attributes=_PROOF.attributes[1:],  # type: ignore[index]
            constants={"scale": "normal"},
            dtypes=("float32",),
        ),
    ),
    Rule(
        name="rmsnorm.from_decomposed_form",
        formula="x / sqrt(mean(x^2) + epsilon) * scale",
        pattern=rms_normalised * opt(scale) | rms_by_power * opt(scale),
        replace=op.RMSNormalization(
            x, _vector("scale") | computed("ones", ones), axis=first_axis, epsilon=scalar("epsilon")
        ),
        guards=(normalises_last_axes,),
        may_raise_opset=True,
        exactness=Exactness.ROUNDING,
        source="arXiv:1910.07467",
        test=RuleTest(
            shapes=tuple({name: shape for name, shape in row.items() if name != "bias"} for row in _SHAPES),
            attributes=_PROOF.attributes,
            scalars=_PROOF.scalars,
            dtypes=("float32", "float64"),
            typical=tuple(
                {"x": size, "scale": size.split()[-1]}
                for size in ("1 16 64", "1 1 2048", "1 16 1024", "1 128 768", "1 512 2048")
            ),
        ),
    ),
    Rule(
        # The difference of the means may be negative or lose all digits where the variance does not.
        name="layernorm.from_mean_of_squares_form",
        formula="(x - mean(x)) / sqrt(max(mean(x^2) - mean(x)^2, 0) + epsilon) * scale + bias",
        pattern=by_products * opt(scale) + opt(bias),
        replace=op.LayerNormalization(
            x,
            _vector("scale") | computed("ones", ones),
            opt(_vector("bias")),
            axis=first_axis,
            epsilon=scalar("epsilon"),
        ),
        guards=(normalises_last_axes,),
        exactness=Exactness.APPROXIMATE,
        source=PAPER,
        test=_PROOF,
    ),
    Rule(
        name="rmsnorm.from_l2_normalization",
        formula="gain x / sqrt(sum(x^2) + epsilon)",
        pattern=l2_normalised,
        replace=op.RMSNormalization(x, computed("gains", gains), axis=first_axis, epsilon=mean_epsilon),
        guards=(normalises_last_axes, has_epsilon),
        may_raise_opset=True,
        exactness=Exactness.ROUNDING,
        source="arXiv:1910.07467",
        allow_extra_operands=True,
        test=RuleTest(
            shapes=({"x": "b s 8"}, {"x": "b 6"}),
            attributes=({"axes": [(-1,), (2,)]}, {"axes": [(-1,), (1,)]}),
            scalars={"epsilon": [2.0**-17, 0.125], "gain": [1.0, 3.0]},
            assumes=dict.fromkeys(
                ("input 0 of * is the lowest number*", "input * of Mul* is the lowest number*"),
                "a gain that makes the result infinite is none",
            ),
            counterexamples={"an axis left out": Variation(shapes={"x": "2 3 4"}, attributes={"axes": (0, 2)})},
            typical=({"x": "1 128 768"}, {"x": "1 12 128 64"}),
        ),
    ),
    Rule(
        name="layernorm.add_to_skip_layer_normalization",
        is_refinement=True,
        formula="LayerNormalization(x + skip + sum_bias, gamma, beta)",
        pattern=op.LayerNormalization(
            total, gamma, opt(beta), axis=attr("axis"), epsilon=attr("epsilon"), stash_type=attr("stash_type")
        ),
        replace=fused_skip[0],
        intermediates={"total": fused_skip[3]},
        guards=(
            redundant(KERNEL)(rank_in("x", (2, 3))),
            last_axis_only,
        ),
        exactness=Exactness.ROUNDING,
        source=PAPER,
        test=RuleTest(
            shapes=(
                {"x": "b s 8", "skip": "b s 8", "gamma": "8", "beta": "8", "sum_bias": "8"},
                {"x": "b 8", "skip": "b 8", "gamma": "8", "beta": "8", "sum_bias": "8"},
            ),
            redundant={"demand that sum_bias is constant": COST},
            attributes={"axis": [-1], "epsilon": [1e-5, 1e-12], "stash_type": [1]},
            typical=tuple(
                {
                    "x": f"1 {length} {size}",
                    "skip": f"1 {length} {size}",
                    "gamma": f"{size}",
                    "beta": f"{size}",
                    "sum_bias": f"{size}",
                }
                for length, size in ((1, 768), (16, 64), (16, 384), (128, 768), (512, 1024))
            ),
        ),
    ),
]
