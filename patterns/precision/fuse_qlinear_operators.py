"""Fuse DequantizeLinear, MatMul or mean, and QuantizeLinear to one integer kernel.

q(act(dq(a) dq(W)))      = QLinearMatMul(a, W)              act: none, or Relu where z = 0
q(act(dq(a) dq(W) + b))  = QGemm(a, W, b32)                 for two axes
q(mean(dq(a)))           = QLinearGlobalAveragePool(a)      over all positions of an image

q(x) = clip(round(x / s) + z, ...); b32 are multiples of the scale of the products, which are many times finer than s.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, attr, computed, const, ms, op, var

from ._weight_quantization import Array

PASS = "precision.cleanup"

SOURCE = "ONNX operator QLinearMatMul, ONNX Runtime operator com.microsoft.QGemm"

LARGEST_BIAS = 1 << 30
"""The most steps that a bias may have."""

FINER = 64
"""How many steps of the products make up one of the result at least, so that rounding the bias to them does not matter."""

MOST_APART = 128
"""How many times larger one scale may be than the other: the kernel of the mean refuses quotients that are too far from 1."""

RELU = 0

a, weight = var("a"), const("weight", "_ n")
a_scale, scale = const("a_scale", ""), const("scale", "")
a_zero, zero = const("a_zero", ""), const("zero", "")
weight_scale, weight_zero = const("weight_scale", "n"), const("weight_zero", "n")
bias = const("bias", "n")


def _steps(match: Match) -> Array:
    """The scale of the products, for each column."""
    with np.errstate(all="ignore"):
        found: Array = match.const("a_scale") * match.const("weight_scale")
    return found


def relu_is_rounding(match: Match) -> Refusal | None:
    """Require that rounding turns negative numbers into 0, if the activation does."""
    if match.choice("form") != RELU:
        return None
    return match.unless_dtype("zero", ir.DataType.UINT8) or match.unless_value("zero", match.const("zero") == 0, "0")


def bias_is_fine(match: Match) -> Refusal | None:
    """Multiples of the scale of the products come near the bias, next to what the result is rounded to."""
    steps = _steps(match)
    with np.errstate(all="ignore"):
        fits = bool((np.abs(match.const("bias")) < LARGEST_BIAS * steps).all())
    return match.unless_value("bias", fits, f"of less than {LARGEST_BIAS} steps") or match.unless_value(
        "scale", bool(FINER * steps.max() <= match.const("scale")), f"at least {FINER} times that of the products"
    )


def scales_are_normal(match: Match) -> Refusal | None:
    """All scales are positive, and what is multiplied of them is a normal number."""
    with np.errstate(all="ignore"):
        steps = _steps(match) / match.const("scale")
    tiny = np.finfo(np.float32).tiny
    positive = bool(match.const("a_scale") > 0 and match.const("scale") > 0 and (match.const("weight_scale") > 0).all())
    normal = bool((steps >= tiny).all() and np.isfinite(steps).all() and (_steps(match) >= tiny).all())
    return match.unless_value("scale", positive and normal, "a positive and normal number")


def is_a_matrix(match: Match) -> Refusal | None:
    """The kernel with a bias takes two axes."""
    return match.unless_rank("a", 2)


def kinds_agree(match: Match) -> Refusal | None:
    """The result has integers of the type of what comes in, as the kernels have it."""
    return match.unless_dtype("zero", match.dtype("a") or ir.DataType.UNDEFINED)


def _as_floats(build: Any, root: ir.Value) -> ir.Value:
    """The integers as numbers of which some may be one more or less."""
    one, nothing = build.constant(np.float32(1), ir.DataType.FLOAT), build.constant(np.uint8(0))
    made: ir.Value = build.node("DequantizeLinear", [root, one, nothing]).outputs[0]
    return made


def _quantised(product: Pattern) -> Pattern:
    return op.QuantizeLinear((op.Relu(product) | product).named("form"), scale, zero)


FACTORS = (a, weight, a_scale, weight_scale, a_zero, weight_zero)
PLAIN = ms.MatMulIntegerToFloat(*FACTORS)
WITH_BIAS = ms.MatMulIntegerToFloat(*FACTORS, bias)
ENDS = (a, a_scale, a_zero, weight, weight_scale, weight_zero)


def mean_of_positions(match: Match) -> Refusal | None:
    """All axes but the first two are averaged, and stay as axes of size 1."""
    rank, axes = match.rank("a"), match["axes"]
    if axes is None:
        return match.refuse("value", "axes", "all but the first two")
    if rank is None or rank < 3:
        return match.refuse("rank", "a", "at least 3")
    wanted = list(range(2, rank))
    return match.unless_value("axes", sorted(axis % rank for axis in axes) == wanted, f"{wanted}")


def image_scale_fits(match: Match) -> Refusal | None:
    """The scales are positive, and their quotient is what the kernel takes."""
    before, after = float(match.const("a_scale")), float(match.const("scale"))
    tiny = float(np.finfo(np.float32).tiny)
    fits = before >= tiny and after >= tiny and 1 / MOST_APART < before / after < MOST_APART
    return match.unless_value("scale", fits, "a positive number near the other scale")


SHAPES = {"weight": "6 5", "weight_scale": "5", "weight_zero": "5", "bias": "5"}
CONSTANTS = {
    "weight": np.random.default_rng(0).integers(-127, 128, (6, 5)).astype(np.int8),
    "a_scale": np.float32(0.02),
    "a_zero": np.uint8(9),
    "weight_scale": np.linspace(0.01, 0.02, 5, dtype=np.float32),
    "weight_zero": np.zeros(5, np.int8),
    "scale": np.float32(0.4),
    "zero": np.uint8(0),
}

MEAN = op.ReduceMean(op.DequantizeLinear(a, a_scale, a_zero).kept(), axes=attr("axes"), keepdims=1)

RULES = [
    Rule(
        name="qdq.quantize_of_dequantized_mean_to_qlinear_pool",
        pattern=op.QuantizeLinear(MEAN, scale, zero),
        replace=ms.QLinearGlobalAveragePool(a, a_scale, a_zero, scale, zero, channels_last=0),
        guards=(kinds_agree, image_scale_fits, mean_of_positions),
        exactness=Exactness.ROUNDING,
        source="ONNX Runtime operator com.microsoft.QLinearGlobalAveragePool",
        test=RuleTest(
            shapes={"a": "b 3 4 5"},
            attributes={"axes": [(2, 3)]},
            inputs={"a": "uint8"},
            constants={**CONSTANTS, "scale": np.float32(0.0317)},
            never_empty={"*": "the runtime's mean of nothing is not a number"},
            step=1.0,
            followed_by=_as_floats,
        ),
    ),
    Rule(
        name="qdq.quantize_of_matmul_integer_to_qlinear_matmul",
        pattern=_quantised(PLAIN),
        replace=op.QLinearMatMul(*ENDS, scale, zero),
        guards=(kinds_agree, scales_are_normal, relu_is_rounding),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=RuleTest(
            shapes={"a": "b s 6", **SHAPES},
            inputs={"a": "uint8"},
            constants=CONSTANTS,
            step=1.0,
            followed_by=_as_floats,
        ),
    ),
    Rule(
        name="qdq.quantize_of_matmul_integer_to_qgemm",
        pattern=_quantised(WITH_BIAS),
        replace=ms.QGemm(
            *ENDS,
            computed("b32", lambda match: np.rint(match.const("bias") / _steps(match)).astype(np.int32)),
            scale,
            zero,
        ),
        guards=(kinds_agree, scales_are_normal, relu_is_rounding, is_a_matrix, bias_is_fine),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=RuleTest(
            shapes={"a": "m 6", **SHAPES}, inputs={"a": "uint8"}, constants=CONSTANTS, step=1.0, followed_by=_as_floats
        ),
    ),
]
