"""Sessions of ONNX Runtime's JavaScript packages, in Node.js processes that are asked over pipes.

The runner of a target (`TargetSpec.runner`) derives its class of sessions from here. The file runs in the process for sessions
and imports nothing of ortfuse. It starts `node_sessions.mjs`, whose first lines describe the messages.

Node.js is found by the variable `ORTFUSE_NODE` or on `PATH`. A package is found in the folder that `ORTFUSE_NODE_MODULES` names,
else among those that npm installed globally: never in a folder that happens to be the working directory, whose code would run.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

Array = np.ndarray[Any, Any]

PROGRAM = Path(__file__).with_suffix(".mjs")

NODE, MODULES = "ORTFUSE_NODE", "ORTFUSE_NODE_MODULES"
"""Environment variables: the program of Node.js, and the folder `node_modules` with the package."""

_TYPES = {
    **{name: name for name in ("float32", "float64", "float16", "bool")},
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
"""Types of arrays, and what JavaScript calls them."""

_PLACED = re.compile(r"(?:Node\(s\)|All nodes) placed on \[(\w+)\]\. Number of nodes: (\d+)")
_NODE = re.compile(r"VerifyEachNodeIsAssignedToAnEp\]\s+(?:([\w.]+)::)?(\w+) \((.*)\)$")
"""Lines in the log of a session: the number of nodes on a provider, and each of them."""

_RECORDS_PLACEMENT = "session.record_ep_graph_assignment_info"
"""The entry with which a session tells its placement."""

_LEVELS = {"all": "all", "layout": "layout", "extended": "extended", "basic": "basic", "none": "disabled"}

_OPTIONS = {"enable_cpu_mem_arena": "enableCpuMemArena", "enable_mem_pattern": "enableMemPattern"}
"""Session options, and what JavaScript calls them."""

_SETTLING = 0.03
"""Seconds of runs before those that are timed."""

_LARGEST = 2**31 - 2**20
"""The most bytes of a model in memory: a serialised one cannot be larger."""

_QUOTED = 400
"""The most characters of diagnostics in an error."""


class NodeError(RuntimeError):
    """Node.js or a package is missing, has ended, or refuses what it is asked."""


def find_node() -> str:
    """Return the program of Node.js.

    Raises:
        NodeError: There is none.
    """
    named = os.environ.get(NODE, "")
    found = shutil.which(named or "node")
    if found is None:
        told = f"{NODE}={named} is no program" if named else "it is not on PATH"
        raise NodeError(f"Node.js is missing: {told}; install it (version 20 or newer), or name its program by {NODE}")
    return found


def find_package(package: str) -> Path:
    """Return the folder of an npm package.

    Raises:
        NodeError: It is not installed.
    """
    for folder in _module_folders():
        if (folder / package / "package.json").is_file():
            return folder / package
    raise NodeError(
        f"the npm package {package} is missing: run `npm install --global --ignore-scripts {package}`, "
        f"or name the folder node_modules that has it by {MODULES}"
    )


def _module_folders() -> Iterator[Path]:
    if named := os.environ.get(MODULES):
        yield Path(named).absolute()
        yield Path(named).absolute() / "node_modules"
        return
    if (npm := shutil.which("npm")) is not None:
        found = subprocess.run([npm, "root", "-g"], capture_output=True, text=True, timeout=60, check=False)
        if found.returncode == 0 and found.stdout.strip():
            yield Path(found.stdout.strip())


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


def class_for(base: Any, package: str, provider: str, environment: Mapping[str, str] | None = None) -> Any:
    """Return the class of sessions of a package.

    Args:
        base: The class of sessions in this process, which documents the methods.
        package: The npm package.
        provider: The name of the execution provider in JavaScript.
        environment: Further variables of the process.
    """

    class InNode(base):  # type: ignore[misc]
        def __init__(self, source: str | bytes, weights: Mapping[str, Any], settings: Any) -> None:
            _demand_possible(settings, provider)
            others = dict(settings.others)
            threads = int(others.pop("intra_op_num_threads", settings.threads))
            self._recording, self._placed = others.pop(_RECORDS_PLACEMENT, "0") == "1", ""
            self._source, self._options = source, js_options(settings, others, provider)
            if self._recording:
                self._options |= {"logSeverityLevel": 0}
            self._weights = {name: _as_array(one) for name, one in weights.items()}
            self._folder, self._profile = settings.folder, settings.profile
            self._spinning, self._shortest = settings.spinning, _SETTLING
            self._place = (package, threads, environment or {})
            self._taken: Mapping[str, Any] | None = None
            self._node: Node | None = None
            self._opened()

        def _opened(self) -> Node:
            """The process that has the session, which is opened again if another session has ended the former one."""
            if self._node is None or not self._node.alive:
                node = node_with(*self._place)
                self._number = node.number()
                request: dict[str, Any] = {"action": "open", "id": self._number, "options": self._options}
                path, content, external = load_arguments(self._source, self._weights, self._folder)
                request |= {"path": path, "external": external} if path else {"external": external}
                start = node.log_size()
                answer, _ = node.ask("creates a session of the model", request, [] if path else [content])
                self._placed = node.log(start) if self._recording else ""
                self._node, self.input_names, self.output_names = node, answer["inputs"], answer["outputs"]
                self._sent = False
            return self._node

        def __del__(self) -> None:
            node = getattr(self, "_node", None)
            if node is not None:
                node.superfluous.append(self._number)  # it may be amid a message of another session

        def _create(self, source: Any, options: Any, arguments: Any) -> Any:
            raise NotImplementedError(f"its sessions are those of the npm package {package}, in JavaScript")

        def placement(self) -> list[tuple[str, list[tuple[str, str, str]]]]:
            self._opened()
            return placement_in(self._placed)

        def run(
            self, inputs: Mapping[str, Any], only: Sequence[str] | None = None, limit: float | None = None
        ) -> list[Any]:
            described, buffers = to_tensors(inputs)
            request: dict[str, Any] = {"action": "run", "names": list(inputs), "described": described}
            node = self._opened()
            request |= {"id": self._number} if only is None else {"id": self._number, "only": list(only)}
            answer, content = node.ask("executes the model", request, buffers)
            return [to_array(one, data) for one, data in zip(answer["outputs"], content, strict=True)]

        def take(self, inputs: Mapping[str, Any]) -> None:
            self._taken, self._sent = dict(inputs), False

        def timed(self, runs: int) -> list[float]:
            node = self._opened()
            if not self._sent:
                assert self._taken is not None
                described, buffers = to_tensors(self._taken)
                request: dict[str, Any] = {
                    "action": "take",
                    "id": self._number,
                    "names": list(self._taken),
                    "described": described,
                }
                node.ask("receives inputs", request, buffers)
                self._sent = True
            settle = _SETTLING if self._spinning and self._shortest < _SETTLING else 0.0
            request = {"action": "timed", "id": self._number, "runs": runs, "settle": settle}
            found: list[float] = node.ask("executes the model", request)[0]["seconds"]
            self._shortest = min(found, default=self._shortest)
            return found

        def peak_bytes(self) -> int:
            return int(super().peak_bytes()) + self._opened().peak_bytes()

        def end_profile(self) -> str:
            node = self._opened()
            start = node.log_size()
            node.ask("writes the profile", {"action": "profile", "id": self._number})
            return written_profile(self._profile, node.log(start))

    return InNode


def _demand_possible(settings: Any, provider: str) -> None:
    """Refuse settings that JavaScript does not have.

    Raises:
        NodeError: There is one.
    """
    if settings.libraries:
        raise NodeError("libraries with custom operators cannot be loaded in Node.js")
    if settings.dump and provider == "wasm":
        raise NodeError("WebAssembly has no files to write the optimised model to")


def js_options(settings: Any, others: Mapping[str, Any], provider: str) -> dict[str, Any]:
    """Return session options as JavaScript has them.

    Args:
        settings: `ortfuse.runtime.session_subprocess.Settings`.
        others: Further settings by the names of the Python package; they have the last word.
        provider: The execution provider in JavaScript.
    """
    found: dict[str, Any] = {
        "executionProviders": [provider],
        "graphOptimizationLevel": _LEVELS[settings.level],
        "logSeverityLevel": 0 if settings.verbose else 4,
        "logVerbosityLevel": 0,
    }
    extra: dict[str, str] = {}
    disabled = list(settings.disabled)
    if settings.profile:
        found |= {"enableProfiling": True, "profileFilePrefix": settings.profile}
    if settings.dump:
        found["optimizedModelFilePath"] = settings.dump
    if settings.lean:
        found |= {"enableCpuMemArena": False, "enableMemPattern": False}
        extra["session.disable_prepacking"] = "1"
    for name, value in others.items():
        if "." in name:
            extra[name] = str(value)
        elif name == "graph_optimization_level":
            found["graphOptimizationLevel"] = _LEVELS[value]
        elif name == "execution_mode":
            found["executionMode"] = value
        elif name == "disabled_optimizers":
            disabled += value
        elif name in _OPTIONS:
            found[_OPTIONS[name]] = bool(value)
        elif name != "providers":
            raise NodeError(f"the session option {name} does not exist in JavaScript")
    if disabled:
        extra["optimization.disable_specified_optimizers"] = ";".join(disabled)
    return {**found, "extra": extra} if extra else found


def load_arguments(
    source: str | bytes, weights: Mapping[str, Array], folder: str
) -> tuple[str, bytes, list[dict[str, str]]]:
    """Return the path of a model, or else its bytes with the weights in it, and its data files.

    Args:
        source: The path, or a serialised model.
        weights: Weights that the serialised model does not contain.
        folder: The folder of its data files.

    Raises:
        NodeError: The model with its weights is larger than a serialised model can be.
    """
    import onnx

    if isinstance(source, str):
        model = onnx.load(source, load_external_data=False)
        return source, b"", _data_files(model, Path(source).parent)
    model = onnx.ModelProto.FromString(source)
    if sum(array.nbytes for array in weights.values()) + len(source) > _LARGEST:
        raise NodeError("the model has more than 2 GB of weights in memory, which WebAssembly does not take")
    for tensor in model.graph.initializer:
        if tensor.name in weights:
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.raw_data = weights[tensor.name].tobytes()
    return "", model.SerializeToString() if weights else source, _data_files(model, Path(folder))


def _data_files(model: Any, folder: Path) -> list[dict[str, str]]:
    """The data files of a model, by their names in it."""
    names = {
        entry.value
        for tensor in _tensors(model.graph)
        if tensor.data_location == tensor.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return [{"name": name, "file": str(folder / name)} for name in sorted(names)]


def _tensors(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            for inner in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
                yield from _tensors(inner)


def to_tensors(inputs: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[Any]]:
    """Return the types and shapes of arrays, and their content.

    Raises:
        NodeError: JavaScript has no tensors of a type, or an input is no array.
    """
    described, buffers = list[dict[str, Any]](), list[Any]()
    for name, value in inputs.items():
        if not isinstance(value, np.ndarray):
            raise NodeError(f"input {name}: JavaScript takes tensors only, no sequences or maps")
        kind = "string" if value.dtype.kind in "OUS" else _TYPES.get(value.dtype.name, "")
        if not kind:
            raise NodeError(f"input {name}: JavaScript has no tensors of {value.dtype.name}")
        described.append({"type": kind, "dims": list(value.shape)})
        texts = json.dumps([str(one) for one in value.reshape(-1)]).encode() if kind == "string" else b""
        buffers.append(texts if kind == "string" else np.ascontiguousarray(value))
    return described, buffers


def to_array(described: Mapping[str, Any], content: bytes) -> Array:
    """Return the array of a tensor."""
    kind, shape = described["type"], [int(size) for size in described["dims"]]
    if kind == "string":
        return np.array(json.loads(content), object).reshape(shape)
    if kind not in _TYPES:
        raise NodeError(f"numpy has no arrays of {kind}")
    return np.frombuffer(bytearray(content), np.dtype(kind)).reshape(shape)


def placement_in(log: str) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Return the provider of each node that the log of a session tells, with its domain, operator and name if it tells them.

    Raises:
        NodeError: It tells none.
    """
    found: list[tuple[str, list[tuple[str, str, str]]]] = []
    provider = ""
    for line in log.replace("\x1b[m", "").splitlines():
        if placed := _PLACED.search(line):
            provider = placed[1]
            if "All nodes" in line:
                found += [(provider, [("", "", "")])] * int(placed[2])
        elif provider and (node := _NODE.search(line)):
            found.append((provider, [(node[1] or "", node[2], node[3])]))
        elif "VerifyEachNodeIsAssignedToAnEp" not in line:
            provider = ""
    if not found:
        raise NodeError("the log of ONNX Runtime names no providers")
    return found


def written_profile(prefix: str, printed: str) -> str:
    """Return the path of a profile: the file that the runtime wrote, or one with what it printed instead.

    Raises:
        NodeError: There is neither.
    """
    if start := printed.find("[") + 1:
        path = Path(f"{prefix}.json")
        path.write_text(printed[start - 1 :])
        return str(path)
    files = sorted(Path(prefix).parent.glob(f"{Path(prefix).name}*.json"), key=lambda file: file.stat().st_mtime)
    if not files:
        raise NodeError("ONNX Runtime wrote no profile")
    return str(files[-1])


def _as_array(weight: Any) -> Array:
    return weight.array() if hasattr(weight, "offset") else weight  # type: ignore[no-any-return]


def _size(buffer: Any) -> int:
    return buffer.nbytes if isinstance(buffer, np.ndarray) else len(buffer)


def _one_line(text: str) -> str:
    return " ".join(text.split())


if sys.platform == "win32":
    raise NodeError("sessions in Node.js need pipes of POSIX systems")
