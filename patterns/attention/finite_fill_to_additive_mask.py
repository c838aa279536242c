"""Canonicalize scores that are filled with a finite number, `scores.masked_fill(mask, -1e4)`, to an additive mask.

    softmax(where(keep, s q k^T + m, filler)) = softmax(s q k^T + where(keep, m, lowest))
    softmax(keep (s q k^T + m) + (1 - keep) filler) = softmax(s q k^T + where(keep, m, lowest))    keep is 1 or 0

Both sides give a hidden key no weight if all scores of kept keys exceed the filler by `VANISHES`, since exp is 0 there. A
query without kept keys weighs all keys alike on both sides, since every score is lost in rounding beside `lowest`. The lower
bound of scores follows from a cap, from the norms of normalised queries and keys, or from the ranges of their elements.
A score is assumed to be far above a filler of `COARSE` or less: otherwise it would be rounded to multiples of 8. In all
other cases the rule needs the assumption `fills-hide`.

`additive_mask` has the rules for fillers in which any score is lost.
"""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir

from ortfuse.analysis.assumptions import FILLS_HIDE
from ortfuse.analysis.facts import Facts
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, attr, built, computed, op, opt, redundant, scalar, var

from .._rule_test_inputs import FINITE_SCORES
from .._shared_guards import array_like
from ._mask_values import DEEP, DEEPEST_ALLOWED, mask_range
from .additive_mask import chooses_by_truths, operands_are_computed
from .sdpa import PAPER

VANISHES = 104.0
"""A score that is so far below the largest one has no weight: exp(-104) is 0 in float32."""

COARSE = -1e8
"""Scores of this size are multiples of 8 in float32, and those of real models are not of this size."""

COARSE_IN_HALF = -1e4
"""The same for scores of queries that were float16 or bfloat16 before they were widened."""

_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_MOVES = frozenset({"Transpose", "Reshape", "Unsqueeze", "Squeeze", "Expand", "Mul", "Div"})

LEAST_FILLER = -VANISHES
"""The highest filler that can hide scores at all."""

mask, filler = var("mask"), scalar("filler")
_STRAIGHT = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Identity"})


def goes_to_softmax(match: Match) -> Refusal | None:
    """The scores with their fillers go to a Softmax, with nothing added to them."""
    level = [match.root]
    while level:
        users = [use.node for value in level for use in value.uses()]
        if any(value.is_graph_output() or not value.uses() for value in level) or any(
            node.op_type not in _STRAIGHT | {"Softmax"} for node in users
        ):
            return match.refuse("use", "root", "the scores of a Softmax alone", found="something else")
        level = [node.outputs[0] for node in users if node.op_type != "Softmax"]
    return None


def filler_hides_kept_scores(match: Match) -> Refusal | None:
    """Every score that is kept is so far above the filler that what the filler replaces has no weight."""
    number = float(match["filler"])
    if number <= DEEP:
        return match.refuse("other_rule", "filler", "a rule for fillers in which any score is lost")
    if not math.isfinite(number) or number > LEAST_FILLER:
        return match.unless_value("filler", False, f"at most {LEAST_FILLER:g}, so that hidden keys can have no weight")
    if FILLS_HIDE in match.facts.assumed:
        return None
    lowest = lowest_score(match)
    if lowest is not None and lowest >= number + VANISHES:
        return None
    known = "nothing is known of how low scores are" if lowest is None else f"scores may be as low as {lowest:.4g}"
    return match.refuse(
        "value", "filler", f"low enough to hide every key that it replaces ({known})",
        remedy=f"the filler were at most {COARSE:g}, or scores were known to stay above {number + VANISHES:g} (normalised "
        f"queries and keys, or a cap), or --assume {FILLS_HIDE} said that they do",
    )  # fmt: skip


def lowest_score(match: Match) -> float | None:
    """A lower bound of the scores of kept keys; `None` if none is known."""
    added = 0.0
    if match.get("mask") is not None:
        found = mask_range(match["mask"], match.facts)
        if found is None or found.deep:
            return None
        added = min(found.low, 0.0)
    if match.get("cap") is not None:
        return added - abs(float(match["cap"]))
    query, key = match.facts.norm(match["query"], -1), match.facts.norm(match["transposed_key"], -2)
    if query is not None and key is not None:
        return added - 1.01 * abs(float(match["score_scale"])) * query * key
    filler = float(match["filler"])
    return (
        added + filler / 2 if filler <= (COARSE_IN_HALF if was_half(match["query"], match.facts) else COARSE) else None
    )


def was_half(value: ir.Value, facts: Facts) -> bool:
    """Whether a value is converted from half precision, and then at most moved and scaled."""
    node = value.producer()
    while node is not None and node.op_type in _MOVES and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node is not None and node.op_type == "Cast" and facts.dtype(node.inputs[0]) in _HALVES


def _product() -> Pattern:
    return scalar("score_scale") * (var("query", "... _ _") @ var("transposed_key", "... _ _"))


def _either(first: Pattern, second: Pattern) -> Pattern:
    """The first where `keep` is true, or the other way round."""
    keep = var("keep")
    return (op.Where(keep, first, second) | op.Where(keep, second, first)).named("chosen", "...b s t")


def _chosen() -> Pattern:
    product = _product()
    scores = (product | scalar("cap") * op.Tanh(product).named("capped")) + opt(mask)
    return _either(scores.named("scores", "...b s t"), filler)


def _multiplied() -> Pattern:
    """Scores times 1 or 0, plus a filler times 0 or 1."""

    def number(truth: Pattern) -> Pattern:
        cast: Pattern = op.Cast(truth, to=attr("to")).kept()
        return cast

    keep = var("keep")
    hidden = number(op.Not(keep).kept()) | op.Sub(scalar("one"), number(keep)).kept()
    scored = (_product() + opt(mask)).named("scores", "b h s t")
    made: Pattern = (number(keep) * scored + op.Mul(filler, hidden).kept()).named("chosen", "b h s t")
    return made


def _summed(match: Match) -> Pattern:
    lowest = computed("lowest", lambda match: array_like(match, DEEPEST_ALLOWED))
    kept = mask if match.get("mask") is not None else computed("nothing", lambda match: array_like(match, 0.0))
    product: Pattern = _product()
    scores = product if match.get("cap") is None else scalar("cap") * op.Tanh(product)
    is_where = "chosen" in match.choices
    return scores + (_either(kept, lowest) if is_where else op.Where(var("keep"), kept, lowest))


@redundant("the lowest number of float16 is not so low that every score is lost in it")
def is_wide(match: Match) -> Refusal | None:
    """The scores are of float32 or bfloat16."""
    return match.unless_dtype("query", ir.DataType.FLOAT, ir.DataType.BFLOAT16)


def _unit(name: str, axis: int) -> Any:
    """Vectors of length 1, so that scores are between -1 and 1."""

    def make(build: Any) -> ir.Value:
        made: ir.Value = build.node("Softmax", [build.input(name, build.dims(name))], {"axis": axis}).outputs[0]
        return made

    return make


def _rule(name: str, formula: str, pattern: Pattern, **test: Any) -> Rule:
    guards = [operands_are_computed, is_wide, filler_hides_kept_scores, goes_to_softmax]
    return Rule(
        name=f"attention.{name}",
        formula=formula,
        is_refinement=True,
        pattern=pattern,
        replace=built(_summed, makes=("Add", "MatMul", "Mul", "Tanh", "Where")),
        guards=(*guards[:1], chooses_by_truths, *guards[1:]) if "one" in test.get("scalars", {}) else tuple(guards),
        exactness=Exactness.ROUNDING,
        source=PAPER,
        test=RuleTest(
            followed_by="Softmax",
            inputs={"query": _unit("query", -1), "transposed_key": _unit("transposed_key", -2), "keep": "bool",
                    "mask": _small_bias},
            **{
                **test,
                "scalars": {"score_scale": [1.0, 0.5], "filler": [-1000.0, -1e9], "cap": [20.0], **test.get("scalars", {})},
            },
        ),
    )  # fmt: skip


def _small_bias(build: Any) -> ir.Value:
    """A bias of positions between -1 and 1."""
    made: ir.Value = build.node("Tanh", [build.input("mask", build.dims("mask"))]).outputs[0]
    return made


_SHAPES = (
    {"query": "b 2 s 4", "transposed_key": "b 2 4 t", "mask": "1 2 s t", "keep": "b 1 1 t"},
    {"query": "b s 4", "transposed_key": "b 4 t", "mask": "1 s t", "keep": "b 1 t"},
)

RULES = [
    _rule(
        "finite_fill_where_to_additive_mask", "where(keep, s q k^T + mask, filler), or the other way round", _chosen(),
        shapes=_SHAPES, assumes=FINITE_SCORES,
    ),
    _rule(
        "finite_fill_keep_times_scores_to_additive_mask", "keep (s q k^T + mask) + (1 - keep) filler", _multiplied(),
        shapes=_SHAPES[0], assumes=FINITE_SCORES, attributes={"to": [int(ir.DataType.FLOAT)]},
        scalars={"one": [1.0], "filler": [-1000.0, -1e9]},
    ),
]  # fmt: skip
