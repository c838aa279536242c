"""Tensors of one's own over somebody else's data: what makes a model independent of the object it was made from.

A tensor is renamed with the value it belongs to, so a graph that shares tensor objects with the caller's model would
change that model. The data are shared; they are never written.
"""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir

from ortfuse.graph.tensors import tensors
from ortfuse.model.stored_tensor import ExternalStoredTensor, ProtoBytes, StoredTensor

_COPIED = 1 << 12
"""Tensors in a protobuf are copied up to this many bytes, which is quicker than to arrange for sharing them."""


def take(model: onnx_ir.Model) -> None:
    """Exchange every tensor of a model for one that shares only its data with the tensor that was there."""
    for slot in tensors(model):
        slot.replace(own(slot.tensor))


def own(tensor: onnx_ir.TensorProtocol) -> onnx_ir.TensorProtocol:
    """A tensor with the data of another, and everything else of its own."""
    common: dict[str, Any] = {
        "name": tensor.name,
        "doc_string": tensor.doc_string,
        "metadata_props": dict(tensor.metadata_props),
    }
    if isinstance(tensor, onnx_ir.TensorProtoTensor):
        return _of_proto(tensor)
    if isinstance(tensor, ExternalStoredTensor):
        return ExternalStoredTensor(tensor.data, tensor)
    if isinstance(tensor, StoredTensor):
        return StoredTensor(tensor.data, tensor.dtype, tensor.shape, **common)
    if isinstance(tensor, onnx_ir.ExternalTensor):
        common |= {"shape": tensor.shape, "base_dir": tensor.base_dir}
        return onnx_ir.ExternalTensor(tensor.location, tensor.offset, tensor.length, tensor.dtype, **common)
    if isinstance(tensor, onnx_ir.StringTensor):
        return onnx_ir.StringTensor(list(tensor.string_data()), shape=tensor.shape, **common)
    if type(tensor) is onnx_ir.Tensor:
        return onnx_ir.Tensor(tensor.raw, tensor.dtype, shape=tensor.shape, **common)
    return onnx_ir.LazyTensor(lambda: tensor, tensor.dtype, onnx_ir.Shape(tensor.shape.numpy()), **common)


def _of_proto(tensor: onnx_ir.TensorProtoTensor) -> onnx_ir.TensorProtocol:
    if tensor.raw.HasField("raw_data") and tensor.nbytes > _COPIED:
        return StoredTensor(
            ProtoBytes(tensor.raw),
            tensor.dtype,
            tensor.shape,
            name=tensor.name,
            doc_string=tensor.doc_string,
            metadata_props=dict(tensor.metadata_props),
        )
    proto = onnx.TensorProto()
    proto.CopyFrom(tensor.raw)
    return onnx_ir.TensorProtoTensor(proto)
