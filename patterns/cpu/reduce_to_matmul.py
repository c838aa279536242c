"""Replace ReduceSum and ReduceMean over leading axes by a MatMul with a row of equal numbers.

sum(x, rows) = ones x, x as a matrix          mean(x, rows) = (ones x) / rows

A batch that may be empty takes a Conv with one kernel instead, which is as fast: the runtime refuses a MatMul over no matrices.

Rationale: the kernels of reductions walk through columns; those of MatMul read memory as it lies, and are 2 to 12 times faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.dims import DimLike, is_nonzero, product, reshape_target
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, Pattern, attr, computed, op, var

from .._shared_guards import array_like, given_axes, ints, is_not_quantised

PASS = "target_decompositions"

x = var("x")

MOST = 65536
"""The longest row of equal numbers that a model is given."""


def _reduced(match: Match) -> tuple[int, ...] | None:
    """The reduced axes, ascending; `None` if they or the rank are unknown."""
    rank = match.rank("x")
    if rank is None or match["axes"] is None:
        return None
    return tuple(sorted({axis % rank for axis in match["axes"]}))


def reduces_known_rows(match: Match) -> Refusal | None:
    """Consecutive axes of known size are reduced, and others follow."""
    reduced, shape = _reduced(match), match.shape("x")
    if reduced is None or shape is None:
        return match.refuse("shape", "x")
    if not reduced or reduced != tuple(range(reduced[0], reduced[-1] + 1)) or reduced[-1] == len(shape) - 1:
        return match.refuse("value", "axes", "one behind the other, with others behind them")
    sizes = [size for size in (shape[axis] for axis in reduced) if isinstance(size, int)]
    if len(sizes) < len(reduced) or not 1 < math.prod(sizes) <= MOST:
        return match.refuse("shape", "x", f"2 to {MOST} known elements to reduce")
    if _may_be_empty(match) and not is_nonzero(_merged(match)[-1]):
        return match.refuse("shape", "x", "axes behind the reduced ones that are greater than 0")
    return _unless_targets(match)


def _may_be_empty(match: Match) -> bool:
    """Whether there may be no matrix at all in a batch: of these, the runtime has convolutions, but no product with one row."""
    reduced, shape = _reduced(match), match.shape("x")
    assert reduced is not None and shape is not None
    return not all(is_nonzero(size) for size in shape[: reduced[0]])


def _unless_targets(match: Match) -> Refusal | None:
    known = _there(match) is not None and _back(match) is not None
    return None if known else match.refuse("shape", "x", "one whose merged axes can be told apart")


def _merged(match: Match) -> tuple[DimLike, ...]:
    """The shape with the reduced axes as one, and those behind them as one; those before them too, if they may be empty."""
    reduced, shape = _reduced(match), match.shape("x")
    assert reduced is not None and shape is not None
    before, rows = shape[: reduced[0]], product(shape[reduced[0] : reduced[-1] + 1])
    if _may_be_empty(match):
        before = (product(before),)
    return (*before, rows, product(shape[reduced[-1] + 1 :]))


def _as_matrices(match: Match) -> dict[str, tuple[DimLike, ...]]:
    """The sizes that the cost depends on: the number of matrices, which the threads share, and their rows and columns."""
    *before, rows, columns = _merged(match)
    return {"x": (product(before), rows, columns)}


def _result(match: Match) -> tuple[DimLike, ...]:
    reduced, shape = _reduced(match), match.shape("x")
    assert reduced is not None and shape is not None
    between = (1,) * len(reduced) if match["keepdims"] == 1 else ()
    return (*shape[: reduced[0]], *between, *shape[reduced[-1] + 1 :])


def _there(match: Match) -> list[int] | None:
    return reshape_target(match.shape("x") or (), _merged(match))


def _back(match: Match) -> list[int] | None:
    *leading, _, last = _merged(match)
    return reshape_target((*leading, 1, last), _result(match))


def _as_product(*, divided: bool) -> Callable[[Match], Pattern]:
    """The sum as a product, `divided` by how many rows there are: weights of 1 / rows if that is exact.

    What is left of x after its mean is taken away may be nothing but the rounding of these.
    """

    def made(match: Match) -> Pattern:
        merged, shape, result = _merged(match), match.shape("x"), _result(match)
        rows = int(merged[-2])  # type: ignore[arg-type]
        matrix = x if merged == shape else op.Reshape(x, computed("there", lambda match: ints(_there(match) or ())))
        is_convolved = _may_be_empty(match)
        sizes = (1, rows, 1) if is_convolved else (1, rows)
        exact = divided and not rows & (rows - 1)
        row = computed("row", lambda match: array_like(match, np.full(sizes, 1 / rows if exact else 1.0)))
        total = op.Conv(matrix, row) if is_convolved else op.MatMul(row, matrix)
        if divided and not exact:
            total = op.Div(total, computed("count", lambda match: array_like(match, rows)))
        if result == (*merged[:-2], 1, merged[-1]):
            return total
        return op.Reshape(total, computed("back", lambda match: ints(_back(match) or ())))

    return made


def is_single_or_double(match: Match) -> Refusal | None:
    """x is of float32 or float64.

    The runtime reduces half precision in float32, and what comes in and goes out stays so where its neighbours are computed in
    float32 too. A Reshape beside it rounds to half precision, and so are weights of 1 / n.
    """
    wide = match.dtype("x") in (ir.DataType.FLOAT, ir.DataType.DOUBLE)
    return None if wide else match.refuse("dtype", "x", "float32 or float64")


def _reduction_rule(name: str, operator: str, *, divided: bool) -> Rule:
    far: dict[str, Any] = {"axes": [(1,), (-2,)], "keepdims": [0, 1]}
    return Rule(
        name=f"reduction.{name}",
        formula=f"{operator}(x) over axes before others",
        pattern=getattr(op, operator)(x, axes=given_axes, keepdims=attr("keepdims")),
        replace=_as_product(divided=divided),
        makes=("Reshape", "MatMul", "Conv", "Div") if divided else ("Reshape", "MatMul", "Conv"),
        guards=(reduces_known_rows, is_single_or_double, is_not_quantised),
        exactness=Exactness.ROUNDING,
        compared_by=_as_matrices,
        source=f"ONNX operator {operator}",
        test=RuleTest(
            shapes=({"x": "b 3 4"}, {"x": "b 3 4 2"}, {"x": "b 2 3 4"}, {"x": "2 3 s"}, {"x": "3 s"}),
            attributes=(
                far,
                {"axes": [(1,), (1, 2)], "keepdims": [0, 1]},
                {"axes": [(2,)], "keepdims": [0, 1]},
                far,
                {"axes": [(0,)], "keepdims": [0, 1]},
            ),
            counterexamples={
                "the last axis": Variation(attributes={"axes": (1, 2), "keepdims": 0}),
                "axes apart": Variation(shapes={"x": "2 3 4"}, attributes={"axes": (0, 2), "keepdims": 0}),
            },
            typical=tuple(
                {"x": size}
                for size in (
                    "1 197 768",
                    "1 64 768",
                    "1 16 384",
                    "8 197 384",
                    "1 512 1024",
                    "1 64 3136",
                    "8 64 196",
                    "1 2 512",
                    "1 49 768",
                    "8 49 768",
                )
            ),
            never_empty={"*": "the kernels of some reductions keep the axes of an empty tensor"},
        ),
    )


RULES = [
    _reduction_rule("leading_sum_to_matmul_with_ones", "ReduceSum", divided=False),
    _reduction_rule("leading_mean_to_matmul_with_shares", "ReduceMean", divided=True),
]
