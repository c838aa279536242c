"""The heads of attention: what splits, merges and repeats them becomes part of the operator.

`merged_heads` absorbs the Reshape and Transpose that split the heads off the last axis, so that the kernel reads and writes
[batch, length, heads * size]; `grouped_heads` absorbs the repetition of key and value heads (Ainslie et al., arXiv:2305.13245).
"""

from __future__ import annotations

import math
from typing import Any

from ortfuse.pattern import Match, Pattern, attr, computed, op, opt, var
from ortfuse.rewrite import Exactness, Proof, Rule, Variation

from .._common import ints, is_rank, text
from .._proofs import NEVER_EMPTY, RANKS, expansion, masked
from .dot_product import PAPER

mask = var("mask")


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


_kept_attributes = {
    "scale": attr("scale"), "is_causal": attr("is_causal"), "softcap": attr("softcap"), "qk_matmul_output_mode": attr("mode"),
}  # fmt: skip
past_key, past_value = var("past_key", is_rank(4), "of rank 4"), var("past_value", is_rank(4), "of rank 4")
# With what is attended to in front of the keys, the operator also returns both together, to be the past of the next step.
attended = op.Attention(
    split_query, split_key, split_value, opt(mask), opt(past_key), opt(past_value), **_kept_attributes
).naming(present_key=1, present_value=2, weights=3)
merged = op.Transpose(attended, perm=(0, 2, 1, 3))
# Key and value heads that are repeated for the groups of query heads
shared_key, shared_value = var("shared_key", is_rank(4), "of rank 4"), var("shared_value", is_rank(4), "of rank 4")


def _repeated(heads: Pattern, name: str) -> Pattern:
    expanded = op.Expand(op.Unsqueeze(heads, axes=(2,)).kept(), var(f"{name}_expansion")).kept().named(f"{name}_groups")
    return (
        op.Reshape(expanded, var(f"{name}_target"), allowzero=attr(f"{name}_allowzero"))
        .kept()
        .named(f"{name}_repeated")
    )


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
).naming(weights=3)
grouped_attention = op.Attention(var("query"), shared_key, shared_value, opt(mask), outputs=4, **_kept_attributes)
_LAYOUT: dict[str, list[Any]] = {"scale": [0.5], "is_causal": [0], "softcap": [0.0], "mode": [0, 3]}

q3, k3, v3 = var("query"), var("key"), var("value")
merged_attention = op.Attention(
    q3, k3, v3, opt(mask), opt(past_key), opt(past_value), q_num_heads=heads_of("query"), kv_num_heads=heads_of("key"),
    outputs=4, **_kept_attributes,
)  # fmt: skip

# Keys and values of earlier steps, kept by whoever runs the model
new_key, new_value = var("new_key", is_rank(4), "of rank 4"), var("new_value", is_rank(4), "of rank 4")
cached = op.Attention(
    var("query", is_rank(4), "of rank 4"),
    op.Concat(past_key, new_key, axis=2).named("present_key"),
    op.Concat(past_value, new_value, axis=2).named("present_value"),
    opt(mask),
    **_kept_attributes,
).naming(weights=3)
cached_attention = op.Attention(
    var("query"), new_key, new_value, opt(mask), past_key, past_value, outputs=4, **_kept_attributes
)


def past_fits(match: Match) -> str | None:
    """Past and new keys and values are as long as each other, with the same batch and heads, and the mask is not causal."""
    shapes = [match.shape(name) for name in ("past_key", "past_value", "new_key", "new_value")]
    if any(shape is None for shape in shapes):
        return "a shape of the cache is not known"
    pk, pv, k, v = (shape or () for shape in shapes)
    if pk[:3] != pv[:3] or k[:3] != v[:3] or pk[:2] != k[:2] or pk[3] != k[3] or pv[3] != v[3]:
        return f"the past {text(pk)}, {text(pv)} and what is added {text(k)}, {text(v)} do not provably fit"
    # How a causal mask counts from the past on is the operator's own matter.
    return "the attention is causal" if match["is_causal"] else None


_SPLITS = ("query_shape", "key_shape", "value_shape")

RULES = [
    Rule(
        name="attention.cache",
        formula="attention(query, concat(past_key, new_key), concat(past_value, new_value), mask)",
        is_refinement=True,
        pattern=cached,
        replace=cached_attention[0],
        intermediates={
            "present_key": cached_attention[1],
            "present_value": cached_attention[2],
            "weights": cached_attention[3],
        },
        guards=(past_fits,),
        may_raise_opset=True,
        exactness=Exactness.ROUNDING,
        source="ONNX operator Attention",
        proof=Proof(
            shapes=(
                {
                    "query": "b 6 s 4",
                    **dict.fromkeys(("past_key", "past_value"), "b 2 p 4"),
                    **dict.fromkeys(("new_key", "new_value"), "b 2 s 4"),
                },
                {
                    "query": "b 6 s 4",
                    **dict.fromkeys(("past_key", "past_value"), "b 2 3 4"),
                    **dict.fromkeys(("new_key", "new_value"), "b 2 5 4"),
                    "mask": "b 1 s 8",
                },
            ),
            attributes=_LAYOUT,
            never_empty=NEVER_EMPTY,
            redundant={"check of query": "the operator on three axes has numbers of heads", "check of *": RANKS},
            opset=23,
        ),
    ),
    Rule(
        name="attention.grouped_heads",
        formula="attention(query, repeat(key), repeat(value), mask)",
        is_refinement=True,
        pattern=grouped,
        replace=grouped_attention[0],
        intermediates={"weights": grouped_attention[3]},
        guards=(heads_are_repeated,),
        may_raise_opset=True,
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
            redundant={"check of *": RANKS},
            counterexamples={
                "heads mixed with positions": Variation(
                    constants={"key_target": [0, 3, -1, 4], "value_target": [0, 3, -1, 4]}, options={"mask": "absent"}
                ),
                "groups of other sizes": Variation(
                    shapes={"shared_value": "b 3 t 4"}, inputs={"value_expansion": expansion("shared_value", 2)}
                ),
            },
        ),
    ),
    Rule(
        name="attention.merged_heads",
        is_refinement=True,
        formula="transpose(attention(split(query), split(key), split(value), mask))",
        pattern=merged,
        replace=op.Reshape(merged_attention[0], computed("split_again", merged_shape)),
        intermediates={
            "present_key": merged_attention[1],
            "present_value": merged_attention[2],
            "weights": merged_attention[3],
        },
        guards=(heads_split_last_axis,),
        may_raise_opset=True,
        exactness=Exactness.ROUNDING,
        source=PAPER,
        proof=Proof(
            shapes=tuple(
                {"query": "b s 8", "key": f"b {keys} 8", "value": f"b {keys} 8", **dict.fromkeys(_SPLITS, "4"), **more}
                for keys, more in (
                    ("t", {"mask": "b 1 s t"}),
                    ("5", {"mask": "b 1 s 8", "past_key": "b 2 3 4", "past_value": "b 2 3 4"}),
                )
            ),
            constants={name: [0, 0, 2, 4] for name in _SPLITS},
            attributes={**_LAYOUT, "query_allowzero": [0], "key_allowzero": [0], "value_allowzero": [0]},
            inputs={"mask": masked(-math.inf)},
            redundant=dict.fromkeys(("check of query", "check of key", "check of past_*"), RANKS),
            opset=23,
        ),
    ),
]
