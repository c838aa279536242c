"""Tensors whose data stay in the model file, in an external data file, or in the caller's protobuf.

The data are read on demand, and streamed when the model is saved.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator
from typing import IO, Any, Protocol

import numpy as np
import onnx
import onnx_ir

from ortfuse.io.data_file import DataFile

Array = np.ndarray[Any, Any]


class Bytes(Protocol):
    """The data of one tensor, wherever they are stored."""

    @property
    def length(self) -> int:
        """The number of bytes."""

    def read(self) -> bytes:
        """All bytes."""

    def chunks(self) -> Iterator[memoryview]:
        """All bytes in chunks; each chunk is invalid once the next is requested."""

    def copy_to(self, file: IO[bytes]) -> None:
        """Append all bytes to a file."""


class FileBytes:
    """`length` bytes of a file, starting at `offset`."""

    __slots__ = ("file", "length", "offset")

    def __init__(self, file: DataFile, offset: int, length: int) -> None:
        self.file, self.offset, self.length = file, offset, length

    def read(self) -> bytes:
        """All bytes."""
        return self.file.read(self.offset, self.length)

    def chunks(self) -> Iterator[memoryview]:
        """All bytes in chunks; each chunk is invalid once the next is requested."""
        return self.file.chunks(self.offset, self.length)

    def copy_to(self, file: IO[bytes]) -> None:
        """Append all bytes to a file."""
        self.file.copy_to(file, self.offset, self.length)


class ProtoBytes:
    """The raw data of a TensorProto that belongs to the caller; never written to."""

    __slots__ = ("_proto", "length")

    def __init__(self, proto: onnx.TensorProto) -> None:
        self._proto, self.length = proto, len(proto.raw_data)

    def read(self) -> bytes:
        """All bytes."""
        return self._proto.raw_data

    def chunks(self) -> Iterator[memoryview]:
        """All bytes in a single chunk."""
        yield memoryview(self._proto.raw_data)

    def copy_to(self, file: IO[bytes]) -> None:
        """Append all bytes to a file."""
        file.write(self._proto.raw_data)


class StoredTensor(onnx_ir.LazyTensor):
    """A tensor stored in the model file itself (or in the caller's ModelProto) and read on demand.

    Its arrays are read-only. An array is shared while in use and dropped afterwards, so that models larger than memory can be
    optimised.
    """

    __slots__ = ("_array", "data")

    def __init__(
        self,
        data: Bytes,
        dtype: onnx_ir.DataType,
        shape: onnx_ir.Shape,
        *,
        name: str | None,
        doc_string: str | None = None,
        metadata_props: dict[str, str] | None = None,
    ) -> None:
        super().__init__(
            functools.partial(_in_memory, data, dtype, shape),
            dtype,
            shape,
            name=name,
            doc_string=doc_string,
            metadata_props=metadata_props,
        )
        self.data = data
        self._array: weakref.ref[Array] | None = None

    def numpy(self) -> Array:
        """The tensor as a read-only array."""
        array = self._array() if self._array is not None else None
        if array is None:
            array = decode(self.data.read(), self.dtype, self.shape)
            self._array = weakref.ref(array)
        return array

    def __array__(self, dtype: Any = None) -> Array:
        return self.numpy().__array__(dtype)

    def tobytes(self) -> bytes:
        """The bytes in ONNX's little-endian form."""
        return self.data.read()

    def tofile(self, file: IO[bytes]) -> None:
        """Append the bytes to a file without holding all of them in memory."""
        self.data.copy_to(file)


def _in_memory(data: Bytes, dtype: onnx_ir.DataType, shape: onnx_ir.Shape) -> onnx_ir.Tensor[Array]:
    return onnx_ir.Tensor(decode(data.read(), dtype, shape), dtype=dtype, shape=shape)


class ExternalStoredTensor(onnx_ir.ExternalTensor):
    """A tensor in an external data file. Unlike its base class, it always reads the file that was loaded.

    The base class reopens the path each time it needs the data, and so reads something else if the path has been given to
    another file, as happens when a model is saved over itself.
    """

    __slots__ = ("_shared", "data")

    def __init__(self, data: FileBytes, of: onnx_ir.ExternalTensor) -> None:
        super().__init__(
            of.location,
            of.offset,
            of.length,
            of.dtype,
            shape=of.shape,
            name=of.name,
            doc_string=of.doc_string,
            metadata_props=dict(of.metadata_props),
            base_dir=of.base_dir,
        )
        self.data = data
        self._shared: weakref.ref[Array] | None = None

    def numpy(self) -> Array:
        """The tensor as a read-only array."""
        array = self._shared() if self._shared is not None else None
        if array is None:
            array = decode(self.data.read(), self.dtype, self.shape)
            self._shared = weakref.ref(array)
        return array

    def __array__(self, dtype: Any = None) -> Array:
        return self.numpy().__array__(dtype)

    def tobytes(self) -> bytes:
        """The bytes in ONNX's little-endian form."""
        return self.data.read()

    def tofile(self, file: IO[bytes]) -> None:
        """Append the bytes to a file without holding all of them in memory."""
        self.data.copy_to(file)


def in_file(tensor: onnx_ir.TensorProtocol) -> FileBytes | None:
    """The location of a tensor's data in a file; None if they are not in a file."""
    if isinstance(tensor, StoredTensor | ExternalStoredTensor) and isinstance(tensor.data, FileBytes):
        return tensor.data
    return None


def chunks(tensor: onnx_ir.TensorProtocol) -> Iterator[memoryview]:
    """A tensor's bytes, a mebibyte at a time if they are in a file; a chunk is invalid once the next is requested."""
    if isinstance(tensor, StoredTensor | ExternalStoredTensor):
        yield from tensor.data.chunks()
    else:
        yield memoryview(tensor.tobytes())


def decode(data: bytes, dtype: onnx_ir.DataType, shape: onnx_ir.Shape) -> Array:
    """Decode the bytes that ONNX stores for an array (little-endian; types under 8 bits are packed).

    Raises:
        ValueError: The number of bytes does not match the type and shape.
    """
    if dtype.bitwidth < 8:
        return onnx_ir.PackedTensor(np.frombuffer(data, np.uint8), dtype, shape=shape).numpy()
    return np.frombuffer(data, dtype.numpy().newbyteorder("<")).reshape(shape.numpy())
