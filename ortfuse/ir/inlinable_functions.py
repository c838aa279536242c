"""Decide whether model-local functions can be inlined, and return the reasons where not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import onnx_ir as ir

from ortfuse.ir.count_expanded_nodes import beyond, expanded_nodes
from ortfuse.ir.inline_into_copy import inline_all
from ortfuse.ir.schemas import accepts, changes, keeps_meaning
from ortfuse.ir.walk import nodes_within

Reading: TypeAlias = Literal["same", "other", "none"]

_FLATTENING = frozenset({"Softmax", "LogSoftmax", "Hardmax"})
"""Operators that were over all axes from `axis` on before opset 13, and are over that one since."""


def without_functions(model: ir.Model) -> ir.Model | None:
    """A copy whose functions stand where they were called; `None` if they cannot.

    They cannot in these cases: a function calls itself, takes a graph as an attribute, or has an operator that is another one, or
    none, in the opset of the model; the copy would have more than `MOST_NODES` nodes.
    """
    if beyond(expanded_nodes(model)):
        return None
    copy = model.clone()
    imports = copy.graph.opset_imports
    for function in copy.functions.values():
        if changed_operator(function, imports) is not None:
            return None
        function.opset_imports.update(
            {domain: imports[domain] for domain in function.opset_imports if domain in imports}
        )
        if any(imports.setdefault(domain, version) != version for domain, version in function.opset_imports.items()):
            return None
    return copy if inline_all(copy) else None


def looked_into(model: ir.Model) -> ir.Model:
    """The model itself, or a copy whose functions stand where they were called, so that values can be followed, if they can."""
    return (without_functions(model) or model) if model.functions else model


def changed_operator(function: ir.Function, imports: Mapping[str, int]) -> str | None:
    """An operator of a function that is another one, or none, in the opset of the model; `None` if there is none."""
    found = (node.op_type for node in nodes_within(function.graph) if _reading(node, function, imports) != "same")
    return next(found, None)


def is_to_be_raised(function: ir.Function, imports: Mapping[str, int]) -> bool:
    """Whether the opset of the model has no form of some node of a function, so that only the function's tells what it means."""
    return any(_reading(node, function, imports) == "none" for node in nodes_within(function.graph))


def read_otherwise(model: ir.Model) -> dict[ir.OperatorIdentifier, str]:
    """The functions that are called and that the runtime reads otherwise than they are written, each with such an operator.

    The runtime reads the nodes of a function by the opset of the model, whatever the function imports.
    """
    imports, found = model.graph.opset_imports, {}
    for identifier in called(model):
        function = model.functions[identifier]
        if not is_to_be_raised(function, imports) and (operator := changed_operator(function, imports)) is not None:
            found[identifier] = operator
    return found


def called(model: ir.Model, caller: ir.OperatorIdentifier | None = None) -> list[ir.OperatorIdentifier]:
    """The functions that the main graph or one of the functions calls, or one that it calls."""
    found: dict[ir.OperatorIdentifier, None] = {}
    waiting = [model.graph if caller is None else model.functions[caller].graph]
    while waiting:
        names = {node.op_identifier(): None for node in nodes_within(waiting.pop())}
        new = [name for name in names if name in model.functions and name not in found]
        found.update(dict.fromkeys(new))
        waiting += [model.functions[name].graph for name in new]
    return list(found)


def _reading(node: ir.Node, function: ir.Function, imports: Mapping[str, int]) -> Reading:
    """The meaning of a function's node under the opset of the model: the same, another operator, or nothing valid."""
    own, wanted = function.opset_imports.get(node.domain), imports.get(node.domain)
    if own is None or wanted is None or own == wanted:
        return "same"
    if node.domain:
        return "other"
    if not changes(node.op_type, own, wanted):
        return "same"
    if not accepts(node, wanted):
        return "none"
    if node.op_type in _FLATTENING and node.attributes.get_int("axis", 0) == -1:
        return "same"
    return "same" if accepts(node, own) and keeps_meaning(node.op_type, own, wanted) else "other"
