"""Masks of attention in one form: softmax(s q k^T + mask).

(s q k^T + a) + b = s q k^T + (a + b)          (s q k^T + a) - b = s q k^T + (a + -b)
softmax(where(keep, s q k^T + m, filler)) = softmax(s q k^T + where(keep, m, filler))
windows(s q k^T) + w = windows(s q k^T + merged(w))

The second holds where the filler swallows any score that is added to it. In the third, windows are an axis of their own that
the scores have together with the batch: [batch * windows, heads, queries, keys].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ortfuse.pattern import Match, Op, Pattern, attr, computed, op, opt, redundant, scalar, var
from ortfuse.rewrite import Exactness, Proof, Rule, Variation

from .._common import array_like, ints, is_rank, text
from .._proofs import COST, FINITE_SCORES
from ._masks import DEEP
from .dot_product import LOWEST, PAPER

query, transposed = var("query", is_rank(4), "of rank 4"), var("transposed_key", is_rank(4), "of rank 4")
mask = var("mask")
# Masks that are added one after the other, or put in place of scores, as one that is added
first_mask, second_mask = var("first_mask"), var("second_mask")
keep, filler = var("keep"), scalar("filler")
product_of_values = scalar("score_scale") * op.MatMul(query, transposed)


@redundant(COST)
def operands_are_computed(match: Match) -> str | None:
    """The product is of floating-point numbers, and neither operand is a constant: it is no linear layer."""
    dtype = match.dtype("query")
    if dtype is None or not dtype.is_floating_point():
        return f"the product is one of {dtype}"
    if match.facts.is_const(match["query"]) or match.facts.is_const(match["transposed_key"]):
        return "the product is one with a constant"
    return None


_ON_THE_WAY = frozenset({"Add", "Sub", "Mul", "Div", "Where", "Tanh", "Reshape", "Identity", "Cast"})


@redundant(COST)
def leads_to_softmax(match: Match) -> str | None:
    """All that becomes of the value is the scores of a Softmax."""
    level = [match.root]
    for _ in range(8):
        if any(value.is_graph_output() or not value.uses() for value in level):
            return "the value is used for more than the scores of a Softmax"
        users = [use.node for value in level for use in value.uses()]
        if any(node.op_type not in _ON_THE_WAY | {"Softmax"} for node in users):
            return "the value is used for more than the scores of a Softmax"
        level = [node.outputs[0] for node in users if node.op_type != "Softmax"]
        if not level:
            return None
    return "no Softmax is near"


@redundant("without it the rule would undo itself")
def second_mask_is_no_product(match: Match) -> str | None:
    """The root is not a product and the rest of the sum already: of two products either could be the scores."""
    node = match["second_mask"].producer()
    while node is not None and node.op_type in ("Mul", "Div") and any(map(match.facts.is_const, node.inputs)):
        node = next((value.producer() for value in node.inputs if not match.facts.is_const(value)), None)
    return "what is added last is a product too" if node is not None and node.op_type == "MatMul" else None


def hides_altogether(match: Match) -> str | None:
    """The filler swallows any score that is added to it, and the choice does not broadcast the scores."""
    if match["filler"] > DEEP:
        return f"the filler {match['filler']:g} may be less than what scores add up to"
    if match.shape("chosen_scores") is None or match.shape("chosen_scores") != match.facts.shape(match.root):
        return "the choice broadcasts the scores"
    return None


def _chosen(hide: bool) -> Pattern:
    scored = (product_of_values + opt(mask)).named("chosen_scores")
    parts = (filler, scored) if hide else (scored, filler)
    return op.Where(keep, *parts)


def _as_sum(hide: bool) -> Pattern:
    unmasked = mask | computed("nothing", lambda match: array_like(match, 0.0))
    parts = (filler, unmasked) if hide else (unmasked, filler)
    return product_of_values + op.Where(keep, *parts)


factor = var("factor")


def is_one_for_each_head(match: Match) -> str | None:
    """The factor does not vary along queries and keys, and adds no axes."""
    shape = match.shape("factor")
    if match.facts.scalar(match["factor"]) is not None:
        return "the factor is a number, which the operator takes as scale"
    if shape is None or len(shape) > 4 or any(dim != 1 for dim in shape[-2:]):
        return f"the factor {text(shape or ())} varies along queries or keys"
    if match.facts.shape(match.root) != match.shape("product"):
        return "the factor broadcasts the scores"
    return None


def _factor_rule(name: str, made: Callable[..., Op]) -> Rule:
    product = op.MatMul(query, transposed).named("product")
    return Rule(
        name=f"attention.{name}",
        formula=f"(q k^T) {'*' if name == 'head_factor' else '/'} factor",
        is_refinement=True,
        pattern=made(product, factor),
        replace=op.MatMul(made(query, factor), transposed),
        guards=(operands_are_computed, is_one_for_each_head, leads_to_softmax),
        exactness=Exactness.ROUNDING,
        source=PAPER,
        proof=Proof(
            followed_by="Softmax",
            shapes={"query": "b 2 s 4", "transposed_key": "b 2 4 t", "factor": "2 1 1"},
            constants={"factor": "positive"},
            assumes=FINITE_SCORES,
            redundant=REDUNDANT,
            counterexamples={
                "as many keys as the size of a head": Variation(
                    shapes={"transposed_key": "b 2 4 4", "factor": "2 1 4"}, constants={"factor": FACTORS}
                )
            },
        ),
    )


FACTORS = [0.5, 1.0, 2.0, 3.0, 4.0, 3.0, 2.0, 1.0]
REDUNDANT = {
    **dict.fromkeys(("check of query", "check of transposed_key"), "the same holds for operands of any rank"),
}  # fmt: skip


# Scores [batch * windows, ...] seen as [batch, windows, ...], to add a mask for each window
scores = (product_of_values + opt(first_mask)).named("scores")
_split = {"allowzero": attr("split_zero")}
windows = op.Reshape(scores, var("split_target"), **_split).named("windows")


def mask_is_of_windows(match: Match) -> str | None:
    """The Reshape splits the first axis of the scores alone, into a known number of windows, and the mask broadcasts to that."""
    queries, before, after, shape = map(match.shape, ("query", "scores", "windows", "mask"))
    if queries is None or before is None or after is None or shape is None:
        return "a shape is not known"
    if queries[0] != before[0]:
        return "the query is the same for all windows"
    if after[2:] != before[1:] or after[0] * after[1] != before[0] or not isinstance(after[1], int) or after[1] < 1:
        return f"the first axis of {text(before)} is not provably split into a known number of windows: {text(after)}"
    if len(shape) != len(after) or shape[0] not in (1, after[0]) or shape[1] not in (1, after[1]):
        return f"the mask {text(shape)} does not provably broadcast to {text(after)}"
    return None if match.facts.shape(match.root) == after else "the mask broadcasts the scores"


def _merged_windows() -> Pattern:
    """The mask repeated for the whole batch, with the windows in the axis of the batch."""
    count = computed("windows", lambda match: ints([match.shape("windows")[1]]))
    ones = computed("ones", lambda match: ints([1] * ((match.rank("mask") or 0) - 2)))
    both = op.Shape(query, start=0, end=1)
    repeated = op.Expand(mask, op.Concat(op.Div(both, count), count, ones, axis=0))
    return op.Reshape(repeated, op.Concat(both, op.Shape(mask, start=2), axis=0), allowzero=1)


def _mask_rules() -> list[Rule]:
    outer = computed("outer", lambda match: array_like(match, match["outer"]))
    scores_shapes = {"query": "b 2 s 4", "transposed_key": "b 2 4 t"}
    scalars: dict[str, Any] = {"score_scale": [1.0, 0.5]}
    return [
        Rule(
            name="attention.masks_first",
            formula="(s q k^T + first_mask) + second_mask",
            is_refinement=True,
            pattern=op.Add(op.Add(product_of_values, first_mask), second_mask),
            replace=op.Add(product_of_values, op.Add(first_mask, second_mask)),
            guards=(operands_are_computed, second_mask_is_no_product, leads_to_softmax),
            exactness=Exactness.ROUNDING,
            source=PAPER,
            proof=Proof(
                followed_by="Softmax",
                shapes={**scores_shapes, "first_mask": "1 2 s t", "second_mask": "b 1 1 t"},
                scalars=scalars,
                redundant=REDUNDANT,
            ),
        ),
        Rule(
            name="attention.subtracted_mask",
            formula="(s q k^T + first_mask) - mask",
            is_refinement=True,
            pattern=op.Sub(scores, mask),
            replace=scores + op.Neg(mask),
            guards=(operands_are_computed, leads_to_softmax),
            exactness=Exactness.ROUNDING,
            source=PAPER,
            proof=Proof(
                followed_by="Softmax",
                shapes={**scores_shapes, "first_mask": "1 2 s t", "mask": "b 1 1 t"},
                scalars=scalars,
                redundant=REDUNDANT,
            ),
        ),
        Rule(
            name="attention.scaled_sum",
            formula="outer (s q k^T + mask)",
            is_refinement=True,
            pattern=scalar("outer") * (product_of_values + mask).named("masked"),
            replace=op.Mul(product_of_values, outer) + op.Mul(mask, outer),
            guards=(
                operands_are_computed,
                leads_to_softmax,
                redundant(COST)(lambda match: None if match["outer"] != 1 else "nothing is scaled"),
            ),
            exactness=Exactness.ROUNDING,
            source=PAPER,
            proof=Proof(
                followed_by="Softmax",
                shapes={**scores_shapes, "mask": "b 1 s t"},
                scalars={**scalars, "outer": [0.5, 2.0]},
                assumes=FINITE_SCORES,
                redundant=REDUNDANT,
            ),
        ),
        Rule(
            name="attention.window_mask",
            formula="windows(s q k^T + first_mask) + mask",
            is_refinement=True,
            pattern=op.Add(windows, mask),
            replace=op.Reshape(scores + _merged_windows(), var("split_target"), **_split),
            guards=(operands_are_computed, mask_is_of_windows, leads_to_softmax),
            exactness=Exactness.ROUNDING,
            source="arXiv:2103.14030",
            proof=Proof(
                followed_by="Softmax",
                shapes=tuple(
                    {
                        "query": "6 2 5 4",
                        "transposed_key": "6 2 4 7",
                        "first_mask": "1 2 5 7",
                        "split_target": "5",
                        "mask": dims,
                    }
                    for dims in ("1 3 1 5 7", "2 1 2 1 7")
                ),
                scalars=scalars,
                constants={"split_target": [-1, 3, 2, 5, 7]},
                attributes={"split_zero": [0]},
                redundant=REDUNDANT,
                uncovered=dict.fromkeys(
                    ("query is: a constant", "transposed_key is: a constant"), "such products are left alone"
                ),
                opset=17,
                counterexamples={
                    "heads split too": Variation(
                        shapes={"mask": "3 4 1 5 7"},
                        constants={"split_target": [3, 4, 1, 5, 7]},
                        options={"first_mask": "absent"},
                    ),
                    "positions split too": Variation(
                        shapes={"mask": "1 3 1 7 5"},
                        constants={"split_target": [2, 3, 2, 7, 5]},
                        options={"first_mask": "absent"},
                    ),
                },
            ),
        ),
        _factor_rule("head_factor", op.Mul),
        _factor_rule("head_divisor", op.Div),
        *(
            Rule(
                name=f"attention.{name}",
                formula=formula,
                is_refinement=True,
                pattern=_chosen(hide),
                replace=_as_sum(hide),
                guards=(operands_are_computed, hides_altogether, leads_to_softmax),
                exactness=Exactness.ROUNDING,
                source=PAPER,
                proof=Proof(
                    followed_by="Softmax",
                    shapes={**scores_shapes, "mask": "1 2 s t", "keep": "b 1 1 t"},
                    scalars={**scalars, "filler": [LOWEST, -math.inf]},
                    inputs={"keep": "bool"},
                    assumes=FINITE_SCORES,
                    redundant=REDUNDANT,
                ),
            )
            for name, formula, hide in (
                ("kept_scores", "where(keep, s q k^T + mask, filler)", False),
                ("hidden_scores", "where(hide, filler, s q k^T + mask)", True),
            )
        ),
    ]


RULES = _mask_rules()
