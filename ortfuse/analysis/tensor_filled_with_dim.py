"""Prove that all elements of an integer tensor equal one dimension, such as full sequence lengths."""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import DimLike
from ortfuse.ir.traits import FILLS, JOINS, MOVES, has

_REPEATS = MOVES - JOINS - FILLS | {"Cast"}
"""Operators whose results have no other elements than their first operands."""

_TYPES = (ir.DataType.INT32, ir.DataType.INT64)
"""The types of which all sizes are numbers."""


def holds_size(value: ir.Value | None, size: DimLike, facts: Facts) -> bool:
    """Whether all elements of a tensor of integers are provably this size."""
    while value is not None and facts.dtype(value) in _TYPES:
        known = facts.ints(value)
        if known is not None and None not in known.elements:
            return all(one == size for one in known.elements)
        if isinstance(size, int) and facts.fill(value) == size:
            return True
        node = value.producer()
        value = node.inputs[0] if node is not None and has(node, _REPEATS) else None
    return False
