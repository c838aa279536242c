"""Remove Casts to a wider type around operators that are exact in the narrow type.

cast(f(cast(x))) = f(x)                     f one of Neg, Abs, Relu, Floor, Ceil, Round, Sign
cast(max(cast(x), cast(y))) = max(x, y)     cast(x) < cast(y) = x < y

where the wider type holds every number of x and y. The first two hold for floating-point numbers: an integer may have no
negative in its type.

slice(cast(shape(x))) = cast(slice(shape(x)))       likewise Gather: the Cast sinks, so that Shape and its reader are neighbours
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from ortfuse.ir.remark import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, Pattern, attr, op, opt, var

from .._shared_guards import snake_case
from .algebraic_identities import holds_all

x, y = var("x"), var("y")

_UNARY = ("Neg", "Abs", "Relu", "Floor", "Ceil", "Round", "Sign")
_BINARY = ("Max", "Min")
_COMPARED = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")


def _wide(operand: Pattern) -> Pattern:
    made: Pattern = op.Cast(operand, to=attr("between")).kept()
    return made


def widens(match: Match) -> Refusal | None:
    """Both operands have the same type, whose numbers the type between holds."""
    before = match.dtype("x")
    if before is None or (match.get("y") is not None and match.dtype("y") != before):
        return match.refuse("dtype", "x", "that of the other operand")
    held = holds_all(ir.DataType(match["between"]), before)
    return None if held else match.refuse("attribute", "between", f"a type that holds every {before.name.lower()}")


def comes_back(match: Match) -> Refusal | None:
    """x is of floating-point numbers, and the result is of its type again."""
    before = match.dtype("x")
    if before is None or not before.is_floating_point():
        return match.refuse("dtype", "x", "floating-point numbers")
    return match.unless_value("to", match["to"] == before.value, "the type of x again")


def _cast_rule(name: str, pattern: Pattern, replace: Pattern, *guards: Callable[[Match], Refusal | None]) -> Rule:
    lost = Variation(inputs={"x": "float32", "y": "float32"}, attributes={"between": ir.DataType.FLOAT16.value})
    return Rule(
        name=f"cast.remove_{'before' if name in _COMPARED else 'around'}_{snake_case(name)}",
        pattern=pattern,
        replace=replace,
        guards=guards,
        # Of two zeros, either may be picked.
        exactness=Exactness.ROUNDING if name in (*_BINARY, "Relu") else Exactness.EXACT,
        source="ONNX operator Cast",
        test=RuleTest(
            shapes={"x": "b 3", "y": "3"},
            attributes={"between": [ir.DataType.DOUBLE.value], "to": [ir.DataType.FLOAT.value]},
            counterexamples={"digits lost": lost},
            opset=20,
        ),
    )


sizes = op.Shape(x, start=attr("start"), end=attr("end"))
converted = op.Cast(sizes.kept(), to=attr("to")).kept()
parts = {name: var(name) for name in ("starts", "ends", "axes", "steps")}


def _of_sizes(name: str, of: Callable[[Pattern], Pattern]) -> Rule:
    """Some of the sizes, converted."""
    return Rule(
        name=f"cast.sink_below_{name}_of_shape",
        pattern=of(converted),
        replace=op.Cast(of(sizes), to=attr("to")),
        exactness=Exactness.EXACT,
        source="ONNX operator Cast",
        test=RuleTest(
            shapes={"x": "b 3 4", **dict.fromkeys(parts, "1"), "places": "2"},
            constants={"starts": [1], "ends": [3], "axes": [0], "steps": [1], "places": [2, 0]},
            attributes={
                "to": [ir.DataType.INT32.value, ir.DataType.FLOAT.value],
                "start": [0],
                "end": [3],
                "axis": [0],
            },
            opset=20,
        ),
    )


RULES = [
    _of_sizes(
        "slice", lambda of: op.Slice(of, parts["starts"], parts["ends"], opt(parts["axes"]), opt(parts["steps"]))
    ),
    _of_sizes("gather", lambda of: op.Gather(of, var("places"), axis=attr("axis"))),
    *(
        _cast_rule(name, op.Cast(getattr(op, name)(_wide(x)), to=attr("to")), getattr(op, name)(x), widens, comes_back)
        for name in _UNARY
    ),
    *(
        _cast_rule(name, op.Cast(build(_wide(x), _wide(y)), to=attr("to")), build(x, y), widens, comes_back)
        for name, build in ((name, getattr(op, name)) for name in _BINARY)
    ),
    *(
        _cast_rule(name, build(_wide(x), _wide(y)), build(x, y), widens)
        for name, build in ((name, getattr(op, name)) for name in _COMPARED)
    ),
]
