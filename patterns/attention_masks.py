"""Masks of attention in one form: softmax(s q k^T + mask).

(s q k^T + a) + b = s q k^T + (a + b)
softmax(where(keep, s q k^T + m, filler)) = softmax(s q k^T + where(keep, m, filler))

The second holds where the filler swallows any score that is added to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ortfuse.pattern import Match, Op, Pattern, computed, op, opt, scalar, var
from ortfuse.rewrite import Exactness, Proof, Rule, Variation

from ._common import array_like, is_rank, text
from ._masks import DEEP
from ._proofs import COST, FINITE_SCORES
from .attention import LOWEST, PAPER

PASS = "fuse.attention"

query, transposed = var("query", is_rank(4), "of rank 4"), var("transposed_key", is_rank(4), "of rank 4")
mask = var("mask")
# Masks that are added one after the other, or put in place of scores, as one that is added
first_mask, second_mask = var("first_mask"), var("second_mask")
keep, filler = var("keep"), scalar("filler")
product_of_values = scalar("score_scale") * op.MatMul(query, transposed)


def operands_are_computed(match: Match) -> str | None:
    """The product is of floating-point numbers, and neither operand is a constant: it is no linear layer."""
    dtype = match.dtype("query")
    if dtype is None or not dtype.is_floating_point():
        return f"the product is one of {dtype}"
    if match.facts.is_const(match["query"]) or match.facts.is_const(match["transposed_key"]):
        return "the product is one with a constant"
    return None


_ON_THE_WAY = frozenset({"Add", "Sub", "Mul", "Div", "Where", "Tanh", "Reshape", "Identity", "Cast"})


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
        refines=True,
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
    "guard operands_are_computed": COST, "guard leads_to_softmax": COST, "guard *lambda*": COST,
    **dict.fromkeys(("check of query", "check of transposed_key"), "the same holds for operands of any rank"),
}  # fmt: skip


def _mask_rules() -> list[Rule]:
    outer = computed("outer", lambda match: array_like(match, match["outer"]))
    scores_shapes = {"query": "b 2 s 4", "transposed_key": "b 2 4 t"}
    scalars: dict[str, Any] = {"score_scale": [1.0, 0.5]}
    return [
        Rule(
            name="attention.masks_first",
            formula="(s q k^T + first_mask) + second_mask",
            refines=True,
            pattern=op.Add(op.Add(product_of_values, first_mask), second_mask),
            replace=op.Add(product_of_values, op.Add(first_mask, second_mask)),
            guards=(operands_are_computed, leads_to_softmax),
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
            name="attention.scaled_sum",
            formula="outer (s q k^T + mask)",
            refines=True,
            pattern=scalar("outer") * (product_of_values + mask).named("masked"),
            replace=op.Mul(product_of_values, outer) + op.Mul(mask, outer),
            guards=(
                operands_are_computed,
                leads_to_softmax,
                lambda match: None if match["outer"] != 1 else "nothing is scaled",
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
        _factor_rule("head_factor", op.Mul),
        _factor_rule("head_divisor", op.Div),
        *(
            Rule(
                name=f"attention.{name}",
                formula=formula,
                refines=True,
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
