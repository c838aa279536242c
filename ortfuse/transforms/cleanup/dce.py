"""Eliminate dead code: remove nodes on which no graph output depends.

Transforms:

- nodes that no output needs, in the main graph, in subgraphs and in functions;
- initializers that nothing uses, and functions that nothing calls;
- optional outputs that nothing uses: the indices of a MaxPool, the mean of a LayerNormalization, the mask of a Dropout. The
  runtime computes every output that has a name. An output is removed only if the runtime is known to compute the others alike
  without it.

Does not handle:

- graph inputs, and initializers that are also inputs, as they are the input's default;
- outputs of subgraphs that the outer node does not use, as removing them would change the signature of the branch or loop
  (`licm` narrows loops);
- operators without outputs, as they can only be there for a side effect.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortfuse.ir.editor import Editor
from ortfuse.ir.schemas import droppable_outputs, used_length
from ortfuse.ir.walk import nodes_within, roots, subgraphs
from ortfuse.transforms.context import Context


@dataclass(frozen=True)
class DeadCodeElimination:
    """Remove nodes, initializers and functions that no graph output depends on."""

    name: ClassVar[str] = "dce"

    def run(self, context: Context) -> int:
        """Remove dead nodes, initializers, functions and optional outputs; returns how many in total."""
        # All or none: dead nodes use each other's outputs.
        with context.editor.change(self.name) as change:
            changes = _remove_functions(context)
            live = _live_nodes(roots(context.model))
            dead = [node for scope in context.scopes() for node in scope.graph if node not in live]
            # What is nested in a dead node is removed with it. Only direct children matter: deeper ones are children of a
            # node that is itself dead and nested.
            nested = {inner for node in dead for graph in subgraphs(node) for inner in graph}
            context.editor.remove(*[node for node in dead if node not in nested])
            changes += len(dead)
            for scope in context.scopes():
                changes += _remove_initializers(scope.graph, context.editor)
                changes += sum(
                    _remove_optional_outputs(node, context.editor) for node in scope.graph if len(node.outputs) > 1
                )
        return changes if change else 0


def _live_nodes(roots: Iterable[ir.Graph]) -> set[ir.Node]:
    """Every node that an output of its root graph depends on, those in subgraphs included."""
    live: set[ir.Node] = set()
    pending: list[ir.Node] = []

    def need(values: Iterable[ir.Value | None]) -> None:
        for value in values:
            producer = value.producer() if value is not None else None
            if producer is not None and producer not in live:
                live.add(producer)
                pending.append(producer)

    def enter(graph: ir.Graph) -> None:
        need(graph.outputs)
        for node in graph:
            if not node.outputs and node not in live:
                live.add(node)
                pending.append(node)

    for root in roots:
        enter(root)
    while pending:
        node = pending.pop()
        need(node.inputs)
        for graph in subgraphs(node):
            enter(graph)
    return live


def _remove_initializers(graph: ir.Graph, editor: Editor) -> int:
    unused = [
        value
        for value in graph.initializers.values()
        if not value.uses() and not value.is_graph_input() and not value.is_graph_output()
    ]
    editor.drop_initializers(*unused)
    return len(unused)


def _remove_functions(context: Context) -> int:
    """Remove the functions that neither the main graph nor a function that stays calls."""
    functions = context.model.functions
    if not functions:
        return 0
    called: set[ir.OperatorIdentifier] = set()
    pending = [context.model.graph]
    while pending:
        for node in nodes_within(pending.pop()):
            identifier = node.op_identifier()
            if identifier in functions and identifier not in called:
                called.add(identifier)
                pending.append(functions[identifier].graph)
    unused = [identifier for identifier in functions if identifier not in called]
    if unused:
        context.editor.remove_functions(unused)
    return len(unused)


def _remove_optional_outputs(node: ir.Node, editor: Editor) -> int:
    """Drop unused optional outputs: trailing ones are removed, others get an empty name."""
    droppable = droppable_outputs(node)
    removed = [node.outputs[index] for index in droppable if index < len(node.outputs)]
    removed = [out for out in removed if out.name and not out.uses() and not out.is_graph_output()]
    for output in removed:
        editor.rename(output, "")
    if removed:
        editor.resize_outputs(node, used_length(node))
    return len(removed)
