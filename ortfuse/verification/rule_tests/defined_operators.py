"""Put functions of standard operators in the place of operators that no kernel of the machine computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx
import onnx_ir as ir

from ortfuse.ir.walk import nodes

DOMAIN = "defined"
"""The domain of the functions."""

Definition = Callable[[ir.Node, int], "str | None"]
"""Returns the text of the function that a node computes at an opset, or `None` where it has no definition."""


def with_definitions(model: ir.Model, definitions: Mapping[str, Definition]) -> ir.Model:
    """Return a copy of a model whose nodes call functions; the model itself if it has no node that is defined.

    Args:
        model: The model.
        definitions: Definitions by operator, as `RuleTest.definitions` has them.
    """
    if not any(_operator(node) in definitions for node in nodes(model)):
        return model
    copy = model.clone()
    opset = copy.graph.opset_imports[""]
    for number, node in enumerate([node for node in nodes(copy) if _operator(node) in definitions]):
        text = definitions[_operator(node)](node, opset)
        if text is None:
            continue
        proto = onnx.parser.parse_function(text)
        proto.domain, proto.name = DOMAIN, f"{node.op_type}_{number}"
        function = ir.serde.deserialize_function(proto)
        copy.functions[function.identifier()] = function
        node.domain, node.op_type = DOMAIN, proto.name
        node.attributes.clear()
        copy.graph.opset_imports[DOMAIN] = 1
    return copy


def _operator(node: ir.Node) -> str:
    return f"{node.domain}.{node.op_type}"
