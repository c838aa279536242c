"""Replace a MatMul with a vector or a single column by one with a single row and a transposed operand.

x v = squeeze(v' x')          x W = unsqueeze(squeeze(W' x')), W a constant of one column

Rationale: the kernel of MatMul has a loop of its own for one row, whichever way the other operand is stored, and none for one
column. The latter takes 1.5 to 2.2 times as long, and an operand of rank 1 behind the matrix 3 to 15 times.
"""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.ir.dims import Dim, is_nonzero
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, computed, const, ms, op, redundant, var

from .._rule_test_inputs import COST
from .._shared_guards import ints

PASS = "target_decompositions"
TARGETS = ("cpu",)

SOURCE = "ONNX operator MatMul"

x = var("x", "... m k")

NEVER_EMPTY = {"*": "sums of no products are left to the kernel that was asked for them"}


def in_float32(match: Match) -> Refusal | None:
    """FusedMatMul computes in float32 alone."""
    return match.unless_dtype("x", ir.DataType.FLOAT)


@redundant(COST)
def has_rows(match: Match) -> Refusal | None:
    """x has more than one row."""
    shape = match.shape("x")
    single = shape is not None and shape[-2] == 1
    return match.refuse("needless", "x", found="it has a single row") if single else None


@redundant(COST)
def is_no_batch(match: Match) -> Refusal | None:
    """The rows are not those of a dynamic batch, where MatMul and its bias are one kernel."""
    shape = match.shape("x")
    batch = shape is not None and len(shape) == 2 and isinstance(shape[0], Dim)
    return match.refuse("needless", "x", found="its rows may be those of a batch") if batch else None


@redundant("only sums of nothing show it, which the kernel leaves as the memory was")
def sums_something(match: Match) -> Refusal | None:
    """The summed axis is never empty."""
    shape = match.shape("x")
    if shape is None:
        return match.refuse("shape", "x")
    return None if is_nonzero(shape[-1]) else match.refuse_dimension("x", len(shape) - 1, "greater than 0")


def _row(name: str) -> Pattern:
    return computed("row", lambda match: match.const(name).reshape(1, -1))


def _behind(match: Match) -> Pattern:
    known = match.facts.is_const(match["v"])
    return _turned(_row("v") if known else op.Unsqueeze(var("v"), computed("first", lambda match: ints([0]))))


def _turned(row: Pattern) -> Pattern:
    """The product of a row with x, read transposed, without the axis of the row."""
    made: Pattern = op.Squeeze(ms.FusedMatMul(row, x, transB=1), computed("second_last", lambda match: ints([-2])))
    return made


RULES = [
    Rule(
        name="gemv.matmul_by_vector",
        formula="x v, v a vector",
        pattern=op.MatMul(x, var("v", "k")),
        replace=_behind,
        makes=("Unsqueeze", "com.microsoft.FusedMatMul", "Squeeze"),
        guards=(in_float32, has_rows, sums_something),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=RuleTest(
            shapes=({"x": "m 3", "v": "3"}, {"x": "b m 3", "v": "3"}),
            typical=({"x": "1 128 768", "v": "768"}, {"x": "8 16 768", "v": "768"}, {"x": "32 7 32", "v": "32"}),
            redundant={"dimension *": "the product itself asks for it"},
            never_empty=NEVER_EMPTY,
        ),
    ),
    Rule(
        name="gemv.matmul_by_single_column",
        formula="x W, W of one column",
        pattern=op.MatMul(x, const("weight", "k 1")),
        replace=op.Unsqueeze(_turned(_row("weight")), computed("last", lambda match: ints([-1]))),
        guards=(in_float32, has_rows, is_no_batch, sums_something),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=RuleTest(
            shapes=({"x": "4 3", "weight": "3 1"}, {"x": "b m 3", "weight": "3 1"}),
            typical=(
                {"x": "1 128 768", "weight": "768 1"},
                {"x": "8 16 768", "weight": "768 1"},
                {"x": "32 7 32", "weight": "32 1"},
                {"x": "1 16 768", "weight": "768 1"},
            ),
            redundant={"dimension *": "the product itself asks for it"},
            never_empty=NEVER_EMPTY,
        ),
    ),
]
