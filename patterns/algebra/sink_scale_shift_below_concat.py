"""Sink Mul and Add with constants below a Concat: one multiplication and addition for all its operands.

concat(x a + b, y c + d) = concat(x, y) concat(a, c) + concat(b, d)

Rationale: implementations of Inception (Szegedy et al., arXiv:1512.00567) renormalise their input a channel at a time. The Conv
behind the Concat can then fold the one map.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, Pattern, attr, computed, const, op, redundant, var

from .._rule_test_inputs import COST

PASS = "fuse.sink_below_concat"

SOURCE = "ONNX operator Concat"
MOST = 4
"""The most parts."""
FEW = 1 << 12
"""The most elements along the joined axis: the constants have as many."""

Array = np.ndarray[Any, Any]


def _operand_numbers(match: Match) -> range:
    """The numbers of the parts that matched."""
    return range(1, 1 + sum(match.get(f"x{number}") is not None for number in range(1, MOST + 1)))


def _spread(match: Match, name: str, number: int) -> Array | None:
    """A constant with an element for each place of its part along the joined axis; `None` if it differs along another axis."""
    shape, array = match.shape(f"x{number}"), match.const(f"{name}{number}")
    if shape is None or not -len(shape) <= match["axis"] < len(shape) or array.ndim > len(shape):
        return None
    axis = match["axis"] % len(shape)
    size = shape[axis]
    sizes = (1,) * (len(shape) - array.ndim) + array.shape
    if not isinstance(size, int) or any(dim != 1 for place, dim in enumerate(sizes) if place != axis):
        return None
    if sizes[axis] not in (1, size):
        return None
    wanted = [size if place == axis else 1 for place in range(axis, len(shape))]
    return np.broadcast_to(array.reshape(sizes[axis:]), wanted)


def differ_along_one_axis(match: Match) -> Refusal | None:
    """The constants are numbers, or vectors along the Concat axis, whose sizes are known."""
    for number in _operand_numbers(match):
        for name in ("a", "b"):
            if _spread(match, name, number) is None:
                return match.refuse(
                    "value", f"{name}{number}", "one number, or one for each place along the joined axis"
                )
    return None


def agree_elsewhere(match: Match) -> Refusal | None:
    """The operands have the same sizes along the other axes; the runtime skips empty ones of any size."""
    shapes = [match.shape(f"x{number}") or () for number in _operand_numbers(match)]
    others = [[*shape[: match["axis"] % len(shape)], *shape[match["axis"] % len(shape) + 1 :]] for shape in shapes]
    for number, sizes in enumerate(others, 1):
        if sizes != others[0]:
            return match.refuse("shape", f"x{number}", "the sizes of x1 but along the joined axis")
    return None


@redundant(COST)
def are_few(match: Match) -> Refusal | None:
    """The constants stay small."""
    total = sum(array.size for number in _operand_numbers(match) if (array := _spread(match, "a", number)) is not None)
    return None if total <= FEW else match.refuse("needless", "root", found="the constants would be large")


def _whole(name: str) -> Callable[[Match], Array]:
    """The constants of all parts, joined."""

    def joined(match: Match) -> Array:
        parts = [array for number in _operand_numbers(match) if (array := _spread(match, name, number)) is not None]
        return np.concatenate(parts)

    return joined


def _concat_of_maps(count: int) -> Pattern:
    maps = [op.Add(op.Mul(var(f"x{n}"), const(f"a{n}")), const(f"b{n}")) for n in range(1, count + 1)]
    made: Pattern = op.Concat(*maps, axis=attr("axis"))
    return made


def _map(match: Match) -> Pattern:
    whole = op.Concat(*(var(f"x{number}") for number in _operand_numbers(match)), axis=match["axis"])
    return op.Add(op.Mul(whole, computed("factor", _whole("a"))), computed("term", _whole("b")))


_SHAPES = {"x1": "b 1 4", "x2": "b 2 4", "x3": "b 1 4", "x4": "b 1 4"}
_NUMBERS = {f"{name}{number}": "" for name in "ab" for number in range(1, MOST + 1)}

RULES = [
    Rule(
        name="scale_shift.sink_below_concat",
        formula="concat(x1 a1 + b1, x2 a2 + b2, ...)",
        pattern=_concat_of_maps(2) | _concat_of_maps(3) | _concat_of_maps(4),
        replace=_map,
        makes=("Concat", "Mul", "Add"),
        guards=(differ_along_one_axis, agree_elsewhere, are_few),
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes=(_SHAPES | _NUMBERS, _SHAPES | _NUMBERS | {"a2": "2 1", "b2": "1 2 1", "b1": "1"}),
            attributes={"axis": [1, -2]},
            counterexamples={
                "a row of factors": Variation(shapes={"a1": "4"}),
                "a column of terms": Variation(shapes={"b2": "2 4"}),
            },
        ),
    )
]
