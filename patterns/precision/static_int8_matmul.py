"""Quantise MatMul statically to 8 bits: the activation has a range observed at calibration.

x W + b  ~  dq(q(x)) dq(W8) + b

q(x) = clip(round(x / s) + z, ...), with constants s and z such that the range becomes all 8-bit numbers; numbers outside of the
range are clipped. The name says the calibration method and whether the numbers are signed.
W8 is signed, with one scale for each column. The result is in float32 and is rounded no further. The scheme `smooth` moves
outliers into the weight first (`_smooth_quant`). W8 of the others is chosen so that the errors of its rows compensate each other.

x W + b  ~  dq(q(dq(q(x)) dq(W8) + b))       `static_int8_requantized`

Here the result is rounded too, to its observed range. The MatMul then makes integers by itself (pass `precision.cleanup`), and
a gate between such products is computed in integers.
"""

from __future__ import annotations

import numpy as np

from ortfuse.quantization.quantization_parameters import SMALLEST_SCALE
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, computed, ms, op
from ortfuse.rewrite.pattern.language import Computed

from ._linear_pattern import GUARDS_OF_INTEGERS, LINEAR, SHAPES, bias, weight8, x
from ._smooth_quant import COLUMNS, factors, reach, smoothed
from ._smooth_quant import SOURCE as SMOOTH_SOURCE
from ._static_activation_quantization import grid_of, was_observed

SOURCE = "ONNX operators QuantizeLinear and MatMulInteger"


def _rule(method: str, *, signed: bool = False) -> Rule:
    step, offset = grid_of("x", method, signed=signed)
    whole = weight8(columns=True, signed=True)
    return _made(f"{method}{'_signed' if signed else ''}", method, x, (step, offset), whole, SOURCE)


def _smooth() -> Rule:
    def grid(match: Match) -> tuple[float, int]:
        seen = match.observed("x", "extremes")
        leans = seen is not None and seen[0] >= 0
        return max(reach(match) * (1 if leans else 2) / 255, SMALLEST_SCALE), 0 if leans else 128

    step = computed("x_scale", lambda match: np.float32(grid(match)[0]))
    offset = computed("x_zero", lambda match: np.uint8(grid(match)[1]))
    whole = weight8(columns=True, signed=True, rows=factors)
    return _made("smooth", COLUMNS, smoothed, (step, offset), whole, SMOOTH_SOURCE)


def _made(
    name: str, method: str, given: Pattern, grid: tuple[Computed, Computed], weight: tuple[Computed, ...], source: str
) -> Rule:
    whole, scale, zero = weight
    x8 = op.QuantizeLinear(given, *grid)
    near_x = op.DequantizeLinear(x8, *grid)
    return Rule(
        name=f"static_int8.{name}",
        pattern=LINEAR,
        replace=ms.MatMulIntegerToFloat(x8, whole, grid[0], scale, grid[1], zero, bias),
        definition=op.MatMul(near_x, op.DequantizeLinear(whole, scale, zero, axis=1)) + bias,
        guards=(*GUARDS_OF_INTEGERS, was_observed(method, "x")),
        exactness=Exactness.LOSSY,
        is_fitted=True,
        source=source,
        test=RuleTest(shapes=SHAPES, ranges={"x": (-5.0, 4.5)}),
    )


def _through() -> Rule:
    method = "least_squares"
    step, offset = grid_of("x", method)
    grid = grid_of("root", method)
    whole, scale, zero = weight8(columns=True, signed=True)
    x8 = op.QuantizeLinear(x, step, offset)

    def rounded(result: Pattern) -> Pattern:
        return op.DequantizeLinear(op.QuantizeLinear(result, *grid), *grid)

    near_weight = op.DequantizeLinear(whole, scale, zero, axis=1)
    return Rule(
        name="static_int8_requantized.least_squares",
        pattern=LINEAR,
        replace=rounded(ms.MatMulIntegerToFloat(x8, whole, step, scale, offset, zero, bias)),
        definition=rounded(op.MatMul(op.DequantizeLinear(x8, step, offset), near_weight) + bias),
        guards=(*GUARDS_OF_INTEGERS, was_observed(method, "x", "root")),
        exactness=Exactness.LOSSY,
        is_fitted=True,
        source="ONNX operators QuantizeLinear and QLinearMatMul",
        test=RuleTest(
            shapes=SHAPES,
            ranges={"x": (-5.0, 4.5), "root": (-20.0, 22.0)},
            step=42.0 / 255,
            assumes={"*1e5 times as large*": "the results were seen to be in another range"},
        ),
    )


RULES = [
    *(_rule(method) for method in ("extremes", "percentile_9999", "least_squares", "entropy")),
    _rule("least_squares", signed=True),
    _smooth(),
    _through(),
]
