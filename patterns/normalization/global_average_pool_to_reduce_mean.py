"""Replace GlobalAveragePool by ReduceMean over the last of three axes, which tf2onnx writes as a pool before opset 18.

globalaveragepool(x) = mean(x)

The rule is in a pass of its own behind the normalisations, which are looked for again once all of their means are such.
"""

from __future__ import annotations

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, op, redundant, var

from .._rule_test_inputs import COST
from .._shared_guards import is_not_quantised

PASS = "fuse.global_average_pool"

x = var("x")


@redundant(COST)
def has_three_axes(match: Match) -> Refusal | None:
    """The mean is over one axis: over those of images, the pool may be the faster one."""
    return match.unless_rank("x", 3)


RULES = [
    Rule(
        name="layernorm.global_average_pool_to_reduce_mean",
        is_refinement=True,
        pattern=op.GlobalAveragePool(x),
        replace=op.ReduceMean(x, axes=(2,), keepdims=1),
        guards=(has_three_axes, is_not_quantised),
        exactness=Exactness.ROUNDING,
        source="ONNX operators GlobalAveragePool and ReduceMean",
        test=RuleTest(shapes={"x": "n 3 s"}),
    )
]
