"""Attention over long sequences: com.microsoft MultiHeadAttention where it was measured to be faster than ai.onnx Attention.

attention(q, k, v) on [batch, length, heads * size], without a mask

Without a mask the contrib kernel works through the keys block by block (Dao et al., arXiv:2205.14135) and never holds the
whole matrix of scores, which pays as soon as that leaves the processor's caches; for short sequences it is the slower one.
"""

from __future__ import annotations

from ortfuse.pattern import Match, attr, ms, op, var
from ortfuse.rewrite import Exactness, Proof, Rule

from .._common import is_rank
from .._proofs import NEVER_EMPTY

query, key, value = (var(name, is_rank(3), "of rank 3") for name in ("query", "key", "value"))


def plain(match: Match) -> str | None:
    """No groups of heads, no causal mask, no cap, and a scale that the other operator does not take for its default."""
    heads, shared = match["query_heads"], match["key_heads"]
    if heads is None or heads != shared:
        return f"{heads} query heads share {shared} key heads"
    if match["is_causal"]:
        return "the attention is causal"
    if match["softcap"]:
        return "the scores are capped"
    return "the scale is 0, which the operator takes for its default" if match["scale"] == 0 else None


def _sizes(length: int, size: int, keys: int | None = None) -> dict[str, str]:
    return {"query": f"1 {length} {size}", **dict.fromkeys(("key", "value"), f"1 {keys or length} {size}")}


RULES = [
    Rule(
        name="attention.long",
        formula="attention(query, key, value) without a mask",
        is_refinement=True,
        pattern=op.Attention(
            query,
            key,
            value,
            q_num_heads=attr("query_heads"),
            kv_num_heads=attr("key_heads"),
            scale=attr("scale"),
            is_causal=attr("is_causal"),
            softcap=attr("softcap"),
        ),
        replace=ms.MultiHeadAttention(query, key, value, num_heads=attr("query_heads"), scale=attr("scale")),
        guards=(plain,),
        exactness=Exactness.ROUNDING,
        source="arXiv:2205.14135",
        proof=Proof(
            shapes={"query": "b s 24", "key": "b t 24", "value": "b t 24"},
            attributes={
                "query_heads": [12],
                "key_heads": [12],
                "scale": [0.125, 0.5],
                "is_causal": [0],
                "softcap": [0.0],
            },
            opset=23,
            redundant={"check of *": "without heads of their own, which only values of rank 3 have, the guard refuses"},
            never_empty=NEVER_EMPTY,
            typical=(
                *(_sizes(length, 768) for length in (16, 64, 128, 197, 384, 512, 768, 1024, 1500, 2048)),
                _sizes(1, 768, 128),
                _sizes(1, 768, 1024),
                _sizes(64, 768, 1024),
            ),
        ),
    ),
]
