"""Replace ReduceSum of a constant grid times affine matrices by MatMul.

sum(grid[:, :, None] * theta[:, None], -2) = grid @ theta        grid [m, k] constant, theta [n, k, p]

torch.export decomposes affine_grid this way, with the grid as a constant. The runtime does not broadcast one matrix to a batch
of unknown size on the right, so that an unknown number of maps is on the left: (theta^T @ grid^T)^T.
"""

from __future__ import annotations

from typing import Any

from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, computed, const, op, var

from .._shared_guards import floating

theta = var("theta", "n k p")


def _product(match: Match) -> Pattern:
    if match.size("n"):
        return computed("rows", _rows) @ theta
    columns = computed("columns", lambda match: _rows(match).T)
    return op.Transpose(op.Transpose(theta, perm=[0, 2, 1]) @ columns, perm=[0, 2, 1])


def _rows(match: Match) -> Any:
    return match.const("grid")[..., 0]


RULES = [
    Rule(
        name="affine_grid.to_matmul",
        formula="sum(grid[:, :, None] * theta[:, None], -2)",
        pattern=op.ReduceSum(const("grid", "m k 1") * op.Unsqueeze(theta, axes=(1,)), axes=(2,), keepdims=0),
        replace=_product,
        makes=("MatMul", "Transpose"),
        guards=(floating("theta"),),
        exactness=Exactness.ROUNDING,
        source="arXiv:1506.02025",
        test=RuleTest(shapes=({"m": 6, "k": 3, "p": 2, "n": 2}, {"m": 6, "k": 3, "p": 2})),
    )
]
