"""Find the operators that the runtime executes by inlining the function body in their definition, where it has no kernel."""

from __future__ import annotations

import functools

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from ortfuse.analysis.facts import Facts
from ortfuse.ir.schemas import changes, schema_at

_INLINED_OF_RUNTIME = frozenset({"Gelu", "FastGelu"})
"""The operators of ONNX Runtime's own that it inlines where it has no kernel: found by looking at what it executes."""


def has_body(node: ir.Node, version: int) -> bool:
    """Whether the runtime executes a node without a kernel by inlining the body of its operator."""
    if node.domain == "com.microsoft":
        return node.op_type in _INLINED_OF_RUNTIME
    return not node.domain and is_inlined(node.op_type, version)


@functools.cache
def is_inlined(op_type: str, opset: int) -> bool:
    """Whether the runtime executes an operator without a kernel by inlining the function body in its definition.

    It does not if an operator in the body changed between the opset that the body is written for and this one.
    """
    schema = schema_at(op_type, opset)
    if schema is None:
        return False
    if schema.has_context_dependent_function:
        return True
    written_for = max((version for version in schema.function_opset_versions if version <= opset), default=None)
    if written_for is None:
        return False
    body = onnx.FunctionProto.FromString(schema.get_function_with_opset_version(written_for))
    return not any(changes(node.op_type, written_for, opset) for node in body.node)


def operators_of_body(node: ir.Node, opset: int, facts: Facts) -> list[str]:
    """The operators of the body that ONNX builds for a node; none if it has no body that depends on the node."""
    schema = schema_at(node.op_type, opset)
    versions = () if schema is None else schema.context_dependent_function_opset_versions
    written_for = max((version for version in versions if version <= opset), default=None)
    if schema is None or written_for is None:
        return []
    dtypes = [facts.dtype(value) or ir.DataType.FLOAT for value in node.inputs]
    types = [onnx.helper.make_tensor_type_proto(int(dtype), None).SerializeToString() for dtype in dtypes]
    try:
        proto = ir.serde.serialize_node(node).SerializeToString()
        body = schema.get_context_dependent_function_with_opset_version(written_for, proto, types)
        return [inner.op_type for inner in onnx.FunctionProto.FromString(body).node]
    except (RuntimeError, ValueError, DecodeError, ir.serde.SerdeError):
        return []  # ONNX does not build a body for this node
