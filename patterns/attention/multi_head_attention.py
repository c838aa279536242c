"""Fuse com.microsoft MultiHeadAttention, for unknown masks or targets without ai.onnx Attention.

merge(softmax(s q k^T + mask) v) with the heads split off the last axis

The kernel computes a plain softmax, so fully masked rows keep their result for any mask. The pass runs after
`fuse.attention`, on the sites that it left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, Op, Pattern, built, computed, ms, op, opt, rearrange, redundant, scalar, var

from .._rule_test_inputs import FINITE_SCORES, masked
from .._shared_guards import ints
from .sdpa import LOWEST

PASS = "fuse.multi_head_attention"
"""A separate pass, which runs after all of fuse.attention on what that left."""

SOURCE = "ONNX Runtime contrib operator MultiHeadAttention"

mask = var("mask", "b? h? s? t")
query, key, value = var("query", "b s (h d)"), var("key", "b t (h d)"), var("value", "b t (h v)")
queries, keys, values = var("queries", "s b (h d)"), var("keys", "t b (h d)"), var("values", "t b (h v)")


def _spelled(layout: str, *operands: Pattern) -> Pattern:
    """The formula for operands with their axes of batch and length in the order of `layout`."""
    query, key, value = operands
    split_query = scalar("query_scale") * rearrange(f"{layout.replace('n', 's')} (h d) -> b h s d", query)
    turned_key = scalar("key_scale") * rearrange(f"{layout.replace('n', 't')} (h d) -> b h d t", key)
    scores = scalar("score_scale") * (split_query @ turned_key)
    split_value = rearrange(f"{layout.replace('n', 't')} (h v) -> b h t v", value)
    return op.Softmax(scores + opt(mask), axis=-1) @ split_value


@redundant("of unknown heads the replacement could not say the shape of its result")
def heads_are_known(match: Match) -> Refusal | None:
    """The number of heads is a known number."""
    name = "query" if match.get("query") is not None else "queries"
    return None if match.size("h") else match.refuse_dimension(name, -1, "a known number of heads")


def scale(match: Match) -> float:
    """The product of all scalar factors of the scores."""
    return float(match["score_scale"] * match["query_scale"] * match["key_scale"])


def _split(target: list[int], size: int | str, *names: str) -> Callable[[ir.Model], None]:
    """Change how heads are split off these inputs, whose last axis has that size."""

    def change(model: ir.Model) -> None:
        for value in model.graph.inputs:
            if value.name in names:
                value.shape = ir.Shape([*list(value.shape or ())[:2], size])
                tensor = ir.tensor(np.array(target), name=f"split_{value.name}")
                constant = ir.Value(
                    name=tensor.name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=ir.Shape([4])
                )
                model.graph.register_initializer(constant)
                next(iter(value.uses())).node.replace_input_with(1, constant)

    return change


def _attention(mask: Pattern | None, *operands: Pattern) -> Op:
    made: Op = ms.MultiHeadAttention(*operands, None, None, mask, num_heads=lambda match: match.size("h"), scale=scale)
    return made


def _plain(mask: Pattern | None) -> Pattern:
    return rearrange("b s (h v) -> b s h v", _attention(mask, query, key, value))


def _length_first(mask: Pattern | None) -> Pattern:
    swapped = [op.Transpose(operand, perm=(1, 0, 2)) for operand in (queries, keys, values)]
    return rearrange("s b (h v) -> s b h v", op.Transpose(_attention(mask, *swapped), perm=(1, 0, 2)))


def _with_four_axes(match: Match) -> Pattern | None:
    """The mask as the kernel takes it, or none."""
    missing = 4 - (match.rank("mask") or 0)
    if match["mask"] is None or not missing:
        return None if match["mask"] is None else mask
    return op.Unsqueeze(mask, computed("missing", lambda match: ints(range(missing))))


def _forms(attention: Callable[[Pattern | None], Pattern], length: Pattern) -> tuple[Pattern, Pattern]:
    """The operator with the mask as it is, and with one repeated for every query, which the kernel does not do itself."""

    def repeated(match: Match) -> Pattern:
        whole, one = _with_four_axes(match), computed("one", lambda match: ints([1]))
        return attention(None if whole is None else op.Expand(whole, op.Concat(one, one, length, one, axis=0)))

    makes = ("com.microsoft.MultiHeadAttention", "Unsqueeze", "Expand", "Concat", "Shape", "Transpose", "Reshape")
    return built(lambda match: attention(_with_four_axes(match)), makes=makes), built(repeated, makes=makes)


PROOF = RuleTest(
    shapes={"h": 2, "d": 4, "v": 4},
    scalars={name: [1.0, 0.5] for name in ("score_scale", "query_scale", "key_scale")},
    inputs={"mask": masked(LOWEST)},
    assumes=FINITE_SCORES,
    opset=17,
    redundant={
        "dimension d": "the product of query and key asks for it too",
        "dimension s": "a mask that broadcasts the scores gives another shape, which the rewriter refuses",
    },
)
"""The rule test in either layout."""

RULES = [
    Rule(
        name="attention.to_multi_head_attention",
        formula="transpose(softmax(s split(query) split(key)^T + mask) split(value))",
        pattern=op.Transpose(_spelled("b n", query, key, value), perm=(0, 2, 1, 3)),
        replace=_forms(_plain, op.Shape(query, start=1, end=2)),
        guards=(heads_are_known,),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=replace(
            PROOF,
            counterexamples={
                "any number of heads": Variation(
                    options={"mask": "absent"},
                    sizes={"c": 8},
                    change=_split([0, 0, -1, 4], "c", "query", "key", "value"),
                ),
                "one head of keys": Variation(
                    options={"mask": "absent"}, change=_split([0, 0, 1, 4], 4, "key", "value")
                ),
            },
        ),
    ),
    Rule(
        # As torch.nn.MultiheadAttention writes it.
        name="attention.to_multi_head_attention_sequence_first",
        formula="transpose(softmax(s split(queries) split(keys)^T + mask) split(values))",
        pattern=op.Transpose(_spelled("n b", queries, keys, values), perm=(2, 0, 1, 3)),
        replace=_forms(_length_first, op.Shape(queries, start=0, end=1)),
        guards=(heads_are_known,),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=PROOF,
    ),
]
