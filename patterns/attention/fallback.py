"""Attention whose mask nothing is known about, or whose target has no ai.onnx Attention, as com.microsoft MultiHeadAttention.

merge(softmax(s q k^T + mask) v) with the heads split off the last axis

The kernel computes the plain softmax, so that fully masked rows come out as they did, whatever the mask holds. It runs
after `fuse.attention`, on what that had to leave alone.
"""

from __future__ import annotations

from ortfuse.pattern import Match, Pattern, attr, computed, ms, op, opt, scalar, var
from ortfuse.rewrite import Exactness, Proof, Rule, Variation

from .._common import is_rank, text
from .._proofs import FINITE_SCORES, RANKS, masked
from .heads import heads_of, heads_split_last_axis, merged_shape, split_query, split_value

PASS = "fuse.attention_fallback"
"""After the whole of fuse.attention: only what is left there."""

SOURCE = "ONNX Runtime contrib operator MultiHeadAttention"

key_split = op.Reshape(var("key", is_rank(3), "of rank 3"), var("key_shape"), allowzero=attr("key_allowzero"))
transposed_key = op.Transpose(key_split.named("key_split").kept(), perm=(0, 2, 3, 1)).kept()
mask = var("mask", is_rank(4), "of rank 4")
scores = scalar("score_scale") * op.MatMul(scalar("query_scale") * split_query, scalar("key_scale") * transposed_key)
attention: Pattern = op.MatMul(op.Softmax(scores + opt(mask), axis=-1), split_value)


def shapes_agree(match: Match) -> str | None:
    """Query, key and value provably fit, with as many heads each, and the mask broadcasts to the scores."""
    q, k, v = (match.shape(f"{name}_split") for name in ("query", "key", "value"))
    assert q is not None
    assert k is not None
    assert v is not None
    if k[:3] != v[:3] or q[0] != k[0] or q[2:] != k[2:]:
        return f"query {text(q)}, key {text(k)} and value {text(v)} do not provably fit"
    if match["mask"] is not None:
        shape, wanted = match.shape("mask"), (q[0], q[2], q[1], k[1])
        if shape is None or not all(dim in (1, full) for dim, full in zip(shape, wanted, strict=True)):
            return f"the mask {text(shape or ())} does not provably broadcast to the scores {text(wanted)}"
        if shape[3] != wanted[3]:
            return "the mask is broadcast over the keys"
    return None


def scale(match: Match) -> float:
    """The product of all scalar factors of the scores."""
    return float(match["score_scale"] * match["query_scale"] * match["key_scale"])


RULES = [
    Rule(
        name="attention.multi_head",
        formula="transpose(softmax(s split(query) split(key)^T + mask) split(value))",
        pattern=op.Transpose(attention, perm=(0, 2, 1, 3)),
        replace=op.Reshape(
            ms.MultiHeadAttention(
                var("query"), var("key"), var("value"), None, None, opt(mask), num_heads=heads_of("query"), scale=scale
            ),
            computed("split_again", merged_shape),
        ),
        guards=(heads_split_last_axis, shapes_agree),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        proof=Proof(
            shapes=tuple(
                {
                    "query": "b s 8",
                    "key": "b t 8",
                    "value": "b t 8",
                    "mask": masks,
                    "query_shape": "4",
                    "key_shape": "4",
                    "value_shape": "4",
                }
                for masks in ("b 1 s t", "1 2 s t", "b 2 s t")
            ),
            constants={"query_shape": [0, 0, 2, 4], "key_shape": [0, 0, 2, 4], "value_shape": [0, 0, 2, 4]},
            scalars={name: [1.0, 0.5] for name in ("score_scale", "query_scale", "key_scale")},
            attributes={"query_allowzero": [0], "key_allowzero": [0], "value_allowzero": [0]},
            inputs={"mask": masked(-3.4028234663852886e38)},
            assumes=FINITE_SCORES,
            redundant={"check of *": RANKS},
            opset=17,
            counterexamples={
                "positions split too": Variation(
                    shapes={"query": "b s 16"}, constants={"query_shape": [0, -1, 2, 4]}, options={"mask": "absent"}
                ),
                "any number of heads": Variation(
                    shapes={"query": "b s h", "key": "b t h", "value": "b t h"},
                    constants={name: [0, 0, -1, 4] for name in ("query_shape", "key_shape", "value_shape")},
                    options={"mask": "absent"},
                    sizes={"h": 8},
                ),
            },
        ),
    ),
]
