"""Follow moved elements to the operator that computes them."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

_MOST_MOVES = 8

SHAPE_OPS = frozenset({"Reshape", "Unsqueeze", "Squeeze", "Flatten"})
"""Operators that change a shape, and neither elements nor their order."""

DATA_MOVEMENT = SHAPE_OPS | {"Transpose", "Slice", "Gather", "Expand", "MaxPool", "Resize"}
"""Operators that move elements of the first operand, and compute none; those of Resize are its nearest ones."""


def are_moved_results(value: ir.Value, operator: str, through: Collection[str]) -> bool:
    """Tell whether elements are results of an operator of ai.onnx.

    Args:
        value: The elements.
        operator: The operator.
        through: Operators of ai.onnx that may move the elements in between, 7 at most.
    """
    for _ in range(_MOST_MOVES):
        node = value.producer()
        if node is None or node.domain not in ("", "ai.onnx"):
            return False
        if node.op_type == operator:
            return True
        moved = node.inputs[0] if node.op_type in through else None
        if moved is None:
            return False
        value = moved
    return False
