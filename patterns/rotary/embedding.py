"""Rotary position embedding (RoPE) in its half-rotation and interleaved forms.

    rope(x) = x cos + rotate(x) sin,   rotate(x) = concat(-x[h/2:], x[:h/2])          Su et al., arXiv:2104.09864

The operator reads cosines and sines of half the size: the rule applies only where both halves of the graph's are provably
the same, as those of a table whose halves are equal, or computed from the concatenation of one tensor with itself.
"""

from __future__ import annotations

from typing import Any

from ortfuse.pattern import Guard, Match, Pattern, attr, computed, op, var
from ortfuse.refusal import Refusal
from ortfuse.rewrite import Exactness, Proof, Rule

from .._common import ints, is_rank, reaches
from .._proofs import RANKS, angles
from ._parts import (
    HEADS_FIRST,
    LENGTH_FIRST,
    NEVER_EMPTY,
    PAPER,
    constant,
    cos,
    even,
    even_size,
    heads_apart,
    high,
    low,
    not_halves,
    odd,
    odd_size,
    one_angle_for_each_position,
    rotary,
    sin,
    size_of,
    unless_steps_are_one,
    x,
)

rotated = op.Concat(op.Neg(high), low, axis=-1)

stacked = op.Concat(op.Unsqueeze(op.Neg(odd), axes=(-1,)), op.Unsqueeze(even, axes=(-1,)), axis=-1)
pairs = op.Reshape(stacked, var("pair_shape"), allowzero=attr("pair_allowzero")).named("pairs")


def _angles_twice(match: Match, heads: int, size: int, interleaved: bool) -> Refusal | None:
    """Cosines and sines are one for each position of x, and hold every number twice."""
    reason = one_angle_for_each_position(match, heads, (size,))
    if reason is not None:
        return reason
    for name in ("cos", "sin"):
        if not match.facts.repeats(match[name], in_pairs=interleaved):
            return match.refuse(
                "values_unknown", name, "every number twice, " + ("side by side" if interleaved else "half by half")
            )
    return None


def rotates_halves(heads: int) -> Guard:
    """The slices are the two halves, and the angles of the halves are the same."""

    def guard(match: Match) -> Refusal | None:
        size = even_size(match)
        if size is None:
            return odd_size(match)
        return not_halves(match, size) or _angles_twice(match, heads, size, interleaved=False)

    return guard


def rotates_pairs(heads: int) -> Guard:
    """The slices are the even and odd elements, put together again pair by pair, and the angles of a pair are the same."""

    def guard(match: Match) -> Refusal | None:
        size = even_size(match)
        if size is None:
            return odd_size(match)
        for name in ("even_end", "odd_end"):
            if not reaches(match[name], size):
                return match.refuse("attribute", name, f"at least {size}")
        return match.unless_same_shape("pairs", "x") or _angles_twice(match, heads, size, interleaved=True)

    return guard


def half_size(match: Match) -> Any:
    """Half the size of a head, as a Slice end."""
    return ints([(size_of(match) or 0) // 2])


def _once(angles: Pattern, interleaved: bool) -> Pattern:
    """The first half of angles that all occur twice: [..., size] as [..., size / 2]."""
    if interleaved:
        return op.Slice(angles, constant(0), constant(1 << 62), constant(-1), constant(2))
    return op.Slice(angles, constant(0), computed("half", half_size), constant(-1))


# Only the first elements of a head are rotated
whole_heads = var("heads", is_rank(4), "of rank 4")
rotated_part = op.RotaryEmbedding(
    op.Slice(whole_heads, starts=(0,), ends=attr("part_end"), axes=(-1,), steps=attr("part_steps")).named("part"),
    var("cos"), var("sin"), interleaved=attr("interleaved"), rotary_embedding_dim=0,
)  # fmt: skip
kept_part = op.Slice(
    whole_heads, starts=attr("rest_start"), ends=attr("rest_end"), axes=(-1,), steps=attr("rest_steps")
)


rotated_part_by_length = op.Reshape(
    op.RotaryEmbedding(
        op.Reshape(
            op.Slice(whole_heads, starts=(0,), ends=attr("part_end"), axes=(-1,), steps=attr("part_steps")).named("part"),
            var("merged_shape"), allowzero=attr("merged_zero"),
        ).named("merged"),
        var("cos"), var("sin"), interleaved=attr("interleaved"), num_heads=attr("num_heads"), rotary_embedding_dim=0,
    ),
    var("apart_shape"), allowzero=attr("apart_zero"),
).named("apart")  # fmt: skip


def heads_stay_apart(match: Match) -> Refusal | None:
    """The Reshapes around the operator merge heads and size of the part, and split them again as they were."""
    shape = match.shape("part")
    if shape is None or match.shape("apart") != shape:
        return match.unless_same_shape("apart", "part")
    if not isinstance(shape[3], int):
        return match.refuse_dimension("part", 3, "a number")
    if match["num_heads"] != shape[2]:
        return match.refuse("attribute", "num_heads", shape[2])
    return match.unless_shape((*shape[:2], shape[2] * shape[3]), "merged")


def parts_make_the_whole(match: Match) -> Refusal | None:
    """The rotated part and the rest are all of a head, in order."""
    size, part = size_of(match, "heads"), size_of(match, "part")
    if size is None or part is None:
        return match.refuse_dimension("heads" if size is None else "part", -1, "a number")
    if part % 2:
        return odd_size(match, "part")
    if match["rest_start"] != (part,):
        return match.refuse("attribute", "rest_start", (part,))
    if not reaches(match["rest_end"], size):
        return match.refuse("attribute", "rest_end", f"at least {size}")
    return unless_steps_are_one(match, "part_steps", "rest_steps")


# [b, s, heads * size] split into heads before it is rotated
split = (
    op.Reshape(var("whole", is_rank(3), "of rank 3"), var("split_shape"), allowzero=attr("allowzero"))
    .named("split")
    .kept()
)
by_heads = op.RotaryEmbedding(
    op.Transpose(split, perm=(0, 2, 1, 3)).kept(), var("cos"), var("sin"), interleaved=attr("interleaved"),
    rotary_embedding_dim=attr("rotary_embedding_dim"),
)  # fmt: skip


def splits_last_axis(match: Match) -> Refusal | None:
    """The Reshape splits the last axis into (heads, size)."""
    whole, found = match.shape("whole"), match.shape("split")
    if whole is None or found is None or len(found) != 4 or whole[:2] != found[:2] or not isinstance(found[2], int):
        return match.refuse("shape", "split", (*(whole or ())[:2], "heads, a number", "size"))
    return None


def heads(match: Match) -> int:
    """The number of heads."""
    shape = match.shape("split")
    assert shape is not None
    assert isinstance(shape[2], int)
    return shape[2]


def _rotations(heads: int, note: str, text_of_layout: str) -> list[Rule]:
    lengths = "b 2 s 8" if heads == HEADS_FIRST else "b s 2 8"
    pair_shape = [0, 2, -1, 8] if heads == HEADS_FIRST else [0, -1, 2, 8]
    return [
        Rule(
            name=f"rotary.half_rotation{note}",
            formula=f"x cos + concat(-x[h/2:], x[:h/2]) sin{text_of_layout}",
            pattern=x * cos + rotated * sin,
            replace=rotary(heads, False, _once(cos, False), _once(sin, False)),
            guards=(rotates_halves(heads),),
            may_raise_opset=True,
            exactness=Exactness.ROUNDING,
            source=PAPER,
            proof=Proof(
                shapes={"x": lengths},
                attributes={
                    "low_end": [(4,)], "high_start": [(4,)], "high_end": [(1 << 62,)], "low_steps": [(1,)], "high_steps": [(1,)],
                },
                inputs={"cos": angles("x", "Cos", heads), "sin": angles("x", "Sin", heads)},
                never_empty=NEVER_EMPTY,
                redundant={"check of *": RANKS},
                opset=17,
            ),
        ),
        Rule(
            name=f"rotary.interleaved{note}",
            formula=f"x cos + stack(-x[1::2], x[0::2]) sin{text_of_layout}",
            pattern=x * cos + pairs * sin,
            replace=rotary(heads, True, _once(cos, True), _once(sin, True)),
            guards=(rotates_pairs(heads),),
            may_raise_opset=True,
            exactness=Exactness.ROUNDING,
            source=PAPER,
            proof=Proof(
                shapes={"x": lengths, "pair_shape": "4"},
                constants={"pair_shape": pair_shape},
                attributes={"even_end": [(1 << 62,)], "odd_end": [(1 << 62,)], "pair_allowzero": [0]},
                inputs={
                    "cos": angles("x", "Cos", heads, interleaved=True), "sin": angles("x", "Sin", heads, interleaved=True),
                },
                never_empty=NEVER_EMPTY,
                redundant={"check of *": RANKS},
                opset=17,
            ),
        ),
    ]  # fmt: skip


RULES = [
    *_rotations(HEADS_FIRST, "", ""),
    *_rotations(LENGTH_FIRST, "_by_length", " on [batch, length, heads, size]"),
    Rule(
        name="rotary.partial",
        formula="concat(rotary(heads[:part]), heads[part:])",
        is_refinement=True,
        pattern=op.Concat(rotated_part, kept_part, axis=-1),
        replace=op.RotaryEmbedding(
            whole_heads, var("cos"), var("sin"), interleaved=attr("interleaved"),
            rotary_embedding_dim=lambda match: size_of(match, "part"),
        ),
        guards=(parts_make_the_whole,),
        may_raise_opset=True,
        exactness=Exactness.EXACT,
        source=PAPER,
        proof=Proof(
            shapes={"heads": "b 2 s 8", "cos": "b s 2", "sin": "b s 2"},
            attributes={
                "part_end": [(4,)], "rest_start": [(4,)], "rest_end": [(1 << 62,)], "part_steps": [(1,)], "rest_steps": [(1,)],
                "interleaved": [0, 1],
            },
            redundant={"check of *": RANKS},
            opset=23,
        ),
    ),
    Rule(
        name="rotary.partial_by_length",
        formula="concat(rotary(heads[:part]), heads[part:]) on [batch, length, heads, size]",
        is_refinement=True,
        pattern=op.Concat(rotated_part_by_length, kept_part, axis=-1),
        replace=heads_apart(
            op.RotaryEmbedding(
                op.Reshape(whole_heads, computed("merged_whole", lambda match: ints([0, 0, -1]))), var("cos"), var("sin"),
                interleaved=attr("interleaved"), num_heads=attr("num_heads"),
                rotary_embedding_dim=lambda match: size_of(match, "part"),
            ),
            "heads",
        ),
        guards=(heads_stay_apart, parts_make_the_whole),
        may_raise_opset=True,
        exactness=Exactness.EXACT,
        source=PAPER,
        proof=Proof(
            shapes={"heads": "b s 2 8", "cos": "b s 2", "sin": "b s 2", "merged_shape": "3", "apart_shape": "4"},
            constants={"merged_shape": [0, 0, -1], "apart_shape": [0, 0, 2, 4]},
            attributes={
                "part_end": [(4,)], "rest_start": [(4,)], "rest_end": [(1 << 62,)], "part_steps": [(1,)], "rest_steps": [(1,)],
                "interleaved": [0, 1], "num_heads": [2], "merged_zero": [0], "apart_zero": [0],
            },
            redundant={"check of *": RANKS},
            opset=23,
        ),
    ),
    Rule(
        name="rotary.before_split",
        formula="rotary(transpose(split(whole)))",
        is_refinement=True,
        pattern=by_heads,
        replace=op.Transpose(
            op.Reshape(
                op.RotaryEmbedding(
                    var("whole"), var("cos"), var("sin"), num_heads=heads, interleaved=attr("interleaved"),
                    rotary_embedding_dim=attr("rotary_embedding_dim"),
                ),
                var("split_shape"),
                allowzero=attr("allowzero"),
            ),
            perm=(0, 2, 1, 3),
        ),
        guards=(splits_last_axis,),
        may_raise_opset=True,
        exactness=Exactness.EXACT,
        source=PAPER,
        proof=Proof(
            shapes={"whole": "b s 16", "split_shape": "4", "cos": "b s 4", "sin": "b s 4"},
            constants={"split_shape": [0, 0, 2, 8]},
            attributes={"allowzero": [0], "interleaved": [0, 1], "rotary_embedding_dim": [0]},
            redundant={"check of *": RANKS},
            opset=23,
        ),
    ),
]  # fmt: skip
