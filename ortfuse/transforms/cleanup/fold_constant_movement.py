"""Fold Transpose, Reshape, Flatten, Squeeze and Unsqueeze of constants lazily: elements are moved when they are read.

Transpose, Reshape, Flatten, Squeeze and Unsqueeze of a constant only rearrange its elements. For a large weight the
result is a tensor whose elements are moved when it is read. So folding transposed weights takes no time and no memory.
A model larger than memory can still be folded and saved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import IO, Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.io.stored_tensor import decode, in_file
from ortfuse.ir.traits import RESHAPES

LAZY_BYTES = 1 << 16
"""Size in bytes from which on a constant is moved only when it is read."""

_BLOCK = 1 << 18
"""Bytes moved at a time: source and target blocks of this size fit in the caches, which is ten times as fast."""

Array = np.ndarray[Any, Any]
Read = Callable[[int, int], Array]
"""`read(start, count)`: that many elements of a tensor in row-major order, from `start` on."""


class KeyedTensor(ir.LazyTensor):
    """A tensor that is computed anew on each read, and that is told from others by a key instead of its content.

    Attributes:
        key: Equal for tensors that are computed from the same in the same way.
    """

    key: Hashable


def key_of(tensor: ir.TensorProtocol) -> Hashable:
    """The identity of a tensor as the source of another."""
    return tensor.key if isinstance(tensor, KeyedTensor) else id(tensor)


class MovedTensor(KeyedTensor):
    """`source` with its axes permuted and then reshaped, computed anew on each read."""

    def __init__(self, source: ir.TensorProtocol, permutation: tuple[int, ...] | None, shape: tuple[int, ...]) -> None:
        super().__init__(self._moved, dtype=source.dtype, shape=ir.Shape(shape))
        self.source, self.permutation, self.target = source, permutation, shape
        self.key = (key_of(source), permutation, shape)

    def _moved(self) -> ir.Tensor[Array]:
        if self.permutation is None:
            array = self.source.numpy().reshape(self.target)
        else:
            array = _transposed(self.source, self.permutation).reshape(self.target)
        return ir.Tensor(array, dtype=self.dtype)

    def tobytes(self) -> bytes:
        """The bytes in ONNX's little-endian form."""
        return self.source.tobytes() if self.permutation is None else super().tobytes()

    def tofile(self, file: IO[bytes]) -> None:
        """Append the bytes to a file; if only the shape changes, they are streamed from the source."""
        if self.permutation is None and hasattr(self.source, "tofile"):
            self.source.tofile(file)
        else:
            super().tofile(file)


def move(array: Array, permutation: tuple[int, ...] | None, shape: tuple[int, ...]) -> Array:
    """The array with its axes permuted, then reshaped; contiguous."""
    moved = array if permutation is None else array.transpose(permutation)
    return np.ascontiguousarray(moved).reshape(shape)


def _transposed(tensor: ir.TensorProtocol, permutation: tuple[int, ...]) -> Array:
    """A large tensor with its axes permuted; if it is in a file, it is read block by block, never as a whole."""
    read, dtype = _reader(tensor)
    shape = tensor.shape.numpy()
    result = np.empty([shape[axis] for axis in permutation], dtype)
    _fill(result.transpose(np.argsort(permutation)), read, 0)
    return result


def _reader(tensor: ir.TensorProtocol) -> tuple[Read, np.dtype[Any]]:
    stored = in_file(tensor)
    if stored is None or tensor.dtype.bitwidth < 8:
        flat = np.ascontiguousarray(tensor.numpy()).reshape(-1)
        return lambda start, count: flat[start : start + count], flat.dtype
    size = tensor.dtype.bitwidth // 8

    def read(start: int, count: int) -> Array:
        content = stored.file.read(stored.offset + start * size, count * size)
        return decode(content, tensor.dtype, ir.Shape([count]))

    return read, decode(b"", tensor.dtype, ir.Shape([0])).dtype


def _fill(target: Array, read: Read, start: int) -> None:
    """Fill `target` with the elements from `start` on, in row-major order regardless of its strides."""
    row = math.prod(target.shape[1:])
    if target.ndim > 1 and row * target.itemsize > _BLOCK:
        for index in range(len(target)):
            _fill(target[index], read, start + index * row)
        return
    rows = max(1, _BLOCK // (row * target.itemsize))
    for index in range(0, len(target), rows):
        block = target[index : index + rows]
        block[...] = read(start + index * row, block.size).reshape(block.shape)


def moved_constant(node: ir.Node, facts: Facts) -> ir.TensorProtocol | None:
    """The result of a node that only moves the elements of a constant input; otherwise `None`."""
    if node.domain or (node.op_type != "Transpose" and node.op_type not in RESHAPES):
        return None
    source, tensor = node.inputs[0], None
    if source is not None and source.is_initializer() and not source.is_graph_input():
        tensor = source.const_value
    shape = facts.shape(node.outputs[0])
    if tensor is None or tensor.dtype == ir.DataType.STRING or shape is None:
        return None
    static = tuple(dim for dim in shape if isinstance(dim, int))
    if len(static) != len(shape) or math.prod(static) != tensor.size:
        return None
    permutation = _permutation(node, len(shape)) if node.op_type == "Transpose" else None
    if tensor.nbytes >= LAZY_BYTES:
        return MovedTensor(tensor, permutation, static)
    return ir.Tensor(move(tensor.numpy(), permutation, static), dtype=tensor.dtype)


def _permutation(node: ir.Node, rank: int) -> tuple[int, ...]:
    attribute = node.attributes.get("perm")
    return tuple(reversed(range(rank))) if attribute is None else tuple(attribute.as_ints())
