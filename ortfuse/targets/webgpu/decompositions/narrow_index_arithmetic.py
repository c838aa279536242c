"""Compute indices in int32, for which WebGPU has kernels, where some of their int64 arithmetic reads values of the GPU.

int32(int64(a)) = int32(a)                          a of truth values or int32
gather(x, i) = gather(x, int32(i))                  an index of a run that succeeds is below the size of an axis
int32(a + b) = int32(a) + int32(b)                  also of a - b, a b, where(c, a, b) and cumsum(a), modulo 2^32

*Requires:* a Cast of truth values or int32 to int64, or a Where, among the operands of the arithmetic. Without any, it reads
sizes and inputs, which are on the processor, and stays there.

Rationale: WebGPU has no int64 arithmetic. Each time the processor does it with a value that the GPU made, it waits for the GPU.
Truncation commutes with sums and products, so no range has to be known.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, attr, op, var

LONG, SHORT = ir.DataType.INT64, ir.DataType.INT32
ARITHMETIC = ("Add", "Sub", "Mul", "CumSum", "Where")
"""Operators that commute with truncation to fewer bits."""

MOST_NODES = 64
"""The most nodes above an index that are looked at."""

a, b, condition, data, indices, axis = (var(name) for name in ("a", "b", "condition", "data", "indices", "axis"))


def _reads_gpu(value: ir.Value | None, match: Match) -> bool:
    """Whether int64 arithmetic reads something that the GPU may have made."""
    stack, seen = [value], set[ir.Value]()
    while stack and len(seen) < MOST_NODES:
        one = stack.pop()
        node = None if one is None else one.producer()
        if one is None or node is None or one in seen or node.domain not in ("", "ai.onnx"):
            continue
        seen.add(one)
        if node.op_type == "Where":
            return True
        if node.op_type == "Cast" and match.facts.dtype(node.inputs[0]) in (SHORT, ir.DataType.BOOL):
            return True
        if node.op_type in ARITHMETIC:
            stack += [given for given in node.inputs if match.facts.dtype(given) == LONG]
    return False


def reads_values_of_the_gpu(match: Match) -> Refusal | None:
    """The arithmetic reads truth values or int32, which the GPU computes."""
    found = _reads_gpu(match["narrowed"] if match.get("narrowed") is not None else match["indices"], match)
    return None if found else match.refuse("needless", "root", found="it reads sizes and inputs alone")


def is_long(match: Match) -> Refusal | None:
    """The arithmetic is in int64."""
    return match.unless_dtype("narrowed", LONG)


def are_long(match: Match) -> Refusal | None:
    """The indices are in int64."""
    return match.unless_dtype("indices", LONG)


def _narrow(value: Pattern) -> Pattern:
    made: Pattern = op.Cast(value, to=SHORT)
    return made


_WIDE: tuple[Pattern, ...] = (
    op.Add(a, b),
    op.Sub(a, b),
    op.Mul(a, b),
    op.Where(condition, a, b),
    op.CumSum(a, axis, exclusive=attr("exclusive"), reverse=attr("reverse")),
)
_NARROWED: tuple[Pattern, ...] = (
    op.Add(_narrow(a), _narrow(b)),
    op.Sub(_narrow(a), _narrow(b)),
    op.Mul(_narrow(a), _narrow(b)),
    op.Where(condition, _narrow(a), _narrow(b)),
    op.CumSum(_narrow(a), axis, exclusive=attr("exclusive"), reverse=attr("reverse")),
)


def _gathered(positions: Pattern) -> Pattern:
    elements = op.GatherElements(data, positions, axis=attr("axis"))
    return (op.Gather(data, positions, axis=attr("axis")) | elements).named("gathers")


def _either(options: tuple[Pattern, ...]) -> Pattern:
    return functools.reduce(operator.or_, options).named("narrowed")


def _widened(name: str) -> Any:
    """Numbers that come from int32."""

    def make(build: Any) -> ir.Value:
        value = build.input(name, build.dims(name), SHORT)
        made: ir.Value = build.node("Cast", [value], {"to": int(LONG)}).outputs[0]
        return made

    return make


def _some_indices(build: Any) -> ir.Value:
    """Valid indices, computed of truth values."""
    value = build.input("flags", build.dims("indices"), ir.DataType.BOOL)
    made: ir.Value = build.node("Cast", [value], {"to": int(LONG)}).outputs[0]
    return made


def is_short(match: Match) -> Refusal | None:
    """The value is int32."""
    return match.unless_dtype("a", SHORT)


def is_truth(match: Match) -> Refusal | None:
    """The value is a truth value."""
    return match.unless_dtype("a", ir.DataType.BOOL)


RULES = [
    Rule(
        name="index_arithmetic.drop_casts_to_int64_and_back",
        is_refinement=True,
        pattern=op.Cast(op.Cast(a, to=LONG).kept(), to=SHORT),
        replace=a,
        guards=(is_short,),
        exactness=Exactness.EXACT,
        source="ONNX operator Cast",
        test=RuleTest(shapes={"a": "b s 4"}, dtypes=("int32",)),
    ),
    Rule(
        name="index_arithmetic.cast_truth_values_to_int32_at_once",
        is_refinement=True,
        pattern=op.Cast(op.Cast(a, to=LONG).kept(), to=SHORT),
        replace=_narrow(a),
        guards=(is_truth,),
        exactness=Exactness.EXACT,
        source="ONNX operator Cast",
        test=RuleTest(shapes={"a": "b s 4"}, dtypes=("bool",)),
    ),
    Rule(
        name="index_arithmetic.gather_of_int64_to_int32",
        is_refinement=True,
        pattern=_gathered(indices),
        replace=_gathered(_narrow(indices)),
        guards=(are_long, reads_values_of_the_gpu),
        exactness=Exactness.EXACT,
        source="ONNX operators Gather and GatherElements",
        test=RuleTest(
            shapes={"data": "2 3", "indices": "2 3"},
            inputs={"indices": _some_indices},
            attributes={"axis": [0, 1, -1]},
        ),
    ),
    Rule(
        name="index_arithmetic.narrow_to_int32",
        is_refinement=True,
        pattern=op.Cast(_either(_WIDE), to=SHORT),
        replace=_either(_NARROWED),
        guards=(is_long, reads_values_of_the_gpu),
        exactness=Exactness.EXACT,
        source="a + b modulo 2^64, modulo 2^32",
        test=RuleTest(
            shapes={"a": "b s 4", "b": "b s 4", "condition": "b s 4", "axis": ""},
            inputs={
                "a": _widened("a"),
                "b": _widened("b"),
                "condition": "bool",
                "axis": lambda build: build.constant(np.array(1, np.int64)),
            },
            attributes={"exclusive": [0, 1], "reverse": [0, 1]},
            dtypes=("int64",),
        ),
    ),
]  # fmt: skip
