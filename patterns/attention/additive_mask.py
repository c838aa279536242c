"""Canonicalize attention masks to one additive mask: softmax(s q k^T + mask).

(s q k^T + a) + b = s q k^T + (a + b)          (s q k^T + a) - b = s q k^T + (a + -b)
softmax(where(keep, s q k^T + m, filler)) = softmax(s q k^T + where(keep, m, filler))
softmax(keep (s q k^T + m) + (1 - keep) filler) = softmax(s q k^T + where(keep, m, filler))     keep is 1 or 0
softmax(max(s q k^T + m, filler)) = softmax(s q k^T + max(m, filler))
windows(s q k^T) + w = windows(s q k^T + merged(w))
grid(s q k^T) + r = grid(s q k^T + merged(r))

The second to the fourth hold if any score added to the filler is lost in rounding. In `windows`, the scores have a window
axis that is merged with the batch axis: [batch * windows, heads, queries, keys]. In `grid`, queries and keys are pixels with
axes of their own for rows and columns: [..., query rows, query columns, key rows, key columns].
"""

from __future__ import annotations

import math
import operator
from functools import reduce
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import (
    Guard,
    Match,
    Pattern,
    attr,
    built,
    computed,
    const,
    op,
    opt,
    rearrange,
    redundant,
    scalar,
    var,
)

from .._rule_test_inputs import COST, FINITE_SCORES
from .._shared_guards import array_like, ints
from ._mask_values import DEEP
from .sdpa import LOWEST, PAPER

query, transposed = var("query", "_ _ _ _"), var("transposed_key", "_ _ _ _")
product = scalar("score_scale") * (query @ transposed)
mask, first_mask, second_mask = var("mask"), var("first_mask"), var("second_mask")
filler, outer = scalar("filler"), computed("outer", lambda match: array_like(match, match["outer"]))


@redundant(COST)
def operands_are_computed(match: Match) -> Refusal | None:
    """The product is of floating-point numbers, and neither operand is constant, so it is not a linear layer."""
    dtype = match.dtype("query")
    if dtype is None or not dtype.is_floating_point():
        return match.refuse("dtype", "query", "floating-point numbers")
    constant = next((name for name in ("query", "transposed_key") if match.facts.is_const(match[name])), None)
    return None if constant is None else match.refuse("value", constant, "computed: this is a linear layer")


_ON_THE_WAY = frozenset({"Add", "Sub", "Mul", "Div", "Where", "Max", "Tanh", "Reshape", "Identity", "Cast"})


@redundant(COST)
def leads_to_softmax(match: Match) -> Refusal | None:
    """The value is used only in computing the scores of a Softmax."""
    level = [match.root]
    for _ in range(8):
        users = [use.node for value in level for use in value.uses()]
        if any(value.is_graph_output() or not value.uses() for value in level) or any(
            node.op_type not in _ON_THE_WAY | {"Softmax"} for node in users
        ):
            return match.refuse("use", "root", "the scores of a Softmax", found="something else")
        level = [node.outputs[0] for node in users if node.op_type != "Softmax"]
        if not level:
            return None
    return match.refuse("use", "root", "the scores of a Softmax", found="what is far from one")


@redundant("without it the rule would undo itself")
def second_mask_is_no_product(match: Match) -> Refusal | None:
    """The second mask is not a product itself: of two products in the sum, either could be the scores."""
    node = match["second_mask"].producer()
    while node is not None and node.op_type in ("Mul", "Div") and any(map(match.facts.is_const, node.inputs)):
        node = next((value.producer() for value in node.inputs if not match.facts.is_const(value)), None)
    is_product = node is not None and node.op_type == "MatMul"
    return (
        match.refuse("value", "second_mask", "no product, as the scores are", found="a product") if is_product else None
    )


@redundant(COST)
def something_is_scaled(match: Match) -> Refusal | None:
    """The factor is not 1."""
    return None if match["outer"] != 1 else match.refuse("value", "outer", "other than 1")


def hides_altogether(match: Match) -> Refusal | None:
    """Any score added to the filler is lost in rounding."""
    return (
        None if match["filler"] <= DEEP else match.refuse("other_rule", "filler", "a rule that asks how low scores are")
    )


def floors_out_of_reach(match: Match) -> Refusal | None:
    """Any score added to the filler is lost in rounding; no other rule asks how low scores are that have a floor."""
    return match.unless_value("filler", match["filler"] <= DEEP, f"at most {DEEP:g}, in which any score is lost")


def windows_are_counted(match: Match) -> Refusal | None:
    """The number of windows is a known number."""
    return None if match.size("w") else match.refuse_dimension("windows", 1, "a known number of windows")


def _chosen() -> tuple[Pattern, Pattern]:
    """A Where that selects scores, which may be capped, or mask values, and the equivalent sum of scores and mask values."""

    def chosen(part: Pattern) -> Pattern:
        kept, hidden = op.Where(var("keep"), part, filler), op.Where(var("keep"), filler, part)
        return (kept | hidden).named("chosen", "...b s t")

    total = scalar("score_scale") * (var("query", "... _ _") @ var("transposed_key", "... _ _"))
    scores = (total | scalar("cap") * op.Tanh(total).named("capped")) + opt(mask)

    def summed(match: Match) -> Pattern:
        unmasked = chosen(mask | computed("nothing", lambda match: array_like(match, 0.0)))
        return (product if match["cap"] is None else scalar("cap") * op.Tanh(product)) + unmasked

    return chosen(scores.named("scores", "...b s t")), built(summed, makes=("Add", "MatMul", "Mul", "Tanh", "Where"))


def _multiplied() -> tuple[Pattern, Pattern]:
    """Scores times 1 or 0, plus a filler times 0 or 1, and scores plus fillers."""

    def number(truth: Pattern) -> Pattern:
        cast: Pattern = op.Cast(truth, to=attr("to")).kept()
        return cast

    keep = var("keep")
    hidden = number(op.Not(keep).kept()) | op.Sub(scalar("one"), number(keep)).kept()
    scored = (product + opt(mask)).named("scores", "b h s t")
    chosen = (number(keep) * scored + op.Mul(filler, hidden).kept()).named("chosen", "b h s t")
    unmasked = mask | computed("nothing", lambda match: array_like(match, 0.0))
    return chosen, product + op.Where(keep, unmasked, filler)


def _multiplied_constants() -> tuple[Pattern, Pattern]:
    """Scores times ones and zeros, plus what fills them where these are 0, and scores plus the same."""
    scored = product.named("scores", "b h s t")
    return (const("factor") * scored + const("fillers")).named("chosen", "b h s t"), product + var("fillers")


def fills_where_zero(match: Match) -> Refusal | None:
    """The factors are 1 and 0, and where they are 0 is added what any score is lost in."""
    factor, fillers = match.const("factor"), match.const("fillers")
    try:
        factor, fillers = np.broadcast_arrays(factor, fillers)
    except ValueError:
        return match.refuse("shape", "fillers", match.shape("factor"))
    if not np.all((factor == 1) | (factor == 0)):
        return match.refuse("value", "factor", "1 or 0 everywhere")
    held = np.all(np.isfinite(fillers)) and np.all(fillers[factor == 0] <= DEEP)
    return match.unless_value("fillers", bool(held), f"finite, and at most {DEEP:g} where the factor is 0")


def chooses_by_truths(match: Match) -> Refusal | None:
    """The factors are a truth value and its opposite, and the filler is finite."""
    if match.get("one") is not None and match["one"] != 1:
        return match.refuse("value", "one", 1)
    return match.unless_dtype("keep", ir.DataType.BOOL) or match.unless_value(
        "filler", math.isfinite(match["filler"]), "finite, as 0 times infinity is no number"
    )


def _floored() -> tuple[Pattern, Pattern]:
    """Scores that are nowhere below a filler, and scores plus such a mask."""
    unmasked = mask | computed("nothing", lambda match: array_like(match, 0.0))
    scored = (product + opt(mask)).named("scores", "b h s t")
    return op.Max(scored, filler).named("floored", "b h s t"), product + op.Max(unmasked, filler)


def _of_windows() -> tuple[Pattern, Pattern]:
    """Scores viewed as [batch, windows, ...] plus a mask per window, and scores plus the mask repeated for the whole batch."""
    scores = scalar("score_scale") * (var("query", "(b w) _ _ _") @ transposed) + opt(first_mask)
    one_each = var("mask", "b|1 w|1 x y z")
    split = rearrange("(b w) h s t -> b w h s t", scores).named("windows")
    count, ones = (
        computed("windows", lambda match: ints([match.dim("w")])),
        computed("ones", lambda match: ints([1] * 3)),
    )
    batch = op.Div(op.Shape(var("query"), start=0, end=1), count)
    repeated = rearrange("b w x y z -> (b w) x y z", op.Expand(one_each, op.Concat(batch, count, ones, axis=0)))
    return (
        op.Add(split, one_each).named("sum", "b w h s t"),
        rearrange("(b w) h s t -> b w h s t", scores + repeated),
    )


def _is_no_number(value: Any, facts: Any) -> bool:
    return facts.scalar(value) is None


def _rule(
    name: str, formula: str, sides: tuple[Pattern, Pattern], *guards: Guard, source: str = PAPER, **test: Any
) -> Rule:
    """A rule for values that lead to a Softmax; the rule test is on scores [b, 2, s, t]."""
    shapes = {"query": "b 2 s 4", "transposed_key": "b 2 4 t", "first_mask": "1 2 s t", "second_mask": "b 1 1 t",
              "mask": "b 1 s t"}  # fmt: skip
    given = test.pop("shapes", {})
    declared = tuple({**shapes, **each} for each in (given if isinstance(given, tuple) else (given,)))
    return Rule(
        name=f"attention.{name}",
        formula=formula,
        is_refinement=True,
        pattern=sides[0],
        replace=sides[1],
        guards=(operands_are_computed, *guards, leads_to_softmax),
        exactness=Exactness.ROUNDING,
        source=source,
        test=RuleTest(
            followed_by="Softmax",
            shapes=tuple({name: shape for name, shape in each.items() if shape is not None} for each in declared),
            scalars={
                "score_scale": [1.0, 0.5],
                "one": [1.0],
                "outer": [0.5, 2.0],
                "filler": [LOWEST, -math.inf],
                "cap": [1.5, 20.0],
                **test.pop("scalars", {}),
            },
            **test,
        ),
    )


def _by_factor(scores: Pattern) -> Pattern:
    """Scores or queries times factors, or divided by them."""
    factor = var(
        "factor", "b? h? 1 1", check=_is_no_number, text="more than a number, which the operator takes as scale"
    )
    return (op.Mul(scores, factor) | op.Div(scores, factor)).named("scaled", "b h s t")


def _of_grid() -> tuple[Pattern, Pattern]:
    """Scores viewed as [..., query rows, query columns, key rows, key columns] plus masks, and scores plus the masks merged.

    The axes in front are batch and heads, both as one, or the batch alone.
    """
    batch, heads = (op.Shape(var("query"), start=axis, end=axis + 1) for axis in (0, 1))

    def flat(lead: str) -> Pattern:
        scores = var("query", f"{lead} _ _") @ var("transposed_key", f"{lead} _ _")
        # A scale of scores without axes of heads is in the queries.
        return (scalar("score_scale") * scores if lead == "b h" else scores) + opt(first_mask)

    flats = {lead: flat(lead) for lead in ("b h", "b")}

    def one(lead: str, batch: str, mask: str) -> Pattern:
        masks = (var(name, f"{mask} p|1 q|1 k|1 l|1") for name in ("mask", "second_mask"))
        split = rearrange(f"{lead} (p q) (k l) -> {batch} p q k l", flats[lead]).named(
            "grid", f"{mask.replace('|1', '')} p q k l"
        )
        return split + next(masks) + opt(next(masks))

    def other(lead: str, batch: str, leading: Pattern) -> Pattern:
        masks, second = var("mask"), var("second_mask")

        def merged(match: Match) -> Pattern:
            total = masks if match["second_mask"] is None else op.Add(masks, second)
            sizes = computed("sizes", lambda match: ints([match.size(dim) for dim in "pqkl"]))
            every = op.Expand(total, op.Concat(leading, sizes, axis=0))
            summed = flats[lead] + rearrange(f"{batch} p q k l -> {lead} (p q) (k l)", every)
            return rearrange(f"{lead} (p q) (k l) -> {batch} p q k l", summed)

        return built(merged, makes=("Add", "Mul", "MatMul", "Concat", "Shape", "Expand", "Reshape"))

    both = op.Concat(batch, heads, axis=0)
    forms = (
        ("b h", "(b h)", "m|1", op.Mul(batch, heads)), ("b h", "b h", "b|1 h|1", both), ("b", "b", "b|1", batch)
    )  # fmt: skip
    return (
        reduce(operator.or_, [one(lead, whole, mask) for lead, whole, mask, _ in forms]).named("sum"),
        reduce(operator.or_, [other(lead, whole, leading) for lead, whole, _, leading in forms]).named("sum"),
    )


@redundant("of unknown sizes the replacement could not say the shape of the masks")
def grid_is_known(match: Match) -> Refusal | None:
    """The rows and columns of queries and keys are known numbers."""
    axis = next((number for number, dim in enumerate("lkqp", 1) if match.size(dim) is None), None)
    return None if axis is None else match.refuse_dimension("sum", -axis, "a known number of rows and columns")


_NO_CONSTANTS = dict.fromkeys(("query is: a constant", "transposed_key is: a constant"), "such products are left alone")
_WINDOWS = {
    "b": 2, "w": 3, "h": 2, "s": 5, "t": 7, "x": 1, "y": 5, "z": 7,
    "query": "6 2 5 4", "transposed_key": "6 2 4 7", "first_mask": "1 2 5 7", "mask": None,
}  # fmt: skip
_KEPT = np.tril(np.ones((5, 7)))
"""The keys that queries see."""

RULES = [
    _rule(
        "sum_of_two_masks", "(s q k^T + first_mask) + second_mask",
        (op.Add(op.Add(product, first_mask), second_mask), op.Add(product, op.Add(first_mask, second_mask))),
        second_mask_is_no_product,
    ),
    _rule(
        "subtracted_mask_to_added", "(s q k^T + first_mask) - mask",
        (op.Sub(product + opt(first_mask), mask), product + opt(first_mask) + op.Neg(mask)),
    ),
    _rule(
        "distribute_scale_over_masked_scores", "outer (s q k^T + mask)",
        (scalar("outer") * (product + mask).named("masked"), op.Mul(product, outer) + op.Mul(mask, outer)),
        something_is_scaled,
        assumes=FINITE_SCORES,
    ),
    _rule(
        "hoist_mask_above_window_reshape", "windows(s q k^T + first_mask) + mask", _of_windows(), windows_are_counted,
        source="arXiv:2103.14030",
        shapes=_WINDOWS,
        opset=17,
        uncovered=_NO_CONSTANTS,
        counterexamples={
            "heads split too": Variation(
                shapes={"b": 3, "w": 4, "h": 1, "mask": "3 4 1 5 7"}, options={"first_mask": "absent"}
            ),
            "positions split too": Variation(
                shapes={"s": 7, "t": 5, "mask": "1 3 1 7 5"}, options={"first_mask": "absent"}
            ),
        },
    ),
    _rule(
        "hoist_mask_above_grid_reshape", "grid(s q k^T + first_mask) + mask + second_mask", _of_grid(), grid_is_known,
        source="arXiv:2112.01526",
        shapes=tuple(
            {
                "b": 3, "h": 2, "p": 2, "q": 3, "k": 3, "l": 4,
                "query": f"{lead} 6 5", "transposed_key": f"{lead} 5 12", "first_mask": f"{lead} 6 12",
                "mask": f"{leading} 2 3 3 1", "second_mask": f"{leading} 2 3 1 4",
            }
            for lead, leading in (("3 2", "6"), ("3 2", "3 2"), ("3", "3"))
        ),
        alternatives=[{"sum": number} for number in (0, 1, 2)],
        opset=17,
        uncovered=_NO_CONSTANTS,
    ),
    _rule(
        "max_with_floor_to_mask", "max(s q k^T + mask, filler)", _floored(), floors_out_of_reach,
        shapes={"mask": "1 2 s t"}, assumes=FINITE_SCORES,
    ),
    _rule(
        "fold_per_head_scale_into_query", "(q k^T) * factor or (q k^T) / factor",
        (_by_factor((query @ transposed).named("product", "b h s t")), _by_factor(query) @ transposed),
        shapes={"h": 2, "factor": "2 1 1"},
        constants={"factor": "positive"},
        assumes=FINITE_SCORES,
        redundant={"check of factor": COST},
        counterexamples={
            "as many keys as the size of a head": Variation(
                shapes={"transposed_key": "b 2 4 4", "factor": "2 1 4"},
                constants={"factor": [0.5, 1.0, 2.0, 3.0, 4.0, 3.0, 2.0, 1.0]},
            )
        },
    ),
    _rule(
        "where_to_additive_mask", "where(keep, s q k^T + mask, filler), or the other way round", _chosen(), hides_altogether,
        shapes=(
            {"mask": "1 2 s t", "keep": "b 1 1 t"},
            {"query": "b s 4", "transposed_key": "b 4 t", "mask": "1 s t", "keep": "b 1 t"},
            {"query": "b 2 3 s 4", "transposed_key": "b 2 1 4 t", "mask": "1 s t", "keep": "b 1 1 1 t"},
        ),
        inputs={"keep": "bool"}, assumes=FINITE_SCORES,
    ),
    _rule(
        "keep_times_scores_to_additive_mask",
        "keep (s q k^T + mask) + (1 - keep) filler", _multiplied(), chooses_by_truths, hides_altogether,
        shapes={"mask": "1 2 s t", "keep": "b 1 1 t"}, inputs={"keep": "bool"}, assumes=FINITE_SCORES,
        attributes={"to": [int(ir.DataType.FLOAT)]}, scalars={"filler": [LOWEST, -1e31]},
    ),
    _rule(
        "constant_keep_times_scores_to_additive_mask",
        "ones_and_zeros (s q k^T) + fillers", _multiplied_constants(), fills_where_zero,
        shapes={"query": "b 2 5 4", "transposed_key": "b 2 4 7", "factor": "5 7", "fillers": "5 7"}, assumes=FINITE_SCORES,
        constants={"factor": _KEPT, "fillers": (1 - _KEPT) * LOWEST},
    ),
]  # fmt: skip
