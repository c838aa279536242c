"""Replace a Scan that adds up its elements by CumSum or ReduceSum.

scan(s, x[t] -> s + x[t]) = s + cumsum(x), and at its end s + sum(x)
"""

from __future__ import annotations

import numpy as np

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, body, computed, op, var

from .._shared_guards import floating, ints

PASS = "fuse.scan_to_reduce"

first, elements = var("first"), var("elements")
total = var("state") + var("element")


def state_is_as_large(match: Match) -> Refusal | None:
    """The loop-carried sum has the shape of each element."""
    shape, state = match.shape("elements"), match.shape("first")
    if shape is None or state is None or shape[1:] != state:
        return match.refuse("shape", "first", "the shape of an element")
    return None


def _scan_rule(name: str, pattern: Pattern, replace: Pattern, source: str) -> Rule:
    return Rule(
        name=f"scan.{name}",
        pattern=pattern,
        replace=replace,
        guards=(floating("elements"), state_is_as_large),
        exactness=Exactness.ROUNDING,
        source=source,
        test=RuleTest(
            shapes={"first": "b n", "elements": "t b n", "state": "b n", "element": "b n"},
            never_empty={"t": "the runtime refuses a Scan of nothing"},
        ),
    )


_SCAN = op.Scan(first, elements, body=body("state element", total, total), num_scan_inputs=1, outputs=2)
_AXIS = computed("axis", lambda match: np.int64(0))
_AXES = computed("axes", lambda match: ints([0]))

RULES = [
    _scan_rule(
        "scan_to_cumsum",
        _SCAN[1],
        first + op.CumSum(elements, _AXIS),
        "https://onnx.ai/onnx/operators/onnx__CumSum.html",
    ),
    _scan_rule(
        "scan_to_reduce_sum",
        op.Scan(first, elements, body=body("state element", total), num_scan_inputs=1),
        first + op.ReduceSum(elements, _AXES, keepdims=0),
        "https://onnx.ai/onnx/operators/onnx__ReduceSum.html",
    ),
]
