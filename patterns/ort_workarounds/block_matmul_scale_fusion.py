"""Block MatMulScaleFusion of ONNX Runtime, which rounds float64 factors to float32.

MatMul(x c, y) = MatMul(Sum(x c), y)          c MatMul(x, y) = c Sum(MatMul(x, y))

MatMulScaleFusion (1.31 among others) fuses a MatMul and its factor; the factor becomes an attribute of float32, in float64 too.
It leaves factors alone that are computed in the model, until they are folded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Guard, Match, Pattern, const, op, redundant, var
from ortfuse.targets import Quirk

x = var("x")

factor = const("factor")


def is_rounded(match: Match) -> Refusal | None:
    """A number of float64 that float32 does not hold, nor its inverse."""
    refused = match.unless_dtype("x", ir.DataType.DOUBLE)
    if refused is not None or match.const("factor").size != 1:
        return refused or match.refuse("shape", "factor", "a number")
    with np.errstate(all="ignore"):
        number = 1 / match.const("factor") if match.choice("scaled") else match.const("factor")
        held = bool(np.all(number.astype(np.float32) == number))
    return match.refuse("needless", "factor", found="float32 holds it") if held else None


@redundant("it would be right, but the runtime joins nothing there")
def scales_an_operand(match: Match) -> Refusal | None:
    """The scaled value is multiplied by a matrix."""
    found = any(user.op_type == "MatMul" for user in match.root.consumers())
    return None if found else match.refuse("needless", "root", found="it is no operand of a product")


def _scaled(operand: Pattern) -> Pattern:
    """A number times a value, or a value divided by it."""
    return (op.Mul(operand, factor) | op.Div(operand, factor)).named("scaled")


def _as_it_was(match: Match, operand: Pattern) -> Pattern:
    made: Pattern = op.Div(operand, factor) if match.choice("scaled") else op.Mul(operand, factor)
    return made


def _multiplied(build: Any, root: ir.Value) -> ir.Value:
    """A product with a matrix."""
    made: ir.Value = build.node("MatMul", [root, build.constant(np.ones((4, 5)))]).outputs[0]
    return made


def _factor_apart(name: str, formula: str, operand: Pattern, replace: Any, *guards: Guard, **test: Any) -> Rule:
    return Rule(
        name=f"ort.{name}",
        formula=formula,
        pattern=_scaled(operand),
        replace=replace,
        makes=("Sum", "Mul", "Div"),
        is_refinement=True,
        because=Quirk.ROUNDS_FACTORS_OF_PRODUCTS,
        guards=(is_rounded, *guards),
        exactness=Exactness.EXACT,
        source="ONNX Runtime graph transformer MatMulScaleFusion",
        test=RuleTest(
            constants={"factor": 0.3},
            dtypes=("float64",),
            opset=17,
            redundant={"demand that factor is constant": "the runtime leaves others alone"},
            **test,
        ),
    )


RULES = [
    _factor_apart(
        "block_matmul_scale_fusion_of_operand",
        "MatMul(x c, y)",
        x,
        lambda match: op.Sum(_as_it_was(match, x)),
        scales_an_operand,
        shapes={"x": "b 3 4", "factor": ""},
        followed_by=_multiplied,
    ),
    _factor_apart(
        "block_matmul_scale_fusion_of_product",
        "c MatMul(x, y)",
        op.MatMul(x, var("y")).named("product"),
        lambda match: _as_it_was(match, op.Sum(op.MatMul(x, var("y")))),
        shapes={"x": "b 3 4", "y": "4 5", "factor": ""},
    ),
]
