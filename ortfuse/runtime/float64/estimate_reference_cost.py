"""Estimate the memory and time of an evaluation by ONNX's reference implementation, before it begins.

Its pooling lays out every window of its input. Other operators take about as much memory as their operands and results, and
products about as long as NumPy's in float64. Unknown sizes count as nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.costs import cost_of
from ortfuse.analysis.facts import Facts
from ortfuse.io.machine_memory import available_bytes

SHARE = 0.5
"""The share of the memory that is free that an operator may take."""

_RATE = 1e9
"""Operations a second in float64, at least."""

_WINDOWS = frozenset({"LpPool", "MaxPool", "MaxUnpool"})
_LAID_OUT = 3
"""How many times the windows of a pooling are in memory at once."""


class TooLargeError(Exception):
    """An evaluation in float64 would need too much memory or time."""


def demand_room(model: ir.Model, given: Mapping[str, Any], seconds: float) -> None:
    """Check that each operator of a model fits into memory, and all of them into a time.

    Args:
        model: The model; its inputs get the shapes of the arrays.
        given: The inputs by name.
        seconds: The time.

    Raises:
        TooLargeError: They do not.
    """
    for value in model.graph.inputs:
        array = given.get(value.name or "")
        value.shape = ir.Shape(array.shape) if isinstance(array, np.ndarray) else None
    facts, room, operations = Facts(model), SHARE * available_bytes(), 0
    for node in model.graph:
        needed = _bytes(node, facts)
        if needed > room:
            raise TooLargeError(
                f"{node.op_type} would take {needed / 1e9:.1f} GB in float64, and {room / 1e9:.1f} GB may be taken"
            )
        cost = cost_of(node, facts)
        operations += cost.flops if cost is not None and isinstance(cost.flops, int) else 0
    if operations > _RATE * seconds:
        raise TooLargeError(f"it would take about {operations / _RATE:.0f} s, and {max(seconds, 0):.0f} s are left")


def _bytes(node: ir.Node, facts: Facts) -> int:
    """The bytes of a node's operands and results, and of the windows of a pooling; what is not known counts as nothing."""
    total = 0
    for value in (*node.inputs, *node.outputs):
        shape = facts.shape(value) if value is not None else None
        if shape is not None and all(isinstance(size, int) for size in shape):
            total += 8 * math.prod(size for size in shape if isinstance(size, int))
    if node.op_type in _WINDOWS:
        kernel = node.attributes.get("kernel_shape")
        total *= 1 if kernel is None or kernel.is_ref() else 1 + _LAID_OUT * math.prod(kernel.as_ints())
    return total
