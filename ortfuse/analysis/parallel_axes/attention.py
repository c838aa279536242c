"""Parallel axes of attention and rotary embeddings: queries and batches."""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import attribute_value
from ortfuse.analysis.parallel_axes.parallel_axis import ParallelAxis, aligned, parallel, size_along
from ortfuse.ir.traits import MICROSOFT

_BATCH_FIRST = 0


@parallel("Attention")
def _attention(node: ir.Node, result: int, axis: int, facts: Facts) -> ParallelAxis | None:
    """A row of the result is attention of that row of the queries, with all keys and values.

    Present keys and values do not depend on queries. A causal mask is written for the rows that are left, if the keys are
    those of the queries: then row i sees keys 0 to i.
    """
    query = facts.shape(node.inputs[0])
    if query is None or result != 0 or len(query) not in (3, 4) or any(one.uses() for one in node.outputs[3:]):
        return None
    rows = len(query) - 2
    if axis == _BATCH_FIRST:
        return _batch(node, facts, query[0], (0, 0, 0), 3, (4, 5, 6))
    if axis != rows or any(one.is_graph_output() for one in node.outputs[3:]):
        return None
    operands: list[int | None] = [rows, *[None] * (len(node.inputs) - 1)]
    lacking = [0] * len(node.inputs)
    mask = operand(node, 3)
    if mask is not None:
        found = aligned(mask, 4, 2, query[rows], facts)
        if found is None or (facts.rank(mask) or 0) < 2:
            return None
        operands[3], lacking[3] = found
    is_causal = bool(attribute_value(node, "is_causal", facts))
    if is_causal and (not _is_of_itself(node, facts) or mask is not None):
        return None
    return ParallelAxis(
        tuple(operands), (rows, *[None] * (len(node.outputs) - 1)), tuple(lacking), is_written=is_causal
    )


def operand(node: ir.Node, place: int) -> ir.Value | None:
    """Return an operand of a node; `None` if it is absent."""
    return node.inputs[place] if place < len(node.inputs) else None


def _is_of_itself(node: ir.Node, facts: Facts) -> bool:
    """Whether there are as many keys as queries, and no past ones nor padded ones."""
    sizes = [
        None if (rank := facts.rank(value)) is None else size_along(value, rank - 2, facts) for value in node.inputs[:2]
    ]
    return sizes[0] is not None and sizes[0] == sizes[1] and not any(operand(node, place) for place in (4, 5, 6))


def _batch(
    node: ir.Node, facts: Facts, size: object, first: tuple[int, ...], mask: int, others: tuple[int, ...]
) -> ParallelAxis | None:
    """The batch is the first axis of all operands that have it, and of a mask that is not the same for all."""
    operands: list[int | None] = [*first, *[None] * (len(node.inputs) - len(first))]
    lacking = [0] * len(node.inputs)
    for place in (*range(len(first)), *others):
        value = operand(node, place)
        if value is not None:
            operands[place] = 0
            if size_along(value, 0, facts) != size:
                return None
    value = operand(node, mask)
    if value is not None:
        found = aligned(value, 4, 0, size, facts)  # type: ignore[arg-type]
        if found is None:
            return None
        operands[mask], lacking[mask] = found
    return ParallelAxis(tuple(operands), (0,) * len(node.outputs), tuple(lacking))


@parallel(f"{MICROSOFT}.MultiHeadAttention")
def _multi_head_attention(node: ir.Node, result: int, axis: int, facts: Facts) -> ParallelAxis | None:
    """The same of MultiHeadAttention with queries, keys and values apart."""
    query = facts.shape(node.inputs[0])
    if query is None or result != 0 or len(query) != 3 or operand(node, 1) is None or operand(node, 2) is None:
        return None
    if attribute_value(node, "unidirectional", facts) or any(operand(node, place) for place in (8, 9)):
        return None
    if any(one.uses() or one.is_graph_output() for one in node.outputs[3:]):
        return None
    operands: list[int | None] = [1, *[None] * (len(node.inputs) - 1)]
    bias = operand(node, 5)
    if axis == _BATCH_FIRST:
        padding = operand(node, 4)
        if padding is not None and facts.rank(padding) == 1:
            return None
        return _batch(node, facts, query[0], (0, 0, 0), 5, (4, 6, 7))
    if axis != 1:
        return None
    padding = operand(node, 4)
    if padding is not None and (facts.rank(padding) or 9) > 2:
        return None
    if bias is not None:
        if size_along(bias, 2, facts) != query[1]:
            return None
        operands[5] = 2
    return ParallelAxis(tuple(operands), (1, *[None] * (len(node.outputs) - 1)))


@parallel("RotaryEmbedding", f"{MICROSOFT}.RotaryEmbedding")
def _rotary(node: ir.Node, result: int, axis: int, facts: Facts) -> ParallelAxis | None:
    """Every token is rotated by the angles of its position."""
    shape = facts.shape(node.inputs[0])
    if shape is None or len(shape) not in (3, 4) or attribute_value(node, "is_packed_batching", facts):
        return None
    is_standard = not node.domain
    positions = operand(node, 3 if is_standard else 1)
    tables = (1, 2) if is_standard else (2, 3)
    rows = len(shape) - 2
    if axis not in (0, rows):
        return None
    place = 1 if axis == rows else 0
    operands: list[int | None] = [axis, *[None] * (len(node.inputs) - 1)]
    if positions is None:
        if not is_standard or any(size_along(node.inputs[one], place, facts) != shape[axis] for one in tables):
            return None
        operands[1] = operands[2] = place
        return ParallelAxis(tuple(operands), (axis,))
    if facts.shape(positions) == (1,) and not is_standard:
        return ParallelAxis(tuple(operands), (axis,), is_written=axis == rows)
    if facts.rank(positions) != 2 or size_along(positions, place, facts) != shape[axis]:
        return None
    operands[3 if is_standard else 1] = place
    return ParallelAxis(tuple(operands), (axis,))
