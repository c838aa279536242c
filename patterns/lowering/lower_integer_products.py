"""Lower products of 8-bit integers: to MatMulInteger those that are floats, and to quantised pairs those of the standard.

matmul_integer_to_float(a, b) = (a - z_a) (b - z_b) s_a s_b + bias
dynamic_quantize_matmul(x, b) = the same of q(x), whose scale and zero point are of the range of x
qgemm(a, b) = alpha s_a s_b ((a - z_a) (b - z_b) + bias), quantised if it has a scale
qlinear_conv(a, b) = q(conv(dq(a), dq(b), s_a s_b bias))          qlinear_matmul(a, b) = q(dq(a) dq(b))

`onnxruntime.quantization` writes them, and ONNX Runtime into models that it saves. Engines for quantised pairs, such as
TensorRT and OpenVINO, have no kernels for QLinearConv and QLinearMatMul.

*Requires:* for QLinearConv and QLinearMatMul, scales that are constants, and sums that float32 rounds by less than a quarter of
a step; for QLinearConv, weights that are constants. *Does not handle:* scales of rows of the left operand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import (
    Guard,
    Match,
    Pattern,
    all_attributes,
    attr,
    built,
    computed,
    const,
    ms,
    op,
    opt,
    var,
)

from ._integer_operands import (
    BYTES,
    COLUMNS,
    a,
    a_scale,
    a_zero,
    are_bytes,
    are_normal,
    as_floats,
    b,
    b_scale,
    b_zero,
    bias,
    left,
    left_is_single,
    quantized,
    scale,
    single,
    zero,
)

PASS = "canonicalize"

SOURCE = "com.microsoft operators of ONNX Runtime"

step = var("a_scale")
"""The scale of the left operand, where the model computes it."""

weight = const("b")
"""The right operand of the operators of the standard, a constant."""

_ROUNDING = 16 * 2.0**-24
"""By how much of the sum of its terms' sizes a sum in float32 may be off: some roundings of each term."""

_SHARE = 0.25
"""The largest error in steps of the result."""


_INTEGER = ("MatMulInteger", "Cast", "Mul", "Add", "Squeeze")


def _integers(left: Pattern, right: Pattern, match: Match, origin: Pattern | None) -> Pattern:
    """The product of integers without their zero points, in int32."""
    given: list[Pattern | None] = [origin] if origin is not None else []
    if match.get("b_zero") is not None:
        given = [*(given or [computed("none", lambda match: np.zeros((), _dtype(match, "a")))]), b_zero]
    made: Pattern = op.MatMulInteger(left, right, *given)
    return made


def _dtype(match: Match, name: str) -> Any:
    dtype = match.dtype(name)
    assert dtype is not None
    return dtype.numpy()


def _scaled(match: Match, integers: Pattern, factor: Pattern) -> Pattern:
    product: Pattern = op.Mul(op.Cast(integers, to=ir.DataType.FLOAT), factor)
    return product if match.get("bias") is None else op.Add(product, bias)


def _origin(match: Match) -> Pattern | None:
    return None if match.get("a_zero") is None else single(match, "a_zero")


def _integer_to_float(match: Match) -> Pattern:
    return _scaled(match, _integers(a, b, match, _origin(match)), op.Mul(single(match, "a_scale"), b_scale))


def _dynamic(match: Match) -> Pattern:
    found = op.DynamicQuantizeLinear(a, outputs=3)
    integers = _integers(found[0], b, match, found[2])
    return _scaled(match, integers, op.Mul(found[1], b_scale))


def are_matrices(match: Match) -> Refusal | None:
    """The operands have two axes, and the bias is of integers."""
    return match.unless_rank("a", 2) or match.unless_rank("b", 2)


def _matrix(name: str, is_transposed: Any, match: Match) -> Pattern:
    if not is_transposed:
        return var(name)
    known = match.facts.const(match[name])
    if known is None:
        return op.Transpose(var(name), perm=(1, 0))
    return computed(f"{name}_transposed", lambda _: np.ascontiguousarray(np.asarray(known).T))


def _gemm(match: Match) -> Pattern:
    left, right = (_matrix(name, match[f"trans_{name}"], match) for name in "ab")
    integers = _integers(left, right, match, _origin(match))
    if match.get("bias") is not None:
        integers = op.Add(integers, bias)
    factor: Pattern = op.Mul(single(match, "a_scale"), b_scale)
    if match["alpha"] not in (None, 1.0):
        factor = op.Mul(factor, computed("multiple", lambda match: np.float32(match["alpha"])))
    product: Pattern = op.Mul(op.Cast(integers, to=ir.DataType.FLOAT), factor)
    return product if match.get("scale") is None else quantized(match, product)


def sums_are_float32(match: Match) -> Refusal | None:
    """The scales are float32."""
    return match.unless_dtype("b_scale", ir.DataType.FLOAT)


# Operators of the standard


def columns_agree(match: Match) -> Refusal | None:
    """The weights have one scale, or one for each channel of the result, and as many zero points."""
    shape, other = match.shape("b_scale"), match.shape("b_zero")
    if shape in ((), (1,)) and other in ((), (1,)):
        return None
    if shape is None or shape != other or len(shape) != 1:
        return match.refuse("shape", "b_zero", "as many numbers as the scale of the weights")
    return None


def are_integers(match: Match) -> Refusal | None:
    """Both operands and the result are integers of 8 bits, not floats of 8 bits."""
    found = (match.unless_dtype(name, ir.DataType.UINT8, ir.DataType.INT8) for name in ("a", "b", "zero"))
    return next((refusal for refusal in found if refusal is not None), None)


def is_a_matrix(match: Match) -> Refusal | None:
    """The right operand has two axes where it has several scales, else at least one."""
    if match.shape("b_scale") not in ((), (1,)):
        return match.unless_rank("b", 2)
    return None if match.rank("b") else match.refuse("rank", "b", "at least 1")


def sums_are_fine(match: Match) -> Refusal | None:
    """The rounding of sums of products in float32 is small beside a step of the result."""
    axis = 0 if match.root.producer().op_type == "QLinearConv" else -1  # type: ignore[union-attr]
    given, origin = match.facts.const(match["b"]), match.facts.const(match["b_zero"])
    if given is None:
        sizes = match.shape("b")
        rows = sizes[max(len(sizes) - 2, 0)] if sizes else None
        if not isinstance(rows, int):
            return match.refuse_dimension("b", -2, "a known number of terms, as the operand is computed")
        given, origin = np.zeros((rows, 1)), None  # each term is at most 255 steps
    numbers = given.astype(np.float64)
    if numbers.ndim == 1:
        numbers = numbers[:, None]  # one column: all of its terms are summed
    if origin is None:
        numbers = np.abs(numbers) + 255.0
    else:
        shape = [1] * numbers.ndim
        shape[axis] = origin.size
        numbers = np.abs(numbers - origin.astype(np.float64).reshape(shape if origin.size > 1 else ()))
    totals = np.moveaxis(numbers, axis, 0).reshape(numbers.shape[axis], -1).sum(axis=1)
    scales = match.const("b_scale").astype(np.float64).reshape(-1)
    steps = (
        totals * scales * 255.0 * float(match.const("a_scale").reshape(())) / float(match.const("scale").reshape(()))
    )
    return match.unless_value("b", bool((steps * _ROUNDING < _SHARE).all()), "small enough for sums in float32")


def _right(match: Match, axis: int) -> Pattern:
    factors = (single(match, "b_scale"), single(match, "b_zero"))
    is_one = match.shape("b_scale") in ((), (1,))
    made: Pattern = op.DequantizeLinear(b, *factors) if is_one else op.DequantizeLinear(b, *factors, axis=axis)
    return made


def _convolved(match: Match) -> Pattern:
    operands = [left(match), _right(match, 0)]
    if match["bias"] is not None:
        factor = op.Mul(single(match, "a_scale"), b_scale)
        operands.append(op.Mul(op.Cast(bias, to=ir.DataType.FLOAT), factor))
    return quantized(match, op.Conv(*operands, attributes=all_attributes("conv")))


def _product(match: Match) -> Pattern:
    return quantized(match, op.MatMul(left(match), _right(match, 1)))


# Rule tests


def _product_rule(
    operator: str,
    pattern: Pattern,
    replace: Callable[[Match], Pattern],
    guards: Sequence[Guard],
    shapes: Mapping[str, str] | Sequence[Mapping[str, str]],
    makes: Sequence[str] = (),
    inputs: Mapping[str, str] | None = None,
    **test: Any,
) -> Rule:
    """The rule for an operator that multiplies matrices of integers."""
    return Rule(
        name=f"qdq.lower_{operator}",
        pattern=pattern,
        replace=built(replace, makes=(*_INTEGER, *makes)),
        is_refinement=True,
        spells_out=True,
        guards=tuple(guards),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=RuleTest(shapes=shapes, inputs=_BYTE_INPUTS if inputs is None else inputs, constants=COLUMNS, **test),
    )


_BYTE_INPUTS = {"a": "uint8", "b": "uint8"}
_MATRICES = {"a": "n s 4", "b": "4 5"}
_FLAT = {"a": "5 5", "b": "5 5", "a_scale": "", "a_zero": "", "b_scale": "5", "b_zero": "5"}
_attributes = {"transA": attr("trans_a"), "transB": attr("trans_b"), "alpha": attr("alpha")}
_GEMM = {"trans_a": [0, 1], "trans_b": [0, 1], "alpha": [None, 0.5]}

_COMPUTED = (a, a_scale, a_zero, b, b_scale, b_zero, scale, zero)
_PARTS = (a, a_scale, a_zero, weight, b_scale, b_zero, scale, zero)
_SINGLE = {"a_scale": "", "a_zero": "", "scale": "", "zero": ""}
_PAIRS = ("DequantizeLinear", "QuantizeLinear", "Squeeze", "Mul", "Cast")
_SCALES = {"b_scale": np.linspace(0.004, 0.007, 5, dtype=np.float32), "b_zero": np.zeros(5, np.int8)}


def _weights(*shape: int) -> Any:
    return np.random.default_rng(0).integers(-127, 128, shape).astype(np.int8)


def _no_offset(build: Any) -> Any:
    return build.constant(np.zeros(build.dims("b_zero"), np.int8))


def _right_operand(build: Any) -> Any:
    """Weights, or an operand that is computed."""
    dims = build.dims("b")
    if all(isinstance(dim, int) for dim in dims):
        return build.constant(_weights(*dims))
    return build.input("b", list(dims), ir.DataType.INT8)


RULES = [
    _product_rule(
        "matmul_integer_to_float",
        ms.MatMulIntegerToFloat(a, b, step, var("b_scale"), opt(a_zero), opt(b_zero), opt(bias)),
        _integer_to_float, (are_bytes, left_is_single, sums_are_float32),
        (
            _MATRICES | {"b_scale": "5", "a_scale": "", "a_zero": "", "b_zero": "5", "bias": "5"},
            _MATRICES | {"b_scale": "5", "a_scale": "", "b_zero": "5"},
            _MATRICES | {"b_scale": "5", "a_scale": "", "a_zero": ""},
        ),
    ),
    _product_rule(
        "dynamic_quantize_matmul",
        ms.DynamicQuantizeMatMul(a, b, var("b_scale"), opt(b_zero), opt(bias)),
        _dynamic, (left_is_single, sums_are_float32),
        (_MATRICES | {"b_scale": "5", "b_zero": "5", "bias": "5"}, _MATRICES | {"b_scale": "5"}),
        makes=("DynamicQuantizeLinear",), inputs={"b": "uint8"},
    ),
    _product_rule(
        "qgemm_of_floats",
        ms.QGemm(a, a_scale, a_zero, b, b_scale, b_zero, opt(bias), **_attributes),
        _gemm, (are_bytes, left_is_single, are_normal, are_matrices),
        _FLAT | {"bias": "5"}, inputs=_BYTE_INPUTS | {"bias": "int32"}, attributes=_GEMM, makes=("Transpose",),
    ),
    _product_rule(
        "qgemm",
        ms.QGemm(a, a_scale, a_zero, b, b_scale, b_zero, opt(bias), scale, zero, **_attributes),
        _gemm, (are_bytes, left_is_single, are_normal, are_matrices),
        _FLAT | {"bias": "5", "scale": "", "zero": ""},
        inputs=_BYTE_INPUTS | {"bias": "int32"}, attributes=_GEMM | {"alpha": [None, 1.0]}, makes=("Transpose", "QuantizeLinear"),
        step=1.0, followed_by=as_floats,
    ),
    Rule(
        name="qdq.lower_qlinear_conv",
        pattern=op.QLinearConv(*_PARTS, opt(bias), attributes=all_attributes("conv")),
        replace=built(_convolved, makes=("Conv", *_PAIRS)),
        is_refinement=True,
        spells_out=True,
        guards=(are_integers, left_is_single, are_normal, columns_agree, sums_are_fine),
        exactness=Exactness.ROUNDING,
        source="ONNX operator QLinearConv",
        test=RuleTest(
            attributes={"conv": [{}, {"pads": [1, 0, 1, 0], "strides": [2, 1]}]},
            shapes={"a": "b 3 6 6", "b": "5 3 3 3", "b_scale": "5", "b_zero": "5", "bias": "5", **_SINGLE},
            inputs={"a": "uint8"},
            constants={**BYTES, **_SCALES, "b": _weights(5, 3, 3, 3), "bias": np.array([0, 9, -70, 300, 5], np.int32)},
            step=1.0,
            followed_by=as_floats,
        ),
    ),
    Rule(
        name="qdq.lower_qlinear_matmul",
        pattern=op.QLinearMatMul(*_COMPUTED),
        replace=built(_product, makes=("MatMul", *_PAIRS)),
        is_refinement=True,
        spells_out=True,
        guards=(are_integers, left_is_single, are_normal, columns_agree, is_a_matrix, sums_are_fine),
        exactness=Exactness.ROUNDING,
        source="ONNX operator QLinearMatMul",
        test=RuleTest(
            shapes=(
                {"a": "b s 6", "b": "6 5", "b_scale": "5", "b_zero": "5", **_SINGLE},
                {"a": "b s 6", "b": "b 6 t", "b_scale": "", "b_zero": "", **_SINGLE},
            ),
            inputs={"a": "uint8", "b": _right_operand, "b_zero": _no_offset},
            constants={
                **{name: number for name, number in BYTES.items() if name not in ("b_scale", "b_zero")},
                "b_scale": "positive",
            },
            step=1.0,
            followed_by=as_floats,
        ),
    ),
]  # fmt: skip
