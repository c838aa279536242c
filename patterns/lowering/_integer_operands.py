"""Operands of operators on 8-bit integers: their scales and zero points, and what rule tests make of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite.pattern import Match, Pattern, const, op, var

from .._shared_guards import constant

a, b, scale, zero = var("a"), var("b"), const("scale"), var("zero")
a_scale, a_zero, b_scale, b_zero = const("a_scale"), var("a_zero"), const("b_scale"), var("b_zero")
bias = var("bias")

_SCALARS = ("a_scale", "a_zero", "b_scale", "b_zero", "scale", "zero")
"""The names of scales and zero points."""

_MOST_STEPS = 2.0**30
"""The largest result in steps: beyond int32, kernels saturate in another way."""

BYTES = {"a_scale": np.float32(0.0317), "b_scale": np.float32(0.0213), "scale": np.float32(0.0509)} | {
    "a_zero": np.uint8(120), "b_zero": np.uint8(131), "zero": np.uint8(118),
}  # fmt: skip
"""Scales and zero points for rule tests: no quotient of these scales is near a simple fraction, so few results are ties."""

COLUMNS = BYTES | {"b_scale": "positive", "b_zero": np.array([127, 128, 130, 99, 140], np.uint8)}
"""The same with five columns on the right."""


def is_single(match: Match, name: str) -> bool:
    """Whether a scale or zero point is one number, or absent."""
    return match.get(name) is None or match.shape(name) in ((), (1,))


def are_single(match: Match) -> Refusal | None:
    """Scales and zero points are one number each."""
    for name in _SCALARS:
        if not is_single(match, name):
            return match.refuse("shape", name, "one number")
    return None


def left_is_single(match: Match) -> Refusal | None:
    """The scale and zero point of the left operand, and those of the result, are one number each."""
    for name in ("a_scale", "a_zero", "scale", "zero"):
        if not is_single(match, name):
            return match.refuse("shape", name, "one number")
    for name in ("b_scale", "b_zero"):
        if match.get(name) is not None and match.rank(name) not in (0, 1):
            return match.refuse("shape", name, "one number, or one for each column")
    return None


def are_normal(match: Match) -> Refusal | None:
    """The scales are normal numbers of float32 above 0, and results of the largest operands fit into int32 as steps.

    Kernels differ from the formula at 0, infinity and NaN, and where the quotient of scales is too large.
    """
    given = [name for name in ("a_scale", "b_scale", "scale") if match.get(name) is not None]
    for name in given:
        if (found := match.unless_dtype(name, ir.DataType.FLOAT)) is not None:
            return found
        if not is_normal(match.const(name)):
            return match.refuse("value", name, "positive and normal numbers")
    operands = [float(match.const(name).max()) for name in given if name != "scale"]
    factors = [*operands, operands[0] * operands[1]] if len(operands) > 1 else operands
    if match.get("scale") is not None and factors:
        reach = max(factors) * 255.0**2 / float(match.const("scale").min())
        if not reach < _MOST_STEPS:
            return match.refuse("value", "scale", "one of which the largest results are fewer steps than int32 has")
    return None


def is_normal(numbers: np.ndarray[Any, Any]) -> bool:
    """Whether all numbers are positive, finite and no subnormal ones of float32."""
    return bool(((numbers >= np.finfo(np.float32).tiny) & np.isfinite(numbers)).all())


def are_bytes(match: Match) -> Refusal | None:
    """The operands are integers of 8 bits."""
    return match.unless_dtype("a", ir.DataType.UINT8, ir.DataType.INT8)


def single(match: Match, name: str) -> Pattern:
    """A scale or zero point as a scalar, if it is one number."""
    found: Pattern = var(name)
    return op.Squeeze(found, constant(0)) if match.shape(name) == (1,) else found


def dequantized(match: Match, name: str, step: str, origin: str) -> Pattern:
    """An operand as floats."""
    made: Pattern = op.DequantizeLinear(var(name), single(match, step), single(match, origin))
    return made


def quantized(match: Match, floats: Pattern) -> Pattern:
    """Floats as integers of the scale and zero point of the result."""
    made: Pattern = op.QuantizeLinear(floats, single(match, "scale"), single(match, "zero"))
    return made


def left(match: Match) -> Pattern:
    """The left operand as floats."""
    return dequantized(match, "a", "a_scale", "a_zero")


def as_floats(build: Any, root: ir.Value) -> ir.Value:
    """For rule tests: the integers as numbers, of which some may be one more or less."""
    one, nothing = build.constant(np.float32(1), ir.DataType.FLOAT), build.constant(np.uint8(0))
    made: ir.Value = build.node("DequantizeLinear", [root, one, nothing]).outputs[0]
    return made
