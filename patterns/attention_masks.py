"""Masks of attention in one form: softmax(s q k^T + mask).

(s q k^T + a) + b = s q k^T + (a + b)
softmax(where(keep, s q k^T + m, filler)) = softmax(s q k^T + where(keep, m, filler))

The second holds where the filler swallows any score that is added to it.
"""

from __future__ import annotations

import math
from typing import Any

from ortfuse.pattern import Match, Pattern, computed, op, opt, scalar, var
from ortfuse.rewrite import Exactness, Proof, Rule

from ._common import array_like, is_rank
from ._masks import DEEP
from .attention import LOWEST, PAPER

PASS = "fuse.attention"

query, transposed = var("query", is_rank(4), "of rank 4"), var("transposed_key", is_rank(4), "of rank 4")
mask = var("mask")
# Masks that are added one after the other, or put in place of scores, as one that is added
first_mask, second_mask = var("first_mask"), var("second_mask")
keep, filler = var("keep"), scalar("filler")
product_of_values = scalar("score_scale") * op.MatMul(query, transposed)


def operands_are_computed(match: Match) -> str | None:
    """Neither operand of the product is a constant: it is no linear layer."""
    if match.facts.is_const(match["query"]) or match.facts.is_const(match["transposed_key"]):
        return "the product is one with a constant"
    return None


def hides_altogether(match: Match) -> str | None:
    """The filler swallows any score that is added to it, and the choice does not broadcast the scores."""
    if match["filler"] > DEEP:
        return f"the filler {match['filler']:g} may be less than what scores add up to"
    if match.shape("chosen_scores") is None or match.shape("chosen_scores") != match.facts.shape(match["chosen"]):
        return "the choice broadcasts the scores"
    return None


def _chosen(hide: bool) -> Pattern:
    scored = (product_of_values + opt(mask)).named("chosen_scores")
    parts = (filler, scored) if hide else (scored, filler)
    return op.Where(keep, *parts).named("chosen")


def _as_sum(hide: bool) -> Pattern:
    unmasked = mask | computed("nothing", lambda match: array_like(match, 0.0))
    parts = (filler, unmasked) if hide else (unmasked, filler)
    return op.Softmax(product_of_values + op.Where(keep, *parts), axis=-1)


def _mask_rules() -> list[Rule]:
    scores_shapes = {"query": "b 2 s 4", "transposed_key": "b 2 4 t"}
    scalars: dict[str, Any] = {"score_scale": [1.0, 0.5]}
    return [
        Rule(
            name="attention.masks_first",
            formula="(s q k^T + first_mask) + second_mask",
            refines=True,
            pattern=op.Add(op.Add(product_of_values, first_mask), second_mask),
            replace=op.Add(product_of_values, op.Add(first_mask, second_mask)),
            guards=(operands_are_computed,),
            exactness=Exactness.ROUNDING,
            source=PAPER,
            proof=Proof(shapes={**scores_shapes, "first_mask": "1 2 s t", "second_mask": "b 1 1 t"}, scalars=scalars),
        ),
        *(
            Rule(
                name=f"attention.{name}",
                formula=formula,
                refines=True,
                pattern=op.Softmax(_chosen(hide), axis=-1),
                replace=_as_sum(hide),
                guards=(operands_are_computed, hides_altogether),
                exactness=Exactness.ROUNDING,
                source=PAPER,
                proof=Proof(
                    shapes={**scores_shapes, "mask": "1 2 s t", "keep": "b 1 1 t"},
                    scalars={**scalars, "filler": [LOWEST, -math.inf]},
                    inputs={"keep": "bool"},
                ),
            )
            for name, formula, hide in (
                ("kept_scores", "softmax(where(keep, s q k^T + mask, filler))", False),
                ("hidden_scores", "softmax(where(hide, filler, s q k^T + mask))", True),
            )
        ),
    ]


RULES = _mask_rules()
