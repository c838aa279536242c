"""Scores of the last token of each sequence alone: its row is taken as far up as all that follows is computed row by row.

Formula: f(x)[i] = f(x[i]) for each row i, so that a decoder that was exported with the scores of its last row alone is one of all
rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.generation.length_nodes import LengthNodes
from ortfuse.ir.traits import BROADCASTS, ELEMENTWISE

_OF_ELEMENTS = ELEMENTWISE | BROADCASTS
_OF_ROWS = frozenset(
    {"MatMul", "MatMulNBits", "LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"}
)


def keep_last_logits(model: ir.Model, facts: Facts, scores: ir.Value, lengths: LengthNodes) -> ir.Value:
    """Let a model hand out the scores after the last token of each sequence, in place; what is handed out then.

    Args:
        model: A decoder that becomes a generator.
        facts: Its facts.
        scores: Its output [batch, sequence, vocabulary].
        lengths: The nodes that tell where the last tokens are.
    """
    users = list(_rows_above(scores, facts))
    if users:
        user, number = users[-1]
        source = user.inputs[number]
        row = lengths.node("GatherND", [source, lengths.last], {"batch_dims": 1}, before=user).outputs[0]
        user.replace_input_with(number, row)
        return scores
    producer = scores.producer()
    assert producer is not None
    made = ir.node("GatherND", [scores, lengths.last], {"batch_dims": 1})
    made.name = "generator_last_logits"
    made.outputs[0].name = "generator_last_logits_0"
    made.outputs[0].type = scores.type
    model.graph.insert_after(producer, made)
    outputs = model.graph.outputs
    outputs[list(outputs).index(scores)] = made.outputs[0]
    return made.outputs[0]


def with_all_logits(scores: ir.Value, length: ir.SymbolicDim, facts: Facts) -> bool:
    """Let a decoder that hands out the scores after the last new token hand out those after each, in place; whether it is one.

    Args:
        scores: Its output [batch, 1, vocabulary].
        length: The number of new tokens.
        facts: Its facts. They do not hold afterwards.
    """
    above = list(_rows_above(scores, facts))
    value = above[-1][0].inputs[above[-1][1]] if above else scores
    chosen = None if value is None else value.producer()
    if value is None or chosen is None or not _is_last_row(chosen, facts):
        return False
    source = chosen.inputs[0]
    assert source is not None
    for use in tuple(value.uses()):
        use.node.replace_input_with(use.idx, source)
    for node, _ in above:
        shape = node.outputs[0].shape
        if shape is not None:
            node.outputs[0].shape = ir.Shape([shape[0], length, shape[2]])
    return bool(above)


def _is_last_row(node: ir.Node, facts: Facts) -> bool:
    """Whether a node takes the last row [batch, 1, size] of [batch, sequence, size]."""
    if node.domain or facts.rank(node.inputs[0]) != 3 or facts.rank(node.outputs[0]) != 3:
        return False
    if node.op_type == "Gather":
        return node.attributes.get_int("axis", 0) in (1, -2) and facts.scalar(node.inputs[1]) == -1
    if node.op_type != "Slice":
        return False
    starts, ends, axes, steps = (facts.const(one) for one in (*node.inputs[1:], None, None)[:4])
    if starts is None or ends is None or axes is None or starts.size != 1:
        return False
    is_step = len(node.inputs) < 5 or node.inputs[4] is None or (steps is not None and steps.item() == 1)
    return starts.item() == -1 and ends.item() >= _FAR and axes.item() in (1, -2) and is_step


_FAR = 1 << 30
"""An end of a Slice behind all rows."""


def _rows_above(value: ir.Value, facts: Facts) -> Iterator[tuple[ir.Node, int]]:
    """The nodes above that compute each row from that row of one input alone, with the number of the input."""
    while True:
        node = value.producer()
        if node is None or len(value.uses()) + value.is_graph_output() != 1 or len(node.outputs) != 1:
            return
        number = _row_input(node, facts)
        if number is None or node.inputs[number] is None:
            return
        yield node, number
        value = node.inputs[number]  # type: ignore[assignment]


def _row_input(node: ir.Node, facts: Facts) -> int | None:
    given = [number for number, one in enumerate(node.inputs) if one is not None and not facts.is_fixed(one)]
    if len(given) != 1 or facts.rank(node.inputs[given[0]]) != 3:
        return None
    if node.op_type in _OF_ROWS:
        is_plain = node.op_type != "MatMul" or facts.rank(node.inputs[1]) == 2
        return 0 if given == [0] and node.attributes.get_int("axis", -1) in (-1, 2) and is_plain else None
    others = [one for number, one in enumerate(node.inputs) if number != given[0]]
    is_flat = all((facts.rank(one) or 0) <= 1 for one in others)
    return given[0] if node.op_type in _OF_ELEMENTS and not node.domain and is_flat else None
