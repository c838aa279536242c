"""Canonicalize Gemm, FusedMatMul and transposed weights to MatMul and Add, the form that quantisation schemes match.

Gemm(x, W, b, transB, alpha) = x (alpha W') + b          FusedMatMul(x, W, transB, alpha) = x (alpha W')
x Transpose(W) = x W'                                    W' is W or its transpose
x W [1, k, n] = x W [k, n]                               where x has as many axes, or gets them

Sites without a chosen scheme stay as they are. Transposed weights are transposed when they are read.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, attr, built, computed, const, ms, op, opt, var
from ortfuse.transforms.cleanup.fold_constant_movement import MovedTensor

from ._weight_quantization import is_weight, tensor_of, turned

PASS = "precision.canonicalize_matmul"

x = var("x", "... k")
weight = const("weight", "_ _")
c = var("c")


def _factor(match: Match) -> float:
    return 1.0 if match.get("alpha") is None else float(match["alpha"])


def _is_turned(match: Match) -> bool:
    return match.get("transposed", 1) not in (0, None)


def _turned(match: Match) -> ir.TensorProtocol:
    """The weight, transposed if the operator says so, times its factor."""
    tensor = tensor_of(match, "weight")
    if _is_turned(match):
        tensor = turned(tensor)
    factor, source = np.float32(_factor(match)), tensor
    if factor == 1:
        return tensor
    return ir.LazyTensor(lambda: ir.Tensor(source.numpy() * factor), source.dtype, ir.Shape(source.shape.numpy()))


def _weight(match: Match) -> Pattern:
    """The weight itself where nothing is to be done to it."""
    plain = not _is_turned(match) and _factor(match) == 1
    return weight if plain else computed("W'", _turned)


def _rule(name: str, pattern: Pattern, source: str, test: RuleTest, *guards: Callable[[Match], Refusal | None]) -> Rule:
    def product(match: Match) -> Pattern:
        made = op.MatMul(x, _weight(match))
        return made if match.get("c") is None else made + c

    return Rule(
        name=f"matmul_form.{name}",
        pattern=pattern,
        replace=built(product, makes=("MatMul", "Add")),
        guards=(is_weight("weight"), *guards),
        exactness=Exactness.ROUNDING,
        source=source,
        test=test,
    )


def factor_is_small(match: Match) -> Refusal | None:
    """The factor does not take the weight out of the range of float32."""
    return match.unless_value("alpha", 2**-20 <= abs(_factor(match)) <= 2**20, "between 2**-20 and 2**20")


stack = const("weight")


def is_one_matrix(match: Match) -> Refusal | None:
    """The weight is a matrix behind axes of size 1, and the rank of what it is multiplied with is known."""
    shape, given = tensor_of(match, "weight").shape.numpy(), match.shape("x")
    if len(shape) < 3 or any(size != 1 for size in shape[:-2]):
        return match.refuse("shape", "weight", "a matrix behind axes of size 1")
    if given is None or len(given) < 2:
        return match.refuse("rank", "x", "known, at least 2")
    return None


def _of_one_matrix(match: Match) -> Pattern:
    """The product with the matrix alone. The result has as many axes as there were."""
    tensor = tensor_of(match, "weight")
    shape, rank = tuple(tensor.shape.numpy()), len(match.shape("x") or ())
    matrix = computed("matrix", lambda match: MovedTensor(tensor, None, shape[-2:]))
    lacking = len(shape) - rank
    if lacking <= 0:
        return op.MatMul(x, matrix)
    return op.MatMul(op.Unsqueeze(x, computed("axes", lambda match: np.arange(lacking))), matrix)


FACTORS = {"alpha": [1.0, 0.5]}

RULES = [
    _rule(
        "gemm_to_matmul_add",
        op.Gemm(x, weight, opt(c), transB=attr("transposed"), alpha=attr("alpha")),
        "ONNX operator Gemm",
        RuleTest(
            shapes=({"x": "m 4", "weight": "4 5", "c": "5"}, {"x": "m 4", "weight": "5 4", "c": "5"}),
            attributes=({"transposed": [0], **FACTORS}, {"transposed": [1], **FACTORS}),
        ),
        factor_is_small,
    ),
    _rule(
        "fused_matmul_to_matmul_add",
        ms.FusedMatMul(x, weight, transB=attr("transposed"), alpha=attr("alpha")),
        "ONNX Runtime operator com.microsoft.FusedMatMul",
        RuleTest(
            shapes=({"x": "b m 4", "weight": "4 5"}, {"x": "b m 4", "weight": "5 4"}),
            attributes=({"transposed": [0], **FACTORS}, {"transposed": [1], **FACTORS}),
        ),
        factor_is_small,
    ),
    _rule(
        "transpose_of_weight",
        op.MatMul(x, op.Transpose(weight, perm=(1, 0)).kept()),
        "x Transpose(W) = x W'",
        RuleTest(shapes={"x": "b m 4", "weight": "5 4"}),
    ),
    Rule(
        name="matmul_form.squeeze_batched_weight",
        pattern=op.MatMul(x, stack),
        replace=built(_of_one_matrix, makes=("MatMul", "Unsqueeze")),
        guards=(is_weight("weight"), is_one_matrix),
        exactness=Exactness.ROUNDING,
        source="ONNX operator MatMul: axes of size 1 are broadcast",
        test=RuleTest(shapes=({"x": "b m 4", "weight": "1 4 5"}, {"x": "m 4", "weight": "1 1 4 5"})),
    ),
]
