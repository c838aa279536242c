"""A process of Node.js with a package: requests and answers over pipes; `node_process.mjs` describes the messages."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from .find_packages import NodeError, find_node, find_package

PROGRAM = Path(__file__).with_suffix(".mjs")

_QUOTED = 400
"""The most characters of diagnostics in an error."""


@dataclass(eq=False)
class Node:
    """A process of Node.js with a package.

    Attributes:
        package: The folder of the package.
        threads: Threads per operator; 0 leaves the choice to the package.
        environment: Further variables of the process.
        superfluous: The numbers of sessions to close before the next request.
    """

    package: Path
    threads: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    superfluous: list[int] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - as long as the process
        self._count = 0
        reading, writing = os.pipe()
        try:
            self._process = subprocess.Popen(
                [find_node(), str(PROGRAM), str(self.package), str(writing), str(self.threads)],
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(writing,),
                env={**os.environ, **self.environment},
            )
        except OSError as error:
            os.close(reading)
            raise NodeError(f"Node.js cannot be started: {error}") from error
        finally:
            os.close(writing)
        self._answers = os.fdopen(reading, "rb")
        answer, _ = self._answer("starts")
        if not answer["ok"]:
            self.end()
            raise NodeError(f"Node.js cannot load {self.package}: {_one_line(answer['error'])}")

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def peak_bytes(self) -> int:
        """The most memory that the process has held so far; 0 where the system does not tell."""
        try:
            lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        except OSError:
            return 0
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)

    def number(self) -> int:
        """A number for a new session."""
        self._count += 1
        return self._count

    def ask(
        self, doing: str, request: Mapping[str, Any], buffers: Sequence[Any] = ()
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Send a request; returns the answer and its buffers.

        Args:
            doing: Describes the action in error messages.
            request: The action and its arguments.
            buffers: Bytes or contiguous arrays.

        Raises:
            NodeError: The package refuses it, or the process ends.
        """
        while self.superfluous and self.alive:
            with contextlib.suppress(NodeError):
                self._asked("closes a session", {"action": "close", "id": self.superfluous.pop()}, ())
        return self._asked(doing, request, buffers)

    def _asked(
        self, doing: str, request: Mapping[str, Any], buffers: Sequence[Any]
    ) -> tuple[dict[str, Any], list[bytes]]:
        parts: list[Any] = [memoryview(one).cast("B") if _size(one) else memoryview(b"") for one in buffers]
        head = json.dumps({**request, "buffers": [part.nbytes for part in parts]}).encode()
        stream = self._process.stdin
        assert stream is not None
        try:
            for part in (struct.pack("<I", len(head)), head, *parts):
                stream.write(part)
            stream.flush()
        except OSError:
            raise self._ended(doing) from None
        answer, content = self._answer(doing)
        if not answer["ok"]:
            # A trap of WebAssembly leaves its memory in an unknown state, in which every further run may go wrong.
            if answer.get("kind") == "RuntimeError" or "Aborted(" in answer["error"]:
                self.end()
            raise NodeError(_one_line(answer["error"]))
        return answer, content

    def log_size(self) -> int:
        """The bytes that the process has written to its standard output and error."""
        return os.fstat(self._log.fileno()).st_size

    def log(self, start: int = 0) -> str:
        """The text that the process has written to its standard output and error, from a byte on."""
        return os.pread(self._log.fileno(), self.log_size() - start, start).decode(errors="replace")

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()

    def _answer(self, doing: str) -> tuple[dict[str, Any], list[bytes]]:
        start = self._answers.read(4)
        if len(start) < 4:
            raise self._ended(doing)
        text = self._answers.read(struct.unpack("<I", start)[0])
        try:
            answer = json.loads(text)
            buffers = [self._answers.read(size) for size in answer["buffers"]]
        except ValueError:
            raise self._ended(doing) from None
        if [len(one) for one in buffers] != answer["buffers"]:
            raise self._ended(doing)
        return answer, buffers

    def _ended(self, doing: str) -> NodeError:
        """The error for a process that is gone, with the last line of its diagnostics."""
        self._process.kill()
        code = self._process.wait()
        lines = [line.strip() for line in self.log().splitlines() if line.strip()]
        said = next((line for line in lines if "Error" in line), lines[-1] if lines else "")
        cause = f"signal {-code}" if code < 0 else f"exit code {code}"
        return NodeError(f"Node.js ends when it {doing} ({cause})" + (f": {said[:_QUOTED]}" if said else ""))


_running: dict[tuple[str, int, tuple[tuple[str, str], ...]], Node] = {}


def node_with(package: str, threads: int, environment: Mapping[str, str]) -> Node:
    """Return a running process with a package, a number of threads and further variables: sessions share one."""
    key = (package, threads, tuple(sorted(environment.items())))
    found = _running.get(key)
    if found is None or not found.alive:
        found = _running[key] = Node(find_package(package), threads, environment)
    return found


def _size(buffer: Any) -> int:
    return buffer.nbytes if isinstance(buffer, np.ndarray) else len(buffer)


def _one_line(text: str) -> str:
    return " ".join(text.split())
