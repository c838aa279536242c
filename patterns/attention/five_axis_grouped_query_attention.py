"""Fuse grouped-query attention on five axes: [batch, groups, heads in a group, length, size].

softmax(s q k^T + mask) v on [batch, groups, heads in a group, length, size], where the heads of a group share keys and values

becomes grouped attention on [batch, groups * heads, length, size] (Ainslie et al., arXiv:2305.13245), without repeated keys.
A mask with an axis of groups, or of the heads in them, gets one axis of all heads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Op, Pattern, built, computed, op, opt, rearrange, redundant, scalar, var

from .._rule_test_inputs import NEVER_EMPTY, masked
from .._shared_guards import ints
from .sdpa import LOWEST, SPREADS, cap_is_positive, floored, masked_rows_agree, scale

RANK = 5

query, value = var("query", "b g r s d"), var("value", "b g 1 u v")
key, transposed = var("key", "b g 1 t d"), var("transposed_key", "b g 1 d t")
turned = (rearrange("b g 1 t d -> b g 1 d t", scalar("key_scale_inside") * key) | transposed).named("turned")
scaled = scalar("score_scale") * ((scalar("query_scale") * query) @ (scalar("key_scale") * turned))
scores = scaled | scalar("cap") * op.Tanh(scaled).named("capped")
weights = op.Softmax(scores.named("scores", "b g r s t") + opt(var("mask")), axis=-1)


@redundant("of unknown heads the replacement could not say the shape of its result")
def groups_are_known(match: Match) -> Refusal | None:
    """The numbers of groups and of heads in them are known."""
    known = match.size("g") and match.size("r")
    return None if known else match.refuse("shape", "query", "known numbers of groups and of heads in them")


def mask_has_no_more_axes(match: Match) -> Refusal | None:
    """The mask has no axis before that of the batch."""
    return None if match["mask"] is None else match.unless_rank("mask", *range(RANK + 1))


def masked_rows_are_alike(match: Match) -> Refusal | None:
    """The kernel does for fully masked rows what the graph does."""
    return masked_rows_agree(match, nan_guard=False)


def _alone(operand: Pattern) -> Op:
    """An operand without its axis of the heads in a group."""
    made: Op = op.Squeeze(operand, computed("heads_in_group", lambda match: ints([2])))
    return made


def _key(match: Match) -> Pattern:
    if match["transposed_key"] is not None:
        return op.Transpose(_alone(transposed), perm=(0, 1, 3, 2))
    return _alone(key)


def _mask(match: Match) -> tuple[Pattern, int]:
    """The mask with one axis of all heads, and how many axes it has."""
    shape, mask = match.shape("mask") or (), floored(match)
    of_heads = shape[-4:-2]
    if all(dim == 1 for dim in of_heads):
        return (_alone(mask), RANK - 1) if len(shape) == RANK else (mask, len(shape))
    if tuple(of_heads) != (match.size("g"), match.size("r")):
        every = computed("every_head", lambda match: ints([match.size("g"), match.size("r"), 1, 1]))
        mask = op.Expand(mask, every)
    heads = computed("heads", lambda match: ints([match.size("g") * match.size("r")]))
    ends = op.Shape(mask, start=0, end=-4), op.Shape(mask, start=-2)
    return op.Reshape(mask, op.Concat(ends[0], heads, ends[1], axis=0), allowzero=1), max(len(shape), RANK - 1) - 1


def _attention(match: Match, spread: Callable[[Pattern, int], Pattern]) -> Pattern:
    queries = rearrange("b g r s d -> b (g r) s d", query)
    mask = None if match["mask"] is None else spread(*_mask(match))
    made = op.Attention(queries, _key(match), _alone(value), mask, scale=scale, softcap=lambda match: match.get("cap"))
    sizes = op.Concat(op.Shape(query, start=0, end=4), op.Shape(value, start=4, end=5), axis=0)
    return op.Reshape(made, sizes, allowzero=1)


RULES = [
    Rule(
        name="attention.grouped_query_sdpa_5d",
        formula="softmax(s q k^T + mask) v on [batch, groups, heads in a group, length, size]",
        pattern=weights.named("weights", "b g r s t") @ value,
        replace=tuple(
            built(
                partial(_attention, spread=spread),
                makes=(
                    "Attention", "Concat", "Expand", "Max", "Reshape", "Shape", "Squeeze", "Transpose", "Unsqueeze",
                ),
            )
            for spread in SPREADS
        ),
        guards=(groups_are_known, cap_is_positive, mask_has_no_more_axes, masked_rows_are_alike),
        may_raise_opset=True,
        exactness=Exactness.ROUNDING,
        source="arXiv:2305.13245",
        test=RuleTest(
            shapes=(
                {"g": 2, "r": 3, "d": 4, "v": 4, "u": "t", "mask": "s t"},
                {"g": 2, "r": 3, "d": 4, "v": 4, "u": "t", "mask": "b 1 1 s t"},
                {"g": 2, "r": 3, "d": 4, "v": 4, "u": "t", "mask": "b 2 1 1 t"},
                {"g": 2, "r": 3, "d": 4, "v": 4, "u": "t", "mask": "2 3 s t"},
                {"g": 2, "r": 3, "d": 4, "v": 4, "u": "t", "mask": "3 s t"},
            ),
            scalars={
                **{name: [1.0, 0.5] for name in ("score_scale", "query_scale", "key_scale", "key_scale_inside")},
                "cap": [1.5, 20.0],
            },
            inputs={"mask": masked(-10000.0, LOWEST)},
            opset=23,
            never_empty=NEVER_EMPTY,
        ),
    )
]  # fmt: skip
