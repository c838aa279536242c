"""Products of integers whose results are quantised at once are rounded by the kernel of the product.

q(act(dq(a) dq(W)))      = QLinearMatMul(a, W)              act: none, or Relu where z = 0
q(act(dq(a) dq(W) + b))  = QGemm(a, W, b32)                 for two axes

q(x) = clip(round(x / s) + z, ...); b32 are multiples of the scale of the products, which are many times finer than s.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.pattern import Match, Pattern, computed, const, ms, op, var
from ortfuse.refusal import Refusal
from ortfuse.rewrite import Exactness, Proof, Rule

from ._weights import Array

PASS = "precision.tidy"

SOURCE = "ONNX operator QLinearMatMul, ONNX Runtime operator com.microsoft.QGemm"

LARGEST_BIAS = 1 << 30
"""The most steps that a bias may have."""

FINER = 64
"""How many steps of the products make up one of the result at least, so that rounding the bias to them does not matter."""

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
    """What is negative becomes 0 by rounding, if it has to."""
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

RULES = [
    Rule(
        name="tidy.product_of_integers",
        pattern=_quantised(PLAIN),
        replace=op.QLinearMatMul(*ENDS, scale, zero),
        guards=(kinds_agree, scales_are_normal, relu_is_rounding),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        proof=Proof(
            shapes={"a": "b s 6", **SHAPES},
            inputs={"a": "uint8"},
            constants=CONSTANTS,
            step=1.0,
            followed_by=_as_floats,
        ),
    ),
    Rule(
        name="tidy.product_and_bias_of_integers",
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
        proof=Proof(
            shapes={"a": "m 6", **SHAPES}, inputs={"a": "uint8"}, constants=CONSTANTS, step=1.0, followed_by=_as_floats
        ),
    ),
]
