"""Drop operands of LSTM, GRU and RNN that equal the defaults: zero initial states, and lengths that cover whole sequences."""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.loop_summary.recurrent_operators_in_body import LENGTHS, STATES, is_operator
from ortfuse.analysis.node_parameters import parameter
from ortfuse.analysis.tensor_filled_with_dim import holds_size
from ortfuse.ir.dims import is_positive
from ortfuse.ir.walk import Scope
from ortfuse.transforms.context import Context
from ortfuse.transforms.node_builder import take_over


def drop_needless(scope: Scope, context: Context) -> int:
    """Leave out initial states that are zeros and lengths that are whole; returns from how many operators."""
    return sum(_drop(node, context) for node in [node for node in scope.graph if is_operator(node)])


def _drop(node: ir.Node, context: Context) -> bool:
    kept = [
        None if index >= LENGTHS and value is not None and _is_needless(index, value, node, context.facts) else value
        for index, value in enumerate(node.inputs)
    ]
    if kept == list(node.inputs):
        return False
    while kept[-1] is None:
        kept.pop()
    with context.editor.change("fuse_recurrent", nodes=[node]) as change:
        made = ir.Node("", node.op_type, kept, list(node.attributes.values()), num_outputs=len(node.outputs))
        context.editor.insert_before(node, made)
        take_over(context.editor, node, made)
    return bool(change)


def _is_needless(index: int, value: ir.Value, node: ir.Node, facts: Facts) -> bool:
    """Whether an operand is what its absence means, of the size that the operator demands: one of another size makes it fail."""
    x, weight, recurrent = (facts.shape(value) for value in node.inputs[:3])
    if x is None or weight is None or recurrent is None or parameter(node, "layout", facts) not in (None, 0):
        return False
    if index == LENGTHS:
        if node.op_type == "GRU" and not is_positive(x[0]):
            return False  # of no step, the kernel ends the process unless it is given lengths
        return facts.shape(value) == (x[1],) and holds_size(value, x[0], facts)
    is_state = index in (STATES, STATES + 1)
    return is_state and facts.fill(value) == 0 and facts.shape(value) == (weight[0], x[1], recurrent[2])
