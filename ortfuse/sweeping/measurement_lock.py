"""Lock the machine for measurements: other work runs in parallel, a measurement runs alone.

A lock of the file system, so that it holds among all sweeps of the machine. It is passed through a second one, so that who
wants to measure is not kept waiting by those who begin to work after him. On systems without such locks (Windows),
everybody works.

How long a process may take is a matter of turns, too: while it waits for its own, its time does not run.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from ortfuse.runtime.machine_lock import lock_file


def allow(seconds: float) -> None:
    """Have the system end this process by SIGALRM once it has taken so many seconds, those not counted in which it waits.

    For the main thread. On systems without such a signal (Windows), nothing happens.
    """
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)


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
    with lock_file("ortfuse-turnstile.lock") as gate, lock_file("ortfuse-measuring.lock") as lock:
        with _not_counted():
            fcntl.flock(gate, fcntl.LOCK_EX)
            fcntl.flock(lock, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
            fcntl.flock(gate, fcntl.LOCK_UN)
        yield


@contextmanager
def _not_counted() -> Iterator[None]:
    left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left)
