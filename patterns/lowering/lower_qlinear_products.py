"""Lower QLinearConv and QLinearMatMul to DequantizeLinear, Conv or MatMul, and QuantizeLinear.

qlinear_conv(x, W, b) = q(conv(dq(x), dq(W), s_x s_W b))          qlinear_matmul(x, W) = q(dq(x) dq(W))

Engines for graphs of such pairs, such as TensorRT, have no kernels for the integer operators, and no more has WebGPU.

*Does not handle:* scales of rows of the left operand, and scales of columns of a right operand of more than two axes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, all_attributes, built, const, op, opt, var

from .._shared_guards import constant

PASS = "canonicalize"

x, x_zero, weight, weight_zero, zero, bias = (
    var(name) for name in ("x", "x_zero", "weight", "weight_zero", "zero", "bias")
)
x_scale, weight_scale, scale = const("x_scale"), const("weight_scale"), const("scale")


def are_single(match: Match) -> Refusal | None:
    """The scales and zero points of the left operand and the result are one number each."""
    for name in ("x_scale", "x_zero", "scale", "zero"):
        if match.shape(name) not in ((), (1,)):
            return match.refuse("shape", name, "one number")
    return None


def are_normal(match: Match) -> Refusal | None:
    """The scales are positive and normal numbers of float32, and so are their products."""
    if (found := match.unless_dtype("scale", ir.DataType.FLOAT)) is not None:
        return found
    tiny = np.finfo(np.float32).tiny
    with np.errstate(all="ignore"):
        numbers = [match.const(name) for name in ("x_scale", "weight_scale", "scale")]
        numbers.append(numbers[0].reshape(-1) * numbers[1].reshape(-1))
    held = all(bool(((array >= tiny) & np.isfinite(array)).all()) for array in numbers)
    return match.unless_value("weight_scale", held, "positive and normal numbers")


def columns_agree(match: Match) -> Refusal | None:
    """The weights have one scale, or one for each channel of the result, and as many zero points."""
    shape, other = match.shape("weight_scale"), match.shape("weight_zero")
    if shape in ((), (1,)) and other in ((), (1,)):
        return None
    if shape is None or shape != other or len(shape) != 1:
        return match.refuse("shape", "weight_zero", "as many numbers as the scale of the weights")
    return None


def is_a_matrix(match: Match) -> Refusal | None:
    """The right operand has two axes where it has several scales."""
    return None if match.shape("weight_scale") in ((), (1,)) else match.unless_rank("weight", 2)


def _single(match: Match, name: str) -> Pattern:
    found: Pattern = var(name)
    return op.Squeeze(found, constant(0)) if match.shape(name) == (1,) else found


def _left(match: Match) -> Pattern:
    made: Pattern = op.DequantizeLinear(x, _single(match, "x_scale"), _single(match, "x_zero"))
    return made


def _right(match: Match, axis: int) -> Pattern:
    factors = (_single(match, "weight_scale"), _single(match, "weight_zero"))
    single = match.shape("weight_scale") in ((), (1,))
    made: Pattern = (
        op.DequantizeLinear(weight, *factors) if single else op.DequantizeLinear(weight, *factors, axis=axis)
    )
    return made


def _quantized(match: Match, product: Pattern) -> Pattern:
    made: Pattern = op.QuantizeLinear(product, _single(match, "scale"), _single(match, "zero"))
    return made


def _convolved(match: Match) -> Pattern:
    operands = [_left(match), _right(match, 0)]
    if match["bias"] is not None:
        step = op.Mul(_single(match, "x_scale"), weight_scale)
        operands.append(op.Mul(op.Cast(bias, to=ir.DataType.FLOAT), step))
    return _quantized(match, op.Conv(*operands, attributes=all_attributes("conv")))


def _product(match: Match) -> Pattern:
    return _quantized(match, op.MatMul(_left(match), _right(match, 1)))


def _as_floats(build: Any, root: ir.Value) -> ir.Value:
    """The integers as numbers of which some may be one more or less."""
    one, nothing = build.constant(np.float32(1), ir.DataType.FLOAT), build.constant(np.uint8(0))
    made: ir.Value = build.node("DequantizeLinear", [root, one, nothing]).outputs[0]
    return made


_PARTS = (x, x_scale, x_zero, weight, weight_scale, weight_zero, scale, zero)
_SINGLE = {"x_scale": "", "x_zero": "", "scale": "", "zero": ""}
_NUMBERS = {"x_scale": np.float32(0.0317), "x_zero": np.uint8(120), "scale": np.float32(0.0509), "zero": np.uint8(118)}
_MADE = ("DequantizeLinear", "QuantizeLinear", "Squeeze", "Mul", "Cast")
_COLUMNS = {"weight_scale": np.linspace(0.004, 0.007, 5, dtype=np.float32), "weight_zero": np.zeros(5, np.int8)}


def _weights(*shape: int) -> Any:
    return np.random.default_rng(0).integers(-127, 128, shape).astype(np.int8)


RULES = [
    Rule(
        name="qdq.lower_qlinear_conv",
        pattern=op.QLinearConv(*_PARTS, opt(bias), attributes=all_attributes("conv")),
        replace=built(_convolved, makes=("Conv", *_MADE)),
        is_refinement=True,
        spells_out=True,
        guards=(are_single, are_normal, columns_agree),
        exactness=Exactness.ROUNDING,
        source="ONNX operator QLinearConv",
        test=RuleTest(
            attributes={"conv": [{}, {"pads": [1, 0, 1, 0], "strides": [2, 1]}]},
            shapes={
                "x": "b 3 6 6",
                "weight": "5 3 3 3",
                "weight_scale": "5",
                "weight_zero": "5",
                "bias": "5",
                **_SINGLE,
            },
            inputs={"x": "uint8"},
            constants={
                **_NUMBERS,
                **_COLUMNS,
                "weight": _weights(5, 3, 3, 3),
                "bias": np.array([0, 9, -70, 300, 5], np.int32),
            },
            step=1.0,
            followed_by=_as_floats,
        ),
    ),
    Rule(
        name="qdq.lower_qlinear_matmul",
        pattern=op.QLinearMatMul(*_PARTS),
        replace=built(_product, makes=("MatMul", *_MADE)),
        is_refinement=True,
        spells_out=True,
        guards=(are_single, are_normal, columns_agree, is_a_matrix),
        exactness=Exactness.ROUNDING,
        source="ONNX operator QLinearMatMul",
        test=RuleTest(
            shapes={"x": "b s 6", "weight": "6 5", "weight_scale": "5", "weight_zero": "5", **_SINGLE},
            inputs={"x": "uint8"},
            constants={**_NUMBERS, **_COLUMNS, "weight": _weights(6, 5)},
            step=1.0,
            followed_by=_as_floats,
        ),
    ),
]
