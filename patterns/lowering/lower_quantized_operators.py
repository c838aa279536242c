"""Lower com.microsoft operators on 8-bit integers to DequantizeLinear, an operator of the standard and QuantizeLinear.

qlinear_f(x, y) = q(f(dq(x), dq(y)))          dq(x) = (x - z) s          q(y) = clip(round(y / s) + z, least, largest)
matmul_integer_to_float(a, b) = (a - z_a) (b - z_b) s_a s_b + bias
dynamic_quantize_matmul(x, b) = the same of q(x), whose scale and zero point are of the range of x
qgemm(a, b) = alpha s_a s_b ((a - z_a) (b - z_b) + c), quantised if it has a scale

`onnxruntime.quantization` writes them into models in its format QOperator, and ONNX Runtime into models that it saves.

*Does not handle:* channels last in AveragePool, and scales of an axis where the operator takes one scale for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Guard, Match, Pattern, attr, built, computed, const, ms, op, opt, rest, var

from .._shared_guards import constant

PASS = "canonicalize"

SOURCE = "com.microsoft operators of ONNX Runtime"

a, b, scale, zero = var("a"), var("b"), const("scale"), var("zero")
a_scale, a_zero, b_scale, b_zero = const("a_scale"), var("a_zero"), const("b_scale"), var("b_zero")
bias, x = var("bias"), var("x")
step = var("a_scale")
"""The scale of the left operand, where the model computes it."""

_SCALARS = ("a_scale", "a_zero", "b_scale", "b_zero", "scale", "zero")
"""What is one number for all elements."""


def _is_single(match: Match, name: str) -> bool:
    return match.get(name) is None or match.shape(name) in ((), (1,))


def are_single(match: Match) -> Refusal | None:
    """Scales and zero points are one number each."""
    for name in _SCALARS:
        if not _is_single(match, name):
            return match.refuse("shape", name, "one number")
    return None


def left_is_single(match: Match) -> Refusal | None:
    """The scale and zero point of the left operand, and those of the result, are one number each."""
    for name in ("a_scale", "a_zero", "scale", "zero"):
        if not _is_single(match, name):
            return match.refuse("shape", name, "one number")
    for name in ("b_scale", "b_zero"):
        if match.get(name) is not None and match.rank(name) not in (0, 1):
            return match.refuse("shape", name, "one number, or one for each column")
    return None


def are_normal(match: Match) -> Refusal | None:
    """The scales are positive and normal numbers: kernels differ at 0, infinity and what is not a number."""
    tiny = np.finfo(np.float32).tiny
    for name in ("a_scale", "b_scale", "scale"):
        if match.get(name) is not None:
            numbers = match.const(name)
            if not bool(((numbers >= tiny) & np.isfinite(numbers)).all()):
                return match.refuse("value", name, "positive and normal numbers")
    return None


def of_probabilities(match: Match) -> Refusal | None:
    """The scale and zero point of the result are those for probabilities, which the kernel demands."""
    return match.unless_value("scale", bool((match.const("scale") == np.float32(1 / 256)).all()), "1/256")


def are_bytes(match: Match) -> Refusal | None:
    """The operands are integers of 8 bits: a zero point of their type is made where there is none."""
    return match.unless_dtype("a", ir.DataType.UINT8, ir.DataType.INT8)


def _number(match: Match, name: str) -> Pattern:
    """A scale or zero point as a scalar."""
    found: Pattern = var(name)
    return op.Squeeze(found, constant(0)) if match.shape(name) == (1,) else found


def _dequantized(match: Match, name: str, step: str, origin: str) -> Pattern:
    made: Pattern = op.DequantizeLinear(var(name), _number(match, step), _number(match, origin))
    return made


def _quantized(match: Match, inner: Pattern) -> Pattern:
    made: Pattern = op.QuantizeLinear(inner, _number(match, "scale"), _number(match, "zero"))
    return made


def _left(match: Match) -> Pattern:
    return _dequantized(match, "a", "a_scale", "a_zero")


def _right(match: Match) -> Pattern:
    return _dequantized(match, "b", "b_scale", "b_zero")


def _sum(match: Match) -> Pattern:
    return op.Add(_left(match), _right(match))


def _product(match: Match) -> Pattern:
    return op.Mul(_left(match), _right(match))


def _chosen(match: Match) -> Pattern:
    return op.Where(var("condition"), _left(match), _right(match))


def _leaky_relu(match: Match) -> Pattern:
    return op.LeakyRelu(_left(match), alpha=attr("alpha"))


def _sigmoid(match: Match) -> Pattern:
    return op.Sigmoid(_left(match))


def _softmax(match: Match) -> Pattern:
    rank, axis = match.rank("a"), match["axis"]
    if axis in (-1, None) or rank is None or axis % rank == rank - 1:
        return op.Softmax(_left(match), axis=-1)
    order = [*range(rank)]
    order[axis], order[-1] = order[-1], order[axis]
    return op.Transpose(op.Softmax(op.Transpose(_left(match), perm=tuple(order)), axis=-1), perm=tuple(order))


def _mean_of_positions(match: Match) -> Pattern:
    rank = match.rank("a") or 0
    axes = range(1, rank - 1) if match["channels_last"] else range(2, rank)
    return op.ReduceMean(_left(match), axes=tuple(axes), keepdims=1)


def _mean_of_windows(match: Match) -> Pattern:
    names = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")
    return op.AveragePool(_left(match), **{name: attr(name) for name in names})


def is_over_one_axis(match: Match) -> Refusal | None:
    """Softmax is over one axis: the last, or another of an opset in which later axes are not merged with it."""
    rank, axis = match.rank("a"), match["axis"]
    last = axis in (-1, None) or (rank is not None and axis % rank == rank - 1)
    return match.unless_value("axis", last or (rank is not None and match["meant_for"] >= 13), "the last axis")


def result_is_single(match: Match) -> Refusal | None:
    """The scale and zero point of the result are one number each."""
    return match.unless_value("scale", _is_single(match, "scale") and _is_single(match, "zero"), "one number")


def are_matrices(match: Match) -> Refusal | None:
    """The operands have two axes, and the bias is of integers."""
    return match.unless_rank("a", 2) or match.unless_rank("b", 2)


def has_positions(match: Match) -> Refusal | None:
    """The rank of the image is known."""
    rank = match.rank("a")
    return None if rank is not None and rank > 2 else match.refuse("rank", "a", "at least 3")


def are_channels_second(match: Match) -> Refusal | None:
    """Channels are the second axis."""
    return match.unless_value("channels_last", not match["channels_last"], 0)


def are_triples(match: Match) -> Refusal | None:
    """Each part has a scale and a zero point, which are one number each."""
    parts = match["parts"]
    for value in parts[1::3], parts[2::3]:
        for one in value:
            if match.facts.shape(one) not in ((), (1,)):
                return match.refuse("shape", "result", found="scales of an axis", needed="one number for each part")
    if len(parts) % 3:
        return match.refuse("missing_input", "result", "a scale and zero point for each part")
    shapes = [match.facts.shape(part) for part in parts[::3]]
    others = {None if shape is None else _without(shape, match["axis"]) for shape in shapes}
    if len(others) != 1 or None in others:  # the kernel reads beyond the ends of others
        return match.refuse("shape", "result", found="parts of several sizes", needed="one size along all other axes")
    return None


def _without(shape: Sequence[Any], axis: int) -> tuple[Any, ...]:
    at = axis % max(len(shape), 1)
    return (*shape[:at], *shape[at + 1 :])


def _joined(match: Match) -> Pattern:
    parts, floats = match["parts"], []
    for number in range(0, len(parts), 3):
        names = [f"{role}{number}" for role in ("part", "scale", "zero")]
        for name, value in zip(names, parts[number : number + 3], strict=True):
            match.capture(name, value)
        floats.append(_dequantized(match, *names))
    joined: Pattern = floats[0] if len(floats) == 1 else op.Concat(*floats, axis=attr("axis"))
    return _quantized(match, joined)


# Products of integers

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
    return None if match.get("a_zero") is None else _number(match, "a_zero")


def _integer_to_float(match: Match) -> Pattern:
    return _scaled(match, _integers(a, b, match, _origin(match)), op.Mul(_number(match, "a_scale"), b_scale))


def _dynamic(match: Match) -> Pattern:
    found = op.DynamicQuantizeLinear(a, outputs=3)
    integers = _integers(found[0], b, match, found[2])
    return _scaled(match, integers, op.Mul(found[1], b_scale))


def _turned(name: str, is_turned: Any) -> Pattern:
    return op.Transpose(var(name), perm=(1, 0)) if is_turned else var(name)


def _gemm(match: Match) -> Pattern:
    integers = _integers(_turned("a", match["trans_a"]), _turned("b", match["trans_b"]), match, _origin(match))
    if match.get("bias") is not None:
        integers = op.Add(integers, bias)
    factor: Pattern = op.Mul(_number(match, "a_scale"), b_scale)
    if match["alpha"] not in (None, 1.0):
        factor = op.Mul(factor, computed("multiple", lambda match: np.float32(match["alpha"])))
    product: Pattern = op.Mul(op.Cast(integers, to=ir.DataType.FLOAT), factor)
    return product if match.get("scale") is None else _quantized(match, product)


def sums_are_float32(match: Match) -> Refusal | None:
    """The scales are float32."""
    return match.unless_dtype("b_scale", ir.DataType.FLOAT)


# Rule tests

_BYTES = {"a_scale": np.float32(0.0317), "b_scale": np.float32(0.0213), "scale": np.float32(0.0509)} | {
    "a_zero": np.uint8(120), "b_zero": np.uint8(131), "zero": np.uint8(118),
}  # fmt: skip


def _as_floats(build: Any, root: ir.Value) -> ir.Value:
    """The integers as numbers of which some may be one more or less."""
    one, nothing = build.constant(np.float32(1), ir.DataType.FLOAT), build.constant(np.uint8(0))
    made: ir.Value = build.node("DequantizeLinear", [root, one, nothing]).outputs[0]
    return made


def _byte_rule(
    operator: str,
    pattern: Pattern,
    inner: Callable[[Match], Pattern],
    makes: Sequence[str],
    shapes: Mapping[str, str] | Sequence[Mapping[str, str]],
    *guards: Guard,
    **test: Any,
) -> Rule:
    """The rule for an operator whose operands and result have one scale each."""
    constants = {name: value for name, value in _BYTES.items() if name in _SCALARS} | test.pop("constants", {})
    return Rule(
        name=f"qdq.lower_{operator}",
        pattern=pattern,
        replace=built(
            lambda match: _quantized(match, inner(match)),
            makes=("DequantizeLinear", "QuantizeLinear", "Squeeze", *makes),
        ),
        is_refinement=True,
        spells_out=True,
        guards=(are_bytes, are_single, are_normal, *guards),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=RuleTest(
            shapes=shapes,
            inputs={"a": "uint8", "b": "uint8", **test.pop("inputs", {})},
            constants=constants,
            step=1.0,
            followed_by=_as_floats,
            **test,
        ),
    )


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
        test=RuleTest(shapes=shapes, inputs=_BYTE_INPUTS if inputs is None else inputs, constants=_COLUMNS, **test),
    )


def _parts(build: Any) -> Sequence[ir.Value]:
    """Two images with scales and zero points of their own."""
    batch = build.dims("batch")[0]
    made = []
    for number, channels in enumerate((3, 2)):
        given = build.input(f"part{number}", [batch, channels, 4], ir.DataType.UINT8)
        numbers = np.float32(0.02 + 0.01 * number), np.uint8(100 + 40 * number)
        made += [given, *(build.constant(value) for value in numbers)]
    return made


_COLUMNS = _BYTES | {"b_scale": "positive", "b_zero": np.array([127, 128, 130, 99, 140], np.uint8)}
_BYTE_INPUTS = {"a": "uint8", "b": "uint8"}
_MATRICES = {"a": "n s 4", "b": "4 5"}
_FLAT = {"a": "5 5", "b": "5 5", "a_scale": "", "a_zero": "", "b_scale": "5", "b_zero": "5"}
_turns = {"transA": attr("trans_a"), "transB": attr("trans_b"), "alpha": attr("alpha")}
_GEMM = {"trans_a": [0, 1], "trans_b": [0, 1], "alpha": [None, 0.5]}
_windows = {
    name: attr(name) for name in ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")
}
_LEFT, _RIGHT, _RESULT = (a, a_scale, a_zero), (b, b_scale, b_zero), (scale, zero)
_ONE = {"a": "b 3 4", "a_scale": "", "a_zero": "", "scale": "", "zero": ""}
_TWO = _ONE | {"b": "b 3 4", "b_scale": "", "b_zero": ""}

RULES = [
    _byte_rule(
        "qlinear_add", ms.QLinearAdd(*_LEFT, *_RIGHT, *_RESULT), _sum, ("Add",), _TWO
    ),
    _byte_rule(
        "qlinear_mul", ms.QLinearMul(*_LEFT, *_RIGHT, *_RESULT), _product, ("Mul",), _TWO
    ),
    _byte_rule(
        "qlinear_where",
        ms.QLinearWhere(var("condition"), a, a_scale, a_zero, b, b_scale, b_zero, scale, zero),
        _chosen, ("Where",), _TWO | {"condition": "b 3 4"}, inputs={"condition": "bool"},
    ),
    _byte_rule(
        "qlinear_leaky_relu",
        ms.QLinearLeakyRelu(*_LEFT, *_RESULT, alpha=attr("alpha")),
        _leaky_relu, ("LeakyRelu",), _ONE, attributes={"alpha": [0.25, None]},
    ),
    _byte_rule(
        "qlinear_sigmoid", ms.QLinearSigmoid(*_LEFT, *_RESULT), _sigmoid, ("Sigmoid",), _ONE,
        constants={"scale": np.float32(1 / 256), "zero": np.uint8(0)},
    ),
    _byte_rule(
        "qlinear_softmax",
        ms.QLinearSoftmax(*_LEFT, scale, zero, axis=attr("axis"), opset=attr("meant_for")),
        _softmax, ("Softmax", "Transpose"), _ONE, is_over_one_axis, of_probabilities,
        attributes={"axis": [-1, 1, 2], "meant_for": [13, 12]},
        constants={"scale": np.float32(1 / 256), "zero": np.uint8(0)},
    ),
    _byte_rule(
        "qlinear_global_average_pool",
        ms.QLinearGlobalAveragePool(a, a_scale, a_zero, scale, zero, channels_last=attr("channels_last")),
        _mean_of_positions, ("ReduceMean",), _ONE | {"a": "b 3 4 5"}, has_positions,
        attributes={"channels_last": [None, 1]},
    ),
    _byte_rule(
        "qlinear_average_pool",
        ms.QLinearAveragePool(*_LEFT, *_RESULT, channels_last=attr("channels_last"), **_windows),
        _mean_of_windows, ("AveragePool",), _ONE | {"a": "b 3 6 6"}, are_channels_second,
        attributes={
            "channels_last": [None], "auto_pad": [None], "ceil_mode": [0], "count_include_pad": [0, 1],
            "kernel_shape": [(2, 3)], "pads": [None, (1, 1, 1, 1)], "strides": [(2, 1)],
        },
    ),
    Rule(
        name="qdq.lower_qlinear_concat",
        pattern=ms.QLinearConcat(scale, zero, rest("parts"), axis=attr("axis")).named("result"),
        replace=built(_joined, makes=("DequantizeLinear", "QuantizeLinear", "Squeeze", "Concat")),
        is_refinement=True,
        spells_out=True,
        guards=(are_triples, result_is_single, are_normal),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=RuleTest(
            shapes={"scale": "", "zero": "", "batch": "b"},
            attributes={"axis": [1]},
            inputs={"parts": _parts},
            constants=_BYTES,
            assumes={"part0 has an unrelated size*": "images that are joined agree along all other axes"},
            step=1.0,
            followed_by=_as_floats,
        ),
    ),
    Rule(
        name="qdq.lower_dequantize_linear",
        pattern=ms.DequantizeLinear(a, a_scale, opt(a_zero), axis=attr("axis")),
        replace=op.DequantizeLinear(a, a_scale, opt(a_zero), axis=attr("axis")),
        is_refinement=True,
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes=({"a": "b 3", "a_scale": "", "a_zero": ""}, {"a": "b 3", "a_scale": ""}),
            attributes={"axis": [1, None]},
            inputs={"a": "uint8"},
            constants={"a_scale": "positive", "a_zero": np.uint8(120)},
            opset=13,
        ),
    ),
    Rule(
        name="qdq.lower_quantize_linear",
        pattern=ms.QuantizeLinear(x, scale, opt(zero), axis=attr("axis")),
        replace=op.QuantizeLinear(x, scale, opt(zero), axis=attr("axis")),
        is_refinement=True,
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes=({"x": "b 3", "scale": "", "zero": ""}, {"x": "b 3", "scale": ""}),
            attributes={"axis": [1, None]},
            constants={"scale": "positive", "zero": np.uint8(120)},
            opset=13,
            followed_by=_as_floats,
        ),
    ),
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
        ms.QGemm(a, a_scale, a_zero, b, b_scale, b_zero, opt(bias), **_turns),
        _gemm, (are_bytes, left_is_single, are_normal, are_matrices),
        _FLAT | {"bias": "5"}, inputs=_BYTE_INPUTS | {"bias": "int32"}, attributes=_GEMM, makes=("Transpose",),
    ),
    _product_rule(
        "qgemm",
        ms.QGemm(a, a_scale, a_zero, b, b_scale, b_zero, opt(bias), scale, zero, **_turns),
        _gemm, (are_bytes, left_is_single, are_normal, are_matrices),
        _FLAT | {"bias": "5", "scale": "", "zero": ""},
        inputs=_BYTE_INPUTS | {"bias": "int32"}, attributes=_GEMM | {"alpha": [None, 1.0]}, makes=("Transpose", "QuantizeLinear"),
        step=1.0, followed_by=_as_floats,
    ),
]  # fmt: skip
