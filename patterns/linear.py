"""Linear layers: one product of the input with a constant weight, plus a bias.

    linear(x) = x W + b

Exporters write it as MatMul + Add, as Gemm, or, for inputs with more than two axes, as Gemm between two Reshapes. The normal
form is MatMul + Add, which the runtime executes for any rank; Gemm on a two-dimensional input is left alone.
"""

from __future__ import annotations

from ortfuse.pattern import Match, Pattern, attr, const, op, opt, var
from ortfuse.refusal import Refusal
from ortfuse.rewrite import Exactness, Proof, Rule, Variation

from ._proofs import COST

SOURCE = "ONNX operator Gemm"

x = var("x")
weight = const("weight", "_ _")
bias = const("bias", "_")
flat = op.Reshape(x, var("flat_shape"), allowzero=attr("flat_allowzero")).named("flat").kept()


def only_last_axis_is_multiplied(match: Match) -> Refusal | None:
    """The Reshapes merge and restore all axes but the last."""
    shapes = match.shapes("x", "flat", "gemm", "root")
    if isinstance(shapes, Refusal):
        return shapes
    before, between, product, _ = shapes
    if len(between) != 2 or between[-1] != before[-1]:
        return match.refuse("shape", "flat", ("*", before[-1]))
    return match.unless_shape((*before[:-1], product[-1]), "root")


def _reshape_gemm(name: str, transposed: int, factor: Pattern) -> Rule:
    gemm = op.Gemm(flat, weight, opt(bias), transB=transposed).named("gemm")
    return Rule(
        name=name,
        pattern=op.Reshape(gemm, var("shape"), allowzero=attr("allowzero")),
        replace=op.MatMul(x, factor) + opt(bias),
        guards=(only_last_axis_is_multiplied,),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        proof=Proof(
            shapes={
                "x": "2 3 4",
                "weight": "5 4" if transposed else "4 5",
                "bias": "5",
                "flat_shape": "2",
                "shape": "3",
            },
            constants={"flat_shape": [-1, 4], "shape": [2, 3, 5]},
            attributes={"allowzero": [0, 1], "flat_allowzero": [0, 1]},
            opset=17,
            redundant={"demand that *": COST},
            counterexamples={"a bias for each row": Variation(shapes={"bias": "6 1"})},
        ),
    )


RULES = [
    _reshape_gemm("linear.reshape_gemm", 0, weight),
    # The Transpose of the constant will be folded.
    _reshape_gemm("linear.reshape_gemm_transposed", 1, op.Transpose(weight, perm=(1, 0))),
]
