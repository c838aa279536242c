"""Quantise MatMul to sums of two 8-bit parts per operand; the second part holds the rounding error of the first.

x ~ x1 + x2, W ~ W1 + W2

x W + b  ~  x1 W1 + x2 W1 + b                          activation
            x1 W1 + x1 W2 + b                          weight
            x1 W1 + x1 W2 + x2 W1 + b                  both_three_terms
            x1 W1 + x1 W2 + x2 W1 + x2 W2 + b          both_four_terms

x1 = dq(q(x)) as in dynamic 8-bit products, with a scale s; x2 rounds x - x1 to multiples of s / 254. W1 has a scale for each
column; W2 rounds W - W1 to multiples of that scale divided by twice the largest integer.
"""

from __future__ import annotations

import numpy as np

from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Pattern, computed, ms, op

from ._linear_pattern import GUARDS_OF_INTEGERS, LINEAR, SHAPES, bias, per_column, signed_limit, size, weight8, x
from ._weight_quantization import Array, part_of, symmetric

SOURCE = "Ozaki et al., Numerical Algorithms 59 (2012): products of matrices that are split into parts"

FINER = 254
"""How many steps of the second part of an activation make up one of the first."""


def _rest(array: Array) -> tuple[Array, Array]:
    """The remainder of the weight, in steps of the second scale, and that scale."""
    limit = signed_limit()
    whole, scale = symmetric(array, 1, limit)
    finer: Array = scale / np.float32(2 * limit)
    rounded: Array = np.clip(np.rint((array - whole * scale) / finer), -limit, limit)
    return rounded.astype(np.int8), finer


first, scale1, zero = weight8(columns=True, signed=True, alone=False)
second = part_of("W8_rest", np.int8, size, 0, lambda match: _rest)
scale2 = part_of("W8_rest_scale", np.float32, per_column, 1, lambda match: _rest)

x1 = op.DynamicQuantizeLinear(x, outputs=3)
near_x1 = op.DequantizeLinear(x1[0], x1[1], x1[2])
step2 = op.Mul(x1[1], computed("finer", lambda match: np.float32(1 / FINER)))
middle = computed("middle", lambda match: np.uint8(128))
x2 = op.QuantizeLinear(op.Sub(x, near_x1), step2, middle)
near_x2 = op.DequantizeLinear(x2, step2, middle)
near_w1 = op.DequantizeLinear(first, scale1, zero, axis=1)
near_w2 = op.DequantizeLinear(second, scale2, zero, axis=1)


def _product(part_of_x: int, part_of_weight: int, *added: Pattern) -> Pattern:
    a, scale, offset = ((x1[0], x1[1], x1[2]), (x2, step2, middle))[part_of_x - 1]
    whole, scales = ((first, scale1), (second, scale2))[part_of_weight - 1]
    return ms.MatMulIntegerToFloat(a, whole, scale, scales, offset, zero, *added)


def _rule(name: str, replace: Pattern, definition: Pattern) -> Rule:
    return Rule(
        name=f"split_int8.{name}",
        pattern=LINEAR,
        replace=replace,
        definition=definition + bias,
        guards=GUARDS_OF_INTEGERS,
        exactness=Exactness.LOSSY,
        source=SOURCE,
        test=RuleTest(shapes=SHAPES),
    )


MAIN = _product(1, 1, bias)

RULES = [
    _rule("activation", MAIN + _product(2, 1), op.MatMul(near_x1 + near_x2, near_w1)),
    _rule("weight", MAIN + _product(1, 2), op.MatMul(near_x1, near_w1 + near_w2)),
    _rule(
        "both_three_terms",
        MAIN + _product(1, 2) + _product(2, 1),
        op.MatMul(near_x1, near_w1 + near_w2) + op.MatMul(near_x2, near_w1),
    ),
    _rule(
        "both_four_terms",
        MAIN + _product(1, 2) + _product(2, 1) + _product(2, 2),
        op.MatMul(near_x1 + near_x2, near_w1 + near_w2),
    ),
]
