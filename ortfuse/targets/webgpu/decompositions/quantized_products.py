"""Compute products of quantized numbers in float32, for want of kernels of DynamicQuantizeLinear, MatMulInteger and ConvInteger.

scale(x) = (max(x, 0) - min(x, 0)) / 255          1 if that is 0          zero(x) = round(-min(x, 0) / scale(x))
float(matmul_integer(q(x), W, zero(x), z)) = min(round(x / scale(x)), 255 - zero(x)) (W - z)          also conv_integer
matmul_integer(q, W, a, z) = int32((q - a) (W - z))          q = QuantizeLinear(x), moved or not
x W = x[..., :k] W[:k] + x[..., k:] W[k:]          where sums could be too large for float32, added as int32

*Requires:* weights and their zero points that are constants, one zero point or one for each column; float32; of QuantizeLinear,
one zero point that is a constant.

*Does not handle:* more than 8 parts; parts of a Conv in groups; weights on the left.

Rationale: float32 holds integers up to 2^24. No sum of any of the products of a part exceeds that, so that they are exact in
any order. Parts are not added as float32: the runtime makes MatMul and Add one Gemm, which may round on its way. Weights
stay integers, and DequantizeLinear makes them float32 in each run. NaN and infinities in x, for which ONNX defines no scale,
may become anything, and so may an x whose largest magnitude is below 10^-35.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, all_attributes, built, computed, const, op, opt, var

from ._integers_in_float32 import number, rounded
from ._moved_results import DATA_MOVEMENT, are_moved_results

LARGEST = 1 << 24
"""Up to which float32 holds all integers."""

STEPS = 256
"""The largest magnitude of a quantized number less its zero point, and 1 more for quotients that a device rounds up."""

MOST_PARTS = 8

Array = np.ndarray[Any, Any]

x, weight, middle = var("x"), const("weight"), const("middle")
numbers, origin = var("numbers"), const("origin")
_HOW = all_attributes("how")
_QUANTIZED = op.DynamicQuantizeLinear(x, outputs=3).kept()


def _low() -> Pattern:
    made: Pattern = op.Min(op.ReduceMin(x, keepdims=0), number("nothing", 0))
    return made


def _scale() -> Pattern:
    reach = op.Sub(op.Max(op.ReduceMax(x, keepdims=0), number("nothing", 0)), _low())
    divided = op.Div(reach, number("steps", 255))
    made: Pattern = op.Where(op.Equal(reach, number("nothing", 0)), number("unit", 1), divided)
    return made


def _centred() -> Pattern:
    """The quantized numbers less their zero point: at least -zero by themselves, as x / scale is at least min / scale."""
    scale = _scale()
    below = rounded(op.Clip(op.Div(_low(), scale), number("lowest", -255), number("nothing", 0)))
    made: Pattern = op.Min(rounded(op.Div(x, scale)), op.Add(below, number("steps", 255)))
    return made


def _weights(match: Match) -> Array:
    """The weights less their zero points, as integers."""
    found = np.asarray(match.const("weight")).astype(np.int32)
    zeros = None if match.get("middle") is None else np.asarray(match.const("middle")).astype(np.int32)
    if zeros is None:
        return found
    columns = zeros.reshape(-1)
    return found - (
        columns[:, None].reshape(-1, *[1] * (found.ndim - 1))
        if _is_convolution(match) and columns.size > 1
        else columns
    )


def _is_convolution(match: Match) -> bool:
    return any(node.op_type == "ConvInteger" for node in match.nodes)


def _parts(match: Match) -> list[tuple[int, int]] | None:
    """The ranges of the axis that is summed over, in each of which no sum is too large; None if there would be too many."""
    weights, most = np.abs(_weights(match)), LARGEST // STEPS
    if _is_convolution(match):
        sizes = weights.sum(axis=tuple(range(2, weights.ndim)), dtype=np.int64).T
    else:
        sizes = np.moveaxis(weights, -2, 0).reshape(weights.shape[-2], -1)
    upto = sizes.cumsum(axis=0, dtype=np.int64)
    found: list[tuple[int, int]] = []
    start, before = 0, np.zeros(upto.shape[1:], np.int64)
    while len(found) < MOST_PARTS:
        too_large = (upto[start:] - before > most).any(axis=-1)
        if not too_large.any():
            return [*found, (start, len(sizes))]
        end = start + int(too_large.argmax())
        if end == start:
            return None
        found.append((start, end))
        start, before = end, upto[end - 1]
    return None


def are_floats(match: Match) -> Refusal | None:
    """Float32 is quantized in the run."""
    return match.unless_dtype("x", ir.DataType.FLOAT)


def are_quantized_here(match: Match) -> Refusal | None:
    """The integers are results of QuantizeLinear, moved or not, with one zero point."""
    if not are_moved_results(match["numbers"], "QuantizeLinear", DATA_MOVEMENT):
        return match.refuse("needless", "numbers", found="not those of QuantizeLinear")
    single = match.get("origin") is None or match.shape("origin") in ((), (1,))
    return match.unless_dtype("numbers", ir.DataType.INT8, ir.DataType.UINT8) or match.unless_value(
        "origin", single, "one number"
    )


def are_columns(match: Match) -> Refusal | None:
    """Weights are integers of 8 bits and at least two axes, with one zero point or one for each column."""
    shape, zeros = match.shape("weight"), match.shape("middle") if match.get("middle") is not None else ()
    if (refused := match.unless_dtype("weight", ir.DataType.INT8, ir.DataType.UINT8)) is not None:
        return refused
    if shape is None or len(shape) < 2 or 0 in shape:
        return match.refuse("shape", "weight", "two axes or more, of known sizes")
    columns = shape[0] if _is_convolution(match) else shape[-1]
    fits = zeros in ((), (1,), (columns,))
    return match.unless_value("middle", fits, "one number, or one for each column")


def sums_are_exact(match: Match) -> Refusal | None:
    """Float32 holds the sums, of all products or of those in parts."""
    parts = _parts(match)
    needed = f"so small that sums stay below {LARGEST}, in {MOST_PARTS} parts or fewer"
    if parts is None:
        return match.refuse("value", "weight", needed)
    one_group = not _is_convolution(match) or match["how"].get("group", 1) == 1
    return match.unless_value("weight", len(parts) == 1 or one_group, needed)


def _unpacked(start: int, end: int, match: Match) -> Pattern:
    """The weights of a part, as DequantizeLinear makes them."""
    axis = 1 if _is_convolution(match) else (match.rank("weight") or 2) - 2
    at = (slice(None),) * axis + (slice(start, end),)
    whole = (start, end) == (0, np.asarray(match.const("weight")).shape[axis])
    numbers = (
        weight if whole else computed(f"weight_{start}", lambda match: np.ascontiguousarray(match.const("weight")[at]))
    )
    zeros = None if match.get("middle") is None else np.asarray(match.const("middle"))
    if zeros is None or not zeros.any():
        made: Pattern = op.DequantizeLinear(numbers, number("unit", 1))
    elif zeros.size == 1:
        made = op.DequantizeLinear(numbers, number("unit", 1), computed("zero", lambda _: zeros.reshape(())))
    else:
        ones = computed("units", lambda _: np.ones(zeros.size, np.float32))
        of = 0 if _is_convolution(match) else (match.rank("weight") or 2) - 1
        made = op.DequantizeLinear(numbers, ones, middle, axis=of)
    return made


def _product(centred: Pattern, match: Match) -> Pattern:
    """The product of numbers less their zero point with the weights, as float32."""
    found = _in_parts(centred, match)
    if len(found) == 1:
        return found[0]
    made: Pattern = op.Cast(_sum_of(found), to=ir.DataType.FLOAT)
    return made


def _integer_product(match: Match) -> Pattern:
    """The same of what QuantizeLinear makes, as int32."""
    return _sum_of(_in_parts(_quantized_before(match), match))


def _float_product(match: Match) -> Pattern:
    return _product(_quantized_before(match), match)


def _quantized_before(match: Match) -> Pattern:
    """The numbers that QuantizeLinear makes, less their zero point."""
    zeros = None if match.get("origin") is None else np.asarray(match.const("origin")).reshape(())
    known = [] if zeros is None else [computed("origin as scalar", lambda _: zeros)]
    made: Pattern = op.DequantizeLinear(numbers, number("unit", 1), *known)
    return made


def _sum_of(products: list[Pattern]) -> Pattern:
    return functools.reduce(op.Add, [op.Cast(one, to=ir.DataType.INT32) for one in products])


def _in_parts(centred: Pattern, match: Match) -> list[Pattern]:
    """The products of the parts of the axis that is summed over."""
    parts = _parts(match)
    assert parts is not None
    convolves, products = _is_convolution(match), list[Pattern]()
    for start, end in parts:
        given = centred
        if len(parts) > 1:
            ends = [computed(f"to_{at}", functools.partial(_index, at)) for at in (start, end, 1 if convolves else -1)]
            given = op.Slice(centred, *ends)
        unpacked = _unpacked(start, end, match)
        products.append(op.Conv(given, unpacked, attributes=_HOW) if convolves else op.MatMul(given, unpacked))
    return products


def _index(at: int, match: Match) -> Array:
    return np.array([at], np.int64)


def _integers(name: str, kind: Any, size: int) -> Any:
    """Constant integers of 8 bits."""

    def made(build: Any) -> ir.Value:
        numbers = np.random.default_rng(0).integers(-size, size, build.dims(name))
        found: ir.Value = build.constant((numbers + (128 if kind is np.uint8 else 0)).astype(kind))
        return found

    return made


def _quantized(build: Any) -> ir.Value:
    """Integers of 8 bits, quantized from an input."""
    given = build.input("floats", build.dims("numbers"))
    ends = [build.constant(np.array(one, kind)) for one, kind in ((0.02, np.float32), (131, np.uint8))]
    made: ir.Value = build.node("QuantizeLinear", [given, *ends]).outputs[0]
    return made


_MATMUL = op.MatMulInteger(_QUANTIZED[0], weight, _QUANTIZED[2], opt(middle))
_CONV = op.ConvInteger(_QUANTIZED[0], weight, _QUANTIZED[2], opt(middle), attributes=_HOW)
_OF_QUANTIZED = op.MatMulInteger(numbers, weight, opt(origin), opt(middle))
_MAKES = (
    *("ReduceMin", "ReduceMax", "Min", "Max", "Sub", "Div", "Equal", "Where", "Clip", "Add", "Slice", "Cast"),
    *("DequantizeLinear", "MatMul", "Conv"),
)


def _rule(name: str, pattern: Pattern, test: RuleTest) -> Rule:
    return Rule(
        name=f"dynamic_quantization.{name}",
        is_refinement=True,
        pattern=op.Cast(pattern, to=ir.DataType.FLOAT),
        replace=built(lambda match: _product(_centred(), match), makes=_MAKES),
        guards=(are_floats, are_columns, sums_are_exact),
        exactness=Exactness.EXACT,
        source="ONNX operators DynamicQuantizeLinear, MatMulInteger and ConvInteger",
        test=test,
    )


def _static_rule(name: str, pattern: Pattern, replace: Callable[[Match], Pattern]) -> Rule:
    return Rule(
        name=f"qdq.{name}",
        is_refinement=True,
        pattern=pattern,
        replace=built(replace, makes=("Slice", "DequantizeLinear", "MatMul", "Cast", "Add")),
        guards=(are_quantized_here, are_columns, sums_are_exact),
        exactness=Exactness.EXACT,
        source="ONNX operators QuantizeLinear and MatMulInteger",
        test=RuleTest(
            shapes=(
                {"numbers": "b s 6", "weight": "6 5", "origin": "", "middle": "5"},
                {"numbers": "b 1400", "weight": "1400 3", "origin": "", "middle": ""},
                {"numbers": "b 6", "weight": "6 5", "origin": "", "middle": ""},
            ),
            inputs={
                "numbers": _quantized,
                "weight": _integers("weight", np.int8, 128),
                "middle": _integers("middle", np.int8, 9),
            },
            constants={"origin": np.uint8(131)},
            opset=21,
        ),
    )


RULES = [
    Rule(
        name="dynamic_quantization.compute_scale_in_float32",
        is_refinement=True,
        pattern=_QUANTIZED[1],
        replace=_scale(),
        exactness=Exactness.EXACT,
        source="ONNX operator DynamicQuantizeLinear",
        test=RuleTest(shapes={"x": "b s 5"}, opset=21),
    ),
    _rule(
        "compute_matmul_in_float32",
        _MATMUL,
        RuleTest(
            shapes=({"x": "b s 6", "weight": "6 5", "middle": "5"}, {"x": "b 1400", "weight": "1400 3", "middle": ""}),
            inputs={"weight": _integers("weight", np.int8, 128), "middle": _integers("middle", np.int8, 9)},
            opset=21,
        ),
    ),
    _rule(
        "compute_conv_in_float32",
        _CONV,
        RuleTest(
            shapes=(
                {"x": "b 4 6 6", "weight": "5 4 3 3", "middle": "5"},
                {"x": "b 4 6 6", "weight": "6 2 3 3", "middle": ""},
            ),
            attributes=({"how": [{"pads": (1, 1, 1, 1)}, {"strides": (2, 2)}]}, {"how": [{"group": 2}]}),
            inputs={"weight": _integers("weight", np.uint8, 128), "middle": _integers("middle", np.uint8, 9)},
            opset=21,
        ),
    ),
    _static_rule(
        "compute_matmul_of_floats_in_float32", op.Cast(_OF_QUANTIZED.kept(), to=ir.DataType.FLOAT), _float_product
    ),
    _static_rule("compute_matmul_in_float32", _OF_QUANTIZED, _integer_product),
]
