"""Wrap standard operators in model-local functions that hold nothing but the operator.

Some tools identify operators by name, without the domain. ONNX Runtime's `quantize_dynamic` and its symbolic shape
inference confuse ai.onnx Attention with that of com.microsoft. They stop, or write a model that does not load. A function
has a name of its own, which such tools pass over. The runtime puts the body in the place of the call when it creates a
session, so that the same kernels run.

There is one function for each combination of attributes and of inputs and outputs that are present, in the domain `ortfuse`.
Does not handle: operators in functions, where these tools do not look, operators that hold graphs, and those that are newer than
the opset of the model, which `finalize` raises. Not every tool reads functions: OpenVINO (2026.4) and ONNX's version converter
(1.23) do not.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import onnx_ir as ir

from ortfuse.ir.walk import Scope, subgraphs
from ortfuse.transforms.context import Context

DOMAIN = "ortfuse"

Signature = tuple[str, int, tuple[bytes, ...], tuple[bool, ...], tuple[bool, ...]]
"""Operator, opset, attributes as they are stored, inputs that are present, outputs that are present."""


@dataclass(frozen=True)
class WrapInFunctions:
    """Wrap standard operators in model-local functions.

    Attributes:
        operators: The operators of ai.onnx, separated by spaces.
    """

    name: ClassVar[str] = "wrap_in_functions"
    operators: str = "Attention"

    def run(self, context: Context) -> int:
        """Replace the operators in the main graph and its subgraphs; returns how many."""
        made = _Functions(context.model)
        places = [
            (scope, node)
            for scope in context.scopes()
            if scope.root is context.model.graph
            for node in scope.graph
            if not node.domain and node.op_type in self.operators.split()
            if node.version in (None, scope.opset) and not any(subgraphs(node))
        ]
        if places:
            with context.editor.change(self.name):
                calls = [_call(node, made.of(scope, node)) for scope, node in places]
                context.editor.add_functions(made.new)
                for (_, node), call in zip(places, calls, strict=True):
                    context.editor.insert_before(node, call)
                    for old, new in zip(_present(node.outputs), call.outputs, strict=True):
                        context.editor.replace(old, new)
                    context.editor.remove(node)
        return len(places)


@dataclass
class _Functions:
    """The functions that were made for a model, by what they hold."""

    model: ir.Model
    found: dict[Signature, ir.Function] = field(default_factory=dict)

    @property
    def new(self) -> Sequence[ir.Function]:
        return list(self.found.values())

    def of(self, scope: Scope, node: ir.Node) -> ir.Function:
        """The function that holds a node of this kind."""
        stored = (ir.to_proto(attribute).SerializeToString() for attribute in node.attributes.values())
        present = tuple(value is not None for value in node.inputs), tuple(bool(value.name) for value in node.outputs)
        signature = (node.op_type, scope.opset, tuple(sorted(stored)), *present)
        if signature not in self.found:
            self.found[signature] = _holding(node, scope.opset, self._unused_name(node.op_type))
        return self.found[signature]

    def _unused_name(self, operator: str) -> str:
        taken = {*self.model.functions, *(function.identifier() for function in self.found.values())}
        names = itertools.chain([f"Standard{operator}"], (f"Standard{operator}{count}" for count in itertools.count(2)))
        return next(name for name in names if (DOMAIN, name, "") not in taken)


def _holding(node: ir.Node, opset: int, name: str) -> ir.Function:
    """A function whose body is one node like this one."""
    inputs = [None if value is None else ir.Value(name=f"input_{number}") for number, value in enumerate(node.inputs)]
    outputs = [ir.Value(name=f"output_{number}" if value.name else "") for number, value in enumerate(node.outputs)]
    body = ir.Node("", node.op_type, inputs, list(node.attributes.values()), outputs=outputs, name=node.op_type.lower())
    given, made = [value for value in inputs if value is not None], _present(outputs)
    return ir.Function(
        DOMAIN, name, graph=ir.Graph(given, made, nodes=[body], opset_imports={"": opset}), attributes=()
    )


def _call(node: ir.Node, function: ir.Function) -> ir.Node:
    """A call of the function in place of a node, with its name and what is noted of it."""
    outputs = [ir.Value(type=value.type, shape=value.shape) for value in _present(node.outputs)]
    given = [value for value in node.inputs if value is not None]
    return ir.Node(
        DOMAIN, function.name, given, outputs=outputs, name=node.name, metadata_props=dict(node.metadata_props)
    )


def _present(values: Sequence[ir.Value]) -> list[ir.Value]:
    return [value for value in values if value.name]
