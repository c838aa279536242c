"""Merge a reduction of a reduction, and fold Neg around ReduceMax and ReduceMin.

sum(sum(x)) = sum(x)        mean(mean(x)) = mean(x)        max(max(x)) = max(x)        min(min(x)) = min(x)
-max(-x) = min(x)           -min(-x) = max(x)

The axes of both reductions have to be adjacent: over others, the runtime reduces more slowly at once.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, Pattern, attr, op, redundant, var

from .._rule_test_inputs import COST
from .._shared_guards import floating, given_axes

PASS = "fuse.merge_reductions"

x = var("x")


def _known(found: object, facts: object) -> bool:
    return isinstance(found, tuple) and len(found) > 0


def _axes(match: Match) -> list[int]:
    """The axes of both, counted in x."""
    rank, inner, outer = match.rank("x") or 0, set(match["inner"]), match["outer"]
    left = list(range(rank)) if match["keepdims"] == 1 else [axis for axis in range(rank) if axis not in inner]
    return sorted(inner | {left[axis] for axis in outer})


def rank_is_known(match: Match) -> Refusal | None:
    """The rank of x is known, from which the axes of the outer reduction are counted."""
    return match.refuse("rank", "x") if match.rank("x") is None else None


@redundant(COST)
def are_neighbours(match: Match) -> Refusal | None:
    """The axes of both reductions are adjacent."""
    found = _axes(match)
    return match.unless_value("outer", found == list(range(found[0], found[-1] + 1)), "neighbours of the inner axes")


_KINDS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin")


def _any(make: Callable[[Any], Pattern], kinds: Sequence[str]) -> Pattern:
    """A pattern for each of some reductions."""
    return functools.reduce(operator.or_, (make(getattr(op, kind)) for kind in kinds)).named("reduction")


kept = attr("keepdims")

RULES = [
    Rule(
        name="reduction.of_same_reduction",
        formula="ReduceSum(ReduceSum(x)), and of means, maxima and minima",
        pattern=_any(
            lambda reduce: reduce(
                reduce(x, axes=attr("inner", _known, "given"), keepdims=kept),
                axes=attr("outer", _known, "given"),
                keepdims=kept,
            ),
            _KINDS,
        ),
        replace=_any(lambda reduce: reduce(x, axes=_axes, keepdims=kept), _KINDS),
        guards=(rank_is_known, are_neighbours, floating("x")),
        exactness=Exactness.ROUNDING,
        source="ONNX operators ReduceSum, ReduceMean, ReduceMax and ReduceMin",
        test=RuleTest(
            shapes={"x": "b 3 4"},
            attributes={"inner": [(2,), (1,)], "outer": [(1,)], "keepdims": [0, 1]},
            counterexamples={"all axes, not given": Variation(attributes={"outer": None})},
            never_empty={"b": "the kernels of some reductions keep the last axis of an empty tensor"},
        ),
    ),
    Rule(
        name="reduction.neg_of_extreme_of_neg",
        formula="-ReduceMax(-x), -ReduceMin(-x)",
        pattern=_any(
            lambda reduce: op.Neg(reduce(op.Neg(x), axes=given_axes, keepdims=kept)), ("ReduceMax", "ReduceMin")
        ),
        replace=_any(lambda reduce: reduce(x, axes=attr("axes"), keepdims=kept), ("ReduceMin", "ReduceMax")),
        guards=(floating("x"),),
        # Of two zeros, either may be picked.
        exactness=Exactness.ROUNDING,
        source="ONNX operators ReduceMax and ReduceMin",
        test=RuleTest(shapes={"x": "2 3 4"}, attributes={"axes": [(1,)], "keepdims": [0, 1]}),
    ),
]
