"""Give DequantizeLinear an explicit zero point of 0.

DequantizeLinear(x, s) = DequantizeLinear(x, s, 0)

The runtime (1.32 among others) inserts quantised pairs behind Reshape, Transpose, Slice and MaxPool
(QDQPropagationTransformer), and converts int8 pairs to uint8 (QDQS8ToU8Transformer). If a DequantizeLinear has no zero
point, the new pair has none either, and negative numbers become 0. Pairs with explicit zero points stay right.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, attr, computed, const, op, redundant, var
from ortfuse.targets import Quirk

x, step = var("x"), const("step")
along = {"axis": attr("axis"), "block_size": attr("block_size")}
zero = computed("zero", lambda match: np.zeros(match.const("step").shape, np.int8))


@redundant("it would be right, but the runtime goes wrong with signed 8-bit numbers alone")
def is_signed(match: Match) -> Refusal | None:
    """The numbers are signed 8-bit integers, which the runtime makes unsigned."""
    return match.unless_value("x", match.facts.dtype(match["x"]) == ir.DataType.INT8, "numbers of type int8")


@redundant("it would be right, but weights are not moved")
def is_computed(match: Match) -> Refusal | None:
    """The numbers are no weights."""
    return match.unless_value("x", not match.facts.is_const(match["x"]), "numbers that are computed")


RULES = [
    Rule(
        name="ort.explicit_dequantize_zero_point",
        formula="DequantizeLinear(x, s)",
        pattern=op.DequantizeLinear(x, step, **along),
        replace=op.DequantizeLinear(x, step, zero, **along),
        is_refinement=True,
        because=Quirk.LOSES_ABSENT_ZERO_POINTS,
        guards=(is_signed, is_computed),
        exactness=Exactness.EXACT,
        source="ONNX Runtime's QDQPropagationTransformer and QDQS8ToU8Transformer",
        test=RuleTest(
            shapes={"x": "4 6", "step": ""}, inputs={"x": "int8"}, attributes={"axis": [1], "block_size": [0]}
        ),
    ),
]
