"""Decompose SkipLayerNormalization into Sum and LayerNormalization, whose kernels are faster on the CPU.

skip_layer_normalization(x, skip, gamma, beta, bias) = layer_normalization(x + skip + bias, gamma, beta)

The sum is a Sum, which the runtime does not fuse again (see `patterns.ort_workarounds`). Forcing the operator of the
family keeps it.

Rationale: tools that fuse whatever they find leave the operator in models.
"""

from __future__ import annotations

from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import attr, op, opt, var
from ortfuse.targets import Quirk

from .._shared_guards import same_shape
from ..normalization.layer_and_rms_normalization import fused_skip

PASS = "target_decompositions"

x, skip, gamma, beta, sum_bias = (var(name) for name in ("x", "skip", "gamma", "beta", "sum_bias"))
total = op.Sum(x, skip, opt(sum_bias))

RULES = [
    Rule(
        name="layernorm.decompose_skip_layernorm",
        is_refinement=True,
        formula="SkipLayerNormalization(x, skip, gamma, beta, sum_bias)",
        pattern=fused_skip[0],
        replace=op.LayerNormalization(total, gamma, opt(beta), axis=-1, epsilon=attr("epsilon")),
        guards=(same_shape("x", "skip"),),
        because=Quirk.FUSES_SUMS_BEFORE_NORMALISATION,
        exactness=Exactness.ROUNDING,
        source="com.microsoft operator SkipLayerNormalization",
        test=RuleTest(
            shapes={"x": "b s 8", "skip": "b s 8", "gamma": "8", "beta": "8", "sum_bias": "8"},
            attributes={"epsilon": [1e-5, 1e-12, None]},
            typical=tuple(
                dict.fromkeys(("x", "skip"), f"1 {length} {size}")
                | dict.fromkeys(("gamma", "beta", "sum_bias"), f"{size}")
                for length, size in ((1, 768), (16, 64), (16, 384), (128, 768), (512, 1024))
            ),
        ),
    ),
]
