"""Rewrite transposed operands of MatMul on which MatmulTransposeFusion crashes or computes wrong numbers.

MatMul(transpose(x), y) = MatMul(squeeze(transpose(unsqueeze(x))), y)

ONNX Runtime (1.31 among others) crashes when it creates a session for this MatMul of float16. The Transpose moves the first
axis behind the batch axes, and the operands differ in rank, as with a weight. The CPU has no such MatMul, so the runtime
inserts a Cast to float32. MatmulTransposeFusion swaps Cast and Transpose, then gives up because of the ranks without reporting
that it has changed the graph. NchwcTransformer then reads the missing schema of the new nodes. A Cast in the model itself
triggers it as well. The fusion only looks for a Transpose there, so with a Squeeze in its place it changes nothing.

MatMul(swap(x), v) = MatMul(v, x), v a vector

MatmulTransposeFusion makes FusedMatMul with `transA` of the first form. Its kernel (1.32 among others) ignores `transA` if the
second operand is a vector. The second form has no Transpose.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, attr, computed, op, redundant, var
from ortfuse.targets import Quirk

from .._shared_guards import ints

x = var("x")


def _moves_first_axis(perm: Any, facts: Any) -> bool:
    """The first axis is moved behind the batch axes, before or after the last one."""
    if not isinstance(perm, tuple | list) or len(perm) < 3:
        return False
    last = len(perm) - 1
    return list(perm) in ([*range(1, last), 0, last], [*range(1, last), last, 0])


HEALTHY = "it would be right, but the runtime does not crash"


@redundant(HEALTHY)
def crashes_in_product(match: Match) -> Refusal | None:
    """The result, in float16 or after a Cast, is multiplied by something that may have another rank."""
    operands = [match.root] if match.dtype("root") == ir.DataType.FLOAT16 else []
    operands += [user.outputs[0] for user in match.root.consumers() if user.op_type == "Cast"]
    for operand in operands:
        for product in operand.consumers():
            if product.op_type not in ("MatMul", "FusedMatMul"):
                continue
            ranks = {None if value is None else match.facts.rank(value) for value in product.inputs}
            if None in ranks or len(ranks) > 1:
                return None
    return match.refuse("needless", "root", found="no float16 product of it has operands that may differ in rank")


def _product(build: Any, root: ir.Value) -> ir.Value:
    """The product with a weight on which the runtime may crash."""
    made: ir.Value = build.node("MatMul", [root, build.constant(np.ones((4, 5), np.float16))]).outputs[0]
    return made


def _lifted_permutation(match: Match) -> list[int]:
    return [0, *(axis + 1 for axis in match["perm"])]


vector = var("v", "n")


def _swaps_last_axes(perm: Any, facts: Any) -> bool:
    last = len(perm) - 1 if isinstance(perm, tuple | list) else 0
    return last > 0 and list(perm) == [*range(last - 1), last, last - 1]


_front = computed("front", lambda match: ints([0]))  # axes are an input since opset 13


RULES = [
    Rule(
        name="ort.block_matmul_transpose_fusion",
        formula="transpose(x)",
        pattern=op.Transpose(x, perm=attr("perm", _moves_first_axis, "of the first axis behind the batch")),
        replace=(
            op.Squeeze(op.Transpose(op.Unsqueeze(x, _front), perm=_lifted_permutation), _front),
            op.Squeeze(op.Transpose(op.Unsqueeze(x, axes=(0,)), perm=_lifted_permutation), axes=(0,)),
        ),
        is_refinement=True,
        because=Quirk.CRASHES_ON_MOVED_BATCH_AXIS,
        guards=(crashes_in_product,),
        exactness=Exactness.EXACT,
        source="ONNX Runtime issue 28392",
        test=RuleTest(
            shapes=({"x": "3 b 4"}, {"x": "4 3 b"}, {"x": "3 b 2 4"}),
            attributes=({"perm": [(1, 0, 2)]}, {"perm": [(1, 2, 0)]}, {"perm": [(1, 2, 0, 3)]}),
            dtypes=("float16",),
            followed_by=_product,
            redundant={"check of attribute perm": HEALTHY},
        ),
    ),
    Rule(
        name="ort.transposed_matrix_times_vector_swap",
        formula="swap(x) v, v a vector",
        pattern=op.MatMul(op.Transpose(x, perm=attr("perm", _swaps_last_axes, "that swaps the last two axes")), vector),
        replace=op.MatMul(vector, x),
        is_refinement=True,
        because=Quirk.LOSES_TRANSPOSITION_BEFORE_VECTOR,
        exactness=Exactness.ROUNDING,
        source="ONNX Runtime's MatmulTransposeFusion",
        test=RuleTest(
            shapes=({"x": "n m", "v": "n"}, {"x": "b n m", "v": "n"}),
            attributes=({"perm": [(1, 0)]}, {"perm": [(0, 2, 1)]}),
        ),
    ),
]
