"""Infer shapes by ONNX's own shape inference, for operators without a transfer function."""

from __future__ import annotations

import onnx
import onnx.checker
import onnx.defs
import onnx.shape_inference
import onnx_ir as ir

from ortfuse.analysis.transfer.transfer_function_registry import Op, UnknownError
from ortfuse.analysis.transfer.value_fact import UNKNOWN, Fact, Shape
from ortfuse.ir.dims import DimLike

_REFUSALS = (
    *(onnx.defs.SchemaError, onnx.shape_inference.InferenceError, onnx.checker.ValidationError),
    *(RuntimeError, ValueError),
)
"""The errors ONNX raises about a node that violates its operator's specification."""


def infer(op: Op) -> tuple[Fact, ...]:
    """The result of ``onnx.shape_inference.infer_node_outputs`` for the node.

    Symbolic dimensions are passed under placeholder names, so that formulas are preserved.

    Raises:
        UnknownError: ONNX does not know the operator, or the node is invalid.
    """
    domain, op_type = op.node.domain, op.node.op_type
    if not onnx.defs.has(op_type, domain):
        raise UnknownError
    proto = _anonymous(op)
    dims: dict[str, DimLike] = {}
    types: dict[str, onnx.TypeProto] = {}
    data: dict[str, onnx.TensorProto] = {}
    for index, fact in enumerate(op.inputs):
        if fact is not None:
            types[f"i{index}"] = _type_proto(fact, dims)
            array = fact.array()
            if array is not None and array.dtype.kind in "biuf":
                data[f"i{index}"] = onnx.numpy_helper.from_array(array, f"i{index}")
    try:
        schema = onnx.defs.get_schema(op_type, op.version, domain)
        _write_defaults(proto, schema)
        imports = [onnx.helper.make_opsetid(domain, op.version)]
        inferred = onnx.shape_inference.infer_node_outputs(schema, proto, types, data, opset_imports=imports)
    except _REFUSALS as error:
        raise UnknownError from error
    return tuple([_fact(inferred.get(f"o{index}"), dims) for index in range(op.output_count)])


def _anonymous(op: Op) -> onnx.NodeProto:
    """The node as protobuf with inputs i0, i1, ... and outputs o0, o1, ... (values may have no names)."""
    if any(attribute.is_ref() for attribute in op.node.attributes.values()):
        raise UnknownError
    try:
        proto = ir.serde.serialize_node(op.node)
    except ir.serde.SerdeError as error:
        raise UnknownError from error  # sparse tensors
    del proto.input[:], proto.output[:]
    proto.input.extend(["" if fact is None else f"i{index}" for index, fact in enumerate(op.inputs)])
    proto.output.extend([f"o{index}" for index in range(op.output_count)])
    return proto


def _write_defaults(proto: onnx.NodeProto, schema: onnx.defs.OpSchema) -> None:
    """Give the node all attributes: ONNX takes some for other than their defaults where they are absent (`onesided` of STFT)."""
    given = {attribute.name for attribute in proto.attribute}
    defaults = {name: attribute.default_value for name, attribute in schema.attributes.items()}
    proto.attribute.extend([one for name, one in defaults.items() if name not in given and one.name])


def _type_proto(fact: Fact, dims: dict[str, DimLike]) -> onnx.TypeProto:
    shape: list[int | str] | None = None
    if fact.shape is not None:
        shape = []
        for dim in fact.shape:
            name = dim if isinstance(dim, int) else str(dim)
            shape.append(name)
            if isinstance(name, str):
                dims[name] = dim
    return onnx.helper.make_tensor_type_proto(int(fact.dtype or 0), shape)


def _fact(proto: onnx.TypeProto | None, dims: dict[str, DimLike]) -> Fact:
    if proto is None or not proto.HasField("tensor_type"):
        return Fact()
    tensor = proto.tensor_type
    dtype = ir.DataType(tensor.elem_type) if tensor.elem_type else None
    shape: Shape | None = None
    if tensor.HasField("shape"):
        shape = tuple([_dim(dim, dims) for dim in tensor.shape.dim])
    return Fact(dtype, shape)


def _dim(proto: onnx.TensorShapeProto.Dimension, dims: dict[str, DimLike]) -> DimLike:
    if proto.HasField("dim_value"):
        return int(proto.dim_value)
    return dims.get(proto.dim_param, UNKNOWN)
