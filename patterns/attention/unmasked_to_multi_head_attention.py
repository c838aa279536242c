"""Select com.microsoft MultiHeadAttention for unmasked attention if it was measured to be faster than ai.onnx Attention.

attention(q, k, v) on [batch, length, heads * size], without a mask

Without a mask, the contrib kernel goes through the keys block by block (Dao et al., arXiv:2205.14135). It never holds the
whole matrix of scores, which is faster once that exceeds the processor's caches. It is slower for short sequences.
"""

from __future__ import annotations

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, attr, ms, op, redundant, var
from ortfuse.targets import Quirk

from .._rule_test_inputs import KERNEL, NEVER_EMPTY

TARGETS = ("cpu",)

query, key, value = (var(name, "_ _ _") for name in ("query", "key", "value"))
# As many key heads as query heads, and a scale that the other operator does not treat as "use the default"
heads = attr("heads", lambda number, facts: number is not None, "given")
scale = attr("scale", lambda number, facts: number != 0, "other than 0")


@redundant("costs of the kernel say nothing about what it is lowered to, which would be right too")
def kernel_is_compared(match: Match) -> Refusal | None:
    """The target runs ai.onnx Attention: elsewhere the rules that lower it choose."""
    lacks = Quirk.LACKS_ATTENTION in match.quirks
    return match.refuse("other_rule", "root", "the rules that lower Attention") if lacks else None


def _sizes(length: int, size: int, keys: int | None = None) -> dict[str, str]:
    return {"query": f"1 {length} {size}", **dict.fromkeys(("key", "value"), f"1 {keys or length} {size}")}


RULES = [
    Rule(
        name="attention.unmasked_attention_op_to_multi_head_attention",
        formula="attention(query, key, value) without a mask",
        is_refinement=True,
        pattern=op.Attention(query, key, value, q_num_heads=heads, kv_num_heads=heads, scale=scale),
        replace=ms.MultiHeadAttention(query, key, value, num_heads=heads, scale=scale),
        guards=(kernel_is_compared,),
        exactness=Exactness.ROUNDING,
        source="arXiv:2205.14135",
        test=RuleTest(
            shapes={"query": "b s 24", "key": "b t 24", "value": "b t 24"},
            attributes={"heads": [12], "scale": [0.125, 0.5]},
            opset=23,
            never_empty=NEVER_EMPTY,
            redundant={
                "check of attribute heads": "only operands of rank 4 go without, which the kernel takes otherwise",
                "check of attribute scale": KERNEL,
            },
            typical=(
                *(_sizes(length, 768) for length in (16, 64, 128, 197, 384, 512, 768, 1024, 1500, 2048)),
                _sizes(1, 768, 128),
                _sizes(1, 768, 1024),
                _sizes(64, 768, 1024),
            ),
        ),
    ),
]
