"""Calls in processes of their own: a crash, a hang or a leak there does no harm here.

The processes are forked from a server that has imported the heavy packages once and has started no thread, so a call
costs milliseconds instead of the seconds that importing takes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """The outcome of a call: its `value`, or the `error` in a line; and its wall time, the process's start included."""

    value: Any
    error: str | None
    seconds: float


def preload(modules: Sequence[str]) -> None:
    """Name the modules that the server imports; those that are not installed are left out."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(modules))


def call(function: Callable[..., Any], *arguments: Any, limit: float) -> Outcome:
    """`function(*arguments)` in another process, for at most `limit` seconds.

    The function must be at the top level of an importable module, its arguments and result picklable. An exception, a
    crash and the limit are errors of the outcome; none is raised here.
    """
    context = multiprocessing.get_context("forkserver")
    receiver, sender = context.Pipe(duplex=False)
    started = time.monotonic()
    process = context.Process(target=_serve, args=(sender, function, arguments))
    process.start()
    sender.close()
    try:
        value, error = _received(receiver, limit)
    finally:
        if process.is_alive() and not receiver.closed:
            process.join(1)
        if process.is_alive():
            process.kill()
        process.join()
        receiver.close()
    if error == _SILENT:
        error = _how_it_ended(process.exitcode)
    return Outcome(value, error, time.monotonic() - started)


_SILENT = "ended without an answer"


def _received(receiver: Connection, limit: float) -> tuple[Any, str | None]:
    if not receiver.poll(limit):
        return None, f"not done after {limit:.0f} s"
    try:
        value, error = receiver.recv()
    except EOFError:
        return None, _SILENT
    return value, error


def _how_it_ended(code: int | None) -> str:
    if code is not None and code < 0:
        return f"crashed: {signal.Signals(-code).name}"
    return f"{_SILENT}, exit code {code}"


def _serve(sender: Connection, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # tools print tables and progress, some of them not through Python
        os.dup2(nowhere, stream)
    try:
        answer: tuple[Any, str | None] = (function(*arguments), None)
    except BaseException as error:  # whatever a tool raises, SystemExit included, is its answer
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f" (in {last.name})" if not str(error) else ""
        answer = (None, " ".join(f"{type(error).__name__}: {error}{where}".split())[:400])
    sender.send(answer)
    sender.close()
