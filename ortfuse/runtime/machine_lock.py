"""Lock files in the temporary folder, shared by all users and processes of this machine.

The system gives up a lock when the process that holds it ends, however it does. On systems without such locks
(Windows), everybody holds them.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from ortfuse.errors import OutputError

FOLDER = Path(tempfile.gettempdir())


def lock_file(name: str) -> IO[bytes]:
    """A file of this name, made if there is none, for all users of the machine to lock.

    It is opened to be read: many systems refuse to write to, or make, a file in such a folder that is another user's.

    Raises:
        OutputError: Somebody has put something else there, such as a pipe or a link.
    """
    path = FOLDER / name
    try:
        with suppress(FileNotFoundError):
            return _opened(path)
        try:
            file = path.open("x+b")
        except FileExistsError:  # made meanwhile
            return _opened(path)
    except OSError as error:
        advice = "remove it, or set TMPDIR to a folder of your own"
        raise OutputError(f"{path}: cannot be locked: {error.strerror or error}; {advice}") from error
    with suppress(OSError):
        path.chmod(0o666)
    return file


def _opened(path: Path) -> IO[bytes]:
    """A regular file, opened to be read, where anybody may have put anything."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0))
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is no regular file")
    return file


def locks() -> bool:
    """Whether there are such locks here."""
    return importlib.util.find_spec("fcntl") is not None


@contextmanager
def alone(name: str) -> Iterator[bool]:
    """Hold the lock of this name, if nobody else does, which is what is told; nothing is left of it."""
    try:
        import fcntl
    except ImportError:
        yield True
        return
    while True:
        with lock_file(name) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield False
                return
            if not _is_there(file, name):
                continue  # whoever held it before removed the file between its opening and its locking
            try:
                yield True
            finally:
                with suppress(OSError):  # another user's cannot be removed
                    (FOLDER / name).unlink()
        return


def _is_there(file: IO[bytes], name: str) -> bool:
    """Whether an open file is still the one of this name: the lock of one that was removed excludes nobody."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(file.fileno()), (FOLDER / name).stat())
    return False
