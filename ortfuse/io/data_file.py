"""Files of tensor data: read by offset, and temporary ones to append to.

They are read with `pread` instead of being mapped: if someone truncates a mapped file the process is killed, whereas a short
read can be reported.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from ortfuse.errors import ModelFileError

_CHUNK = 1 << 20
"""Buffer size in bytes for copying, comparing and hashing weights; larger buffers do not fit into the caches."""

_BLOCK = 1 << 12
"""Alignment for sharing blocks: files can share a block only if it lies at the same offset modulo this number."""

_CANNOT_COPY_IN_KERNEL = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EXDEV, errno.EBADF}

Array = np.ndarray[Any, Any]


class DataFile:
    """A file that holds tensor data, in the state it had when the model was loaded.

    Args:
        path: The file.
        keep_open: Keep the file open, so that its content stays readable after it is deleted or replaced. Otherwise the file
            is opened for each read; meant for models with more files than a process may have open.
        model: The model file whose weights are in it, if that is known.

    Raises:
        OSError: The file cannot be opened, or is a folder, a pipe or a device.
    """

    def __init__(self, path: str, *, keep_open: bool = True, model: Path | None = None) -> None:
        self.path, self.model = path, model
        self._descriptor: int | None = None
        # Opening a pipe waits for somebody who writes to it, unless it is told not to.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "it is a folder, a device or a pipe, not a regular file", path)
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
        """Keep the file open from now on; call this before its path is given to another file."""
        if self._descriptor is None:
            with self._open() as descriptor:
                self._descriptor = os.dup(descriptor)

    def unchanged_path(self) -> str | None:
        """A path at which another process finds the file as it was loaded, if there is one."""
        try:
            path = Path(os.path.realpath(self.path))
            return str(path) if _stamp(path.stat()) == self._stamp else None
        except OSError:
            return None

    @contextmanager
    def mapped(self) -> Iterator[mmap.mmap]:
        """The whole file as a memory-mapped buffer, valid inside the context."""
        with self._open() as descriptor, mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as content:
            yield content

    @contextmanager
    def _open(self) -> Iterator[int]:
        """A descriptor of the file, after checking that it is still the file that was loaded."""
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
        """The bytes at `[offset, offset + length)` in chunks; each chunk is invalid once the next is requested.

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
        """Append the bytes at `[offset, offset + length)` to `file`, copied by the kernel where it can share blocks.

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
        """Make `path` a hard link to the file as it was loaded; returns whether that was possible."""
        try:
            os.link(self.path, path)
        except OSError:  # another file system, one without hard links, somebody else's file, a file that was deleted
            return False
        if _stamp(path.stat()) == self._stamp:
            return True
        path.unlink()
        return False


class ScratchFile(DataFile):
    """An unnamed temporary file to which data are appended; it disappears when nothing refers to it any more.

    Raises:
        OSError: No temporary file can be created.
    """

    def __init__(self) -> None:
        with tempfile.TemporaryFile() as file:
            self._descriptor = os.dup(file.fileno())
        self.path, self.size, self.model = f"a temporary file in {tempfile.gettempdir()}", 0, None

    def unchanged_path(self) -> None:
        """None: the file has no name."""

    @contextmanager
    def _open(self) -> Iterator[int]:
        assert self._descriptor is not None
        yield self._descriptor

    def append(self, array: Array) -> int:
        """Append an array in ONNX's little-endian form; returns its offset.

        Raises:
            OSError: The data cannot be written, for example because the disk is full.
        """
        assert self._descriptor is not None
        offset = self.size
        content = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8)
        while content.size:
            written = os.pwrite(self._descriptor, content.data, self.size)
            self.size += written
            content = content[written:]
        return offset


def _stamp(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _copy_in_kernel(source: int, file: IO[bytes], offset: int, length: int) -> int:
    """Copy as much as the operating system can copy by itself; returns the number of bytes copied."""
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
