"""Replace attention sinks, learned scores per head in the softmax alone, by a key and a value of zeros.

softmax(concat(s q k^T + mask, sink))[:t] v = softmax(s q concat(0, k)^T + concat(sink, mask)) concat(0, v)

on [batch, heads, length, size] (Xiao et al., arXiv:2309.17453). A key of zeros has the score 0, and the sink is its mask.
It stands first, so that no row hides its first key.
"""

from __future__ import annotations

from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Op, Pattern, built, computed, op, opt, rearrange, scalar, var

from .._rule_test_inputs import FINITE_SCORES
from .._shared_guards import array_like, ints

query, value = var("query", "b h s d"), var("value", "b h u v")
key, transposed = var("key", "b h t d"), var("transposed_key", "b h d t")
turned = rearrange("b h t d -> b h d t", key) | transposed
mask, sink = var("mask"), var("sink", "b h s 1")
scores = scalar("score_scale") * (query @ turned.named("turned", "b h d t")) + opt(mask)
weights = op.Softmax(op.Concat(scores.named("scores", "b h s t"), sink, axis=-1), axis=-1)


def _longer(operand: Pattern, axis: int) -> Op:
    """The operand with zeros at the front of an axis."""
    pads = computed(f"one_more_{axis}", lambda match: ints([int(place == axis) for place in range(8)]))
    made: Op = op.Pad(operand, pads)
    return made


def _attention(match: Match) -> Pattern:
    longer = rearrange("b h n d -> b h d n", _longer(key, 2)) if match["key"] is not None else _longer(transposed, 3)
    lengths = op.Shape(query, start=0, end=3), op.Shape(value, start=2, end=3)
    nothing = computed("nothing", lambda match: array_like(match, 0.0))
    hidden = op.Expand(nothing if match["mask"] is None else mask, op.Concat(*lengths, axis=0))
    total = scalar("score_scale") * (query @ longer) + op.Concat(sink, hidden, axis=-1)
    return op.Softmax(total, axis=-1) @ _longer(value, 2)


RULES = [
    Rule(
        name="attention.sink_logits_to_zero_key",
        formula="softmax(concat(s q k^T + mask, sink))[:t] v",
        is_refinement=True,
        pattern=weights[..., :"t"] @ value,
        replace=built(
            _attention, makes=("Shape", "Concat", "Expand", "Pad", "Transpose", "MatMul", "Mul", "Add", "Softmax")
        ),
        may_raise_opset=True,
        exactness=Exactness.ROUNDING,
        source="arXiv:2309.17453",
        test=RuleTest(
            shapes={"h": 2, "d": 4, "v": 4, "t": 5, "u": "t", "mask": "b 1 s 5"},
            scalars={"score_scale": [1.0, 0.5]},
            opset=17,
            assumes=FINITE_SCORES,
        ),
    )
]
