"""Scaled dot-product attention and its multi-head form.

    attention(q, k, v) = softmax(s q k^T + mask) v                          Vaswani et al., arXiv:1706.03762

`sdpa` finds the products on [batch, heads, length, size]; `merged_heads` then absorbs the Reshape and Transpose that split
the heads, so that the kernel reads and writes [batch, length, heads * size].
"""

from __future__ import annotations

import math
from typing import Any

from ortfuse.ir.dims import DimLike
from ortfuse.pattern import Guard, Match, Pattern, attr, computed, op, opt, scalar, var
from ortfuse.rewrite import Exactness, Proof, Rule

from ._common import array_like, ints, is_rank, text
from ._masks import DEEP, DEEPEST_ALLOWED, acts_alike, mask_range
from ._proofs import expansion, masked

PAPER = "arXiv:1706.03762"
LOWEST = -3.4028234663852886e38

query, value, mask = var("query", is_rank(4), "of rank 4"), var("value", is_rank(4), "of rank 4"), var("mask")
key, transposed = var("key", is_rank(4), "of rank 4"), var("transposed_key", is_rank(4), "of rank 4")

# k^T, scaled before or after it was transposed, or whatever else stands for it
_transposed_key = scalar("key_scale") * (
    op.Transpose(scalar("key_scale_inside") * key, perm=attr("key_perm")).kept().named("transposed") | transposed
)
scores = scalar("score_scale") * op.MatMul(scalar("query_scale") * query, _transposed_key)
softmax = op.Softmax(scores + opt(mask), axis=-1)
guarded = op.Where(op.IsNaN(softmax), 0.0, softmax)
masked_softmax = op.Softmax(scores + mask, axis=-1)
masked_guarded = op.Where(op.IsNaN(masked_softmax), 0.0, masked_softmax)


def _key_perm(match: Match) -> list[int]:
    """The permutation that makes [b, h, length, size] of the key that the product's transposed operand was made of."""
    perm = match["key_perm"] if match["key"] is not None else (0, 1, 2, 3)
    return [perm[axis] for axis in (0, 1, 3, 2)]


# Where this permutation and that of the operand cancel, the normal form drops them.
key_heads_first = op.Transpose(key | transposed, perm=_key_perm)


def scale(match: Match) -> float:
    """The product of all scalar factors of the scores."""
    factors = [match[name] for name in ("score_scale", "query_scale", "key_scale", "key_scale_inside")]
    return float(math.prod(factor for factor in factors if factor is not None))


def _key_shape(match: Match) -> tuple[DimLike, ...] | None:
    """[batch, heads, length, size] of the key."""
    shape = match.shape("key") if match["key"] is not None else match.shape("transposed_key")
    return None if shape is None else tuple(shape[axis] for axis in _key_perm(match))


def _shapes_agree(match: Match) -> str | None:
    q, k, v = match.shape("query"), _key_shape(match), match.shape("value")
    if q is None or k is None or v is None:
        return "a shape of query, key or value is not known"
    if q[0] != k[0] or q[0] != v[0]:
        return f"query {text(q)}, key {text(k)} and value {text(v)} are not provably of one batch size"
    if q[1] != k[1] or q[1] != v[1]:
        return f"query {text(q)}, key {text(k)} and value {text(v)} do not provably have the same number of heads"
    if k[2] != v[2] or q[3] != k[3]:
        return f"key {text(k)} does not provably fit query {text(q)} and value {text(v)}"
    return None


def _mask_shape_fits(match: Match) -> str | None:
    """The mask broadcasts to the scores. Of the last axis nothing need be known: the product with the values needs it."""
    if match["mask"] is None:
        return None
    shape, q, v = match.shape("mask"), match.shape("query"), match.shape("value")
    if shape is None or q is None or v is None:
        return "the shape of the mask is not known"
    wanted = (q[0], q[1], q[2])
    if len(shape) not in range(1, 5) or not all(
        dim in (1, full) for dim, full in zip(reversed(shape[:-1]), reversed(wanted), strict=False)
    ):
        return f"the mask {text(shape)} does not provably broadcast to the scores {text((*wanted, v[2]))}"
    return None


def _masked_rows_agree(nan_guard: bool) -> Guard:
    """The kernel does for fully masked rows what the graph does (see `_masks`)."""

    def guard(match: Match) -> str | None:
        if match["mask"] is None:
            return None
        found = mask_range(match["mask"], match.facts)
        if found is None:
            return "the values of the mask are not known, so that a fully masked row may come out otherwise"
        if -math.inf in found.deep and not nan_guard:
            return "a row masked with -inf alone is NaN in the graph and zero in the kernel"
        return acts_alike(found, match.dtype("mask"))

    return guard


def mask_floor(match: Match) -> Any:
    """The lowest mask value to pass on, if the mask holds one that the kernel would take for a row without keys."""
    found = mask_range(match["mask"], match.facts) if match["mask"] is not None else None
    if found is None or not any(-math.inf < level < DEEPEST_ALLOWED for level in found.deep):
        return None
    return array_like(match, DEEPEST_ALLOWED)


def _needs_floor(wanted: bool) -> Guard:
    def guard(match: Match) -> str | None:
        needed = match["mask"] is not None and mask_floor(match) is not None
        return None if needed == wanted else "handled by the rule of the other kind"

    return guard


def _over_all_scores(mask_input: Pattern) -> Pattern:
    """The mask repeated for every query and key, which the kernel does not do itself."""
    lengths = op.Shape(query, start=2, end=3), op.Shape(value, start=2, end=3)
    ones = computed("ones", lambda match: ints([1] * max(0, (match.rank("mask") or 0) - 2)))
    return op.Expand(mask_input, op.Concat(ones, *lengths, axis=0))


def _as_long_as_values(mask_input: Pattern) -> Pattern:
    """A mask repeated for every key whose length says so, where nothing was known of it before."""
    kept = computed("kept", lambda match: ints([0] * (max(2, match.rank("mask") or 0) - 1)))
    return op.Reshape(mask_input, op.Concat(kept, op.Shape(value, start=2, end=3), axis=0))


def _sdpa(
    name: str, formula: str, probabilities: Pattern, filler: float, nan_guard: bool = False, floor: bool = False
) -> Rule:
    hidden = op.Max(mask, computed("floor", mask_floor)) if floor else opt(mask)
    return Rule(
        name=name,
        formula=formula,
        pattern=op.MatMul(probabilities, value),
        replace=tuple(
            op.Attention(query, key_heads_first, value, mask_input, scale=scale)
            for mask_input in (hidden, _over_all_scores(hidden), _as_long_as_values(_over_all_scores(hidden)))
        ),
        guards=(_shapes_agree, _mask_shape_fits, _masked_rows_agree(nan_guard), _needs_floor(floor)),
        raises=True,
        exactness=Exactness.ROUNDING,
        source=PAPER,
        proof=Proof(
            shapes=tuple(
                {"query": "b 2 s 4", "key": keys, "transposed_key": "b 2 4 t", "value": "b 2 t 4", "mask": masks}
                for keys, masks in (("b 2 t 4", "b 1 s t"), ("b t 2 4", "b 1 1 t"), ("b 2 t 4", "s t"), ("b 2 t 4", "t"))
            ),
            attributes=tuple({"key_perm": [perm]} for perm in ((0, 1, 3, 2), (0, 2, 3, 1), (0, 1, 3, 2), (0, 1, 3, 2))),
            scalars={name: [1.0, 0.5] for name in ("score_scale", "query_scale", "key_scale", "key_scale_inside")},
            inputs={"mask": masked(filler)},
        ),
    )


# [b, length, heads * size] split into heads
def _heads(name: str) -> Pattern:
    return op.Transpose(
        op.Reshape(var(name, is_rank(3), "of rank 3"), var(f"{name}_shape"), allowzero=attr(f"{name}_allowzero"))
        .named(f"{name}_split")
        .kept(),
        perm=(0, 2, 1, 3),
    ).kept()


split_query, split_key, split_value = _heads("query"), _heads("key"), _heads("value")


def heads_split_last_axis(match: Match) -> str | None:
    """Each Reshape splits the last axis into (heads, size) and keeps the others."""
    for name in ("query", "key", "value"):
        whole, split = match.shape(name), match.shape(f"{name}_split")
        if whole is None or split is None or len(split) != 4:
            return f"the shape of {name} is not known"
        if whole[:2] != split[:2]:
            return f"{name} {text(whole)} is not split into heads along its last axis: {text(split)}"
        if not isinstance(split[2], int):
            return f"the number of heads of {name} is not known"
    return None


def merged_shape(match: Match) -> Any:
    """The Reshape target that splits the heads of the result again; the Reshape that merges them cancels it."""
    query_shape, value_shape = match.shape("query_split"), match.shape("value_split")
    assert query_shape is not None
    assert value_shape is not None
    return ints([0, 0, query_shape[2], value_shape[3] if isinstance(value_shape[3], int) else -1])


def heads_of(name: str) -> Any:
    """The number of heads of a split value."""

    def count(match: Match) -> int:
        shape = match.shape(f"{name}_split")
        assert shape is not None
        assert isinstance(shape[2], int)
        return shape[2]

    return count


_kept_attributes = {"scale": attr("scale"), "is_causal": attr("is_causal"), "softcap": attr("softcap")}
merged = op.Transpose(
    op.Attention(split_query, split_key, split_value, opt(mask), **_kept_attributes), perm=(0, 2, 1, 3)
)
# Key and value heads that are repeated for the groups of query heads
shared_key, shared_value = var("shared_key", is_rank(4), "of rank 4"), var("shared_value", is_rank(4), "of rank 4")


def _repeated(heads: Pattern, name: str) -> Pattern:
    expanded = op.Expand(op.Unsqueeze(heads, axes=(2,)).kept(), var(f"{name}_expansion")).kept().named(f"{name}_groups")
    return (
        op.Reshape(expanded, var(f"{name}_target"), allowzero=attr(f"{name}_allowzero"))
        .kept()
        .named(f"{name}_repeated")
    )


# Masks that are added one after the other, or put in place of scores, as one that is added
first_mask, second_mask = var("first_mask"), var("second_mask")
keep, filler = var("keep"), scalar("filler")
product_of_values = scalar("score_scale") * op.MatMul(query, transposed)


def operands_are_computed(match: Match) -> str | None:
    """Neither operand of the product is a constant: it is no linear layer."""
    if match.facts.is_const(match["query"]) or match.facts.is_const(match["transposed_key"]):
        return "the product is one with a constant"
    return None


def hides_altogether(match: Match) -> str | None:
    """The filler swallows any score that is added to it, and the choice does not broadcast the scores."""
    if match["filler"] > DEEP:
        return f"the filler {match['filler']:g} may be less than what scores add up to"
    if match.shape("chosen_scores") is None or match.shape("chosen_scores") != match.facts.shape(match["chosen"]):
        return "the choice broadcasts the scores"
    return None


def _chosen(hide: bool) -> Pattern:
    scored = (product_of_values + opt(mask)).named("chosen_scores")
    parts = (filler, scored) if hide else (scored, filler)
    return op.Where(keep, *parts).named("chosen")


def _as_sum(hide: bool) -> Pattern:
    unmasked = mask | computed("nothing", lambda match: array_like(match, 0.0))
    parts = (filler, unmasked) if hide else (unmasked, filler)
    return op.Softmax(product_of_values + op.Where(keep, *parts), axis=-1)


def _mask_rules() -> list[Rule]:
    scores_shapes = {"query": "b 2 s 4", "transposed_key": "b 2 4 t"}
    scalars: dict[str, Any] = {"score_scale": [1.0, 0.5]}
    return [
        Rule(
            name="attention.masks_first",
            formula="(s q k^T + first_mask) + second_mask",
            refines=True,
            pattern=op.Add(op.Add(product_of_values, first_mask), second_mask),
            replace=op.Add(product_of_values, op.Add(first_mask, second_mask)),
            guards=(operands_are_computed,),
            exactness=Exactness.ROUNDING,
            source=PAPER,
            proof=Proof(
                shapes={**scores_shapes, "first_mask": "1 2 s t", "second_mask": "b 1 1 t"}, scalars=scalars
            ),
        ),
        *(
            Rule(
                name=f"attention.{name}",
                formula=formula,
                refines=True,
                pattern=op.Softmax(_chosen(hide), axis=-1),
                replace=_as_sum(hide),
                guards=(operands_are_computed, hides_altogether),
                exactness=Exactness.ROUNDING,
                source=PAPER,
                proof=Proof(
                    shapes={**scores_shapes, "mask": "1 2 s t", "keep": "b 1 1 t"},
                    scalars={**scalars, "filler": [LOWEST, -math.inf]},
                    inputs={"keep": "bool"},
                ),
            )
            for name, formula, hide in (
                ("kept_scores", "softmax(where(keep, s q k^T + mask, filler))", False),
                ("hidden_scores", "softmax(where(hide, filler, s q k^T + mask))", True),
            )
        ),
    ]


_PARTS = (("shared_", ""), ("", "_groups"), ("", "_repeated"))


def heads_are_repeated(match: Match) -> str | None:
    """Every head of key and value is repeated equally often, next to each other."""
    repetitions = set()
    for name in ("key", "value"):
        shared, groups, repeated = (match.shape(f"{part}{name}{tail}") for part, tail in _PARTS)
        if shared is None or groups is None or repeated is None:
            return f"a shape of the repeated {name} is not known"
        if len(groups) != 5 or (*groups[:2], *groups[3:]) != shared or not isinstance(groups[2], int):
            return f"{name} {text(shared)} is expanded to {text(groups)}, not along one new axis"
        if repeated != (groups[0], groups[1] * groups[2], *groups[3:]):
            return f"{text(groups)} is not merged into heads: {text(repeated)}"
        repetitions.add(groups[2])
    return None if len(repetitions) == 1 else f"key and value are repeated {sorted(repetitions)} times"


grouped = op.Attention(
    var("query"), _repeated(shared_key, "key"), _repeated(shared_value, "value"), opt(mask), **_kept_attributes
)
_LAYOUT: dict[str, list[Any]] = {"scale": [0.5], "is_causal": [0], "softcap": [0.0]}

q3, k3, v3 = var("query"), var("key"), var("value")

RULES = [
    *_mask_rules(),
    Rule(
        name="attention.grouped_heads",
        formula="attention(query, repeat(key), repeat(value), mask)",
        refines=True,
        pattern=grouped,
        replace=op.Attention(var("query"), shared_key, shared_value, opt(mask), **_kept_attributes),
        guards=(heads_are_repeated,),
        raises=True,
        exactness=Exactness.ROUNDING,
        source="arXiv:2305.13245",
        proof=Proof(
            shapes={
                "query": "b 6 s 4",
                "shared_key": "b 2 t 4",
                "shared_value": "b 2 t 4",
                "mask": "b 1 s t",
                "key_target": "4",
                "value_target": "4",
            },
            constants={"key_target": [0, 6, -1, 4], "value_target": [0, 6, -1, 4]},
            inputs={
                "mask": masked(-math.inf),
                "key_expansion": expansion("shared_key", 3),
                "value_expansion": expansion("shared_value", 3),
            },
            attributes={**_LAYOUT, "key_allowzero": [0], "value_allowzero": [0]},
            opset=23,
        ),
    ),
    _sdpa("attention.sdpa", "softmax(s q k^T + mask) v", softmax, -10000.0),
    _sdpa(
        "attention.sdpa_nan_guard",
        "p = softmax(s q k^T + mask); where(isnan(p), 0, p) v",
        guarded,
        -math.inf,
        nan_guard=True,
    ),
    _sdpa(
        "attention.sdpa_finite_mask",
        "softmax(s q k^T + mask) v, mask down to the lowest number",
        masked_softmax | masked_guarded,
        LOWEST,
        floor=True,
    ),
    Rule(
        name="attention.merged_heads",
        refines=True,
        formula="transpose(attention(split(query), split(key), split(value), mask))",
        pattern=merged,
        replace=op.Reshape(
            op.Attention(
                q3, k3, v3, opt(mask), q_num_heads=heads_of("query"), kv_num_heads=heads_of("key"), **_kept_attributes
            ),
            computed("split_again", merged_shape),
        ),
        guards=(heads_split_last_axis,),
        raises=True,
        exactness=Exactness.ROUNDING,
        source=PAPER,
        proof=Proof(
            shapes={
                "query": "b s 8",
                "key": "b t 8",
                "value": "b t 8",
                "mask": "b 1 s t",
                "query_shape": "4",
                "key_shape": "4",
                "value_shape": "4",
            },
            constants={
                "query_shape": [0, 0, 2, 4],
                "key_shape": [0, 0, 2, 4],
                "value_shape": [0, 0, 2, 4],
            },
            attributes={
                "scale": [0.5],
                "is_causal": [0],
                "softcap": [0.0],
                "query_allowzero": [0],
                "key_allowzero": [0],
                "value_allowzero": [0],
            },
            inputs={"mask": masked(-math.inf)},
            opset=23,
        ),
    ),
]
