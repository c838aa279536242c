"""Tensors whose bytes stay where they are: in the model file, in an external data file, or in the caller's protobuf.

The bytes are read when they are asked for and streamed when the model is saved.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator
from typing import IO, Any, Protocol

import numpy as np
import onnx
import onnx_ir

from ortfuse.model.data_file import DataFile

Array = np.ndarray[Any, Any]


class Bytes(Protocol):
    """The bytes of one tensor, wherever they are."""

    @property
    def length(self) -> int:
        """How many bytes there are."""

    def read(self) -> bytes:
        """All of them."""

    def chunks(self) -> Iterator[memoryview]:
        """All of them, piece by piece; each piece is gone when the next is asked for."""

    def copy_to(self, file: IO[bytes]) -> None:
        """Append them to a file."""


class FileBytes:
    """`length` bytes of a file from `offset` on."""

    __slots__ = ("file", "length", "offset")

    def __init__(self, file: DataFile, offset: int, length: int) -> None:
        self.file, self.offset, self.length = file, offset, length

    def read(self) -> bytes:
        """All of them."""
        return self.file.read(self.offset, self.length)

    def chunks(self) -> Iterator[memoryview]:
        """All of them, piece by piece; each piece is gone when the next is asked for."""
        return self.file.chunks(self.offset, self.length)

    def copy_to(self, file: IO[bytes]) -> None:
        """Append them to a file."""
        self.file.copy_to(file, self.offset, self.length)


class ProtoBytes:
    """The raw data of a TensorProto that belongs to the caller: read, never written."""

    __slots__ = ("_proto", "length")

    def __init__(self, proto: onnx.TensorProto) -> None:
        self._proto, self.length = proto, len(proto.raw_data)

    def read(self) -> bytes:
        """All of them."""
        return self._proto.raw_data

    def chunks(self) -> Iterator[memoryview]:
        """All of them, in one piece."""
        yield memoryview(self._proto.raw_data)

    def copy_to(self, file: IO[bytes]) -> None:
        """Append them to a file."""
        file.write(self._proto.raw_data)


class StoredTensor(onnx_ir.LazyTensor):
    """A tensor of the model file itself (or of the caller's ModelProto), read when it is asked for.

    Its arrays are read-only. While an array is in use it is shared; afterwards it is dropped, so that a model can be
    optimised that is larger than the memory.
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
    """A tensor in an external data file. Unlike its base class it keeps reading the file that was loaded.

    The base class opens the path anew whenever it needs the bytes, and so reads something else when the path has been
    given to another file, as happens when a model is saved over itself.
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
    """Where the bytes of a tensor are in a file; None if they are somewhere else."""
    if isinstance(tensor, StoredTensor | ExternalStoredTensor) and isinstance(tensor.data, FileBytes):
        return tensor.data
    return None


def chunks(tensor: onnx_ir.TensorProtocol) -> Iterator[memoryview]:
    """The bytes of a tensor, a mebibyte at a time if they are in a file; a piece is gone when the next is asked for."""
    if isinstance(tensor, StoredTensor | ExternalStoredTensor):
        yield from tensor.data.chunks()
    else:
        yield memoryview(tensor.tobytes())


def decode(data: bytes, dtype: onnx_ir.DataType, shape: onnx_ir.Shape) -> Array:
    """An array from the bytes that ONNX stores for it (little-endian; types under 8 bits are packed).

    Raises:
        ValueError: There are more or fewer bytes than the type and shape take.
    """
    if dtype.bitwidth < 8:
        return onnx_ir.PackedTensor(np.frombuffer(data, np.uint8), dtype, shape=shape).numpy()
    return np.frombuffer(data, dtype.numpy().newbyteorder("<")).reshape(shape.numpy())
