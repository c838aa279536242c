"""Compare both sides of an edit behind a later operator that absorbs the difference, such as Softmax."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import onnx_ir as ir

from ortfuse.ir import walk
from ortfuse.ir.edit import Edit
from ortfuse.ir.editor import Editor

MOST_NODES = 16
"""The most nodes between what a rewrite makes and the operator behind which it is compared."""


@contextmanager
def behind(edit: Edit) -> Iterator[Edit | None]:
    """The edit with all that stands between its value and the operator that its rule test is followed by, on both sides.

    `None` if the rule test has no such operator, or if the value goes elsewhere too. The nodes that are added to the new side
    are in no graph, and are disconnected at the end.
    """
    test = getattr(edit.rule, "test", None)
    operator = getattr(test, "followed_by", None)
    followers = _followers(edit, operator) if isinstance(operator, str) and operator != "Identity" else None
    if not followers or operator is None:
        yield None
        return
    instead, copies = dict(edit.outputs), []
    for node in followers:
        operands = [value if value is None else instead.get(value, value) for value in node.inputs]
        copy = ir.Node(node.domain, node.op_type, operands, node.attributes.values(), version=node.version)
        instead[node.outputs[0]] = copy.outputs[0]
        copies.append(copy)
    ends = [node.outputs[0] for node in followers if node.op_type == operator]
    try:
        yield replace(
            edit,
            nodes=[*edit.nodes, *followers],
            added=[*edit.added, *copies],
            outputs=[(end, instead[end]) for end in ends],
        )
    finally:
        Editor.discard(copies)


def _followers(edit: Edit, operator: str) -> list[ir.Node] | None:
    """All nodes that use the replaced values, up to an operator, in the order of the graph.

    `None` if a value on the way is used by something that does not lead there.
    """
    own = {*edit.nodes, *edit.added}
    found: dict[ir.Node, None] = {}
    pending = [old for old, _ in edit.outputs]
    while pending:
        value = pending.pop()
        users = dict.fromkeys(use.node for use in value.uses() if use.node not in own)
        if not users or value.is_graph_output():
            return None
        for node in users:
            if node in found:
                continue
            found[node] = None
            if len(found) > MOST_NODES or len(node.outputs) != 1 or node.graph is not edit.scope.graph:
                return None
            if walk.subgraphs(node):
                return None
            if node.domain or node.op_type != operator:
                pending.append(node.outputs[0])
    return [node for node in edit.scope.graph if node in found]
