"""Static 8-bit products: the activation is quantised to a range that it was seen to have when the model was run.

x W + b  ~  dq(q(x)) dq(W8) + b

q(x) = clip(round(x / s) + z, ...), with s and z constants by which the range becomes all 8-bit numbers; numbers outside of the
range are cut off. The name says how the range is told (`ortfuse.precision.calibration`), and whether the numbers are signed.
W8 is signed, with one scale for each column. The result is in float32: it is rounded no further.
"""

from __future__ import annotations

from ortfuse.pattern import ms, op
from ortfuse.rewrite import Exactness, Proof, Rule

from ._activations import grid_of, was_observed
from ._linear import GUARDS_OF_INTEGERS, LINEAR, SHAPES, bias, weight8, x

SOURCE = "ONNX operators QuantizeLinear and MatMulInteger"


def _rule(method: str, *, signed: bool = False) -> Rule:
    whole, scale, zero = weight8(columns=True, signed=True)
    step, offset = grid_of("x", method, signed=signed)
    x8 = op.QuantizeLinear(x, step, offset)
    near_x = op.DequantizeLinear(x8, step, offset)
    return Rule(
        name=f"static_int8.{method}{'_signed' if signed else ''}",
        pattern=LINEAR,
        replace=ms.MatMulIntegerToFloat(x8, whole, step, scale, offset, zero, bias),
        definition=op.MatMul(near_x, op.DequantizeLinear(whole, scale, zero, axis=1)) + bias,
        guards=(*GUARDS_OF_INTEGERS, was_observed(method, "x")),
        exactness=Exactness.LOSSY,
        source=SOURCE,
        proof=Proof(shapes=SHAPES, ranges={"x": (-5.0, 4.5)}),
    )


RULES = [
    *(_rule(method) for method in ("extremes", "percentile_9999", "least_squares", "entropy")),
    _rule("least_squares", signed=True),
]
