"""Models with a branch for the first step and one for those after it, as Optimum merges two exports of a decoder.

A Boolean input chooses the branch. The one with past keys and values serves for the first step, too, with caches of no tokens.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortfuse.generation.decoder_interface import PAST


def take_cached_branch(model: ir.Model) -> str:
    """Fix the Boolean input that chooses the branch with past keys and values, in place; its name, "" if there is none.

    The value of the input is that for which caches are appended to.
    """
    graph = model.graph
    for value in list(graph.inputs):
        if value.dtype != ir.DataType.BOOL or value.name is None or value.name in graph.initializers:
            continue
        chosen = [use.node for use in value.uses() if use.node.op_type == "If"]
        if len(chosen) != len(tuple(value.uses())) or not chosen:
            continue
        appends = {
            branch: _appends(chosen[0].attributes[branch].as_graph()) for branch in ("then_branch", "else_branch")
        }
        if appends["then_branch"] == appends["else_branch"]:
            continue
        array = np.full([dim if isinstance(dim, int) else 1 for dim in value.shape or ()], appends["then_branch"])
        graph.inputs.remove(value)
        value.const_value = ir.tensor(array, name=value.name)
        graph.register_initializer(value)
        return value.name
    return ""


def _appends(graph: ir.Graph) -> bool:
    """Whether a branch appends to a value of the graph around it, or attention in it has past keys."""
    inside = {value for node in graph for value in node.outputs}
    for node in graph:
        if node.op_type == "Concat" and len(node.inputs) == 2:
            first = node.inputs[0]
            if first is not None and first not in inside and first.is_graph_input():
                return True
        if any(len(node.inputs) > number and node.inputs[number] is not None for number in PAST.get(node.op_type, ())):
            return True
    return False
