"""Clamp mask constants beyond the range of float16 to the largest negative number of the type.

A Softmax of `Where(condition, scores, -1e9)` ignores masked elements, and is uniform if all are masked. Both hold with any
number that all scores exceed by so much that its exponential vanishes. This includes -65504, for all scores that float16 can
hold. Both fail if the constant is added to scores, or if another operator than Softmax reads it: sums with it overflow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir import walk

LARGEST = {ir.DataType.FLOAT16: 65504.0, ir.DataType.BFLOAT16: (2 - 2.0**-7) * 2.0**127}
"""The largest number of each type."""

LEAST = 2.0**-24
"""The least positive number of float16."""

_BOUNDS = frozenset({"Clip", "Max", "Min"})
"""Operators for which a bound that no number reaches is the same as the largest number."""


@dataclass(frozen=True)
class Clamped:
    """The constants that may be clamped to the range of float16, and the values that hold them where they are hidden."""

    constants: frozenset[ir.Value]
    masked: frozenset[ir.Value]


def clamped(model: ir.Model, facts: Facts, half: ir.DataType) -> Clamped:
    """The constants beyond the range of `half` that only hide scores from a Softmax."""
    constants: dict[ir.Value, set[ir.Value]] = {}
    if half == ir.DataType.FLOAT16:
        for node in walk.nodes(model):
            if node.op_type == "Where" and not node.domain:
                for value in node.inputs[1:]:
                    if value is not None and _hides(value, facts) and _is_for_softmax(node.outputs[0]):
                        constants.setdefault(value, set()).add(node.outputs[0])
    kept = {
        value: masked for value, masked in constants.items() if len(masked) == len({use.node for use in value.uses()})
    }
    return Clamped(frozenset(kept), frozenset(value for masked in kept.values() for value in masked))


def is_bound(node: ir.Node, value: ir.Value) -> bool:
    """Whether a constant is a bound of a node: nothing that is in range is beyond it."""
    return node.op_type in _BOUNDS and not node.domain and value in node.inputs[1 if node.op_type == "Clip" else 0 :]


def is_guard(value: ir.Value, half: ir.DataType) -> bool:
    """Whether a constant is a number that keeps others from being zero, too small for float16: it is added, or a lower bound.

    The least number that float16 has does that as well.
    """
    tensor = value.const_value
    if half != ir.DataType.FLOAT16 or tensor is None or tensor.size != 1 or tensor.dtype != ir.DataType.FLOAT:
        return False
    number = abs(float(tensor.numpy().reshape(-1)[0]))
    return 0 < number < LEAST and all(
        not use.node.domain and (use.node.op_type in ("Add", "Max") or (use.node.op_type == "Clip" and use.idx == 1))
        for use in value.uses()
    )


def _hides(value: ir.Value, facts: Facts) -> bool:
    number = facts.scalar(value) if value.is_initializer() and not value.is_graph_input() else None
    return number is not None and bool(np.isfinite(number)) and number < -LARGEST[ir.DataType.FLOAT16]


def _is_for_softmax(value: ir.Value) -> bool:
    return (
        not value.is_graph_output()
        and bool(value.uses())
        and all(use.node.op_type == "Softmax" and not use.node.domain for use in value.uses())
    )
