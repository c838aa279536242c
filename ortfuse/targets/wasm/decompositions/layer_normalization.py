"""Decompose LayerNormalization, whose kernel takes one number after the other in WebAssembly.

layer_normalization(x) = rms_normalization(x - mean(x)) + bias
skip_layer_normalization(x, skip) = layer_normalization(x + skip + sum_bias), and its further result x + skip + sum_bias

Rationale: the kernels of ReduceMean and RMSNormalization take four numbers at once. A compiler may not reorder the sums of the
other kernel to do so.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, attr, ms, op, opt, var

PAPER = "arXiv:1910.07467"
SIZES = ((1, 768), (8, 64), (16, 384), (128, 768), (197, 192), (512, 1024), (4096, 64))

x, skip, gamma, beta, sum_bias = var("x"), var("skip"), var("gamma", "c"), var("beta", "c"), var("sum_bias", "c")


def is_float32(match: Match) -> Refusal | None:
    """The numbers are float32: the kernels compute with others in float32, each between Casts of its own."""
    return match.unless_dtype("x", ir.DataType.FLOAT)


def normalises_last_axis(match: Match) -> Refusal | None:
    """The last axis alone is normalised."""
    rank, axis = match.rank("x"), match["axis"]
    return match.unless_value("axis", rank is not None and axis in (-1, rank - 1), "the last axis alone")


def is_of_one_shape(match: Match) -> Refusal | None:
    """Nothing is broadcast in the sum."""
    return match.unless_same_shape("skip", "x")


def _normalised(summed: Pattern) -> Pattern:
    centred = op.Sub(summed, op.ReduceMean(summed, axes=(-1,), keepdims=1))
    scaled: Pattern = op.RMSNormalization(centred, gamma, axis=-1, epsilon=attr("epsilon"))
    return scaled + opt(beta)


def _typical(tensors: Sequence[str], vectors: Sequence[str]) -> tuple[dict[str, str], ...]:
    return tuple(dict.fromkeys(tensors, f"1 {rows} {size}") | dict.fromkeys(vectors, f"{size}") for rows, size in SIZES)


fused = ms.SkipLayerNormalization(x, skip, gamma, opt(beta), opt(sum_bias), epsilon=attr("epsilon")).naming(total=3)
total = x + skip + opt(sum_bias)

RULES = [
    Rule(
        name="layernorm.skip_layer_normalization_to_rms_normalization",
        is_refinement=True,
        formula="SkipLayerNormalization(x, skip, gamma, beta, sum_bias)",
        pattern=fused,
        replace=_normalised(total),
        intermediates={"total": total},
        guards=(is_of_one_shape, is_float32),
        may_raise_opset=True,
        exactness=Exactness.ROUNDING,
        source=PAPER,
        test=RuleTest(
            shapes={"x": "b s 8", "skip": "b s 8", "c": 8},
            attributes={"epsilon": [1e-5, 1e-12]},
            typical=_typical(("x", "skip"), ("gamma", "beta", "sum_bias")),
        ),
    ),
    Rule(
        name="layernorm.layer_normalization_to_rms_normalization",
        is_refinement=True,
        formula="LayerNormalization(x, gamma, beta)",
        pattern=op.LayerNormalization(x, gamma, opt(beta), axis=attr("axis"), epsilon=attr("epsilon")),
        replace=_normalised(x),
        guards=(normalises_last_axis, is_float32),
        may_raise_opset=True,
        exactness=Exactness.ROUNDING,
        source=PAPER,
        test=RuleTest(
            shapes={"x": "b s 8", "c": 8},
            attributes={"axis": [-1, 2], "epsilon": [1e-5, 1e-12]},
            typical=_typical(("x",), ("gamma", "beta")),
        ),
    ),
]
