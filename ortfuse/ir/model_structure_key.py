"""Key of a graph's nodes and weight types that does not depend on names."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir


def content_of(model: ir.Model) -> list[Any]:
    """The nodes with their attributes and the types of their inputs, without names."""
    nodes = [
        (
            node.domain,
            node.op_type,
            [(name, repr(attribute.value)) for name, attribute in sorted(node.attributes.items())],
            [None if value is None else (str(value.type), str(value.shape)) for value in node.inputs],
        )
        for node in model.graph
    ]
    weights = [(str(value.dtype), str(value.shape)) for value in model.graph.initializers.values()]
    return [nodes, weights, sorted(model.graph.opset_imports.items())]
