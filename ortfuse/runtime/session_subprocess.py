"""Subprocess that creates and runs ONNX Runtime sessions on request.

`ortfuse.runtime.worker` runs this file as that program. It imports nothing from ortfuse, so that the process is ready in a
fifth of a second, and imports the runtime only where it is used, since that takes as long as most runs.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import pickle
import runpy
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Literal, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

_BEYOND_NUMPY: Mapping[str, tuple[str, int]] = {
    "tensor(bfloat16)": ("bfloat16", 16),
    "tensor(float8e4m3fn)": ("float8_e4m3fn", 17),
    "tensor(float8e4m3fnuz)": ("float8_e4m3fnuz", 18),
    "tensor(float8e5m2)": ("float8_e5m2", 19),
    "tensor(float8e5m2fnuz)": ("float8_e5m2fnuz", 20),
    "tensor(float8e8m0)": ("float8_e8m0fnu", 24),
}
"""Types of which the runtime exchanges values of its own, but no numpy arrays: names in ml_dtypes, numbers in TensorProto."""

_NUMBERS = dict(_BEYOND_NUMPY.values())
_ALIGNMENT = 16

Level = Literal["all", "basic", "none"]
"""The runtime's own optimisations at session creation."""

_LEVELS: Mapping[Level, str] = {"all": "ORT_ENABLE_ALL", "basic": "ORT_ENABLE_BASIC", "none": "ORT_DISABLE_ALL"}

_SPIN = 10_000
"""Microseconds for which threads spin where they may: the runtime's own choice is five times that, and has to be waited for."""

_STOPPED = "session.force_spinning_stop"
"""The entry with which threads stop to wait busily at the end of a run."""

_LOOK = 0.01
"""Seconds between two looks at whether threads spin: systems count the time of other threads about as often."""

_IDLE = 0.2
"""A process that uses less than this share of a processor is idle."""

_LONGEST_SPIN = 0.5
"""Seconds after which that threads use the processor is no longer taken for spinning."""

_SETTLING = 0.03
"""Seconds of runs until the system has put threads that wait busily on processors of their own: the runtime binds its threads to
processors unless it is told how many to take, and the thread that calls it may be woken on one of these. Runs of 3 milliseconds
take 9 until then."""

RECORDS_PLACEMENT = "session.record_ep_graph_assignment_info"
"""The entry with which a session tells its `placement`."""

_TOGETHER = 1 << 16
"""Messages of up to this many bytes are sent in one piece."""


@dataclass(frozen=True)
class Settings:
    """The settings of a session.

    Attributes:
        providers: The execution providers, the preferred one first.
        level: Which of its own optimisations the runtime applies.
        threads: Threads per operator; 0 leaves the choice to the runtime.
        disabled: Names of runtime optimisers to disable.
        profile: Path prefix of a file that logs every executed node; empty for none.
        dump: Path to write the model to, as the runtime executes it; empty for none.
        verbose: Whether the runtime logs its actions to the standard error of the process.
        lean: Whether to prepare for a single run: no memory arena, and no weights repacked for the kernels.
        libraries: Paths of libraries with kernels for custom operators.
        runner: The path of the Python file with the class of the session (`session_class`); empty for `Loaded`.
        folder: Where the external data of a serialised model are; empty for none.
        spinning: Whether threads wait busily for the next run, as the runtime's default is, but no longer than the gaps in short
            runs are. Otherwise they do not, so that they do not slow down other sessions of the process.
        others: Further settings by the runtime's names, as `configure` takes them; they have the last word.
    """

    providers: tuple[str, ...]
    level: Level = "all"
    threads: int = 0
    disabled: tuple[str, ...] = ()
    profile: str = ""
    dump: str = ""
    verbose: bool = False
    lean: bool = False
    libraries: tuple[str, ...] = ()
    runner: str = ""
    folder: str = ""
    spinning: bool = False
    others: tuple[tuple[str, Any], ...] = ()


_ENUMS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "execution_mode": ("ExecutionMode", {"sequential": "ORT_SEQUENTIAL", "parallel": "ORT_PARALLEL"}),
    "graph_optimization_level": (
        "GraphOptimizationLevel",
        {
            "all": "ORT_ENABLE_ALL", "layout": "ORT_ENABLE_LAYOUT", "extended": "ORT_ENABLE_EXTENDED",
            "basic": "ORT_ENABLE_BASIC", "none": "ORT_DISABLE_ALL",
        },
    ),
}  # fmt: skip

_ARGUMENTS = ("providers", "disabled_optimizers")


def configure(options: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Put settings into the runtime's `SessionOptions`; returns those that are arguments of `InferenceSession` instead.

    Args:
        options: `onnxruntime.SessionOptions`.
        settings: Attributes of the options by name (enumerations as words: `"parallel"`, `"basic"`), configuration entries, whose
            names have a dot, `providers` and `disabled_optimizers`.
    """
    import onnxruntime

    for name, value in settings.items():
        if "." in name:
            options.add_session_config_entry(name, value)
        elif name in _ENUMS:
            kind, members = _ENUMS[name]
            setattr(options, name, getattr(getattr(onnxruntime, kind), members[value]))
        elif name not in _ARGUMENTS:
            setattr(options, name, value)
    return {name: list(settings[name]) for name in _ARGUMENTS if name in settings}


class InFile(NamedTuple):
    """A weight stored in a file: its element type (numpy's name), its shape, and the location of its bytes."""

    path: str
    offset: int
    dtype: str
    shape: tuple[int, ...]

    def array(self) -> Array:
        """The weight, memory-mapped if it is suitably aligned in the file."""
        mapped = np.memmap(self.path, np.dtype(self.dtype), "r", self.offset, self.shape)
        return mapped if mapped.ctypes.data % _ALIGNMENT == 0 else np.array(mapped)


class Loaded:
    """A session in this process."""

    def __init__(self, source: str | bytes, weights: Mapping[str, Array | InFile], settings: Settings) -> None:
        """Load the file at a path, or a serialised model together with the weights that it does not contain."""
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 1 if settings.verbose else 4
        options.intra_op_num_threads = settings.threads
        for library in settings.libraries:
            options.register_custom_ops_library(library)
        if settings.spinning:
            options.add_session_config_entry("session.intra_op.spin_duration_us", str(_SPIN))
        elif _STOPPED not in dict(settings.others):  # the runtime warns of entries that are given twice
            options.add_session_config_entry(_STOPPED, "1")
        self._spinning, self._shortest = settings.spinning, _SETTLING
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, _LEVELS[settings.level])
        if settings.profile:
            options.enable_profiling, options.profile_file_prefix = True, settings.profile
        if settings.dump:
            options.optimized_model_filepath = settings.dump
        if settings.folder:
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", settings.folder)
        if settings.lean:
            options.enable_cpu_mem_arena = options.enable_mem_pattern = False
            options.add_session_config_entry("session.disable_prepacking", "1")
        # The runtime reads the weights in place, so they must stay alive.
        self._weights = {name: one.array() if isinstance(one, InFile) else one for name, one in weights.items()}
        if self._weights:
            values = [ort.OrtValue.ortvalue_from_numpy(array) for array in self._weights.values()]
            options.add_external_initializers(list(self._weights), values)
        arguments: dict[str, Any] = {
            "providers": list(settings.providers),
            "disabled_optimizers": list(settings.disabled) or None,
        }
        arguments |= configure(options, dict(settings.others))
        self._session = self._create(source, options, arguments)
        self._demand_providers(arguments["providers"])
        ends = (*self._session.get_inputs(), *self._session.get_outputs())
        self._beyond_numpy = any(value.type in _BEYOND_NUMPY for value in ends)
        self.input_names = [value.name for value in self._session.get_inputs()]
        self.output_names = [value.name for value in self._session.get_outputs()]

    def _create(self, source: str | bytes, options: Any, arguments: Mapping[str, Any]) -> Any:
        """Create the runtime's session.

        Args:
            source: The path of a model file, or a serialised model.
            options: `onnxruntime.SessionOptions`.
            arguments: Further arguments of `InferenceSession`: `providers` and `disabled_optimizers`.
        """
        import onnxruntime as ort

        return ort.InferenceSession(source, options, **arguments)

    def _demand_providers(self, asked: Sequence[Any]) -> None:
        """Refuse a session from which the runtime left out a provider that it cannot start: it would run on another one."""
        names = [one if isinstance(one, str) else one[0] for one in asked]
        absent = [name for name in names if name not in self._session.get_providers()]
        if absent:
            raise RuntimeError(
                f"{absent[0]} does not start in this build: its libraries or its device are missing, or the build lacks it; "
                f"`python -c 'import onnxruntime; print(onnxruntime.get_available_providers())'` lists those that it has"
            )

    def run(
        self, inputs: Mapping[str, Any], only: Sequence[str] | None = None, limit: float | None = None
    ) -> list[Any]:
        """The outputs in order, or only those named; `limit` is that of a session in another process."""
        if not self._beyond_numpy:
            return list(self._session.run(only, inputs))
        values = {name: _to_value(array) for name, array in inputs.items()}
        return [_from_value(value) for value in self._session.run_with_ort_values(only, values)]

    def run_each(self, inputs: Sequence[Mapping[str, Any]]) -> list[tuple[bool, Any]]:
        """Run each of several sets of inputs: return whether it succeeds, and the outputs or the error's text."""
        return [_tried(self.run, given) for given in inputs]

    def placement(self) -> list[tuple[str, list[tuple[str, str, str]]]]:
        """The pieces that the graph was split into: the provider of each, and the domain, operator and name of its nodes.

        The session needs the entry `RECORDS_PLACEMENT`. A provider that compiles graphs has several nodes in a piece.
        """
        return [
            (piece.ep_name, [(node.domain, node.op_type, node.name) for node in piece.get_nodes()])
            for piece in self._session.get_provider_graph_assignment_info()
        ]

    def end_profile(self) -> str:
        """Stop profiling; returns the path of the log."""
        return str(self._session.end_profiling())

    def take(self, inputs: Mapping[str, Any]) -> None:
        """Keep inputs for `timed`."""
        self._taken = dict(inputs)

    def timed(self, runs: int) -> list[float]:
        """The seconds of each of several runs on the inputs that were taken, when threads have settled.

        When it returns, no thread spins any longer.
        """
        if self._spinning and self._shortest < _SETTLING:
            settled = time.perf_counter() + _SETTLING
            while time.perf_counter() < settled:
                self.run(self._taken)
        found = []
        for _ in range(runs):
            started = time.perf_counter()
            self.run(self._taken)
            found.append(time.perf_counter() - started)
        self._shortest = min(found, default=self._shortest)
        if self._spinning:
            wait_until_idle(time.process_time, time.sleep)
        return found

    def peak_bytes(self) -> int:
        """The most memory that this process has held so far; 0 where the system does not tell."""
        return peak_bytes()


def session_class(runner: str, base: Any = Loaded) -> Any:
    """Return the class of the sessions of a target: its runner's own, or `base`.

    A runner is a Python file with a function `session_class(base)`. That returns a class with the methods of `Loaded`, from which
    it may be derived. The file is executed in the process that runs the models, and imports nothing from ortfuse.

    Args:
        runner: The path of the file; empty for none.
        base: The class of sessions without a runner.
    """
    if not runner:
        return base
    return runpy.run_path(runner)["session_class"](base)


def runtime_session(runner: str, source: str | bytes, options: Any, arguments: Mapping[str, Any]) -> Any:
    """Create the runtime's own session as a target does.

    Args:
        runner: The path of the target's runner; empty for none.
        source: The path of a model file, or a serialised model.
        options: `onnxruntime.SessionOptions`.
        arguments: Further arguments of `InferenceSession`.

    Raises:
        NotImplementedError: The runner does not run models in the runtime's Python package.
    """
    kind = session_class(runner)
    if not issubclass(kind, Loaded):
        raise NotImplementedError(f"{runner} does not run models in the Python package of ONNX Runtime")
    return kind.__new__(kind)._create(source, options, arguments)


def peak_bytes() -> int:
    """The most memory that this process has held so far; 0 where the system does not tell."""
    with contextlib.suppress(OSError, StopIteration), open("/proc/self/status") as lines:  # noqa: PTH123 - no pathlib yet
        # Unlike that of `getrusage`, this number does not begin with the memory of the process that started this one.
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def footprint(load: Any, path: str, settings: Mapping[str, Any], inputs: Mapping[str, Any]) -> int:
    """The bytes of memory that loading a model from a file and running it once take, beyond the most that there was before."""
    before = peak_bytes()
    asked = Settings(**settings)
    session = session_class(asked.runner, load)(path, {}, asked)
    session.run({name: inputs[name] for name in session.input_names if name in inputs})
    return session.peak_bytes() - before  # type: ignore[no-any-return]


def seconds_timed(seconds: float, runs: int) -> float:
    """About how long `timed` takes, if threads may spin: they settle before the runs, and wait busily after them.

    Args:
        seconds: What a run takes.
        runs: How many it makes.
    """
    settling = math.ceil(_SETTLING / seconds) * seconds if 0 < seconds < _SETTLING else 0.0
    return settling + runs * seconds + _SPIN / 1e6 + 2 * _LOOK


def wait_until_idle(used: Callable[[], float], sleep: Callable[[float], None]) -> bool:
    """Wait until this process uses the processor no longer, for `_LONGEST_SPIN` seconds at most; returns whether it came to that.

    Args:
        used: The seconds that all threads of the process have used the processor.
        sleep: Waits for so many seconds.
    """
    for _ in range(round(_LONGEST_SPIN / _LOOK)):
        before = used()
        sleep(_LOOK)
        if used() - before < _IDLE * _LOOK:
            return True
    return False


def _tried(action: Callable[..., Any], *arguments: Any) -> tuple[bool, Any]:
    """Whether an action succeeds, and its result or the error's text."""
    try:
        return True, action(*arguments)
    except Exception as error:
        return False, str(error) or type(error).__name__


def _to_value(array: Array) -> Any:
    import onnxruntime as ort

    if (number := _NUMBERS.get(array.dtype.name)) is not None:
        bits = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").reshape(array.shape)
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, number)
    return ort.OrtValue.ortvalue_from_numpy(array)


def _from_value(value: Any) -> Any:
    if value.data_type() not in _BEYOND_NUMPY:
        return value.numpy()
    import ml_dtypes

    content = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    name, _ = _BEYOND_NUMPY[value.data_type()]
    return np.frombuffer(content, getattr(ml_dtypes, name)).reshape(value.shape())


def send(stream: IO[bytes], content: Any) -> None:
    """Send an object; the data of arrays are not copied."""
    buffers: list[pickle.PickleBuffer] = []
    head = memoryview(pickle.dumps(content, 5, buffer_callback=buffers.append))
    parts: list[memoryview] = [head, *(buffer.raw() for buffer in buffers)]
    sizes = struct.pack(f"<Q{len(parts)}Q", len(parts), *(part.nbytes for part in parts))
    if sum(part.nbytes for part in parts) <= _TOGETHER:
        stream.write(b"".join((sizes, *parts)))
    else:
        stream.write(sizes)
        for part in parts:
            stream.write(part)
    stream.flush()


def receive(stream: IO[bytes], load: Callable[..., Any] = pickle.loads) -> Any:
    """Receive an object sent by `send`.

    Args:
        stream: Where it comes from.
        load: Makes an object of its bytes, with `buffers`.

    Raises:
        EOFError: The other side has closed the connection.
    """
    (count,) = struct.unpack("<Q", _read(stream, 8))
    sizes = struct.unpack(f"<{count}Q", _read(stream, 8 * count))
    content, *buffers = [_read(stream, size) for size in sizes]
    return load(content, buffers=buffers)


def _read(stream: IO[bytes], size: int) -> bytearray:
    content = bytearray(size)
    view, done = memoryview(content), 0
    while done < size:
        count = stream.readinto(view[done:])  # type: ignore[attr-defined]
        if not count:
            raise EOFError
        done += count
    return content


def serve(load: Any = Loaded) -> None:
    """Answer requests from standard input until it ends, each with whether it succeeded and the result or the error's text.

    A request consists of the numbers of sessions that are no longer needed, an action (`open`, or a method of `Loaded`), the
    number of a session, and the arguments.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends this one
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:  # noqa: PTH123 - no pathlib yet
        score.write("1000")  # where a model takes all memory, the system is to end this process, and no other
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # printed output must not get mixed into the answers
    import onnxruntime  # noqa: F401

    send(answers, None)
    sessions: dict[int, Loaded] = {}
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            superfluous, what, number, arguments = receive(sys.stdin.buffer)
            for other in superfluous:
                sessions.pop(other, None)
            send(answers, _tried(_answer, sessions, load, what, number, arguments))


def end_with(parent: int) -> None:
    """End this process when the one that started it is gone: nobody waits for a run that takes forever any more."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(0)


def _answer(sessions: dict[int, Loaded], load: Any, what: str, number: int, arguments: tuple[Any, ...]) -> Any:
    """The result of a request (see `serve`)."""
    if what == "footprint":
        return footprint(load, *arguments)
    if what != "open":
        return getattr(sessions[number], what)(*arguments)
    source, weights, settings = arguments
    found = {name: InFile(*one) if isinstance(one, tuple) else one for name, one in weights.items()}
    asked = Settings(**settings)
    sessions[number] = made = session_class(asked.runner, load)(source, found, asked)
    return made.input_names, made.output_names


def request_to_open(source: str | bytes, weights: Mapping[str, Array | InFile], settings: Settings) -> tuple[Any, ...]:
    """The arguments of a request to open a session, using only types that the other process can load."""
    return source, {n: tuple(w) if isinstance(w, InFile) else w for n, w in weights.items()}, vars(settings)


if __name__ == "__main__":
    serve()
