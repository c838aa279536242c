"""Run the runtime in a separate process, so that a crash does not take this process with it.

The process is started on first use, serves all isolated sessions, and is restarted after it has died or timed out. The
request that it failed on gets a `CrashError`. If no process can be started, sessions run in this one.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from ortfuse.errors import CrashError, HangError
from ortfuse.io.python_subprocess import start
from ortfuse.runtime import session_subprocess
from ortfuse.runtime.decode_plain_data import of_plain_data
from ortfuse.runtime.session_subprocess import Array, InFile, Settings

PROGRAM = Path(session_subprocess.__file__)
"""The program that the process executes."""

LIMIT = 600.0
"""Timeout in seconds for loading a model or running it once."""

_PARTING = 5.0
"""Seconds that a process has to end after it has closed the connection."""

_START = 120.0
"""Timeout in seconds for the process to become ready."""


class UnavailableError(Exception):
    """No worker process can be started."""


class RefusalError(Exception):
    """The runtime's message about something that it cannot do."""


class Worker:
    """The worker process, started when needed, and the exchange of requests and answers with it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False
        self._log: IO[bytes] | None = None
        self._owner = os.getpid()
        self._superfluous: list[int] = []
        self._generation = 0

    def request(
        self, what: str, number: int, arguments: tuple[Any, ...], doing: str, limit: float | None = None
    ) -> Any:
        """Send a request to the process and wait for the answer.

        Args:
            what: The action.
            number: The session.
            arguments: Those of the action.
            doing: Describes the action in error messages.
            limit: Seconds to wait for the answer; `None` for `LIMIT`.

        Raises:
            CrashError: The process died.
            HangError: It did not answer in time.
            RefusalError: The runtime reports that it cannot do it.
            UnavailableError: No process can be started.
        """
        with self._lock:
            process = self._running()
            superfluous, self._superfluous = self._superfluous, []
            limit = LIMIT if limit is None else limit
            try:
                session_subprocess.send(process.stdin, (superfluous, what, number, arguments))  # type: ignore[arg-type]
                succeeded, result = self._answer(process, limit)
            except TimeoutError:
                self.stop()
                raise HangError(f"ONNX Runtime hangs when it {doing}: no answer after {limit:.0f} s") from None
            except (EOFError, OSError):
                code = _ended(process)
                self.stop()
                raise CrashError(f"ONNX Runtime crashes when it {doing} ({_cause(code)})") from None
            except BaseException:  # the next request must not receive the answer to this one
                self.stop()
                raise
        if not succeeded:
            raise RefusalError(result)
        return result

    def forget(self, number: int) -> None:
        """Mark a session as no longer needed; the process is told with the next request."""
        self._superfluous.append(number)

    def generation(self) -> int:
        """The number of the process; sessions of other processes no longer exist."""
        with self._lock:
            if self._process is not None and (os.getpid() != self._owner or self._process.poll() is not None):
                self.stop()  # it belongs to the process that this one was forked from, or was killed meanwhile
            return self._generation

    def start(self) -> None:
        """Start the process in the background, so that it is ready when needed."""
        with self._lock, contextlib.suppress(UnavailableError):
            self._started()

    def wait(self) -> None:
        """Start the process, and wait until it is ready.

        Raises:
            UnavailableError: No process can be started.
        """
        with self._lock:
            self._running()

    def stop(self) -> None:
        """End the process to free its memory and processor time; the next request starts a new one."""
        with self._lock:
            process, self._process = self._process, None
            if process is None:
                return
            self._generation += 1
            if os.getpid() == self._owner:
                process.kill()
                process.wait()
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    stream.close()  # type: ignore[union-attr]

    def log(self) -> str:
        """The standard error of the current process, or of the last one."""
        if self._log is None:
            return ""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def _running(self) -> subprocess.Popen[bytes]:
        process = self._started()
        if not self._ready:
            try:
                self._answer(process, _START)
            except (EOFError, OSError, TimeoutError) as error:
                self.stop()
                raise UnavailableError from error
            self._ready = True
        return process

    def _started(self) -> subprocess.Popen[bytes]:
        self.generation()
        if self._process is None:
            self._owner, self._ready = os.getpid(), False
            try:
                self._log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
                self._process = start(
                    [os.fspath(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log
                )
            except OSError as error:
                raise UnavailableError from error
        return self._process

    def _answer(self, process: subprocess.Popen[bytes], limit: float) -> Any:
        assert process.stdout is not None
        waiting = select.poll()
        waiting.register(process.stdout, select.POLLIN)
        if not waiting.poll(limit * 1000):
            raise TimeoutError
        return session_subprocess.receive(process.stdout, of_plain_data)


WORKER = Worker()
atexit.register(WORKER.stop)


class Remote:
    """A session in a worker process; it is reopened after another session crashed the process."""

    _count = 0

    def __init__(
        self,
        source: str | bytes,
        weights: Mapping[str, Array | InFile],
        settings: Settings,
        worker: Worker | None = None,
    ) -> None:
        Remote._count += 1
        self._number = Remote._count
        self._worker = WORKER if worker is None else worker
        self._arguments = session_subprocess.request_to_open(source, weights, settings)
        self._open()

    def _open(self) -> None:
        doing = "creates a session of the model"
        self.input_names, self.output_names = self._worker.request("open", self._number, self._arguments, doing)
        self._generation = self._worker.generation()

    def __del__(self) -> None:
        self._worker.forget(self._number)

    def run(
        self, inputs: Mapping[str, Any], only: Sequence[str] | None = None, limit: float | None = None
    ) -> list[Any]:
        """The outputs in order, or only those named; after `limit` seconds the run counts as hanging."""
        if self._generation != self._worker.generation():
            self._open()
        found: list[Any] = self._worker.request("run", self._number, (inputs, only), "executes the model", limit)
        return found

    def run_each(self, inputs: Sequence[Mapping[str, Any]]) -> list[tuple[bool, Any]]:
        """Run each of several sets of inputs: return whether it succeeds, and the outputs or the error's text."""
        if self._generation != self._worker.generation():
            self._open()
        found: list[tuple[bool, Any]] = self._worker.request("run_each", self._number, (inputs,), "executes the model")
        return found

    def placement(self) -> list[tuple[str, list[tuple[str, str, str]]]]:
        """The pieces that the graph was split into: the provider of each, and the domain, operator and name of its nodes."""
        found: list[tuple[str, list[tuple[str, str, str]]]] = self._worker.request(
            "placement", self._number, (), "tells where it executes nodes"
        )
        return found

    def end_profile(self) -> str:
        """Stop profiling; returns the path of the log."""
        return str(self._worker.request("end_profile", self._number, (), "writes the profile"))

    def take(self, inputs: Mapping[str, Any]) -> None:
        """Keep inputs for `timed`."""
        self._taken = inputs
        if self._generation != self._worker.generation():
            self._open()
        self._worker.request("take", self._number, (inputs,), "receives inputs")

    def timed(self, runs: int) -> list[float]:
        """The seconds of each of several runs on the inputs that were taken, without the exchange with the process."""
        if self._generation != self._worker.generation():
            self.take(self._taken)
        found: list[float] = self._worker.request("timed", self._number, (runs,), "executes the model")
        return found

    def peak_bytes(self) -> int:
        """The most memory that the process has held so far; 0 where the system does not tell."""
        return int(self._worker.request("peak_bytes", self._number, (), "is asked for its memory"))


def _ended(process: subprocess.Popen[bytes]) -> int:
    """The exit code of a process that no longer answers; one that goes on all the same, since it answers nonsense, is ended."""
    try:
        return process.wait(_PARTING)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _cause(code: int) -> str:
    if code == -signal.SIGKILL:
        return "signal 9, SIGKILL, which the system also sends when there is no memory left"
    return f"signal {-code}, {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
