"""Sink Expand below elementwise operators, and drop it where they broadcast by themselves.

x / expand(y, shape(x)) = x / y            likewise of every operator that broadcasts, on either side, and of Tile
f(expand(y, shape), z) = expand(f(y, z), shape)                    where f(y, z) is smaller: fewer elements are computed

Traits tell which operators broadcast. The second identity holds whatever shape z has: Expand broadcasts in both directions.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import onnx_ir as ir

from ortfuse.ir.dims import DimLike
from ortfuse.ir.refusal import Refusal
from ortfuse.ir.traits import BROADCASTS, COMMUTES, ELEMENTWISE, LOGICAL
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Op, Pattern, all_attributes, attr, op, redundant, var

from .._rule_test_inputs import COST, SHAPES, computed_shape

SOURCE = "Multidirectional broadcasting in ONNX"

Shape = Sequence[DimLike]

x, y, z = var("x"), var("y"), var("z")
_shape = var("shape")
_attributes = all_attributes("attributes")

_TRUTHS = tuple(sorted(BROADCASTS & LOGICAL))
_INTEGERS = frozenset({"BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "Mod", "Not"})
_OTHERWISE = frozenset({"Where", "PRelu", "Cast", "CastLike", "BitCast", "Clip", "HardSwish", "Mish", "Swish"})
"""Operators with operands or attributes that all others lack, or of a later opset."""

_BINARY = tuple(sorted({name for name in BROADCASTS - LOGICAL if "." not in name} - _INTEGERS - _OTHERWISE))
_UNARY = tuple(sorted({name for name in ELEMENTWISE if "." not in name} - _INTEGERS - _OTHERWISE))

_wide = op.Expand(y, _shape).kept().named("expanded")
_expanded = (op.Expand(y, _shape).kept() | op.Tile(y, var("repeats")).kept()).named("expanded")


def _node(name: str, *operands: Pattern) -> Op:
    made: Op = getattr(op, name)(*operands, attributes=_attributes)
    return made


def _on_either_side(name: str, expanded: Pattern, other: Pattern) -> list[Pattern]:
    """The operator with an expanded operand, on each side on which it is another pattern."""
    first = [] if name in COMMUTES else [_node(name, expanded, other)]
    return [_node(name, other, expanded), *first]


def is_broadcast(match: Match) -> Refusal | None:
    """Nothing but axes of size 1 is repeated: a Tile may repeat others."""
    shapes = match.shapes("y", "expanded")
    if isinstance(shapes, Refusal):
        return shapes
    before, after = (shape[::-1] for shape in shapes)
    once = len(before) <= len(after) and all(
        dim in (1, other) for dim, other in zip(before, after[: len(before)], strict=True)
    )
    return match.unless_value("y", once, "of size 1 along each axis that is repeated")


def _is_as_large(whole: Shape, *operands: Shape) -> bool:
    """Whether operands are broadcast to this shape together."""
    return max(map(len, operands)) == len(whole) and all(
        dim == 1 or any(axis < len(shape) and shape[::-1][axis] == dim for shape in operands)
        for axis, dim in enumerate(whole[::-1])
    )


def result_stays_as_large(match: Match) -> Refusal | None:
    """The operands broadcast to the result without the Expand."""
    names = [name for name in ("x", "z") if match.get(name) is not None]
    shapes = match.shapes("root", "y", *names)
    if isinstance(shapes, Refusal):
        return shapes
    return match.unless_value("y", _is_as_large(*shapes), "broadcast to the result by another operand")


@redundant(COST)
def others_are_computed(match: Match) -> Refusal | None:
    """No other operand is one number everywhere, of which the Expand is to be dropped rather."""
    others = [
        name for name in ("x", "z") if match.get(name) is not None and any(dim != 1 for dim in match.shape(name) or ())
    ]
    filled = [name for name in others if match.facts.fill(match[name]) is not None]
    return match.refuse("needless", filled[0], found="it is one number everywhere") if filled else None


def _without_expand(match: Match) -> Pattern:
    """The node at the root with what is expanded in place of each use of the expanded value."""
    node = match.root.producer()
    assert node is not None
    operands = [
        y if value is match["expanded"] else match.capture(f"operand_{number}", value) if value is not None else None
        for number, value in enumerate(node.inputs)
    ]
    return Op(node.op_type, operands, {name: one.value for name, one in node.attributes.items()})


@redundant(COST)
def computes_fewer(match: Match) -> Refusal | None:
    """The result without the Expand is smaller, which has no other user unless it is of truth values."""
    shapes = match.shapes("root", "y", *(name for name in ("x", "z") if match.get(name) is not None))
    if isinstance(shapes, Refusal):
        return shapes
    whole, *operands = shapes
    if _is_as_large(whole, *operands):
        return match.refuse("needless", "root", found="as many elements would be computed")
    alone = match.dtype("y") == ir.DataType.BOOL or not match.is_used_elsewhere("expanded")
    return None if alone else match.refuse("use", "expanded", "this one alone")


def _sunk(match: Match) -> Pattern:
    made: Pattern = op.Expand(_without_expand(match), _shape)
    return made


_BOOL = {"x": "bool", "y": "bool", "z": "bool"}


def _rule(
    name: str, formula: str, options: Sequence[Pattern], makes: Sequence[str], inputs: Mapping[str, Any], *, sinks: bool
) -> Rule:
    return Rule(
        name=f"broadcast.{name}",
        formula=formula,
        pattern=reduce(operator.or_, options),
        replace=_sunk if sinks else _without_expand,
        makes=(*makes, *(["Expand"] if sinks else [])),
        guards=(
            is_broadcast,
            *((computes_fewer,) if sinks else (redundant(SHAPES)(result_stays_as_large), others_are_computed)),
        ),
        # The runtime's Where takes the sign of a zero from one of its branches only, and functions round in vectors otherwise.
        exactness=Exactness.EXACT if inputs == _BOOL or not (sinks or "Where" in makes) else Exactness.ROUNDING,
        source=SOURCE,
        test=RuleTest(
            shapes={"x": "b 3 1" if sinks else "b 3 4", "y": "b 3 1", "z": "1", "shape": "3", "repeats": "3"},
            inputs={"shape": computed_shape("y", 1, [3, 4]), **inputs},
            constants={"repeats": [1, 1, 4]},
            attributes={"attributes": [{}], "to": [ir.DataType.FLOAT16.value]},
        ),
    )


def _options(names: Sequence[str], expanded: Pattern, other: Pattern) -> list[Pattern]:
    return [option for name in names for option in _on_either_side(name, expanded, other)]


_branches = [op.Where(x, _expanded, z), op.Where(x, z, _expanded)]

RULES = [
    _rule("drop_expand_of_operand", "x / expand(y)", _options(_BINARY, _expanded, x), _BINARY, {}, sinks=False),
    _rule("drop_expand_of_truths", "x & expand(y)", _options(_TRUTHS, _expanded, x), _TRUTHS, _BOOL, sinks=False),
    _rule(
        "drop_expand_of_condition",
        "where(expand(y), x, z)",
        [op.Where(_expanded, x, z)],
        ("Where",),
        {"y": "bool"},
        sinks=False,
    ),
    _rule("drop_expand_of_branch", "where(x, expand(y), z)", _branches, ("Where",), {"x": "bool"}, sinks=False),
    _rule(
        "sink_expand_below_operators",
        "f(expand(y), z)",
        [*_options(_BINARY, _wide, z), *(_node(name, _wide) for name in _UNARY), op.Cast(_wide, to=attr("to"))],
        (*_BINARY, *_UNARY, "Cast"),
        {},
        sinks=True,
    ),
    _rule(
        "sink_expand_below_logic",
        "expand(y) & z",
        [*_options(_TRUTHS, _wide, z), op.Not(_wide), op.Cast(_wide, to=attr("to"))],
        (*_TRUTHS, "Not", "Cast"),
        _BOOL,
        sinks=True,
    ),
    _rule(
        "sink_expand_below_condition",
        "where(expand(y), x, z)",
        [op.Where(_wide, x, z)],
        ("Where",),
        {"y": "bool"},
        sinks=True,
    ),
    _rule(
        "sink_expand_below_branch",
        "where(x, expand(y), z)",
        [op.Where(x, _wide, z), op.Where(x, z, _wide)],
        ("Where",),
        {"x": "bool"},
        sinks=True,
    ),
]
