"""Check that a tensor has as many bytes as its type and shape claim.

A tensor that claims more than it has would read as an array of zeros, of any size that the file claims, so this is checked
before anything else looks at the values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir
from onnx_ir import DataType

from ortfuse.io.stored_tensor import StoredTensor

_INT32_DATA = {
    *(DataType.INT32, DataType.INT16, DataType.INT8, DataType.INT4, DataType.INT2),
    *(DataType.UINT16, DataType.UINT8, DataType.UINT4, DataType.UINT2, DataType.BOOL),
    *(DataType.FLOAT16, DataType.BFLOAT16, DataType.FLOAT8E4M3FN, DataType.FLOAT8E4M3FNUZ),
    *(DataType.FLOAT8E5M2, DataType.FLOAT8E5M2FNUZ, DataType.FLOAT8E8M0, DataType.FLOAT4E2M1),
}
_FIELDS: dict[str, set[DataType]] = {
    "float_data": {DataType.FLOAT, DataType.COMPLEX64},
    "int32_data": _INT32_DATA | {t for t in DataType if t.name.startswith("FLOAT6")},
    "int64_data": {DataType.INT64},
    "double_data": {DataType.DOUBLE, DataType.COMPLEX128},
    "uint64_data": {DataType.UINT64, DataType.UINT32},
}
"""The typed fields of TensorProto, with the element types that onnx.proto allows in each."""


_KNOWN = {dtype.value for dtype in DataType}


def byte_size(dtype: DataType, shape: Sequence[int]) -> int:
    """The number of bytes ONNX stores for a tensor; types under 8 bits are packed."""
    return (dtype.bitwidth * math.prod(shape) + 7) // 8


def problem(tensor: onnx_ir.TensorProtocol) -> str | None:
    """The fault of a tensor's type, shape and number of bytes, as text; None if there is none."""
    shape = tensor.shape.numpy()
    if any(dim < 0 for dim in shape):
        return f"has the negative dimension {min(shape)}"
    if isinstance(tensor, onnx_ir.TensorProtoTensor) and tensor.raw.data_type not in _KNOWN:
        return f"has the element type {tensor.raw.data_type}, which ONNX does not define"
    if tensor.dtype == DataType.UNDEFINED:
        return "has no element type"
    if isinstance(tensor, onnx_ir.StringTensor):
        return _mismatch(math.prod(shape), len(tensor.string_data()), "strings", tensor)
    if isinstance(tensor, onnx_ir.ExternalTensor):
        return "is a string tensor in external data, which ONNX does not allow" if _is_string(tensor) else None
    if isinstance(tensor, onnx_ir.TensorProtoTensor):
        return _proto_problem(tensor)
    if isinstance(tensor, StoredTensor):
        return _mismatch(byte_size(tensor.dtype, shape), tensor.data.length, "bytes", tensor)
    return None


def _is_string(tensor: onnx_ir.TensorProtocol) -> bool:
    return tensor.dtype == DataType.STRING


def _proto_problem(tensor: onnx_ir.TensorProtoTensor) -> str | None:
    proto, dtype = tensor.raw, tensor.dtype
    size = math.prod(proto.dims)
    if proto.HasField("raw_data"):
        return _mismatch((dtype.bitwidth * size + 7) // 8, len(proto.raw_data), "bytes", tensor)
    for field, types in _FIELDS.items():
        if count := len(getattr(proto, field)):
            if dtype not in types:
                return f"has elements of type {dtype} in its field {field}, where ONNX does not allow them"
            return _mismatch(_elements(dtype, size), count, "stored values", tensor)
    return _mismatch(size, 0, "elements", tensor)


def _elements(dtype: DataType, size: int) -> int:
    """The number of entries in a typed field: two per complex number, and packed types share one."""
    if dtype in (DataType.COMPLEX64, DataType.COMPLEX128):
        return 2 * size
    return (dtype.bitwidth * size + 7) // 8 if dtype.bitwidth in (2, 4) else size


def _mismatch(needed: int, present: int, unit: str, tensor: onnx_ir.TensorProtocol) -> str | None:
    if needed == present:
        return None
    return f"claims type {tensor.dtype} and shape {tensor.shape}, which take {needed:,} {unit}, but has {present:,}"
