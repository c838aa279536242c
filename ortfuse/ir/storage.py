"""Tensors whose bytes stay where they are: in the model file, in an external data file, or in the caller's protobuf.

The bytes are read when they are asked for and streamed when the model is saved. They are read with `pread`, not mapped:
a mapping of a file that someone truncates kills the process, a read that comes back short can be reported.
"""

from __future__ import annotations

import errno
import functools
import mmap
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import onnx
import onnx_ir

from ortfuse.errors import ModelFileError

_CHUNK = 1 << 20
"""Bytes that are in memory at once when a weight is copied, compared or hashed; larger buffers do not fit the caches."""

_BLOCK = 1 << 12
"""Files share and copy blocks as a whole only if they lie at the same offset modulo this."""

_CANNOT_COPY_IN_KERNEL = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EXDEV, errno.EBADF}

Array = np.ndarray[Any, Any]


class DataFile:
    """A file that holds the bytes of tensors, as it was when the model was loaded.

    Args:
        path: The file.
        keep_open: Hold the file open, so that its content stays readable after it is deleted or replaced. Without it
            the file is opened for each read; for models that consist of more files than a process may hold open.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, path: str, *, keep_open: bool = True) -> None:
        self.path = path
        self._descriptor: int | None = None
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        try:
            status = os.fstat(descriptor)
            self._stamp, self.size = _stamp(status), status.st_size
        except BaseException:
            os.close(descriptor)
            raise
        if keep_open:
            self._descriptor = descriptor
        else:
            os.close(descriptor)

    def __del__(self) -> None:
        if getattr(self, "_descriptor", None) is not None:
            os.close(self._descriptor)  # type: ignore[arg-type]
            self._descriptor = None

    def hold(self) -> None:
        """Hold the file open from now on: called before its path is given to another file."""
        if self._descriptor is None:
            with self._open() as descriptor:
                self._descriptor = os.dup(descriptor)

    @contextmanager
    def mapped(self) -> Iterator[mmap.mmap]:
        """The whole file as a buffer, for as long as the context lasts."""
        with self._open() as descriptor, mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as content:
            yield content

    @contextmanager
    def _open(self) -> Iterator[int]:
        """A descriptor of the file, after a check that it is still the file that was loaded."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY) if self._descriptor is None else self._descriptor
        except OSError as error:
            raise ModelFileError(f"{self.path}: the weights in it can no longer be read: {error.strerror}") from error
        try:
            if _stamp(os.fstat(descriptor)) != self._stamp:
                raise ModelFileError(f"{self.path}: changed after the model was loaded; load the model again")
            yield descriptor
        finally:
            if self._descriptor is None:
                os.close(descriptor)

    def read(self, offset: int, length: int) -> bytes:
        """The bytes at `[offset, offset + length)`.

        Raises:
            ModelFileError: The file changed since it was loaded, or cannot be read.
        """
        parts = []
        with self._open() as descriptor:
            while length > 0:
                part = self._pread(descriptor, length, offset)
                parts.append(part)
                offset += len(part)
                length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _pread(self, descriptor: int, length: int, offset: int) -> bytes:
        try:
            part = os.pread(descriptor, length, offset)
        except OSError as error:
            raise ModelFileError(f"{self.path}: cannot be read: {error.strerror}") from error
        if not part:
            raise self._too_short(offset + length)
        return part

    def chunks(self, offset: int, length: int) -> Iterator[memoryview]:
        """The bytes at `[offset, offset + length)` piece by piece; each piece is gone when the next is asked for.

        Raises:
            ModelFileError: The file changed since it was loaded, or cannot be read.
        """
        buffer = memoryview(bytearray(min(_CHUNK, length)))
        with self._open() as descriptor:
            while length > 0:
                count = self._read_into(descriptor, buffer[:length], offset)
                yield buffer[:count]
                offset += count
                length -= count

    def _read_into(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        try:
            count = os.preadv(descriptor, [buffer], offset)
        except OSError as error:
            raise ModelFileError(f"{self.path}: cannot be read: {error.strerror}") from error
        if not count:
            raise self._too_short(offset + len(buffer))
        return count

    def _too_short(self, end: int) -> ModelFileError:
        return ModelFileError(f"{self.path}: ends before byte {end:,}; load the model again")

    def copy_to(self, file: IO[bytes], offset: int, length: int) -> None:
        """Append the bytes at `[offset, offset + length)` to `file`, inside the kernel where that can share blocks.

        Raises:
            ModelFileError: The file changed since it was loaded, or cannot be read.
            OSError: `file` cannot be written.
        """
        copied = 0
        if (file.tell() - offset) % _BLOCK == 0:
            with self._open() as source:
                copied = _copy_in_kernel(source, file, offset, length)
        for part in self.chunks(offset + copied, length - copied):
            file.write(part)

    def link_to(self, path: Path) -> bool:
        """Make `path` another name of the file as it was loaded; whether that was possible."""
        try:
            os.link(self.path, path)
        except OSError:  # another file system, one without hard links, somebody else's file, a file that was deleted
            return False
        if _stamp(path.stat()) == self._stamp:
            return True
        path.unlink()
        return False


def _stamp(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _copy_in_kernel(source: int, file: IO[bytes], offset: int, length: int) -> int:
    """Copy as much as the system can copy by itself; returns the number of bytes copied."""
    try:
        copy, target = os.copy_file_range, file.fileno()
    except (AttributeError, OSError):
        return 0
    file.flush()
    copied = 0
    try:
        while copied < length:
            step = copy(source, target, length - copied, offset_src=offset + copied)
            if step == 0:
                break
            copied += step
    except OSError as error:
        if error.errno not in _CANNOT_COPY_IN_KERNEL:
            raise
    return copied


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
