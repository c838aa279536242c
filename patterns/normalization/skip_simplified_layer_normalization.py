"""Fuse RMSNormalization with the residual sum before it.

rmsnorm(x + skip, scale) = skip_simplified_layer_normalization(x, skip, scale)

The operator computes the same in one pass over memory; it is made where such a pass is what counts.
"""

from __future__ import annotations

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, attr, ms, op, var

from .._shared_guards import rank_in

TARGETS = ("cuda", "directml")

total = (var("x") + var("skip")).named("total")
fused = ms.SkipSimplifiedLayerNormalization(
    var("x"),
    var("skip"),
    var("scale"),
    epsilon=lambda match: 1e-5 if match["epsilon"] is None else match["epsilon"],
    outputs=4,
)


def last_axis_only(match: Match) -> Refusal | None:
    """The normalisation is over the last axis, in float32."""
    if match["axis"] not in (None, -1, (match.rank("x") or 0) - 1):
        return match.refuse("attribute", "axis", "the last one")
    return None if match["stash_type"] in (None, 1) else match.refuse("attribute", "stash_type", "1, float32")


def shapes_agree(match: Match) -> Refusal | None:
    """Nothing is broadcast: both terms have one shape, and the scale that of the last axis."""
    shape = match.shape("x")
    if shape is None or match.shape("skip") != shape:
        return match.refuse("shape", "skip", shape)
    if match.shape("scale") != shape[-1:]:
        return match.refuse("shape", "scale", shape[-1:])
    return match.unless_value("epsilon", match["epsilon"] is None or match["epsilon"] >= 0, "at least 0")


RULES = [
    Rule(
        name="rmsnorm.add_to_skip_simplified_layer_normalization",
        is_refinement=True,
        formula="RMSNormalization(x + skip, scale)",
        pattern=op.RMSNormalization(
            total, var("scale"), axis=attr("axis"), epsilon=attr("epsilon"), stash_type=attr("stash_type")
        ),
        replace=fused[0],
        intermediates={"total": fused[3]},
        guards=(rank_in("x", (2, 3)), last_axis_only, shapes_agree),
        exactness=Exactness.ROUNDING,
        source="ONNX Runtime contrib operator SkipSimplifiedLayerNormalization",
        test=RuleTest(
            shapes=({"x": "b s 8", "skip": "b s 8", "scale": "8"}, {"x": "b 8", "skip": "b 8", "scale": "8"}),
            attributes={"axis": [-1], "epsilon": [1e-5, 1e-12], "stash_type": [1]},
            typical=(
                {"x": "1 16 384", "skip": "1 16 384", "scale": "384"},
                {"x": "1 128 768", "skip": "1 128 768", "scale": "768"},
            ),
            opset=23,
        ),
    ),
]
