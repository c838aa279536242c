"""Hoist QuantizeLinear above reshapes, and remove a DequantizeLinear followed by the same QuantizeLinear.

q(dq(v)) = v                      both with the same scale and zero point
q(reshape(x)) = reshape(q(x))     also Flatten, Squeeze, Unsqueeze

The producer of x may then take and give integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, attr, const, op, var

PASS = "precision.cleanup"

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


def _rounded_first(name: str, reshaped: Callable[[Pattern], Pattern], test: RuleTest) -> Rule:
    return Rule(
        name=f"qdq.hoist_quantize_above_{name}",
        pattern=op.QuantizeLinear(reshaped(var("x")), scale, zero),
        replace=reshaped(op.QuantizeLinear(var("x"), scale, zero)),
        exactness=Exactness.EXACT,
        source="ONNX operator QuantizeLinear: each element by itself",
        test=replace(test, constants={**test.constants, "scale": np.float32(0.03), "zero": np.uint8(7)}),
    )


ONE_AXIS = RuleTest(shapes={"x": "b 1 4", "axes": "1"}, constants={"axes": [1]})

RULES = [
    _rounded_first(
        "reshape",
        lambda x: op.Reshape(x, var("shape"), allowzero=attr("zeros")),
        RuleTest(shapes={"x": "b 3 4", "shape": "2"}, constants={"shape": [-1, 12]}, attributes={"zeros": [0]}),
    ),
    _rounded_first(
        "flatten",
        lambda x: op.Flatten(x, axis=attr("axis")),
        RuleTest(shapes={"x": "b 3 4"}, attributes={"axis": [1, 2]}),
    ),
    _rounded_first("squeeze", lambda x: op.Squeeze(x, const("axes", "_")), ONE_AXIS),
    _rounded_first("unsqueeze", lambda x: op.Unsqueeze(x, const("axes", "_")), ONE_AXIS),
    Rule(
        name="qdq.quantize_of_dequantize",
        pattern=op.QuantizeLinear(op.DequantizeLinear(v, scale, zero).kept(), scale, zero),
        replace=v,
        guards=(is_normal,),
        exactness=Exactness.EXACT,
        source="ONNX operators QuantizeLinear and DequantizeLinear",
        test=RuleTest(
            shapes={"v": "b 3"}, inputs={"v": "uint8"}, constants={"scale": np.float32(0.3), "zero": np.uint8(7)}
        ),
    ),
]
