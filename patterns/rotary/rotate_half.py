"""Fuse RotaryEmbedding from x cos + rotate(x) sin, in its rotate-half and interleaved forms, whole and partial.

    rope(x) = x cos + rotate(x) sin,   rotate(x) = concat(-x[h:], x[:h])          Su et al., arXiv:2104.09864
    x cos - rotate(x) sin = rope(x) by the negative angles
    rope(c x) = c rope(x)                                            which is a scale of attention

The operator takes cosines and sines of half the size. The rules need proof that both halves in the graph are the same:
a table with equal halves, or the Concat of a tensor with itself.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Guard, Match, Pattern, attr, built, op, rearrange, redundant, scalar, var

from .._rule_test_inputs import COST, FINITE_SCORES, angles
from .._shared_guards import constant
from ..canonicalize.compose_slice_and_concat import Window, window_of
from ._shared_parts import (
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
            test=RuleTest(
                shapes=SIZES,
                inputs={
                    "cos": angles("x", "Cos", heads, interleaved), "sin": angles("x", "Sin", heads, interleaved),
                },
                never_empty=NEVER_EMPTY,
                opset=17,
            ),
        )
        for name, formula, turned, interleaved, sines in (
            ("rotate_half", "concat(-x[h:], x[:h])", halves, False, _as_given),
            ("interleaved", "stack(-x[1::2], x[0::2])", pairs, True, _as_given),
            # By the negative angle, whose sine is the negative sine
            ("rotate_half_negative_angles", "concat(x[h:], -x[:h])", backwards, False, op.Neg),
        )
    ]  # fmt: skip


def once(interleaved: bool, twice: Pattern) -> Pattern:
    """Duplicated angles without the duplicates: [..., d] as [..., h]."""
    return twice[..., ::2] if interleaved else twice[..., :"h"]


def _window(match: Match) -> tuple[ir.Value, Window] | None:
    """The tensor that the rotated part and the others are neighbouring parts of, and which part they make up."""
    rank = match.rank("part")
    found = [None if rank is None else window_of(match[name], rank - 1, match.facts) for name in ("part", "others")]
    if found[0] is None or found[1] is None or found[0][0] is not found[1][0] or found[0][1][1] != found[1][1][0]:
        return None
    return found[0][0], (found[0][1][0], found[1][1][1])


def are_neighbours(match: Match) -> Refusal | None:
    """The rotated part and what follows are parts of one tensor, one next to the other, between known numbers."""
    found = _window(match)
    if found is None or not all(isinstance(bound, int) for bound in found[1]):
        return match.refuse("value", "others", "what follows the rotated part in the same tensor", "something else")
    part = match.size("p")
    return None if part and part % 2 == 0 else match.refuse_dimension("part", -1, "a known even number")


def _heads_of_window(match: Match) -> Pattern:
    """The part of the tensor that the rotated part and what follows make up."""
    found = _window(match)
    assert found is not None
    last = (match.rank("part") or 0) - 1
    start, end = found[1]
    assert isinstance(start, int) and isinstance(end, int)
    made: Pattern = op.Slice(match.capture("wide", found[0]), constant(start), constant(end), constant(last))
    return made


def _window_of(name: str, start: int, end: int) -> Any:
    """A part of the last axis of an input that others are parts of too."""

    def make(build: Any) -> ir.Value:
        *leading, _ = build.dims(name)
        known = [value for value in build.graph.inputs if value.name == "wide"]
        wide = known[0] if known else build.input("wide", [*leading, 12])
        numbers = [build.constant([number]) for number in (start, end, -1)]
        made: ir.Value = build.node("Slice", [wide, *numbers]).outputs[0]
        return made

    return make


def _partial_of_window(
    name: str, layout: str, axes: str, rotated: Any, replace: Any, *guards: Guard, **more: Any
) -> Rule:
    """As in networks that hold queries, keys and values of each head side by side (Black et al., arXiv:2204.06745)."""
    return Rule(
        name=f"rotary.{name}",
        formula=f"concat(rotary(wide[a:a + p]), wide[a + p:c]){layout}",
        is_refinement=True,
        pattern=op.Concat(rotated(var("part", f"{axes} p")), var("others", f"{axes} r"), axis=-1).named(
            "heads", f"{axes} d"
        ),
        replace=built(lambda match: replace(_heads_of_window(match)), makes=("RotaryEmbedding", "Slice", "Reshape")),
        guards=(are_neighbours, *guards),
        may_raise_opset=True,
        exactness=Exactness.EXACT,
        source=PAPER,
        test=RuleTest(
            shapes={"n": 2, "p": 4, "r": 4, "d": 8, "cos": "b s 2", "sin": "b s 2"},
            inputs={"part": _window_of("part", 2, 6), "others": _window_of("others", 6, 10)},
            attributes={"interleaved": [0, 1], **more},
            opset=23,
            counterexamples={
                "others that do not follow": Variation(inputs={"others": _window_of("others", 7, 11)}),
                "others of another tensor": Variation(inputs={"others": "float32"}),
            },
        ),
    )


RULES = [
    *_rotations(HEADS_FIRST, "", ""),
    *_rotations(LENGTH_FIRST, "_bsnh", " on [batch, length, heads, size]"),
    # Partial rotation: only the first elements of each head are rotated
    _partial_of_window(
        "partial_of_slice", "", "b n s",
        lambda part: op.RotaryEmbedding(part, cos, sin, rotary_embedding_dim=0, **_kept),
        lambda heads: op.RotaryEmbedding(heads, cos, sin, rotary_embedding_dim=rotated_size, **_kept),
    ),
    _partial_of_window(
        "partial_of_slice_bsnh", " on [batch, length, heads, size]", "b s n",
        lambda part: by_length(part, cos, sin, size="p", num_heads=attr("num_heads"), rotary_embedding_dim=0, **_kept),
        lambda heads: by_length(heads, cos, sin, num_heads=attr("num_heads"), rotary_embedding_dim=rotated_size, **_kept),
        heads_are_counted,
        num_heads=[2],
    ),
    Rule(
        name="rotary.hoist_above_head_split",
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
        test=RuleTest(
            shapes={"n": 2, "d": 8, "cos": "b s 4", "sin": "b s 4"},
            attributes={"interleaved": [0, 1], "rotary_embedding_dim": [0]},
            opset=23,
        ),
    ),
    Rule(
        name="rotary.sink_input_scale",
        formula="rotary(factor x)",
        pattern=op.RotaryEmbedding((scalar("factor") * var("x")).named("scaled"), cos, sin, **_all_kept),
        replace=scalar("factor") * op.RotaryEmbedding(var("x"), cos, sin, **_all_kept),
        guards=(is_scaled, is_scaled_for_this, angles_are_of_halves),
        may_raise_opset=True,
        exactness=Exactness.ROUNDING,
        source=PAPER,
        test=RuleTest(
            shapes={"x": "b 2 s 8", "cos": "b s 4", "sin": "b s 4"},
            scalars={"factor": [0.5, 2.0]},
            attributes={"interleaved": [0, 1], "rotary_embedding_dim": [0], "num_heads": [0]},
            opset=23,
            never_empty=NEVER_EMPTY,
            assumes=FINITE_SCORES,
        ),
    ),
]  # fmt: skip
