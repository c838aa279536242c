"""The body of a model-local function replaces its calls, so that rules see through it, as the runtime does when it loads a model.

Inlined, in the main graph, in subgraphs and in functions: calls of functions whose operators mean the same in the opset of the
model as in that of the function. A function is raised first if it is of an older opset, with forms of operators that the opset of
the model has not. Functions that nothing calls any longer are removed by `dce`.

Left alone: operators that the target has a kernel for, or may have one for in a library of the user, which goes before the
function; functions that take a graph as an attribute, or hold large constants and are called several times; all calls of a model
whose functions call themselves, or that would become too large.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortfuse.errors import TargetError
from ortfuse.graph.expansion import MOST_NODES, beyond, expanded_nodes
from ortfuse.graph.functions import changed_operator, is_to_be_raised
from ortfuse.graph.walk import Scope, nodes_within
from ortfuse.passes.context import Context
from ortfuse.targets import raise_opset
from ortfuse.targets.custom import libraries

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


@dataclass(frozen=True)
class InlineFunctions:
    """Replaces calls of functions by what the functions do.

    Attributes:
        repeated_bytes: The most bytes of constants that the further calls of a function may add to the model.
        nodes: The most nodes that all calls together may become.
    """

    name: ClassVar[str] = "inline_functions"
    repeated_bytes: int = 1 << 20
    nodes: int = MOST_NODES

    def run(self, context: Context) -> int:
        """Inline calls; returns how many. A call in an inlined body is met by the next run."""
        functions = context.model.functions
        if not functions or libraries():
            return 0
        if reason := beyond(expanded_nodes(context.model), self.nodes):
            context.note(f"calls of functions stay calls: {reason}")
            return 0
        _raise_functions(context)
        calls = [
            (node, scope, functions[node.op_identifier()])
            for scope in context.scopes()
            for node in scope.graph
            if node.op_identifier() in functions
        ]
        times = Counter(function.identifier() for _, _, function in calls)
        return sum(
            self._inline(node, function, context)
            for node, scope, function in calls
            if self._may_inline(node, times[function.identifier()], scope, function, context)
        )

    def _may_inline(self, node: ir.Node, calls: int, scope: Scope, function: ir.Function, context: Context) -> bool:
        """Whether a call, one of so many, is inlined; users are told where that is for the function's sake."""
        imports = scope.root.opset_imports
        has_kernel = context.target.check_node(node, imports, context.facts) is None
        takes_graph = any(attribute.type in _GRAPHS for attribute in node.attributes.values())
        too_many = len(node.inputs) > len(function.inputs) or len(node.outputs) > len(function.outputs)
        if has_kernel or takes_graph or too_many:
            return False
        changed, reason = changed_operator(function, imports), ""
        if changed is not None:
            reason = f"{changed} is another operator in the opset of the model than in that of the function"
        elif (calls - 1) * _bytes(function) > self.repeated_bytes:
            reason = f"its constants would be repeated {calls} times"
        if reason:
            context.note(f"calls of the function {function.domain}::{function.name} stay: {reason}")
        return not reason

    def _inline(self, node: ir.Node, function: ir.Function, context: Context) -> bool:
        given = [*node.inputs, *[None] * (len(function.inputs) - len(node.inputs))]
        attributes = {
            **{attr.name: attr for attr in function.attributes.values() if attr.value is not None},
            **node.attributes,
        }
        with context.editor.change(self.name, nodes=[node]) as change:
            results = context.editor.insert_copy(node, function.graph, given, attributes) or []
            for old, new in zip(node.outputs, results, strict=False):
                if new is not None:
                    context.editor.replace(old, new)
            context.editor.remove(node)
        return bool(change)


def _raise_functions(context: Context) -> None:
    """Bring functions to the opset of the model if that lacks forms of their nodes, where that is possible."""
    imports = context.model.opset_imports
    opset = imports.get("", 0)
    older = (found for found in context.model.functions.values() if found.opset_imports.get("", opset) < opset)
    if any(is_to_be_raised(function, imports) for function in older):
        with contextlib.suppress(TargetError):  # what is another operator then stays a call, with a note
            raise_opset(context.model, opset, context.target, context.facts, context.editor)


def _bytes(function: ir.Function) -> int:
    """The size of the constants in a function."""
    constants = (node.attributes["value"].as_tensor() for node in nodes_within(function.graph) if _holds_tensor(node))
    return sum(tensor.nbytes for tensor in constants)


def _holds_tensor(node: ir.Node) -> bool:
    return node.op_type == "Constant" and "value" in node.attributes and not node.attributes["value"].is_ref()
