"""Whose turn it is on a machine: many may work at a time, but who measures is alone.

A lock of the file system, so that it holds among all sweeps of the machine. It is passed through a second one, so that who
wants to measure is not kept waiting by those who begin to work after him. Where there are no such locks (Windows), everybody
works.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

FOLDER = Path(tempfile.gettempdir())


@contextmanager
def working() -> Iterator[None]:
    """Work beside others, while nobody measures."""
    with _held(shared=True):
        yield


@contextmanager
def measuring() -> Iterator[None]:
    """Measure, while nobody works or measures."""
    with _held(shared=False):
        yield


@contextmanager
def _held(shared: bool) -> Iterator[None]:
    try:
        import fcntl
    except ImportError:
        yield
        return
    with _file("ortfuse-turnstile.lock") as gate, _file("ortfuse-measuring.lock") as lock:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(lock, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield


def _file(name: str) -> IO[str]:
    path = FOLDER / name
    file = path.open("a")
    with suppress(OSError):
        path.chmod(0o666)  # for all users of the machine
    return file
