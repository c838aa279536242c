"""Turn Constant nodes into initializers, so that rules find every constant in one place.

Transforms: every spelling of the value (`value`, `value_float`, `value_floats`, `value_int`, `value_ints`, `value_string`,
`value_strings`), in the main graph and in subgraphs. The initializer keeps the name of the node's output.

Does not handle:

- sparse values, which the runtime densifies only from the node;
- Constants in functions, which have no initializers in ONNX, and those whose value refers to an attribute of a function;
- Constants whose output is a graph output, because some tools cannot handle initializers that are outputs.

Facts treat a Constant node and an initializer alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortfuse.ir.enumerate_tensors import constant_tensor
from ortfuse.ir.walk import nested
from ortfuse.transforms.context import Context


@dataclass(frozen=True)
class LiftConstants:
    """Turn Constant nodes into initializers."""

    name: ClassVar[str] = "lift_constants"

    def run(self, context: Context) -> int:
        """Convert every Constant node that can be an initializer; returns the number converted."""
        return sum(_convert(graph, context) for graph in nested(context.model.graph))


def _convert(graph: ir.Graph, context: Context) -> int:
    """Convert the nodes of one graph."""
    found: dict[ir.Node, ir.TensorProtocol] = {}
    for node in graph:
        if node.op_type == "Constant" and not node.domain and not node.outputs[0].is_graph_output():
            tensor = constant_tensor(node)
            if tensor is not None:
                found[node] = tensor
    editor = context.editor
    with editor.change(LiftConstants.name, nodes=list(found)) as change:
        for node, tensor in found.items():
            editor.replace_by_constant(node.outputs[0], tensor)
        editor.remove(*found)
    return len(found) if change else 0
