"""The branch that an If always takes replaces the If, so that rules see through it.

Inlined: branches of Ifs whose condition is a constant, in the main graph, in subgraphs and in functions. The branch that is
never taken is gone with the If, and with it what only that branch computed.

Left alone: Ifs whose condition is computed from inputs or is not known to have one element.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortfuse.graph.editor import Editor
from ortfuse.graph.walk import roots, subgraphs
from ortfuse.passes.context import Context


@dataclass(frozen=True)
class InlineBranches:
    """Replaces Ifs whose condition is constant by the branch that is taken."""

    name: ClassVar[str] = "inline_branches"

    def run(self, context: Context) -> int:
        """Inline branches; returns how many. An If in an inlined branch is met by the next run."""
        return sum(_inline_within(root, context) for root in roots(context.model))


def _inline_within(root: ir.Graph, context: Context) -> int:
    count, waiting = 0, [root]
    while waiting:
        for node in list(waiting.pop()):
            taken = _taken(node, context)
            if taken is not None and _inline(node, taken, context.editor):
                count += 1
            else:
                waiting += subgraphs(node)
    return count


def _taken(node: ir.Node, context: Context) -> ir.Graph | None:
    """The branch that an If takes in every run; `None` if that is not known, and for other nodes."""
    if node.op_type != "If" or node.domain:
        return None
    condition = context.facts.scalar(node.inputs[0])
    branch = None if condition is None else node.attributes.get("then_branch" if condition else "else_branch")
    return None if branch is None or branch.is_ref() else branch.as_graph()


def _inline(node: ir.Node, taken: ir.Graph, editor: Editor) -> bool:
    """Replace an If by a copy of the branch. The original stays in the If, so that both sides can be compared and undone."""
    with editor.change(InlineBranches.name, nodes=[node]) as change:
        results = editor.insert_copy(node, taken) or []
        for old, new in zip(node.outputs, results, strict=True):
            editor.replace(old, new)
        editor.remove(node)
    return bool(change)
