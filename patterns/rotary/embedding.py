"""Rotary position embedding (RoPE) in its half-rotation and interleaved forms.

    rope(x) = x cos + rotate(x) sin,   rotate(x) = concat(-x[h:], x[:h])          Su et al., arXiv:2104.09864
    x cos - rotate(x) sin = rope(x) by the negative angles
    rope(c x) = c rope(x)                                            which is a scale of attention

The operator takes cosines and sines of half the size: the rule applies only if both halves of those in the graph are provably
the same, for example in a table whose halves are equal, or computed from the concatenation of a tensor with itself.
"""

from __future__ import annotations

from typing import Any

from ortfuse.pattern import Guard, Match, Pattern, attr, op, rearrange, redundant, scalar, var
from ortfuse.refusal import Refusal
from ortfuse.rewrite import Exactness, Proof, Rule

from .._proofs import COST, FINITE_SCORES, angles
from ._parts import (
    HEADS_FIRST,
    LENGTH_FIRST,
    NEVER_EMPTY,
    PAPER,
    SIZES,
    by_length,
    cos,
    has_angles,
    merged_pairs,
    number_of_heads,
    rotary,
    sin,
    x_of,
)


def holds_angles_twice(heads: int, in_pairs: bool) -> Guard:
    """Cosines and sines have one entry for each position of x, and contain every number twice."""
    one_for_each_position = has_angles(heads, "d")

    def guard(match: Match) -> Any:
        for name in ("cos", "sin"):
            if not match.facts.repeats(match[name], in_pairs):
                return match.refuse(
                    "values_unknown", name, "every number twice, " + ("side by side" if in_pairs else "half by half")
                )
        return one_for_each_position(match)

    return guard


def part_is_even(match: Match) -> Refusal | None:
    """The rotated part has a known, even size: every element has a partner."""
    part = match.size("p")
    if part is None or part % 2 or match.size("d") is None:
        return match.refuse_dimension("part", -1, "a known even number")
    return None


def heads_are_known(match: Match) -> Refusal | None:
    """The number of heads is known."""
    return None if match.size("n") is not None else match.refuse_dimension("whole", -1, "a known number of heads")


def heads_are_counted(match: Match) -> Refusal | None:
    """The operator has as many heads as the part of x has."""
    return None if match["num_heads"] == match.dim("n") else match.refuse("attribute", "num_heads", match.dim("n"))


def is_scaled(match: Match) -> Refusal | None:
    """The factor is not 1."""
    return match.unless_value("factor", match["factor"] != 1, "other than 1")


def angles_are_of_halves(match: Match) -> Refusal | None:
    """Cosines and sines are of half a head, which is rotated as a whole, or of half of what the operator says to rotate."""
    size, half = ((match.shape(name) or (None,))[-1] for name in ("x", "cos"))
    if isinstance(size, int) and isinstance(half, int):
        rotated = match["rotary_embedding_dim"] or size // (match["num_heads"] or 1)
        if rotated == 2 * half:
            return None
    return match.refuse("shape", "cos", "half of what is rotated")


@redundant(COST)
def is_scaled_for_this(match: Match) -> Refusal | None:
    """Nothing else uses what is scaled."""
    if match.is_used_elsewhere("scaled"):
        return match.refuse("use", "scaled", "the rotation alone", found="something else too")
    return None


def rotated_size(match: Match) -> int | None:
    """The number of elements of a head that are rotated."""
    return match.size("p")


_kept: dict[str, Any] = {"interleaved": attr("interleaved")}
_all_kept = {name: attr(name) for name in ("interleaved", "rotary_embedding_dim", "num_heads")}


def _as_given(sines: Pattern) -> Pattern:
    return sines


def _rotations(heads: int, note: str, layout: str) -> list[Rule]:
    x = x_of(heads)
    halves = op.Concat(op.Neg(x[..., "h":]), x[..., :"h"], axis=-1)
    backwards = op.Concat(x[..., "h":], op.Neg(x[..., :"h"]), axis=-1)
    columns = (op.Unsqueeze(part, axes=(-1,)) for part in (op.Neg(x[..., 1::2]), x[..., ::2]))
    pairs = merged_pairs(heads, op.Concat(*columns, axis=-1))
    return [
        Rule(
            name=f"rotary.{name}{note}",
            formula=f"x cos + {formula} sin{layout}",
            pattern=x * cos + turned * sin,
            replace=rotary(heads, interleaved, once(interleaved, cos), sines(once(interleaved, sin))),
            guards=(holds_angles_twice(heads, interleaved),),
            may_raise_opset=True,
            exactness=Exactness.ROUNDING,
            source=PAPER,
            proof=Proof(
                shapes=SIZES,
                inputs={
                    "cos": angles("x", "Cos", heads, interleaved), "sin": angles("x", "Sin", heads, interleaved),
                },
                never_empty=NEVER_EMPTY,
                opset=17,
            ),
        )
        for name, formula, turned, interleaved, sines in (
            ("half_rotation", "concat(-x[h:], x[:h])", halves, False, _as_given),
            ("interleaved", "stack(-x[1::2], x[0::2])", pairs, True, _as_given),
            # By the negative angle, whose sine is the negative sine
            ("half_rotation_backwards", "concat(x[h:], -x[:h])", backwards, False, op.Neg),
        )
    ]  # fmt: skip


def once(interleaved: bool, twice: Pattern) -> Pattern:
    """Duplicated angles without the duplicates: [..., d] as [..., h]."""
    return twice[..., ::2] if interleaved else twice[..., :"h"]


def _partial(
    name: str, layout: str, axes: str, part_of: Any, replace: Pattern, *guards: Guard, **attributes: Any
) -> Rule:
    heads = var("heads", axes)
    return Rule(
        name=f"rotary.{name}",
        formula=f"concat(rotary(heads[:p]), heads[p:]){layout}",
        is_refinement=True,
        pattern=op.Concat(part_of(heads[..., :"p"].named("part")), heads[..., "p":], axis=-1),
        replace=replace,
        guards=guards,
        may_raise_opset=True,
        exactness=Exactness.EXACT,
        source=PAPER,
        proof=Proof(
            shapes={"n": 2, "d": 8, "p": 4, "cos": "b s 2", "sin": "b s 2"},
            attributes={"interleaved": [0, 1], **attributes},
            opset=23,
        ),
    )


RULES = [
    *_rotations(HEADS_FIRST, "", ""),
    *_rotations(LENGTH_FIRST, "_by_length", " on [batch, length, heads, size]"),
    # Partial rotation: only the first elements of each head are rotated
    _partial(
        "partial", "", "b n s d",
        lambda part: op.RotaryEmbedding(part, cos, sin, rotary_embedding_dim=0, **_kept),
        op.RotaryEmbedding(var("heads"), cos, sin, rotary_embedding_dim=rotated_size, **_kept),
        part_is_even,
    ),
    _partial(
        "partial_by_length", " on [batch, length, heads, size]", "b s n d",
        lambda part: by_length(part, cos, sin, size="p", num_heads=attr("num_heads"), rotary_embedding_dim=0, **_kept),
        by_length(var("heads"), cos, sin, num_heads=attr("num_heads"), rotary_embedding_dim=rotated_size, **_kept),
        part_is_even, heads_are_counted,
        num_heads=[2],
    ),
    Rule(
        name="rotary.before_split",
        formula="rotary(transpose(split(whole)))",
        is_refinement=True,
        pattern=op.RotaryEmbedding(
            rearrange("b s (n d) -> b n s d", var("whole", "b s (n d)")), cos, sin,
            rotary_embedding_dim=attr("rotary_embedding_dim"), **_kept,
        ),
        replace=rearrange(
            "b s (n d) -> b n s d",
            op.RotaryEmbedding(
                var("whole"), cos, sin, num_heads=number_of_heads, rotary_embedding_dim=attr("rotary_embedding_dim"), **_kept
            ),
        ),
        guards=(heads_are_known,),
        may_raise_opset=True,
        exactness=Exactness.EXACT,
        source=PAPER,
        proof=Proof(
            shapes={"n": 2, "d": 8, "cos": "b s 4", "sin": "b s 4"},
            attributes={"interleaved": [0, 1], "rotary_embedding_dim": [0]},
            opset=23,
        ),
    ),
    Rule(
        name="rotary.scaled",
        formula="rotary(factor x)",
        pattern=op.RotaryEmbedding((scalar("factor") * var("x")).named("scaled"), cos, sin, **_all_kept),
        replace=scalar("factor") * op.RotaryEmbedding(var("x"), cos, sin, **_all_kept),
        guards=(is_scaled, is_scaled_for_this, angles_are_of_halves),
        may_raise_opset=True,
        exactness=Exactness.ROUNDING,
        source=PAPER,
        proof=Proof(
            shapes={"x": "b 2 s 8", "cos": "b s 4", "sin": "b s 4"},
            scalars={"factor": [0.5, 2.0]},
            attributes={"interleaved": [0, 1], "rotary_embedding_dim": [0], "num_heads": [0]},
            opset=23,
            never_empty=NEVER_EMPTY,
            assumes=FINITE_SCORES,
        ),
    ),
]  # fmt: skip
