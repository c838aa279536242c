"""Replace comparisons of float Ranges by those of integer Ranges, and masked integer sums by Where.

range(0., float(n), 1.)[:, None] >= range(0., float(n), 1.) = range(0, n, 1)[:, None] >= range(0, n, 1)
int(c) a + int(not c) b = where(c, a, b)           for integers

Rationale: float32 holds all integers up to 2^24, and no memory holds a comparison of more positions. The number of integers in a
Range is known. TensorFlow's exporter makes both; the first is the beginning of a causal mask.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Op, Pattern, attr, built, computed, op, var

from .._shared_guards import ints

SOURCE = "ONNX operators Range and Where"

length, condition, first, second = (var(name) for name in ("length", "condition", "first", "second"))


def _is_float(to: Any, facts: Facts) -> bool:
    return bool(to == ir.DataType.FLOAT)


def _is_one(number: Any, facts: Facts) -> bool:
    return facts.scalar(number) == 1


def _is_zero(number: Any, facts: Facts) -> bool:
    return facts.scalar(number) == 0


positions = op.Range(
    var("start", check=_is_zero, text="0"),
    op.Cast(length, to=attr("to", _is_float, "float32")).kept(),
    var("step", check=_is_one, text="1"),
).kept()


def _along(name: str) -> Pattern:
    return op.Unsqueeze(positions, axes=attr(name)).kept() | positions


def _like_length(number: int, match: Match) -> Any:
    dtype = match.dtype("length")
    assert dtype is not None
    return np.asarray(number, dtype.numpy())


def _counted(match: Match) -> Op:
    """The positions, in the type of their number."""
    zero, one = (computed(str(number), partial(_like_length, number)) for number in (0, 1))
    made: Op = op.Range(zero, length, one)
    return made


def are_compared_with_each_other(match: Match) -> Refusal | None:
    """One operand is a column of the positions, the other a row; their number is a whole one."""
    axes = [match.get(name) for name in ("rows", "columns")]
    column = [tuple(axis) for axis in axes if axis is not None]
    if column not in ([(1,)], [(-1,)]):
        return match.refuse("condition", "root", "one operand with an axis of size 1 behind, and one without")
    return match.unless_dtype("length", ir.DataType.INT32, ir.DataType.INT64)


def _number_of_rows(build: Any) -> ir.Value:
    """The number of rows of an input."""
    shape = build.node("Shape", [build.input("like", ["b", 3])]).outputs[0]
    made: ir.Value = build.node("Gather", [shape, build.constant(np.int64(0))]).outputs[0]
    return made


def _compared(rows: Pattern, columns: Pattern) -> Pattern:
    made: Pattern = op.Greater(rows, columns) | op.GreaterOrEqual(rows, columns) | op.Less(rows, columns)
    return (made | op.LessOrEqual(rows, columns)).named("compared")


def _of_integers(match: Match) -> Pattern:
    row = _counted(match)
    column = op.Unsqueeze(row, computed("axes", lambda match: ints([1])))
    return _compared(*(column if match.get(axes) else row for axes in ("rows", "columns")))


def _as_integer(truth: Pattern) -> Pattern:
    cast: Pattern = op.Cast(truth, to=attr("type")).kept()
    return cast


def chooses_integers(match: Match) -> Refusal | None:
    """Integers are chosen between, by a truth value."""
    refused = match.unless_dtype("condition", ir.DataType.BOOL)
    return refused or match.unless_dtype("first", ir.DataType.INT32, ir.DataType.INT64)


RULES = [
    Rule(
        name="range.comparison_of_float_ranges_to_int",
        formula="range(0., float(n), 1.)[:, None] >= range(0., float(n), 1.)",
        pattern=_compared(_along("rows"), _along("columns")),
        replace=built(_of_integers, makes=("Range", "Unsqueeze", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")),
        guards=(are_compared_with_each_other,),
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes={"length": "", "start": "", "step": ""},
            inputs={"length": _number_of_rows},
            constants={"start": 0.0, "step": 1.0},
            attributes={"to": [int(ir.DataType.FLOAT)], "rows": [(1,), (-1,)], "columns": [(1,)]},
        ),
    ),
    Rule(
        name="where.masked_sum_to_where",
        formula="int(c) a + int(not c) b",
        pattern=op.Add(op.Mul(_as_integer(condition), first), op.Mul(_as_integer(op.Not(condition).kept()), second)),
        replace=op.Where(condition, first, second),
        guards=(chooses_integers,),
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes={"condition": "b 3", "first": "b 3", "second": "1"},
            dtypes=("int32",),
            inputs={"condition": "bool"},
            attributes={"type": [int(ir.DataType.INT32)]},
        ),
    ),
]
