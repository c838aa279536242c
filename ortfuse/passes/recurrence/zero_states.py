"""Initial states of zeros are left out of LSTM, GRU and RNN, which start from zeros by themselves."""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.facts.facts import Facts
from ortfuse.graph.walk import Scope
from ortfuse.passes.building import take_over
from ortfuse.passes.context import Context
from ortfuse.pattern.operators import parameter

_FIRST_STATE = 5
"""The input of the initial hidden state; that of the initial cell state is the next."""


def drop_zero_states(scope: Scope, context: Context) -> int:
    """Leave out the initial states that are zeros; returns from how many operators."""
    found = [node for node in scope.graph if node.op_type in ("LSTM", "GRU", "RNN") and not node.domain]
    return sum(_drop(node, context) for node in found)


def _drop(node: ir.Node, context: Context) -> bool:
    kept = [
        None if index in (_FIRST_STATE, _FIRST_STATE + 1) and _is_needless(value, node, context.facts) else value
        for index, value in enumerate(node.inputs)
    ]
    if kept == list(node.inputs):
        return False
    while kept[-1] is None:
        kept.pop()
    with context.editor.change("recurrent", nodes=[node]) as change:
        made = ir.Node("", node.op_type, kept, list(node.attributes.values()), num_outputs=len(node.outputs))
        context.editor.insert_before(node, made)
        take_over(context.editor, node, made)
    return bool(change)


def _is_needless(state: ir.Value | None, node: ir.Node, facts: Facts) -> bool:
    """Whether a state is zeros, of the size that the operator demands: one of another size makes it fail."""
    x, weight, recurrent = (facts.shape(value) for value in node.inputs[:3])
    if (
        state is None
        or x is None
        or weight is None
        or recurrent is None
        or parameter(node, "layout", facts) not in (None, 0)
    ):
        return False
    return facts.fill(state) == 0 and facts.shape(state) == (weight[0], x[1], recurrent[2])
