"""Remove the Expand of an attention mask that is the same for the whole batch or for all heads.

attention(q, k, v, expand(mask, shape)) = attention(q, k, v, mask)

The mask must have all queries and keys.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Op, Pattern, attr, ms, op, opt, var

from .._rule_test_inputs import NEVER_EMPTY
from ..attention.sdpa import PAPER

PASS = "contrib.unbroadcast_mask"

query, key, value, mask = var("query"), var("key"), var("value"), var("mask")
past_key, past_value = opt(var("past_key")), opt(var("past_value"))
_expanded: Pattern = op.Expand(mask, var("shape")).kept().named("wide")


def _standard(mask: Pattern) -> Op:
    names = ("scale", "softcap", "qk_matmul_output_mode", "is_causal", "q_num_heads", "kv_num_heads")
    made: Op = op.Attention(
        query, key, value, mask, past_key, past_value, outputs=4, **{name: attr(name) for name in names}
    )
    return made


def _contrib(mask: Pattern) -> Op:
    names = ("num_heads", "scale", "unidirectional")
    made: Op = ms.MultiHeadAttention(query, key, value, None, None, mask, **{name: attr(name) for name in names})
    return made


def has_all_queries_and_keys(match: Match) -> Refusal | None:
    """The mask is expanded along the axes of the batch and of the heads alone, which it has too."""
    shapes = match.shapes("mask", "wide")
    if isinstance(shapes, Refusal):
        return shapes
    small, wide = shapes
    if len(small) != len(wide) or len(wide) != 4 or small[2:] != wide[2:]:
        return match.refuse("shape", "mask", wide)
    alike = all(before in (1, after) for before, after in zip(small, wide, strict=True))
    return None if alike else match.refuse("shape", "mask", wide)


def _wide(build: Any) -> ir.Value:
    """The sizes of a mask for each element of the batch."""
    source = next(value for value in build.graph.inputs if value.name == "query")
    batch = build.node("Gather", [build.node("Shape", [source]).outputs[0], build.constant([0])]).outputs[0]
    made: ir.Value = build.node("Concat", [batch, build.constant([2, 1, 1])], {"axis": 0}).outputs[0]
    return made


_MADE = _standard(mask)
_OTHERS = {"present_key": 1, "present_value": 2, "weights": 3}


def _either(mask: Pattern, **others: int) -> Pattern:
    return (_standard(mask).naming(**others) | _contrib(mask)).named("attention")


RULES = [
    Rule(
        name="attention.unbroadcast_mask",
        formula="attention(query, key, value, expand(mask)), by either operator",
        is_refinement=True,
        pattern=_either(_expanded, **_OTHERS),
        replace=(_MADE | _contrib(mask)).named("attention"),
        intermediates={name: _MADE[place] for name, place in _OTHERS.items()},
        guards=(has_all_queries_and_keys,),
        exactness=Exactness.ROUNDING,
        source=PAPER,
        test=RuleTest(
            shapes=(
                {"query": "b s 8", "key": "b t 8", "value": "b t 8", "mask": "1 1 s t"},
                {"query": "b 2 s 4", "key": "b 2 5 4", "value": "b 2 5 4", "past_key": "b 2 3 4",
                 "past_value": "b 2 3 4", "mask": "b 1 s 8"},
                {"query": "b s 8", "key": "b t 8", "value": "b t 8", "mask": "1 1 s t"},
            ),
            attributes=tuple(
                {"scale": [0.5], "softcap": [0.0], "qk_matmul_output_mode": [0], "is_causal": [0], "unidirectional": [0],
                 "q_num_heads": [heads], "kv_num_heads": [heads], "num_heads": [2]}
                for heads in (2, None, 2)
            ),
            alternatives=[{"attention": number} for number in (0, 0, 1)],
            inputs={"shape": _wide},
            opset=23,
            never_empty=NEVER_EMPTY,
        ),
    ),
]  # fmt: skip
