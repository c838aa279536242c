"""Model-local functions: what stands in the way of putting their bodies in the place of calls."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from ortfuse.graph.schemas import changes
from ortfuse.graph.walk import nodes_within


def without_functions(model: ir.Model) -> ir.Model | None:
    """A copy whose functions stand where they were called; `None` if they cannot.

    They cannot where a function calls itself, or has an operator that is another one in the opset of the model.
    """
    copy = model.clone()
    imports = copy.graph.opset_imports
    for function in copy.functions.values():
        if changed_operator(function, imports) is not None:
            return None
        function.opset_imports.update(
            {domain: imports[domain] for domain in function.opset_imports if domain in imports}
        )
    try:
        return InlinePass()(copy).model
    except ValueError:
        return None


def looked_into(model: ir.Model) -> ir.Model:
    """The model itself, or a copy whose functions stand where they were called, so that values can be followed, if they can."""
    return (without_functions(model) or model) if model.functions else model


def changed_operator(function: ir.Function, imports: Mapping[str, int]) -> str | None:
    """An operator of a function that another definition applies to in the opset of the model; `None` if there is none."""
    for node in nodes_within(function.graph):
        own, wanted = function.opset_imports.get(node.domain), imports.get(node.domain)
        if own is None or wanted is None or own == wanted:
            continue
        if node.domain or changes(node.op_type, own, wanted):
            return node.op_type
    return None
