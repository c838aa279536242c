"""Read constants of a model in whatever form they are stored, and compare two of them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.io.stored_tensor import chunks

Array = np.ndarray[Any, Any]


def constant_of(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor of an initializer or of the result of a Constant; `None` for anything else."""
    return None if value is None else ir.convenience.get_const_tensor(value)


def same_tensor(one: ir.TensorProtocol | None, other: ir.TensorProtocol | None) -> bool:
    """Whether two tensors have the same type, shape and bytes, read a part at a time."""
    if one is other:
        return True
    if one is None or other is None or one.dtype != other.dtype or tuple(one.shape) != tuple(other.shape):
        return False
    if one.dtype == ir.DataType.STRING:
        return bool(np.array_equal(one.numpy(), other.numpy()))
    if one.nbytes != other.nbytes:
        return False
    return _bytes_agree(one, other)


def _bytes_agree(one: ir.TensorProtocol, other: ir.TensorProtocol) -> bool:
    """Whether the bytes are the same, whatever the sizes of the chunks that they come in."""
    left, right = b"", b""
    for first, second in itertools.zip_longest(chunks(one), chunks(other), fillvalue=b""):
        left, right = (
            (left + bytes(first)) if left else bytes(first),
            (right + bytes(second)) if right else bytes(second),
        )
        common = min(len(left), len(right))
        if left[:common] != right[:common]:
            return False
        left, right = left[common:], right[common:]
    return left == right


def described(tensor: ir.TensorProtocol) -> str:
    """The type and shape of a tensor, and its value if it is a single one: `float32[3,4]`, `int64[] 7`."""
    text = f"{tensor.dtype.name.lower()}[{','.join(map(str, tensor.shape))}]"
    return f"{text} {tensor.numpy().reshape(-1)[0]}" if tensor.size == 1 else text


def apart(one: ir.TensorProtocol, other: ir.TensorProtocol) -> tuple[int, float | None]:
    """The number of differing elements of two tensors of one shape, and the largest difference; `None` if that is no number."""
    first, second = (np.asarray(tensor.numpy()) for tensor in (one, other))
    if ir.DataType.STRING in (one.dtype, other.dtype):
        return int(np.count_nonzero(np.asarray(first != second))), None
    left, right = _numbers(first), _numbers(second)
    with np.errstate(all="ignore"):
        wrong = np.asarray((left != right) & ~(np.isnan(left) & np.isnan(right)))
        most = np.abs(left - right)[wrong]
    finite = most[np.isfinite(most)]
    return int(np.count_nonzero(wrong)), float(finite.max()) if finite.size else None


def _numbers(array: Array) -> Array:
    """The numbers of an array, whatever their type, in one that can hold them."""
    return array if array.dtype.kind == "c" else array.astype(np.float64)
