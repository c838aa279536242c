"""Compute indices in int32, for which WebGPU has kernels, where some of their int64 arithmetic reads elements of tensors.

int32(int64(a)) = int32(a)                          a of truth values or int32
gather(x, i) = gather(x, int32(i))                  an index of a run that succeeds is below the size of an axis
int32(a + b) = int32(a) + int32(b)                  also of a - b, a b, -a, where(c, a, b) and cumsum(a), modulo 2^32
int32(move(a)) = move(int32(a))                     move: Unsqueeze, Squeeze, Reshape, Expand, Transpose, Tile, Concat

*Requires:* a Cast of truth values, int32 or floats to int64, a Where, a Range or an ArgMax, among what the arithmetic reads.
Without any, it reads sizes and inputs, which are on the processor, and stays there.

Rationale: WebGPU has no int64 arithmetic. Each time the processor does it with a value that the GPU made, it waits for the GPU.
Truncation commutes with sums and products, so no range has to be known. Where it has to be, `narrow_bounded_arithmetic` does it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, attr, built, computed, op, rest, var
from ortfuse.targets.webgpu.index_ranges import has_elements

LONG, SHORT = ir.DataType.INT64, ir.DataType.INT32
a, b, condition, data, indices, axis = (var(name) for name in ("a", "b", "condition", "data", "indices", "axis"))
sizes = var("sizes")


def reads_elements(match: Match) -> Refusal | None:
    """The arithmetic reads elements of tensors, which the GPU makes."""
    found = match.get("narrowed") if match.get("narrowed") is not None else match.get("indices")
    reads = has_elements(match.facts, found)
    return None if reads else match.refuse("needless", "root", found="it reads sizes and inputs alone")


def is_long(match: Match) -> Refusal | None:
    """The arithmetic is in int64."""
    return match.unless_dtype("narrowed", LONG)


def are_long(match: Match) -> Refusal | None:
    """The indices are in int64, and not those of TopK, which the GPU makes so."""
    node = match["indices"].producer()
    if node is not None and node.op_type == "TopK":
        return match.refuse("needless", "indices", found="those of TopK")
    return match.unless_dtype("indices", LONG)


def _narrow(value: Pattern) -> Pattern:
    made: Pattern = op.Cast(value, to=SHORT)
    return made


_WIDE: tuple[Pattern, ...] = (
    op.Add(a, b).kept(),
    op.Sub(a, b).kept(),
    op.Mul(a, b).kept(),
    op.Where(condition, a, b).kept(),
    op.CumSum(a, axis, exclusive=attr("exclusive"), reverse=attr("reverse")).kept(),
)
_NARROWED: tuple[Pattern, ...] = (
    op.Add(_narrow(a), _narrow(b)),
    op.Sub(_narrow(a), _narrow(b)),
    op.Mul(_narrow(a), _narrow(b)),
    op.Where(condition, _narrow(a), _narrow(b)),
    op.CumSum(_narrow(a), axis, exclusive=attr("exclusive"), reverse=attr("reverse")),
)


_MOVES: dict[str, Callable[[Pattern], Any]] = {
    "Unsqueeze": lambda moved: op.Unsqueeze(moved, axes=attr("axes")),
    "Squeeze": lambda moved: op.Squeeze(moved, axes=attr("axes")),
    "Reshape": lambda moved: op.Reshape(moved, sizes, allowzero=attr("allowzero")),
    "Expand": lambda moved: op.Expand(moved, sizes),
    "Transpose": lambda moved: op.Transpose(moved, perm=attr("perm")),
    "Tile": lambda moved: op.Tile(moved, sizes),
}
"""Data movement, as functions of what is moved."""


def _gathered(positions: Pattern) -> Pattern:
    elements = op.GatherElements(data, positions, axis=attr("axis"))
    return (op.Gather(data, positions, axis=attr("axis")) | elements).named("gathers")


def _either(options: tuple[Pattern, ...]) -> Pattern:
    return functools.reduce(operator.or_, options).named("narrowed")


def _concat_of_narrowed(match: Match) -> Pattern:
    parts = [match.capture(f"part{index}", part) for index, part in enumerate(match["parts"])]
    made: Pattern = op.Concat(*map(_narrow, parts), axis=match["axis"])
    return made


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


def _data_movement_rule(kind: str, shape: str, inputs: dict[str, Any], attributes: dict[str, list[Any]]) -> Rule:
    shapes = {"a": shape} | {name: str(shape.count(" ") + 1) for name in inputs}
    return Rule(
        name=f"index_arithmetic.narrow_{kind.lower()}_to_int32",
        is_refinement=True,
        pattern=op.Cast(_MOVES[kind](a).kept().named("narrowed"), to=SHORT),
        replace=_MOVES[kind](_narrow(a)),
        guards=(is_long, reads_elements),
        exactness=Exactness.EXACT,
        source=f"ONNX operator {kind}",
        test=RuleTest(shapes=shapes, inputs={"a": _widened("a"), **inputs}, attributes=attributes, dtypes=("int64",)),
    )


def _sizes(*numbers: int) -> Any:
    return lambda build: build.constant(np.array(numbers, np.int64))


def _parts(build: Any) -> list[ir.Value]:
    return [_widened("whole")(build), _widened("other")(build)]


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
        guards=(are_long, reads_elements),
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
        guards=(is_long, reads_elements),
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
    Rule(
        name="index_arithmetic.narrow_negative_to_int32",
        is_refinement=True,
        pattern=op.Cast(op.Neg(a).kept().named("narrowed"), to=SHORT),
        replace=op.Sub(computed("zero", lambda match: np.int32(0)), _narrow(a)),
        guards=(is_long, reads_elements),
        exactness=Exactness.EXACT,
        source="-a modulo 2^64, modulo 2^32",
        test=RuleTest(shapes={"a": "b s 4"}, inputs={"a": _widened("a")}, dtypes=("int64",)),
    ),
    _data_movement_rule("Unsqueeze", "b 4", {}, {"axes": [(0,), (1, 3)]}),
    _data_movement_rule("Squeeze", "b 1 4", {}, {"axes": [(1,), (-2,)]}),
    _data_movement_rule("Reshape", "b 4", {"sizes": _sizes(2, -1)}, {"allowzero": [0]}),
    _data_movement_rule("Expand", "1 4", {"sizes": _sizes(3, 4)}, {}),
    _data_movement_rule("Transpose", "b 4", {}, {"perm": [(1, 0)]}),
    _data_movement_rule("Tile", "b 4", {"sizes": _sizes(2, 1)}, {}),
    Rule(
        name="index_arithmetic.narrow_concat_to_int32",
        formula="int32(concat(parts))",
        is_refinement=True,
        pattern=op.Cast(op.Concat(rest("parts"), axis=attr("axis")).kept().named("narrowed"), to=SHORT),
        replace=built(_concat_of_narrowed, makes=("Concat", "Cast")),
        guards=(is_long, reads_elements),
        exactness=Exactness.EXACT,
        source="ONNX operator Concat",
        test=RuleTest(
            shapes={"whole": "b 3", "other": "b 2"}, inputs={"parts": _parts}, attributes={"axis": [1, -1]}, dtypes=("int64",),
            assumes={f"{name} *": "parts have one size along the other axes, as ONNX demands" for name in ("whole", "other")},
        ),
    ),
]  # fmt: skip
