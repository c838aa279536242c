"""Refuse attention fusions that leave Transposes which the runtime would otherwise merge into MatMul.

At session creation the runtime merges a Transpose of the last two axes into the MatMul behind it. Attention reads its operands
row by row, so that such a Transpose before it is executed, and a transposed key is transposed back. In return the scores are
not written and read again between MatMul, Softmax and MatMul. For images with channels first and few positions that is less
than the Transposes cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import parameter
from ortfuse.ir.edit import Edit
from ortfuse.ir.refusal import Refusal, refuse

WORTH = 2
"""How many scores must be saved for each element that is transposed; measured on attention with 49 to 1024 positions."""


def transposes_too_much(edit: Edit) -> Refusal | None:
    """Why a rewrite is not made that leaves more to be transposed than its softmax is worth; `None` to make it."""
    facts = edit.facts
    scores = [_elements(node.outputs[0], facts) for node in edit.nodes if node.op_type == "Softmax" and not node.domain]
    if not scores or any(node.op_type == "MatMul" for node in edit.added):
        return None
    results = list(_transposed_results(edit, facts))
    left = [_elements(value, facts) for value in (*_left_to_transpose(edit, facts), *results)]
    if None in scores or None in left:
        found = "the result would be transposed, and for how many scores is not known"
        return refuse("needless", edit.outputs[0][0], found=found) if results else None
    saved, moved = sum(filter(None, scores)), sum(filter(None, left))
    if moved * WORTH <= saved:
        return None
    found = f"{moved} elements would be transposed that MatMul reads as they are, more than {saved} scores are worth"
    return refuse("needless", edit.outputs[0][0], found=found)


def _left_to_transpose(edit: Edit, facts: Facts) -> Iterator[ir.Value]:
    """Results of Transposes that are executed only because of the rewrite: of its own, and of neighbours that feed it alone."""
    own, both = set(edit.added), {*edit.nodes, *edit.added}
    for value in dict.fromkeys(value for node in edit.added for value in node.inputs if value is not None):
        node = value.producer()
        if node is None or not _swaps_last_two(node, facts):
            continue
        source = node.inputs[0].producer() if node.inputs[0] is not None else None
        merged = node in own and source is not None and source.op_type == "Transpose"
        if not merged and not value.is_graph_output() and all(use.node in both for use in value.uses()):
            yield value


def _transposed_results(edit: Edit, facts: Facts) -> Iterator[ir.Value]:
    """Results of the rewrite that it transposes itself, without a Transpose behind it that this is one with."""
    own = set(edit.added)
    for old, value in edit.outputs:
        node = value.producer()
        is_own = node is not None and node in own and _swaps_last_two(node, facts)
        if is_own and any(use.node.op_type != "Transpose" for use in old.uses()):
            yield value


def _swaps_last_two(node: ir.Node, facts: Facts) -> bool:
    perm = parameter(node, "perm", facts) if node.op_type == "Transpose" and not node.domain else None
    if not isinstance(perm, tuple | list) or len(perm) < 2:
        return False
    rank = len(perm)
    return list(perm) == [*range(rank - 2), rank - 1, rank - 2]


def _elements(value: ir.Value, facts: Facts) -> int | None:
    """The elements of a value for each member of the batch; `None` if they are not known."""
    shape = facts.shape(value)
    inner = None if shape is None else [dim for dim in shape[1:] if isinstance(dim, int)]
    return math.prod(inner) if shape is not None and inner is not None and len(inner) == len(shape) - 1 else None
