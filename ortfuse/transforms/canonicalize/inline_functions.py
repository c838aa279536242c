"""Inline model-local functions, as the runtime does when it loads a model, so that rules see their bodies.

Transforms, in the main graph, in subgraphs and in functions: calls of functions whose operators mean the same in the opset of the
model as in that of the function. A function is raised first if it is of an older opset, with forms of operators that the opset of
the model has not. Functions that nothing calls any longer are removed by `dce`.

Does not handle: operators that the target has a kernel for, or may have one for in a library of the user, which goes before the
function; functions that take a graph as an attribute, or hold large constants and are called several times; all calls of a model
whose functions call themselves, or that would become too large.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortfuse.errors import TargetError
from ortfuse.ir.count_expanded_nodes import MOST_NODES, beyond, calls_in_all, expanded_nodes
from ortfuse.ir.inlinable_functions import called, changed_operator, is_to_be_raised
from ortfuse.ir.walk import nested_nodes, nodes_within
from ortfuse.targets import raise_opset
from ortfuse.targets.custom_operators import libraries
from ortfuse.transforms.context import Context

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


@dataclass(frozen=True)
class InlineFunctions:
    """Inline model-local functions.

    Attributes:
        repeated_bytes: The most bytes of constants that the further calls of a function may add to the model.
        nodes: The most nodes that all calls together may become.
    """

    name: ClassVar[str] = "inline_functions"
    repeated_bytes: int = 1 << 20
    nodes: int = MOST_NODES

    def run(self, context: Context) -> int:
        """Inline calls; returns how many: those in the main graph, and those in functions that it calls then."""
        model, functions = context.model, context.model.functions
        if not functions or libraries():
            return 0
        if reason := beyond(expanded_nodes(model), self.nodes):
            context.note(f"calls of functions stay calls: {reason}")
            return 0
        _raise_functions(context)
        count = self._inline_within(model.graph, calls_in_all(model), context)
        left = [functions[name].graph for name in called(model)]
        times = Counter(node.op_identifier() for graph in left for node in nodes_within(graph))
        return count + sum(self._inline_within(graph, times, context) for graph in left)

    def _inline_within(self, root: ir.Graph, times: Mapping[ir.OperatorIdentifier, int], context: Context) -> int:
        """Inline the calls in a graph and its subgraphs, also those in inlined bodies; returns how many.

        Args:
            root: The main graph, or that of a function.
            times: How often each function is called.
            context: The model.
        """
        functions, count = context.model.functions, 0
        names: dict[ir.Graph, set[str | None]] = {}
        waiting = [node for node in nodes_within(root) if node.op_identifier() in functions][::-1]
        while waiting:
            node = waiting.pop()
            function = functions[node.op_identifier()]
            if self._may_inline(node, times[function.identifier()], root, function, context):
                added = self._inline(node, function, names, context)
                count += added is not None
                found = (inner for outer in added or () for inner in (outer, *nested_nodes(outer)))
                waiting += [inner for inner in found if inner.op_identifier() in functions][::-1]
        return count

    def _may_inline(self, node: ir.Node, calls: int, root: ir.Graph, function: ir.Function, context: Context) -> bool:
        """Whether a call, one of so many, is inlined; users are told where that is for the function's sake."""
        imports = root.opset_imports
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

    def _inline(
        self, node: ir.Node, function: ir.Function, names: dict[ir.Graph, set[str | None]], context: Context
    ) -> list[ir.Node] | None:
        """Put the body of a function in the place of a call; returns its nodes, or `None` if the change is refused.

        Args:
            node: The call.
            function: The function.
            names: The names of the nodes of graphs, as far as they are known.
            context: The model.
        """
        assert isinstance(node.graph, ir.Graph)
        taken = names.get(node.graph) or names.setdefault(node.graph, {other.name for other in node.graph})
        given = [*node.inputs, *[None] * (len(function.inputs) - len(node.inputs))]
        attributes = {
            **{attr.name: attr for attr in function.attributes.values() if attr.value is not None},
            **node.attributes,
        }
        with context.editor.change(self.name, nodes=[node]) as change:
            results = context.editor.insert_copy(node, function.graph, given, attributes, taken) or []
            for old, new in zip(node.outputs, results, strict=False):
                if new is not None:
                    context.editor.replace(old, new)
            context.editor.remove(node)
        return list(change.added) if change else None


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
