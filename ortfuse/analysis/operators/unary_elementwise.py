"""Elementwise operators with one operand: activations, roots, exponentials, rounding and signs."""

from __future__ import annotations

import math
import operator

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.costs import cost, per_result
from ortfuse.analysis.ranges.interval_arithmetic import (
    SLACK,
    bounded,
    extreme,
    finitely,
    monotone,
    not_negative,
    ordered,
    unless_anything,
)
from ortfuse.analysis.ranges.queries import Asking, ranges
from ortfuse.analysis.ranges.range import Number, Range, one_of, stored, union
from ortfuse.analysis.ranges.vector_norms import norm_of, norms
from ortfuse.analysis.transfer import symbolic_element_arithmetic as el
from ortfuse.analysis.transfer.elementwise_shape_functions import same_shape, unary_shape
from ortfuse.analysis.transfer.evaluate_small_tensors import arithmetic, evaluates
from ortfuse.analysis.transfer.transfer_function_registry import Op, transfer
from ortfuse.analysis.transfer.value_fact import Fact, element_of_float
from ortfuse.ir.dims import floor_div
from ortfuse.ir.traits import MICROSOFT

transfer("Neg")(unary_shape(el.negate))
evaluates("Neg")(arithmetic(np.negative))

ranges("Neg", by_element=True)(monotone(operator.neg))


@norms("Neg", "Dropout", "Abs", "Relu")
def unary_norm(op: Asking) -> float | None:
    """No longer than the operand."""
    return norm_of(op, 0)


transfer("Abs")(unary_shape(el.absolute))
evaluates("Abs")(arithmetic(np.abs))


@ranges("Abs", by_element=True)
def abs_range(op: Asking) -> Range | None:
    """Numbers without their sign."""
    found = op.range_or_anything(0)
    pieces = [(0, max(-low, high)) if low < 0 < high else ordered(abs(low), abs(high)) for low, high in found.pieces]
    return stored(pieces, op.result_dtype, found.nan)


transfer("Floor")(unary_shape(el.floor))
evaluates("Floor")(arithmetic(np.floor))

ranges("Floor", by_element=True)(monotone(finitely(math.floor)))
transfer("Ceil")(unary_shape(el.ceil))
evaluates("Ceil")(arithmetic(np.ceil))

ranges("Ceil", by_element=True)(monotone(finitely(math.ceil)))
transfer("Round")(unary_shape(el.round_even))
ranges("Round", by_element=True)(monotone(finitely(round)))


@transfer("Clip")
def clip(op: Op) -> Fact:
    """The input between two bounds (attributes before opset 11)."""
    data = op.fact(0)
    found = data.elements()
    if found is not None:
        for index, name, choose in ((1, "min", el.largest), (2, "max", el.smallest)):
            if op.has(index):
                bound = (op.elements(index) or (None,))[0]
            elif op.version < 11 and op.given(name):
                bound = element_of_float(op.attribute(name))
            else:
                continue
            found = tuple([choose(element, bound) for element in found])
    return Fact(data.dtype, data.shape, found)


_LARGEST_FLOATS = {ir.DataType.FLOAT16: 65504.0, ir.DataType.DOUBLE: float(np.finfo(np.float64).max)}


@ranges("Clip", by_element=True)
def clip_range(op: Asking) -> Range | None:
    """Numbers between two bounds, which are attributes before opset 11.

    Runtimes disagree on whether a missing bound is the largest finite number or infinity: both are taken into account.
    """
    found = op.range_or_anything(0)
    # The lower bound is applied first: if it is above the upper bound, the result is the upper bound.
    for index, name, choose in ((1, "min", max), (2, "max", min)):
        bound = op.range(index) if op.has(index) else None
        if bound is None and op.version < 11:
            number = op.attribute(name)
            bound = None if number is None else one_of(float(number))
        if bound is not None:
            found = extreme(choose, found, bound) or found
        elif op.result_dtype.is_floating_point() and math.isinf(end := found.low if choose is max else found.high):
            found = (
                union([found, one_of(math.copysign(_LARGEST_FLOATS.get(op.result_dtype, 3.4028234663852886e38), end))])
                or found
            )
    return unless_anything(found, op)


@transfer("Gelu", "FastGelu", "BiasGelu", "QuickGelu", "BiasAdd", "BiasSoftmax", domain=MICROSOFT)
def contrib_gelu(op: Op) -> Fact:
    """The activated input; a bias has the size of its last axis, or is broadcast to it."""
    return Fact(op.dtype(), op.shape())


@transfer("BiasSplitGelu", domain=MICROSOFT)
def split_gelu(op: Op) -> Fact:
    """Half of the last axis."""
    shape = op.known_shape()
    return Fact(op.dtype(), (*shape[:-1], floor_div(shape[-1], 2)))


@ranges("Relu", by_element=True)
def relu_range(op: Asking) -> Range | None:
    """Nonnegative numbers."""
    return extreme(max, op.range_or_anything(0), one_of(0 if not op.result_dtype.is_floating_point() else 0.0))


@ranges("Sign", by_element=True)
def sign_range(op: Asking) -> Range | None:
    """-1, 0 or 1."""
    if op.result_dtype.is_floating_point():
        return Range(frozenset((-1.0, 0.0, 1.0)), None, nan=op.range_or_anything(0).nan)
    return one_of(-1, 0, 1) if op.range(0).low < 0 else one_of(0, 1)


evaluates("Sqrt")(arithmetic(np.sqrt))


@ranges("Sqrt", by_element=True)
def sqrt_range(op: Asking) -> Range | None:
    """Square roots; NaN for negative numbers."""
    found = op.range_or_anything(0)
    if found.high < 0:
        return None
    pieces = [(math.sqrt(max(low, 0.0)), math.sqrt(high)) for low, high in found.pieces if high >= 0]
    return stored(pieces, op.result_dtype, found.nan or found.low < 0)


for _op_types, _low, _infinity_is_lost in (
    (("Sigmoid",), -SLACK, False),
    (("HardSigmoid",), 0.0, True),  # infinity is lost where its slope is 0
    (("Tanh", "Erf"), -1.0 - SLACK, False),
    (("Softsign",), -1.0 - SLACK, True),
    (("Cos", "Sin"), -1.0 - SLACK, True),
):
    ranges(*_op_types)(bounded(_low, 1.0 + SLACK, infinity_is_lost=_infinity_is_lost))


@ranges("Exp")
def exp_range(op: Asking) -> Range | None:
    """Powers of e, which approximations may miss by a little; none is negative."""
    found = op.range_or_anything(0)
    low, high = _power_of_e(found.low), _power_of_e(found.high)
    piece = max(low * (1 - SLACK) - SLACK, 0.0), high * (1 + SLACK) + SLACK
    return stored([piece], op.result_dtype, found.nan)


@ranges("Log", by_element=True)
def log_range(op: Asking) -> Range | None:
    """Logarithms: -inf of 0 and of numbers that may be taken for it, else at least that of the smallest number."""
    found = op.range_or_anything(0)
    normal, smallest = _SMALLEST.get(op.result_dtype, (0.0, 0.0))
    if not smallest or found.high < 0:
        return None
    pieces: list[tuple[Number, Number]] = []
    for low, high in found.pieces:
        if low < normal and high >= 0:
            pieces.append((-math.inf, -math.inf))
        if high > 0:
            ends = math.log(max(low, smallest)), math.log(high)
            pieces.append((ends[0] - SLACK * (1 + abs(ends[0])), ends[1] + SLACK * (1 + abs(ends[1]))))
    return stored(pieces, op.result_dtype, found.nan or found.low < 0)


_SMALLEST = {
    dtype: (float(np.finfo(dtype.numpy()).smallest_normal), float(np.finfo(dtype.numpy()).smallest_subnormal))
    for dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)
}
"""The smallest numbers above 0 with all digits and with fewer, by element type."""


def _power_of_e(number: Number) -> float:
    try:
        return math.exp(number)
    except OverflowError:
        return math.inf


ranges("Softplus")(not_negative(SLACK))  # a logarithm, which an approximation may put slightly below zero
transfer(
    *("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Celu", "Cos", "Cosh", "Elu", "Erf", "Exp", "Gelu"),
    *("HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Mish", "Reciprocal", "Relu", "Selu", "Shrink", "Sigmoid"),
    *("Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu"),
    "BitwiseNot",
)(same_shape)
cost("Clip")(per_result(2))
cost(f"{MICROSOFT}.QuickGelu", "Swish", "Sigmoid")(per_result(3))
cost("HardSigmoid", "Mish")(per_result(4))
cost("Gelu", f"{MICROSOFT}.Gelu", "HardSwish")(per_result(5))
cost(f"{MICROSOFT}.BiasGelu")(per_result(6))
cost(f"{MICROSOFT}.FastGelu")(per_result(8))
