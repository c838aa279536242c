"""Replace operands that are one number everywhere by that number.

where(condition, zeros, x) = where(condition, 0, x)           likewise min and max
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import attribute_value
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, computed, op, var

SOURCE = "Multidirectional broadcasting in ONNX"

x, condition = var("x"), var("condition")


def number_of(value: ir.Value, facts: Facts) -> np.ndarray[Any, Any] | None:
    """The number, bit for bit, that all elements of a value are, of which there may be several."""
    shape, producer = facts.shape(value), value.producer()
    if shape is None or all(dim == 1 for dim in shape) or facts.fill(value) is None:
        return None
    if producer is not None and producer.op_type == "ConstantOfShape":
        given = attribute_value(producer, "value", facts)
        found = np.zeros(1, np.float32) if given is None else given.numpy() if hasattr(given, "numpy") else None
    else:
        found = facts.const(value if producer is None or producer.op_type != "Expand" else producer.inputs[0])
    if found is None or not found.size:
        return None
    elements = found.reshape(-1)
    return np.asarray(elements[0]) if elements.tobytes() == elements[:1].tobytes() * found.size else None


def another_has_the_shape(match: Match) -> Refusal | None:
    """The other branch, the condition or the other operand has the shape of the result already."""
    refused = match.unless_same_shape("x", "root")
    return refused if match.get("condition") is None else refused and match.unless_same_shape("condition", "root")


def _zeros(build: Any) -> ir.Value:
    """Zeros whose shape is computed."""
    shape = build.constant(np.array([size if isinstance(size, int) else 1 for size in build.dims("filled")]))
    made: ir.Value = build.node("ConstantOfShape", [shape]).outputs[0]
    return made


_filled = var("filled", lambda value, facts: number_of(value, facts) is not None, "the same number everywhere")
_number = computed("number", lambda match: number_of(match["filled"], match.facts))


def _of(operand: Pattern) -> Pattern:
    made: Pattern = op.Where(condition, operand, x) | op.Where(condition, x, operand) | op.Min(x, operand)
    return (made | op.Max(x, operand)).named("node")


RULES = [
    Rule(
        name="broadcast.splat_to_scalar",
        formula="Where(condition, zeros, x)",
        pattern=_of(_filled),
        replace=_of(_number),
        guards=(another_has_the_shape,),
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes=(
                {"condition": "b 3 4", "x": "b 3 4", "filled": "3 4"},
                {"condition": "3 1", "x": "b 3 4", "filled": "4"},
            ),
            inputs={"condition": "bool", "filled": _zeros},
        ),
    ),
]
