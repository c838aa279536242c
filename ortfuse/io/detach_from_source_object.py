"""Give a model its own tensor objects over shared data, so that edits do not change the object it was made from.

Renaming a value also renames its tensor, so a graph that shared tensor objects with the caller's model would modify that
model. The data are shared and never written.
"""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir

from ortfuse.errors import InvalidModelError
from ortfuse.io.stored_tensor import ExternalStoredTensor, ProtoBytes, StoredTensor
from ortfuse.ir.enumerate_tensors import tensors

_COPIED = 1 << 12
"""Tensors in a protobuf of up to this many bytes are copied, which is faster than sharing them."""


def take(model: onnx_ir.Model, name: str) -> None:
    """Replace every tensor of a model by a new one that shares only its data with the old one.

    Args:
        model: The model.
        name: Its name in error messages.

    Raises:
        InvalidModelError: A tensor is of no type that ONNX defines.
    """
    for slot in tensors(model):
        try:
            slot.replace(own(slot.tensor))
        except (TypeError, ValueError):
            raise InvalidModelError(f"{name}: {slot.owner} has no element type; the model is damaged") from None


def own(tensor: onnx_ir.TensorProtocol) -> onnx_ir.TensorProtocol:
    """A new tensor that shares the data of another, and nothing else."""
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
