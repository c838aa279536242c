"""Canonicalize Min, Max, Relu and Clip to one Clip or Relu, and merge chains of them.

clip(x, a, b) = min(max(x, a), b)                 relu(x) = max(x, 0)
clip(clip(x, a, b), c, d) = clip(x, clip(a, c, d), clip(b, c, d))

Every form propagates NaN. ONNX Runtime's Clip uses the largest finite number for an absent bound, and so replaces infinity.
Max and Min keep infinity. The rules therefore treat an absent bound of Clip as that number.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, attr, computed, op, redundant, scalar, var

from .._rule_test_inputs import ADDS_NO_AXES
from .._shared_guards import array_like, same_shape

SOURCE = "ONNX operators Clip, Relu, Max and Min"

x = var("x")
keeps_shape = redundant(ADDS_NO_AXES)(same_shape("x", "root"))
SHAPES = ({"x": "b s 8"}, {"x": "n"}, {"x": ""})
TYPICAL = ({"x": "1 16 1536"}, {"x": "1 128 3072"}, {"x": "1 64 112 112"})


def is_floating(match: Match) -> Refusal | None:
    """The elements are floating-point numbers of a type that Clip supports."""
    return match.unless_dtype("x", ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16)


def _limit(match: Match) -> float:
    dtype = match.facts.dtype(match.root)
    assert dtype is not None
    return float(np.finfo(dtype.numpy()).max)


def _interval(match: Match, label: str) -> tuple[float, float]:
    """The lower and upper bound of the node captured as `label`."""
    kind = match[label].producer().op_type
    low, high = match[f"{label}_low"], match[f"{label}_high"]
    if kind == "Relu":
        return 0.0, math.inf
    if kind == "Max":
        return low, math.inf
    if kind == "Min":
        return -math.inf, high
    return -_limit(match) if low is None else float(low), _limit(match) if high is None else float(high)


def merged(match: Match) -> tuple[float, float]:
    """The bounds of the two nodes combined."""
    (a, b), (c, d) = _interval(match, "inner"), _interval(match, "outer")
    return min(max(a, c), d), min(max(b, c), d)


def bounds_are_in_order(match: Match) -> Refusal | None:
    """Neither node has NaN as a bound, or a lower bound above the upper one."""
    for label in ("inner", "outer"):
        low, high = _interval(match, label)
        if not low <= high:
            return match.refuse("value", label, "clipped at bounds in order", f"clipped at {low:g} and {high:g}")
    return None


def is_relu(match: Match) -> Refusal | None:
    """Together the two nodes are a Relu."""
    low, high = merged(match)
    if (low, high) == (0.0, math.inf):
        return None
    return match.refuse("value", "root", "clipped at 0 alone", f"clipped at {low:g} and {high:g}")


def _merged_bound(index: int) -> Any:
    def value(match: Match) -> Any:
        number = merged(match)[index]
        absent = (-_limit(match), _limit(match))[index]
        return None if number == absent else array_like(match, number)

    return computed(f"merged_{('low', 'high')[index]}", value)


def _limiting(operand: Any, label: str) -> Any:
    """Clip, Relu, Max or Min of `operand`, captured as `label` with its bounds as `{label}_low` and `{label}_high`."""
    return (
        op.Clip(operand, min=attr(f"{label}_low"), max=attr(f"{label}_high"))
        | op.Relu(operand)
        | op.Max(operand, scalar(f"{label}_low"))
        | op.Min(operand, scalar(f"{label}_high"))
    ).named(label)


chain = _limiting(_limiting(x, "inner"), "outer")


def _chain_rule_test(low: float, high: float) -> RuleTest:
    numbers = {"inner_low": [low], "outer_low": [low], "inner_high": [high], "outer_high": [high]}
    return RuleTest(
        shapes=SHAPES,
        attributes=numbers,
        scalars=numbers,
        dtypes=("float32", "float64"),
        typical=TYPICAL,
        counterexamples={
            "integers without an upper bound": Variation(
                attributes={"inner_low": 0, "inner_high": None, "outer_low": 0, "outer_high": None}, dtype="int32"
            )
        },
    )


RULES = [
    Rule(
        name="clip.max_with_zero_to_relu",
        formula="max(x, 0)",
        pattern=op.Max(x, 0.0),
        replace=op.Relu(x),
        guards=(redundant("Relu of integers is right too")(is_floating), keeps_shape),
        # A zero may change its sign.
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=RuleTest(
            shapes=SHAPES,
            dtypes=("float32", "float64"),
            typical=TYPICAL,
        ),
    ),
    Rule(
        name="clip.relu_of_relu",
        formula="relu(relu(x)), also with Max",
        pattern=chain,
        replace=op.Relu(x),
        guards=(is_floating, keeps_shape, bounds_are_in_order, is_relu),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=_chain_rule_test(0.0, math.inf),
    ),
    Rule(
        name="clip.clip_of_clip",
        formula="clip(clip(x, a, b), c, d), also with Relu, Max and Min",
        pattern=chain,
        replace=op.Clip(x, _merged_bound(0), _merged_bound(1)),
        guards=(is_floating, keeps_shape, bounds_are_in_order),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=_chain_rule_test(-0.5, 1.0),
    ),
]
