"""Fuse RotaryEmbedding computed on two parts of x: the complex number a + ib rotated by cos + i sin.

    rope(x) = join(a cos - b sin, b cos + a sin),   a, b = parts of x          Su et al., arXiv:2104.09864

The parts are the halves of the last axis, or its even and odd elements, which are interleaved again or concatenated.
Interleaving ends with pairs. Their Reshape may lead to heads, to rows of all heads, or to repeated heads.
Cosines and sines have half the size of x, as the operator expects.
"""

from __future__ import annotations

from typing import Any

from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Guard, Match, Pattern, built, op, rearrange, var

from .._shared_guards import constant
from ._shared_parts import (
    HEADS_FIRST,
    LEADING,
    LENGTH_FIRST,
    NEVER_EMPTY,
    PAPER,
    SIZES,
    cache,
    cos,
    has_angles,
    number_of_heads,
    rotary,
    sin,
    x_of,
)


def _turned(a: Pattern, b: Pattern) -> tuple[Pattern, Pattern]:
    """The real and the imaginary part of (a + ib)(cos + i sin)."""
    return a * cos - b * sin, b * cos + a * sin


def _element(in_pairs: Pattern, number: int, column: Pattern) -> Pattern:
    """One element of each pair."""
    index = var(f"index_{number}", lambda value, facts: facts.scalar(value) == number, f"the number {number}")
    return op.Gather(in_pairs, index, axis=-1) | op.Squeeze(column, axes=(-1,))


def _in_pairs(heads: int, merged: Pattern) -> Pattern:
    """[..., d] as [..., h, 2]."""
    return rearrange(f"{LEADING[heads]} (h two) -> {LEADING[heads]} h two", merged)


def _stacked(heads: int, real: Pattern, imaginary: Pattern) -> Pattern:
    """The parts as pairs: what follows may merge these with more than the other axis of a head."""
    parts = real.named("real", f"{LEADING[heads]} h"), imaginary
    columns = (op.Unsqueeze(part, axes=(-1,)) for part in parts)
    return op.Concat(*columns, axis=-1).named("pairs", f"{LEADING[heads]} h two")


def _rule(
    name: str, formula: str, pattern: Pattern, replace: Pattern, guard: Guard, shapes: dict[str, Any], **test: Any
) -> Rule:
    return Rule(
        name=f"rotary.{name}", formula=formula, pattern=pattern, replace=replace, guards=(guard,), may_raise_opset=True,
        exactness=Exactness.ROUNDING, source=PAPER,
        test=RuleTest(shapes={**SIZES, **shapes}, never_empty=NEVER_EMPTY, opset=17, **test),
    )  # fmt: skip


def _joined(real: Pattern, imaginary: Pattern) -> Pattern:
    """Both parts, concatenated, perhaps at once with what stands before or after them in a head."""
    parts = (real, imaginary), (var("before"), real, imaginary), (real, imaginary, var("after"))
    alone, behind, ahead = (op.Concat(*operands, axis=-1) for operands in parts)
    return alone | behind | ahead


def _with_rest(rotated: Pattern) -> Pattern:
    """The rotated parts, with what stands before or after them."""

    def made(match: Match) -> Pattern:
        before, after = ([] if match[name] is None else [var(name)] for name in ("before", "after"))
        return op.Concat(*before, rotated, *after, axis=-1) if before or after else rotated

    return built(made, makes=("Concat", "RotaryEmbedding", "Squeeze", "Expand", "Reshape"))


def _rotations(heads: int, note: str, layout: str) -> list[Rule]:
    x = x_of(heads)
    in_pairs = _in_pairs(heads, x)
    columns = in_pairs[..., :1], in_pairs[..., 1:]
    elements = tuple(x[..., number::2] | _element(in_pairs, number, column) for number, column in enumerate(columns))
    real, imaginary = _turned(*elements)
    short = "s 4" if heads == HEADS_FIRST else "s 1 4"
    rest = dict.fromkeys(("before", "after"), "b 2 s 3" if heads == HEADS_FIRST else "b s 2 3")
    shapes = {"cos": short, "sin": f"b 1 {short}" if heads == HEADS_FIRST else f"b {short}"}
    return [
        _rule(
            f"split_halves{note}", f"concat(a cos - b sin, b cos + a sin), a, b = halves of x{layout}",
            _joined(*_turned(x[..., :"h"], x[..., "h":])), _with_rest(rotary(heads, False, cos, sin)),
            has_angles(heads, "h"), {**shapes, **rest},
        ),
        _rule(
            f"even_odd_pairs_interleaved{note}", f"stack(a cos - b sin, b cos + a sin), a, b = x[0::2], x[1::2]{layout}",
            _stacked(heads, real, imaginary), _in_pairs(heads, rotary(heads, True, cos, sin)),
            has_angles(heads, "h"), {**shapes, "index_0": "", "index_1": ""},
            constants={"index_0": 0, "index_1": 1},
        ),
        _rule(
            f"even_odd_pairs_concatenated{note}", f"concat(a cos - b sin, b cos + a sin), a, b = x[0::2], x[1::2]{layout}",
            _joined(real.named("real", f"{LEADING[heads]} h"), imaginary),
            _with_rest(rotary(heads, False, cos, sin, op.Concat(x[..., ::2], x[..., 1::2], axis=-1))),
            has_angles(heads, "h"), {**shapes, **rest, "index_0": "", "index_1": ""},
            constants={"index_0": 0, "index_1": 1},
        ),
        _rule(
            f"complex_multiply{note}", f"(a + ib)(cos + i sin), a, b = x[0::2], x[1::2]{layout}",
            op.Concat(*_turned(*columns), axis=-1),
            _in_pairs(heads, rotary(heads, True, op.Squeeze(cos, constant(-1)), op.Squeeze(sin, constant(-1)))),
            has_angles(heads, "h", 1),
            {name: f"{shape} 1" for name, shape in shapes.items()},
        ),
    ]  # fmt: skip


def _of_rows() -> Rule:
    """Rows of a product that are split into heads and pairs at once, so that x is nowhere [batch, length, heads, size]."""
    rows = var("x", "b s (n h two)")
    in_pairs = rearrange("b s (n h two) -> b s n h two", rows)
    elements = (_element(in_pairs, number, in_pairs[..., number : number + 1]) for number in (0, 1))
    caches = (cache(angles, LENGTH_FIRST, rows) for angles in (cos, sin))
    return _rule(
        "even_odd_pairs_interleaved_merged_heads",
        "stack(a cos - b sin, b cos + a sin), a, b = x[0::2], x[1::2] on rows of heads",
        _stacked(LENGTH_FIRST, *_turned(*elements)),
        rearrange("b s (n h two) -> b s n h two", op.RotaryEmbedding(rows, *caches, num_heads=number_of_heads, interleaved=1)),
        has_angles(LENGTH_FIRST, "h"), {"cos": "s 1 4", "sin": "b s 1 4", "index_0": "", "index_1": ""},
        constants={"index_0": 0, "index_1": 1},
    )  # fmt: skip


RULES = [
    _of_rows(),
    *_rotations(HEADS_FIRST, "", ""),
    *_rotations(LENGTH_FIRST, "_bsnh", " on [batch, length, heads, size]"),
]
