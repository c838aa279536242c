"""Lower com.microsoft operators on 8-bit integers to DequantizeLinear, an operator of the standard and QuantizeLinear.

qlinear_f(a, b) = q(f(dq(a), dq(b)))          dq(a) = (a - z) s          q(y) = clip(round(y / s) + z, least, largest)

`onnxruntime.quantization` writes them into models in its format QOperator.

*Requires:* scales that are constants. *Does not handle:* channels last in AveragePool, and scales of an axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Guard, Match, Pattern, attr, built, ms, op, opt, rest, var

from ._integer_operands import (
    BYTES,
    a,
    a_scale,
    a_zero,
    are_bytes,
    are_normal,
    are_single,
    as_floats,
    b,
    b_scale,
    b_zero,
    dequantized,
    is_normal,
    is_single,
    left,
    quantized,
    scale,
    zero,
)

PASS = "canonicalize"

SOURCE = "com.microsoft operators of ONNX Runtime"

x = var("x")


def of_probabilities(match: Match) -> Refusal | None:
    """The scale and zero point of the result are those for probabilities, which the kernel demands."""
    return match.unless_value("scale", bool((match.const("scale") == np.float32(1 / 256)).all()), "1/256")


def _right(match: Match) -> Pattern:
    return dequantized(match, "b", "b_scale", "b_zero")


def _sum(match: Match) -> Pattern:
    return op.Add(left(match), _right(match))


def _product(match: Match) -> Pattern:
    return op.Mul(left(match), _right(match))


def _chosen(match: Match) -> Pattern:
    return op.Where(var("condition"), left(match), _right(match))


def _leaky_relu(match: Match) -> Pattern:
    return op.LeakyRelu(left(match), alpha=attr("alpha"))


def _sigmoid(match: Match) -> Pattern:
    return op.Sigmoid(left(match))


def _softmax(match: Match) -> Pattern:
    rank, axis = match.rank("a"), match["axis"]
    if axis in (-1, None) or rank is None or axis % rank == rank - 1:
        return op.Softmax(left(match), axis=-1)
    order = [*range(rank)]
    order[axis], order[-1] = order[-1], order[axis]
    return op.Transpose(op.Softmax(op.Transpose(left(match), perm=tuple(order)), axis=-1), perm=tuple(order))


def _mean_of_positions(match: Match) -> Pattern:
    rank = match.rank("a") or 0
    axes = range(1, rank - 1) if match["channels_last"] else range(2, rank)
    return op.ReduceMean(left(match), axes=tuple(axes), keepdims=1)


def _mean_of_windows(match: Match) -> Pattern:
    names = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")
    return op.AveragePool(left(match), **{name: attr(name) for name in names})


def is_over_one_axis(match: Match) -> Refusal | None:
    """Softmax is over one axis: the last, or another of an opset in which later axes are not merged with it."""
    rank, axis = match.rank("a"), match["axis"]
    last = axis in (-1, None) or (rank is not None and axis % rank == rank - 1)
    return match.unless_value("axis", last or (rank is not None and match["meant_for"] >= 13), "the last axis")


def result_is_single(match: Match) -> Refusal | None:
    """The scale and zero point of the result are one number each."""
    return match.unless_value("scale", is_single(match, "scale") and is_single(match, "zero"), "one number")


def has_positions(match: Match) -> Refusal | None:
    """The rank of the image is known."""
    rank = match.rank("a")
    return None if rank is not None and rank > 2 else match.refuse("rank", "a", "at least 3")


def is_plain_pool(match: Match) -> Refusal | None:
    """Channels are the second axis, and windows that are cut off do not count padding: the kernel divides in another way."""
    if match["ceil_mode"] and match["count_include_pad"]:
        return match.refuse("attribute", "ceil_mode", 0)
    return match.unless_value("channels_last", not match["channels_last"], 0)


def are_triples(match: Match) -> Refusal | None:
    """Each part has a scale and a zero point, which are one number each."""
    parts = match["parts"]
    if any(match.facts.shape(one) not in ((), (1,)) for one in (*parts[1::3], *parts[2::3])):
        return match.refuse("shape", "result", found="scales of an axis", needed="one number for each part")
    scales = [match.facts.const(one) for one in parts[1::3]]
    if not all(numbers is not None and is_normal(numbers) for numbers in scales):
        return match.refuse("value", "result", found="other scales", needed="positive and normal numbers as scales")
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


def _concatenated(match: Match) -> Pattern:
    parts, floats = match["parts"], []
    for number in range(0, len(parts), 3):
        names = [f"{role}{number}" for role in ("part", "scale", "zero")]
        for name, value in zip(names, parts[number : number + 3], strict=True):
            match.capture(name, value)
        floats.append(dequantized(match, *names))
    whole: Pattern = floats[0] if len(floats) == 1 else op.Concat(*floats, axis=attr("axis"))
    return quantized(match, whole)


# Rule tests


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
    constants = BYTES | test.pop("constants", {})
    return Rule(
        name=f"qdq.lower_{operator}",
        pattern=pattern,
        replace=built(
            lambda match: quantized(match, inner(match)),
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
            followed_by=as_floats,
            **test,
        ),
    )


def _same_rule(operator: str, pattern: Pattern, replace: Pattern, **test: Any) -> Rule:
    """The rule for an operator that ONNX has too."""
    return Rule(
        name=f"qdq.lower_{operator}",
        pattern=pattern,
        replace=replace,
        is_refinement=True,
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(attributes={"axis": [1, None]}, opset=13, **test),
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
        _mean_of_windows, ("AveragePool",), _ONE | {"a": "b 3 6 6"}, is_plain_pool,
        attributes={
            "channels_last": [None], "auto_pad": [None], "ceil_mode": [0, 1], "count_include_pad": [0, 1],
            "kernel_shape": [(2, 3)], "pads": [None, (1, 1, 1, 1)], "strides": [(2, 1)],
        },
    ),
    Rule(
        name="qdq.lower_qlinear_concat",
        pattern=ms.QLinearConcat(scale, zero, rest("parts"), axis=attr("axis")).named("result"),
        replace=built(_concatenated, makes=("DequantizeLinear", "QuantizeLinear", "Squeeze", "Concat")),
        is_refinement=True,
        spells_out=True,
        guards=(are_triples, result_is_single, are_normal),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=RuleTest(
            shapes={"scale": "", "zero": "", "batch": "b"},
            attributes={"axis": [1]},
            inputs={"parts": _parts},
            constants=BYTES,
            step=1.0,
            followed_by=as_floats,
        ),
    ),
    _same_rule(
        "dequantize_linear",
        ms.DequantizeLinear(a, a_scale, opt(a_zero), axis=attr("axis")),
        op.DequantizeLinear(a, a_scale, opt(a_zero), axis=attr("axis")),
        shapes=({"a": "b 3", "a_scale": "", "a_zero": ""}, {"a": "b 3", "a_scale": ""}),
        inputs={"a": "uint8"},
        constants={"a_scale": "positive", "a_zero": np.uint8(120)},
    ),
    _same_rule(
        "quantize_linear",
        ms.QuantizeLinear(x, scale, opt(zero), axis=attr("axis")),
        op.QuantizeLinear(x, scale, opt(zero), axis=attr("axis")),
        shapes=({"x": "b 3", "scale": "", "zero": ""}, {"x": "b 3", "scale": ""}),
        constants={"scale": "positive", "zero": np.uint8(120)},
        followed_by=as_floats,
    ),
]  # fmt: skip
