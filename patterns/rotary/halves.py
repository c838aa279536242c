"""Rotary position embedding (RoPE) spelled by the two parts of x, turned as a complex number a + ib by cos + i sin.

    rope(x) = join(a cos - b sin, b cos + a sin),   a, b = parts of x          Su et al., arXiv:2104.09864

The parts are the halves of the last axis, joined one after the other, or its even and odd elements, joined pair by pair.
Cosines and sines are of half the size of x, as the operator reads them.
"""

from __future__ import annotations

from typing import Any

from ortfuse.pattern import Guard, Match, Pattern, attr, computed, op, var
from ortfuse.refusal import Refusal
from ortfuse.rewrite import Exactness, Proof, Rule

from .._common import ints
from .._proofs import RANKS
from ._parts import (
    HEADS_FIRST,
    LENGTH_FIRST,
    NEVER_EMPTY,
    PAPER,
    cos,
    even,
    even_size,
    high,
    low,
    not_halves,
    odd,
    odd_size,
    one_angle_for_each_position,
    rotary,
    sin,
    x,
)

halves = op.Split(x, axis=-1, split=attr("halves"), num_outputs=attr("halves_count"), outputs=2)
low_half, high_half = (low | halves[0]).named("low"), (high | halves[1]).named("high")

# [..., size] as [..., size / 2, 2], and its elements: [..., size / 2, 1]
in_pairs = op.Reshape(x, var("in_pairs"), allowzero=attr("in_pairs_allowzero"))
couple = op.Split(in_pairs, axis=-1, split=attr("couple"), num_outputs=attr("couple_count"), outputs=2)
first_column = (
    op.Slice(in_pairs, starts=(0,), ends=attr("first_end"), axes=(-1,), steps=attr("first_steps")) | couple[0]
)
second_column = (
    op.Slice(in_pairs, starts=(1,), ends=attr("second_end"), axes=(-1,), steps=attr("second_steps")) | couple[1]
)


def _element(number: int, column: Pattern) -> Pattern:
    index = var(f"index_{number}", lambda value, facts: facts.scalar(value) == number, f"the number {number}")
    return op.Gather(in_pairs, index, axis=-1) | op.Squeeze(column, axes=(-1,))


first_element = (even | _element(0, first_column)).named("first")
second_element = (odd | _element(1, second_column)).named("second")


def _turned(a: Pattern, b: Pattern) -> tuple[Pattern, Pattern]:
    """The real and the imaginary part of (a + ib)(cos + i sin)."""
    return a * cos - b * sin, b * cos + a * sin


def _stacked(columns: tuple[Pattern, ...]) -> Pattern:
    return op.Reshape(op.Concat(*columns, axis=-1), var("joined"), allowzero=attr("joined_allowzero"))


def rotates_halves(heads: int) -> Guard:
    """The parts are the two halves of x, and there is one angle for each of their positions."""

    def guard(match: Match) -> Refusal | None:
        size = even_size(match)
        if size is None:
            return odd_size(match)
        return not_halves(match, size) or one_angle_for_each_position(match, heads, (size // 2,))

    return guard


def rotates_elements(heads: int, *columns: int) -> Guard:
    """The parts are the even and the odd elements of x, followed by `columns`, with one angle for each of their positions."""

    def guard(match: Match) -> Refusal | None:
        size, shape = even_size(match), match.shape("x")
        if size is None or shape is None:
            return odd_size(match)
        last = (size // 2, *columns)
        for name in ("first", "second"):
            if match.shape(name) != (*shape[:-1], *last):
                return match.refuse("shape", name, (*shape[:-1], *last))
        return match.unless_shape(shape, "root") or one_angle_for_each_position(match, heads, last)

    return guard


def _row(angles: Pattern) -> Pattern:
    return op.Squeeze(angles, computed("last_axis", lambda match: ints([-1])))


_SPLITS: dict[str, Any] = {"halves": [None, (4, 4)], "halves_count": [None]}
_PAIRS: dict[str, Any] = {
    "in_pairs_allowzero": [0], "couple": [None, (1, 1)], "couple_count": [None], "joined_allowzero": [0],
    "first_end": [(1,)], "first_steps": [None, (1,)], "second_end": [(2,)], "second_steps": [None, (1,)],
}  # fmt: skip


def _rule(name: str, formula: str, pattern: Pattern, replace: Pattern, guard: Guard, proof: Proof) -> Rule:
    return Rule(
        name=f"rotary.{name}", formula=formula, pattern=pattern, replace=replace, guards=(guard,), may_raise_opset=True,
        exactness=Exactness.ROUNDING, source=PAPER, proof=proof,
    )  # fmt: skip


def _rotations(heads: int, note: str, layout: str) -> list[Rule]:
    first = heads == HEADS_FIRST
    lengths, angles = ("b 2 s 8", "s 4") if first else ("b s 2 8", "s 1 4")
    shapes = {"x": lengths, "cos": angles, "sin": f"b 1 {angles}" if first else f"b {angles}"}
    pairs = {**shapes, "in_pairs": "5", "joined": "4", "index_0": "", "index_1": ""}
    constants = {
        "in_pairs": [0, 2, -1, 4, 2] if first else [0, -1, 2, 4, 2], "joined": [0, 2, -1, 8] if first else [0, -1, 2, 8],
        "index_0": 0, "index_1": 1,
    }  # fmt: skip
    columns = {**pairs, "cos": f"{shapes['cos']} 1", "sin": f"{shapes['sin']} 1"}
    redundant = {"check of x": RANKS}
    return [
        _rule(
            f"by_halves{note}", f"concat(a cos - b sin, b cos + a sin), a, b = halves of x{layout}",
            op.Concat(*_turned(low_half, high_half), axis=-1), rotary(heads, False, cos, sin), rotates_halves(heads),
            Proof(
                shapes=shapes,
                attributes={
                    "low_end": [(4,)], "high_start": [(4,)], "high_end": [(1 << 62,)], "low_steps": [(1,)],
                    "high_steps": [(1,)], **_SPLITS,
                },
                never_empty=NEVER_EMPTY, redundant=redundant, opset=17,
            ),
        ),
        _rule(
            f"by_elements{note}", f"stack(a cos - b sin, b cos + a sin), a, b = x[0::2], x[1::2]{layout}",
            _stacked(tuple(op.Unsqueeze(part, axes=(-1,)) for part in _turned(first_element, second_element))),
            rotary(heads, True, cos, sin), rotates_elements(heads),
            Proof(
                shapes=pairs, constants=constants,
                attributes={"even_end": [(1 << 62,)], "odd_end": [(1 << 62,)], **_PAIRS},
                never_empty=NEVER_EMPTY, redundant=redundant, opset=17,
            ),
        ),
        _rule(
            f"complex{note}", f"(a + ib)(cos + i sin), a, b = x[0::2], x[1::2]{layout}",
            _stacked(_turned(first_column.named("first"), second_column.named("second"))),
            rotary(heads, True, _row(cos), _row(sin)), rotates_elements(heads, 1),
            Proof(
                shapes=columns, constants=constants, attributes=_PAIRS,
                never_empty=NEVER_EMPTY, redundant=redundant, opset=17,
            ),
        ),
    ]  # fmt: skip


RULES = [
    *_rotations(HEADS_FIRST, "", ""),
    *_rotations(LENGTH_FIRST, "_by_length", " on [batch, length, heads, size]"),
]
