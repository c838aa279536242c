"""Fuse attention whose mask may hide whole rows, or is an input of the model with unknown values.

    softmax(s q k^T + mask) v = attention(q, k, v, mask + lift(largest of each row of the mask))

A softmax of -inf alone is NaN, and one of the lowest number alone is uniform. The runtime's kernel gives zeros for both.
`lift` is NaN if the largest number of a row is -inf, because -inf times 0 is NaN. If it is the lowest number, `lift` raises it
to one that hides as much but is not taken for a fully masked row. Otherwise `lift` is 0.

The pass runs after `fuse.multi_head_attention`, on the sites that it left.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, computed, op, redundant, scalar, var

from .._rule_test_inputs import COST, NEVER_EMPTY, masked
from .._shared_guards import ints
from ._mask_values import DEEPEST_ALLOWED, mask_range
from .sdpa import (
    LOWEST,
    PAPER,
    heads_are_shared_alike,
    masked_rows_agree,
    may_zero_rows,
    replacements,
    weights_have_known_length,
)

PASS = "fuse.attention_fully_masked_rows"
"""A separate pass, which runs after those that need not look at the rows of masks."""


@redundant(COST)
def rows_may_be_hidden(match: Match) -> Refusal | None:
    """The kernel would not treat the mask as the graph does."""
    differs = masked_rows_agree(match, nan_guard=False) is not None
    return None if differs else match.refuse("value", "mask", "one that hides whole rows")


def mask_is_added_in_float(match: Match) -> Refusal | None:
    """The mask is of float32, as the numbers are with which the kernel computes."""
    if match.dtype("mask") != ir.DataType.FLOAT:
        return match.refuse("dtype", "mask", "float32, in which the kernel adds it")
    return None if may_zero_rows(match) else match.refuse("value", "mask", "for a kernel of zeros")


@redundant(COST)
def mask_is_small(match: Match) -> Refusal | None:
    """The mask is the same for all heads, or for all queries: looking at its rows costs little beside the scores."""
    shape = (1,) * 4 + tuple(match.shape("mask") or ())
    return None if 1 in shape[-3:-1] else match.refuse("shape", "mask", "the same for all heads, or for all queries")


def _number(name: str, number: float) -> Pattern:
    return computed(name, lambda match: np.float32(number))


def _lifted(match: Match) -> Pattern:
    """The mask plus what makes the kernel treat hidden rows as a softmax does."""
    mask, found = var("mask"), mask_range(match["mask"], match.facts)
    largest = op.ReduceMax(mask, computed("last", lambda match: ints([-1])), keepdims=1)
    nothing = op.Mul(largest, _number("nothing", 0.0))
    if found is not None and found.deep == {-math.inf}:
        return op.Add(mask, nothing)
    raised = op.Add(nothing, _number("lift", DEEPEST_ALLOWED - LOWEST))
    is_hidden = op.LessOrEqual(largest, _number("lowest", LOWEST))
    return op.Add(mask, op.Where(is_hidden, raised, _number("nothing", 0.0)))


_PRODUCT = (scalar("query_scale") * var("query", "b h s d")) @ (scalar("key_scale") * var("transposed_key", "b g d t"))
_WEIGHED = op.Softmax(scalar("score_scale") * _PRODUCT + var("mask", "b? h? s? _"), axis=-1).named("weights")


def _any_mask() -> Callable[[Any], ir.Value]:
    """A mask by comparison, or one of which nothing is known."""
    hiding = masked(-math.inf, keys="t")

    def make(build: Any) -> ir.Value:
        if build.chooser.pick("mask", ("hides", "given")) == "hides":
            return hiding(build)
        given: ir.Value = build.input("mask", [*build.dims("mask")[:-1], "t"])
        return given

    return make


_MADE, _WEIGHTS = replacements(_lifted, "ReduceMax", "Mul", "Add", "LessOrEqual", "Where")

RULES = [
    Rule(
        name="attention.sdpa_with_fully_masked_rows",
        formula="softmax(s q k^T + mask) v, rows hidden as a whole",
        pattern=_WEIGHED @ var("value", "b g u v"),
        replace=tuple(_MADE),
        intermediates={"weights": tuple(_WEIGHTS)},
        guards=(
            heads_are_shared_alike,
            mask_is_added_in_float,
            rows_may_be_hidden,
            mask_is_small,
            weights_have_known_length,
        ),
        may_raise_opset=True,
        exactness=Exactness.ROUNDING,
        source=PAPER,
        test=RuleTest(
            shapes={"h": 2, "g": 2, "d": 4, "v": 4, "u": "t", "mask": "b 1 s t"},
            scalars={name: [1.0, 0.5] for name in ("score_scale", "query_scale", "key_scale")},
            inputs={"mask": _any_mask()},
            never_empty=NEVER_EMPTY,
        ),
    )
]
