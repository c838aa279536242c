"""Find the inputs by which operators select rows of a table, or which they use as a mask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import DimLike
from ortfuse.ir.traits import MICROSOFT

MASK_INPUTS: Mapping[tuple[str, str], Mapping[int, bool]] = {
    ("", "Attention"): {3: True},
    (MICROSOFT, "Attention"): {3: True, 5: True},
    (MICROSOFT, "MultiHeadAttention"): {4: True, 5: True},
    (MICROSOFT, "EmbedLayerNormalization"): {7: True},
    (MICROSOFT, "QAttention"): {5: True},
}
"""Operators that take a mask: the input positions, and whether 1 keeps a position."""

_TABLES: Mapping[tuple[str, str], Mapping[int, int]] = {
    ("", "RotaryEmbedding"): {3: 1},
    (MICROSOFT, "RotaryEmbedding"): {1: 2},
    (MICROSOFT, "EmbedLayerNormalization"): {0: 2, 1: 4},
    (MICROSOFT, "GatherBlockQuantized"): {1: 0},
}
"""Other operators with an input of row numbers: its position, and the position of the table, whose first axis has the rows."""


def extents(node: ir.Node, index: int, facts: Facts) -> Iterator[DimLike | None]:
    """The sizes of the axes that the elements of input number `index` select from.

    `None` for an unknown size; empty if the input does not select anything.
    """
    if (node.domain, node.op_type) in _TABLES:
        table = _TABLES[node.domain, node.op_type].get(index)
        if table is not None:
            yield _size(node.inputs[table], 0, facts)
    elif node.domain:
        return
    elif node.op_type in ("Gather", "GatherElements", "ScatterElements") and index == 1:
        yield _size(node.inputs[0], node.attributes.get_int("axis", 0) or 0, facts)
    elif node.op_type in ("GatherND", "ScatterND") and index == 1:
        yield from _leading(node, facts)
    elif node.op_type == "OneHot" and index == 0:
        depth = facts.scalar(node.inputs[1])
        yield None if depth is None else int(depth)


def _leading(node: ir.Node, facts: Facts) -> Iterator[DimLike | None]:
    """The axes that are indexed by the last axis of the indices of GatherND or ScatterND."""
    table, indices = facts.shape(node.inputs[0]), facts.shape(node.inputs[1])
    count = indices[-1] if indices else None
    if table is None or not isinstance(count, int):
        yield None
        return
    first = node.attributes.get_int("batch_dims", 0) or 0
    yield from table[first : first + count]


def _size(table: ir.Value | None, axis: int, facts: Facts) -> DimLike | None:
    shape = facts.shape(table)
    return shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
