"""Limits of time and memory for tests of what might never end."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class HangError(BaseException):
    """Time is up; no `except Exception` may hide it."""


@contextmanager
def limited(seconds: float, memory: int, *, of_processor: bool = False) -> Iterator[None]:
    """End what takes more seconds, of the clock or of the processor, or more bytes besides what the process has."""
    rings, timer = (signal.SIGPROF, signal.ITIMER_PROF) if of_processor else (signal.SIGALRM, signal.ITIMER_REAL)

    def ring(*_: object) -> None:
        raise HangError

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = signal.signal(rings, ring)
    resource.setrlimit(resource.RLIMIT_AS, (used + memory, hard))
    signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(rings, before)
