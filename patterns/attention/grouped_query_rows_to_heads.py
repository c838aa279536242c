"""Move grouped heads from query rows to the head axis, in decode steps of grouped-query attention.

    rows(attention(rows(q), k, v, repeat(mask))) = attention(q, k, v, mask)          q [batch, groups * heads, 1, size]

Exporters write a decoding step of grouped-query attention with one row per head of a group (Ainslie et al.,
arXiv:2305.13245). The mask of the single query was repeated for these rows, and any of them serves.
"""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.refusal import Refusal
from ortfuse.ir.traits import RESHAPES, has
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, Pattern, built, op, opt, rearrange, redundant, var

from .._rule_test_inputs import COST, NEVER_EMPTY, masked
from .._shared_guards import constant
from .absorb_heads_and_cache import attention

query = var("query", "b (g r) s d")
key, value = var("key", "b g n d"), var("value", "b g n v")
past_key, past_value = opt(var("past_key", "b g p d")), opt(var("past_value", "b g p v"))
as_rows = rearrange("b (g r) s d -> b g (r s) d", query).named("rows")


def has_one_query(match: Match) -> Refusal | None:
    """There is a single query, and a known number of heads in each group: rows are heads."""
    if match.dim("s") != 1:
        return match.refuse_dimension("query", 2, 1)
    known = match.size("g") and match.size("r")
    return None if known else match.refuse_dimension("query", 1, "a known number of heads")


@redundant("without it the rule would undo itself")
def groups_have_several_heads(match: Match) -> Refusal | None:
    """Each group has several heads."""
    shapes = match.shapes("query", "rows")
    if isinstance(shapes, Refusal):
        return shapes
    return match.refuse("needless", "rows", found="each head is a group") if shapes[0][1] == shapes[1][1] else None


_KEEPS_ALL = RESHAPES | {"Transpose"}


@redundant(COST)
def heads_are_split(match: Match) -> Refusal | None:
    """The heads were columns before: of rows that come as rows, to a single head, the Reshape is one of positions."""
    value: ir.Value = match["query"]
    while (node := value.producer()) is not None and has(node, _KEEPS_ALL) and node.inputs[0] is not None:
        value = node.inputs[0]
    shape = match.facts.shape(value)
    rows = shape is not None and len(shape) == 3 and shape[-1] == match.dim("d")
    return match.refuse("needless", "query", found="its rows are positions of a single head") if rows else None


def _repeated(value: ir.Value, facts: Facts) -> ir.Value | None:
    """The mask [batch, 1, 1, keys] or [1, keys] of which a value has equal rows."""
    node, after = value.producer(), facts.shape(value)
    if node is not None and node.op_type == "Reshape" and not node.domain and node.inputs[0] is not None:
        # The same axes, of which it was not known how long the last one is
        before = facts.shape(node.inputs[0])
        if before is None or after is None or len(before) != len(after) or before[:-1] != after[:-1]:
            return None
        node = node.inputs[0].producer()
    if node is None or node.op_type != "Expand" or node.domain or node.inputs[0] is None:
        return None
    shape = facts.shape(node.inputs[0])
    alike = shape is not None and 2 <= len(shape) <= 4 and all(dim == 1 for dim in shape[-3:-1])
    return node.inputs[0] if alike and after is not None and len(after) <= 4 else None


def mask_is_of_one_query(match: Match) -> Refusal | None:
    """The mask is one row for all heads, repeated."""
    if match["mask"] is None or _repeated(match["mask"], match.facts) is not None:
        return None
    return match.refuse("value", "mask", "one row, which an Expand repeats for all heads", "something else")


def _one_row(match: Match) -> Any:
    """The mask as it was before it was repeated, if it is known to be as long then; else one of the rows, of one head."""
    if match["mask"] is None:
        return None
    single = _repeated(match["mask"], match.facts)
    assert single is not None
    lengths = [(match.facts.shape(mask) or (None,))[-1] for mask in (single, match["mask"])]
    if None not in lengths and lengths[0] == lengths[1]:
        return match.capture("single", single)
    # Of several heads there were as many as groups, which are fewer than there are heads now
    axes = (-3, -2)[-min(2, (match.rank("mask") or 2) - 1) :]
    none, one = (constant(*(number,) * len(axes)) for number in (0, 1))
    made: Pattern = op.Slice(var("mask"), none, one, constant(*axes))
    return made


def _grouped(match: Match) -> Pattern:
    return attention(var("query"), key, value, _one_row(match), past_key, past_value, outputs=4)


made = built(_grouped, makes=("Attention", "Slice"))


def _mask(build: Any) -> ir.Value:
    """A mask of one query that is repeated for two or three rows."""
    single = masked(-math.inf)(build)
    sizes = [1] * (len(build.dims("mask")) - 2) + [3, 1]
    wide: ir.Value = build.node("Expand", [single, build.constant(sizes)]).outputs[0]
    if not build.chooser.pick("mask", ("expanded", "with another length")):
        return wide
    longer: ir.Value = build.node("Reshape", [wide, build.constant([0] * (len(sizes) - 1) + [-1])]).outputs[0]
    return longer


def _positions(build: Any) -> ir.Value:
    """Queries of a single head, with an axis for it."""
    rows = build.input("rows", ["b", 3, 4])
    made: ir.Value = build.node("Unsqueeze", [rows, build.constant([2])]).outputs[0]
    return made


RULES = [
    Rule(
        name="attention.gqa_decode_rows_to_heads",
        formula="rows(attention(rows(query), key, value, repeat(mask)))",
        is_refinement=True,
        pattern=rearrange(
            "b g (r s) v -> b (g r) s v",
            attention(as_rows, key, value, opt(var("mask")), past_key, past_value).naming(
                present_key=1, present_value=2
            ),
        ),
        replace=made[0],
        intermediates={"present_key": made[1], "present_value": made[2]},
        guards=(has_one_query, groups_have_several_heads, heads_are_split, mask_is_of_one_query),
        may_raise_opset=True,
        exactness=Exactness.ROUNDING,
        source="arXiv:2305.13245",
        test=RuleTest(
            shapes=(
                {"g": 2, "r": 3, "s": 1, "d": 4, "v": 4, "mask": "b 1 1 n"},
                {"g": 2, "r": 3, "s": 1, "d": 4, "v": 4, "n": 1, "p": 3, "mask": "1 4"},
            ),
            attributes={"scale": [0.5], "softcap": [0.0, 2.0], "mode": [0]},
            inputs={"mask": _mask},
            opset=23,
            never_empty=NEVER_EMPTY,
            counterexamples={
                "rows that come as rows": Variation(
                    shapes={"g": 1, "query": "b 3 1 4"}, inputs={"query": _positions}, options={"mask": "absent"}
                ),
                "several queries": Variation(shapes={"s": 2}, options={"mask": "absent"}),
            },
        ),
    )
]
