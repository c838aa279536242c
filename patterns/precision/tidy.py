"""What rungs leave between them: integers that are made floats and the same integers again.

q(dq(v)) = v          both with the same scale and zero point
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortfuse.pattern import Match, const, op, var
from ortfuse.refusal import Refusal
from ortfuse.rewrite import Exactness, Proof, Rule

PASS = "precision.tidy"

_LARGEST = 256
"""More than the largest difference of two integers of 8 bits."""

v, scale, zero = var("v"), const("scale", ""), const("zero", "")


def is_normal(match: Match) -> Refusal | None:
    """The scale is a number that multiples of it are rounded to well, and the integers are of 8 bits."""
    dtype = match.dtype("scale")
    if dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
        return match.refuse("dtype", "scale", "float32 or float16")
    limits = np.finfo(dtype.numpy())
    fits = bool(float(limits.tiny) <= float(match.const("scale")) < float(limits.max) / _LARGEST)
    return match.unless_dtype("v", ir.DataType.UINT8, ir.DataType.INT8) or match.unless_value(
        "scale", fits, "a normal number"
    )


RULES = [
    Rule(
        name="tidy.quantised_again",
        pattern=op.QuantizeLinear(op.DequantizeLinear(v, scale, zero).kept(), scale, zero),
        replace=v,
        guards=(is_normal,),
        exactness=Exactness.EXACT,
        source="ONNX operators QuantizeLinear and DequantizeLinear",
        proof=Proof(
            shapes={"v": "b 3"}, inputs={"v": "uint8"}, constants={"scale": np.float32(0.3), "zero": np.uint8(7)}
        ),
    )
]
