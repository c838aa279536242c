"""Vectors of length 1, and the largest of some numbers, in faster operators.

lpnormalization(x) = x / n, n = sqrt(sum(x x)) or sum(|x|), or 1 where that is 0
top(x, 1) = gather(x, argmax(x)), argmax(x)

`python -m benchmarks.kernels.cliffs` finds them: LpNormalization over axes before the last one takes 1.6 to 5.4 times as long,
TopK of one number 1.4 to 3.7 times as long as ArgMax. Of equal numbers both find the first; with NaN among them they find the
same one on the CPU, so that the number is taken from its place: the largest would be NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ortfuse.pattern import Match, Pattern, attr, built, computed, op, redundant, var
from ortfuse.refusal import Refusal
from ortfuse.rewrite import Exactness, Proof, Rule, Variation

from ._common import floating, ints
from ._proofs import COST

PASS = "cliffs"

x = var("x")


@redundant(COST)
def others_follow(match: Match) -> Refusal | None:
    """The axis is not the last one, for which the kernel is as fast."""
    rank = match.rank("x")
    return match.unless_value("axis", rank is not None and match["axis"] not in (-1, rank - 1), "before the last one")


def _divided(as_input: bool) -> Any:
    """x divided by its lengths, with the axes of the sum as an input or as an attribute."""

    def made(match: Match) -> Pattern:
        axes: Pattern = computed("axes", lambda match: ints([match["axis"]]))
        powers = op.Abs(x) if match["p"] == 1 else op.Mul(x, x)
        total = (
            op.ReduceSum(powers, axes, keepdims=1)
            if as_input
            else op.ReduceSum(powers, axes=(match["axis"],), keepdims=1)
        )
        length = total if match["p"] == 1 else op.Sqrt(total)
        return op.Div(x, op.Where(op.Equal(length, 0.0), 1.0, length))

    return made


largest = attr("largest", lambda found, facts: found in (None, 0, 1), "0 or 1")
top = op.TopK(x, k=(1,), axis=attr("axis"), largest=largest, sorted=attr("sorted"), outputs=2)


def _place(match: Match) -> Pattern:
    """The place of the largest or smallest number."""
    smallest = match["largest"] == 0
    made: Pattern = (op.ArgMin if smallest else op.ArgMax)(x, axis=attr("axis"), keepdims=1)
    return made


def _number(match: Match) -> Pattern:
    """The number that stands there."""
    made: Pattern = op.GatherElements(x, _place(match), axis=attr("axis"))
    return made


def _top(name: str, pattern: Pattern, replace: Callable[[Match], Pattern], **more: Any) -> Rule:
    return Rule(
        name=f"top.{name}",
        formula=f"TopK(x, 1), {name}",
        pattern=pattern,
        replace=replace,
        makes=("ArgMax", "ArgMin", "GatherElements"),
        exactness=Exactness.EXACT,
        source="ONNX operators TopK, ArgMax and ArgMin",
        proof=Proof(
            shapes=({"x": "b 3 4"}, {"x": "b 5"}),
            attributes=(
                {"axis": [1, -1], "largest": [0, 1], "sorted": [0, 1]},
                {"axis": [-1], "largest": [1], "sorted": [1]},
            ),
            counterexamples={
                "of equal numbers": Variation(sizes={"b": 1}, fixed={"x": np.zeros((1, 3, 4), np.float32)}),
                "of NaN": Variation(sizes={"b": 1}, fixed={"x": np.array(_SOME, np.float32)}),
            },
            never_empty={"b": "the kernels of some reductions keep the last axis of an empty tensor"},
            typical=({"x": "1 128 768"}, {"x": "64 1000"}, {"x": "1 21 128 128"}, {"x": "8 128 64"}),
            typical_attributes=tuple({"axis": axis, "largest": 1, "sorted": 1} for axis in (-1, -1, 1, 1)),
        ),
        **more,
    )


_SOME = [[[np.nan, 1, np.nan, -0.0], [2, np.nan, np.nan, 0.0], [np.inf, 1, np.nan, np.nan]]]

RULES = [
    _top(
        "indices",
        top.naming(numbers=0)[1],
        _place,
        intermediates={"numbers": built(_number, makes=("ArgMax", "ArgMin", "GatherElements"))},
    ),
    _top("values", top[0], _number),
    Rule(
        name="lpnorm.divided",
        formula="LpNormalization(x)",
        pattern=op.LpNormalization(x, axis=attr("axis"), p=attr("p")),
        replace=(_divided(True), _divided(False)),
        makes=("Abs", "Mul", "ReduceSum", "Sqrt", "Equal", "Where", "Div"),
        guards=(others_follow, floating("x")),
        exactness=Exactness.ROUNDING,
        source="ONNX operator LpNormalization",
        proof=Proof(
            shapes=({"x": "b 3 4"}, {"x": "3 b"}),
            attributes=({"axis": [1, -2], "p": [1, 2]}, {"axis": [0], "p": [1, 2]}),
            counterexamples={
                "of zeros": Variation(sizes={"b": 1}, fixed={"x": np.zeros((1, 3, 4), np.float32)}),
            },
            typical=({"x": "1 64 56 56"}, {"x": "1 21 128 128"}, {"x": "8 128 64"}, {"x": "64 1000"}),
            typical_attributes=({"axis": 1, "p": 2}, {"axis": 1, "p": 2}, {"axis": 1, "p": 2}, {"axis": 0, "p": 2}),
        ),
    ),
]
