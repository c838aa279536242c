"""Transpose attention with swapped operands: values before transposed weights, or scores as keys times queries.

v softmax(s q k^T)^T = attention(q, k, v^T)^T                    blocks of vision networks that have channels first

v p^T = (p v^T)^T                                   softmax of (k q^T) over its rows = (softmax of (q k^T) over its columns)^T

(k q^T)^T = q k^T                                   above a Softmax

The first adds Transposes that are executed, and is skipped for few positions. The second and third apply only if their
Transposes merge with neighbouring ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, Op, Pattern, attr, built, op, redundant, scalar, var

from .._rule_test_inputs import COST, FINITE_SCORES, NEVER_EMPTY
from .additive_mask import leads_to_softmax, operands_are_computed
from .merge_values_under_one_softmax import is_softmax, softmax_of_scores
from .sdpa import PAPER, heads_are_shared_alike, scale

OPSET_OF_ONE_AXIS = 13


def _swaps_the_last(perm: Any, facts: Facts) -> bool:
    """A check for attributes: the last two axes are exchanged, the others stay."""
    found = list(perm or ())
    rank = len(found)
    return rank > 1 and found == [*range(rank - 2), rank - 1, rank - 2]


def is_turned(value: ir.Value, facts: Facts) -> bool:
    """Whether a value is computed by a Transpose that does not keep the last axis where it is."""
    node = value.producer()
    if node is None or node.op_type != "Transpose" or node.domain:
        return False
    perm = node.attributes.get_ints("perm", ())
    return not perm or perm[-1] != len(perm) - 1


def _turned_input(build: Any) -> ir.Value:
    *leading, rows, columns = build.dims("values")
    found = build.input("turned", [*leading, columns, rows])
    rank = len(leading) + 2
    perm = [*range(rank - 2), rank - 1, rank - 2]
    values: ir.Value = build.node("Transpose", [found], {"perm": perm}).outputs[0]
    return values


@redundant(COST)
def result_is_turned(match: Match) -> Refusal | None:
    """All that uses the result are Transposes."""
    uses = [use.node for use in match.root.uses()]
    if uses and not match.root.is_graph_output() and all(node.op_type == "Transpose" for node in uses):
        return None
    return match.refuse("use", "root", "a Transpose")


def factors_have_all_axes(match: Match) -> Refusal | None:
    """The factors have as many axes as each other."""
    rank = match.rank("first")
    return match.refuse("rank", "first", "known") if rank is None else match.unless_rank("second", rank)


def is_over_rows(match: Match) -> Refusal | None:
    """The Softmax is taken over the last axis but one, as it can say from opset 13 on."""
    rank, node = match.rank("first") or 0, match.root.producer()
    if node is None or match.facts.version(node) < OPSET_OF_ONE_AXIS:
        return match.refuse("attribute", "axis", f"of opset {OPSET_OF_ONE_AXIS} on, where it is the only one")
    return match.unless_value("axis", match["axis"] in (-2, rank - 2), "the last but one")


def _swapped_axes(rank: int) -> Sequence[int]:
    return [*range(rank - 2), rank - 1, rank - 2]


def _swapped(match: Match) -> Sequence[int]:
    return _swapped_axes(match.rank("first") or 0)


def _turned(operand: Pattern) -> Op:
    made: Op = op.Transpose(operand, perm=_swapped)
    return made


perm = attr("perm", _swaps_the_last, "an exchange of the last two axes")
weights = var("weights", "...b s t", check=is_softmax, text="computed by a Softmax")
values = var("values", "...b v t", check=is_turned, text="computed by a Transpose that moves the last axis")
first, second = var("first"), var("second")


def _values_first(note: str, queries: str, keys: str, turned: tuple[int, ...]) -> Rule:
    """The rule for one rank, given the leading axes of queries and of keys, and the exchange of the last two axes."""
    key = scalar("key_scale") * var("transposed_key", f"{keys} d t")
    scores = scalar("score_scale") * ((scalar("query_scale") * var("query", f"{queries} s d")) @ key)
    given = op.Softmax(scores, axis=-1).named("weights")
    return Rule(
        name=f"attention.sdpa_value_times_transposed_weights{note}",
        formula="v softmax(s q k^T)^T",
        pattern=op.MatMul(
            var("value", f"{keys} v u"), op.Transpose(given, perm=attr("perm", _swaps_the_last, "a swap"))
        ),
        replace=built(_turned_attention, makes=("Attention", "Transpose")),
        guards=(heads_are_shared_alike,) if "h" in queries else (),
        may_raise_opset=True,
        exactness=Exactness.ROUNDING,
        source="arXiv:2410.17725",
        test=RuleTest(
            shapes={"h": 2, "g": 2, "d": 4, "v": 4, "u": "t"} if "h" in queries else {"d": 4, "v": 4, "u": "t"},
            attributes={"perm": [turned]},
            scalars={name: [1.0, 0.5] for name in ("score_scale", "query_scale", "key_scale")},
            never_empty=NEVER_EMPTY,
            assumes=FINITE_SCORES,
        ),
    )


def _turned_attention(match: Match) -> Pattern:
    """The operator on keys and values with the length first, and its result with the length last."""
    swap = _swapped_axes(match.rank("query") or 0)
    counts = {} if match.rank("query") == 4 else {"q_num_heads": 1, "kv_num_heads": 1}
    key, values = (op.Transpose(var(name), perm=swap) for name in ("transposed_key", "value"))
    made: Pattern = op.Transpose(op.Attention(var("query"), key, values, scale=scale, **counts), perm=swap)
    return made


RULES = [
    _values_first("", "b h", "b g", (0, 1, 3, 2)),
    _values_first("_merged_heads", "b", "b", (0, 2, 1)),
    Rule(
        name="attention.value_times_transposed_weights",
        formula="v softmax(scores)^T",
        is_refinement=True,
        pattern=op.MatMul(values, op.Transpose(weights, perm=perm)),
        replace=op.Transpose(op.MatMul(weights, op.Transpose(values, perm=attr("perm"))), perm=attr("perm")),
        guards=(result_is_turned,),
        exactness=Exactness.ROUNDING,
        source=PAPER,
        test=RuleTest(
            shapes=({"weights": "b 2 s t", "values": "b 2 4 t"}, {"weights": "b s t", "values": "b 4 t"}),
            attributes=({"perm": [(0, 1, 3, 2)]}, {"perm": [(0, 2, 1)]}),
            inputs={"weights": softmax_of_scores, "values": _turned_input},
            followed_by="Transpose",
            redundant={"check of weights": COST, "check of values": COST},
        ),
    ),
    Rule(
        name="attention.transpose_column_softmax",
        formula="softmax(s k q^T) over the rows",
        is_refinement=True,
        pattern=op.Softmax(scalar("scale") * op.MatMul(first, second), axis=attr("axis")),
        replace=_turned(op.Softmax(scalar("scale") * op.MatMul(_turned(second), _turned(first)), axis=-1)),
        guards=(factors_have_all_axes, is_over_rows),
        exactness=Exactness.ROUNDING,
        source=PAPER,
        test=RuleTest(
            shapes=({"first": "b 2 s 4", "second": "b 2 4 t"}, {"first": "b s 4", "second": "b 4 t"}),
            attributes=({"axis": [-2, 2]}, {"axis": [-2, 1]}),
            scalars={"scale": [1.0, 0.5]},
            assumes=FINITE_SCORES,
            opset=17,
            counterexamples={"over another axis": Variation(attributes={"axis": -1})},
        ),
    ),
    Rule(
        name="attention.transpose_of_key_query_product",
        formula="(k q^T)^T, on the way to a softmax",
        is_refinement=True,
        pattern=op.Transpose(
            op.MatMul(var("query", "_ _ _ _"), var("transposed_key", "_ _ _ _")),
            perm=attr("perm", _swaps_the_last, "an exchange of the last two axes"),
        ),
        replace=op.MatMul(
            op.Transpose(var("transposed_key"), perm=attr("perm")), op.Transpose(var("query"), perm=attr("perm"))
        ),
        guards=(operands_are_computed, leads_to_softmax),
        exactness=Exactness.ROUNDING,
        source=PAPER,
        test=RuleTest(
            shapes={"query": "b 2 s 4", "transposed_key": "b 2 4 t"},
            attributes={"perm": [(0, 1, 3, 2)]},
            followed_by="Softmax",
            redundant={"query is: a constant": COST, "transposed_key is: a constant": COST},
        ),
    ),
]
