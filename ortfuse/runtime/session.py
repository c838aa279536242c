"""Execute models in ONNX Runtime with the settings needed for fair comparisons without log noise."""

from __future__ import annotations

import functools
import os
import re
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ortfuse.errors import CrashError, OrtfuseError, VerificationError
from ortfuse.io.convert_modelproto import separate
from ortfuse.io.installed_runtime import demand_runtime
from ortfuse.io.stored_tensor import in_file
from ortfuse.ir.enumerate_tensors import tensors
from ortfuse.runtime.current_execution_target import execution_target
from ortfuse.runtime.function_expansion_limit import demand_bounded
from ortfuse.runtime.int8_kv_caches import Rounding, integer_caches
from ortfuse.runtime.random_seeds import is_seeded
from ortfuse.runtime.session_subprocess import InFile, Loaded, Settings, session_class
from ortfuse.runtime.unrepresentable_models import AsItIs, Runnable
from ortfuse.runtime.worker import WORKER, Remote, UnavailableError
from ortfuse.targets import libraries, with_functions
from ortfuse.targets.processor import demand_threads

Arrays = dict[str, np.ndarray[Any, Any]]

SHARED = 1 << 10
"""Weights of at least this many bytes are passed to the runtime in place instead of being serialised."""

LARGEST = 1 << 30
"""Models with more bytes of weights in memory are not run in another process, since the copy would take too much room and time.

Weights in files do not count, because the other process reads them itself.
"""

STAND_IN = 1 << 16
"""Weights of at least this many bytes are too large to be anything but numbers: zeros can stand for them while loading."""

USED: Counter[str] = Counter()
"""How many sessions were created (`sessions`), and how often one was run (`runs`), since this process began."""

_SHAREABLE = frozenset(
    {ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.INT8, ir.DataType.UINT8,
     ir.DataType.INT16, ir.DataType.UINT16, ir.DataType.INT32, ir.DataType.UINT32, ir.DataType.INT64,
     ir.DataType.UINT64, ir.DataType.BOOL}
)  # fmt: skip
_OF_SIZES = frozenset({ir.DataType.INT32, ir.DataType.INT64})
"""The types of tensors whose numbers the runtime looks at when it infers shapes, which it cannot do outside of the model."""

_LONGEST = 400
_UNREGISTERED = "is not a registered function/op"
_BOILERPLATE = (
    (re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : "), ""),
    (
        re.compile(r"Non-zero status code returned while running (\w+) node\. Name:'([^']*)' Status Message:"),
        r"\1 '\2':",
    ),
    (re.compile(r"\S+\.(?:cc|h):\d+ (?:[^()]*::[^()]*\([^()]*\)(?: const)?(?:::<lambda\([^()]*\)>)? )?"), ""),
)


class Session:
    """A session, which runs in a separate process (`ortfuse.runtime.worker`) unless that is disabled.

    A model in memory reaches the runtime without its weights being written to a file, whatever their size, and within this
    process without being copied either.
    """

    def __init__(
        self,
        model: Runnable | str | os.PathLike[str] | bytes,
        *,
        optimise: bool = True,
        threads: int = 0,
        providers: Sequence[str] = (),
        profile: str | os.PathLike[str] = "",
        disabled: Collection[str] = (),
        dump: str | os.PathLike[str] = "",
        verbose: bool = False,
        lean: bool = False,
        isolated: bool = True,
        weightless: bool = False,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Load `model`.

        Args:
            model: A model, the path of one, or a serialised model.
            optimise: Whether the runtime applies its own optimisations.
            threads: Threads per operator; 0 leaves the choice to the runtime.
            providers: The execution providers; by default those of the target for which models are executed.
            profile: Path prefix of a file that logs every executed node; see `end_profile`.
            disabled: Names of runtime optimisers to disable.
            dump: Path to write the model to, as the runtime executes it.
            verbose: Whether the runtime logs its actions; see `log`.
            lean: Whether to prepare for a single run: no memory arena, and no weights repacked for the kernels.
            isolated: Whether to run in the worker process, so that a crash becomes an error; latencies are measured without it.
                A model with more than `LARGEST` bytes of weights in memory always runs in this process, as does any model if no
                worker can be started.
            weightless: Whether zeros stand for all large weights, which is enough to see whether a model loads.
            settings: Further settings by the runtime's names (`ortfuse.runtime.session_subprocess.configure`), which have
            the last word.

        Raises:
            CrashError: The runtime crashes on the model.
            ExpansionError: Calls of functions stand for too many nodes, so that the runtime is not asked.
            OptionError: There are more threads than ever run.
            VerificationError: The runtime refuses the model.
        """
        target = execution_target()
        asked = Settings(
            level="all" if optimise else "none",
            threads=demand_threads(threads),
            providers=tuple(providers) or target.session_providers(),
            disabled=tuple(disabled),
            profile=os.fspath(profile),
            dump=os.fspath(dump),
            verbose=verbose,
            lean=lean,
            libraries=libraries(),
            runner=target.runner_file,
            folder=zeros_folder() if weightless else "",
            others=tuple({**target.session_settings, **(settings or {})}.items()),
        )
        try:
            source, weights = (
                separated(with_functions(model), weightless=weightless)
                if isinstance(model, ir.Model)
                else (_source(model), {})
            )
            self._open = functools.partial(opened, source, weights, asked, isolated)
            self._runs = self._open()
            USED["sessions"] += 1
        except OrtfuseError:
            raise
        except Exception as error:
            raise VerificationError(f"ONNX Runtime refuses the model: {shortened(error)}") from error
        self.input_names, self.output_names = self._runs.input_names, self._runs.output_names
        self._rounding = Rounding(integer_caches(model))
        self._is_new, self._is_seeded = True, isinstance(model, ir.Model) and is_seeded(model)

    def run(
        self, inputs: Mapping[str, Any], only: Sequence[str] | None = None, *, limit: float | None = None
    ) -> Arrays:
        """All outputs by name, or only some of them.

        Args:
            inputs: Arrays (lists of arrays for sequences) by name; unknown names are ignored. Caches in float32 are rounded
                where the model says that its own are 8-bit integers.
            only: The names of the outputs that are wanted; `None` for all. The runtime takes none for all, too.
            limit: Seconds after which a run in another process counts as hanging; `None` for the usual limit.

        Raises:
            CrashError: The runtime crashes while executing the model on these inputs.
            VerificationError: The runtime cannot execute the model on these inputs; the message quotes the runtime.
        """
        if only is not None and not only:
            return {}
        given = self._given(inputs)
        USED["runs"] += 1
        if self._is_seeded and not self._is_new:
            self._runs = self._open()
        self._is_new = False
        try:
            results = self._runs.run(given, only, limit)
        except CrashError:
            raise
        except Exception as error:
            raise VerificationError(_not_executed(error)) from error
        return dict(zip(self.output_names if only is None else only, results, strict=True))

    def run_each(self, inputs: Sequence[Mapping[str, Any]]) -> Iterator[Arrays | str]:
        """For each of several small sets of inputs all outputs by name, or why the runtime cannot execute the model on them.

        The process is asked once for all of them or, if it crashes, for one after the other as the results are taken.
        """
        given = [self._given(one) for one in inputs]
        USED["runs"] += len(given)
        try:
            tried = self._runs.run_each(given)
        except CrashError:
            yield from map(self._run_or_reason, given)
            return
        for succeeded, found in tried:
            yield dict(zip(self.output_names, found, strict=True)) if succeeded else _not_executed(found)

    def _given(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return self._rounding.given({name: inputs[name] for name in self.input_names if name in inputs})

    def _run_or_reason(self, inputs: Mapping[str, Any]) -> Arrays | str:
        try:
            return self.run(inputs)
        except VerificationError as error:
            return str(error)

    def timed(self, inputs: Mapping[str, Any] | None, runs: int) -> list[float]:
        """The seconds of each of several runs, without the exchange with the process that executes them.

        Args:
            inputs: Arrays by name as for `run`; `None` for those of the last time.
            runs: How many.

        Raises:
            CrashError: The runtime crashes while executing the model on these inputs.
            VerificationError: The runtime cannot execute the model on these inputs; the message quotes the runtime.
        """
        try:
            if inputs is not None:
                self._runs.take(self._given(inputs))
            USED["runs"] += runs
            return self._runs.timed(runs)
        except CrashError:
            raise
        except Exception as error:
            raise VerificationError(_not_executed(error)) from error

    def placement(self) -> list[tuple[str, list[tuple[str, str, str]]]]:
        """The pieces that the graph was split into: the provider of each, and the domain, operator and name of its nodes.

        The session needs the entry `RECORDS_PLACEMENT` of `ortfuse.runtime.session_subprocess` among its settings.

        Raises:
            VerificationError: The runtime does not tell.
        """
        try:
            return self._runs.placement()
        except CrashError:
            raise
        except Exception as error:
            raise VerificationError(f"ONNX Runtime does not tell the placement of nodes: {shortened(error)}") from error

    def end_profile(self) -> Path:
        """Stop profiling; returns the path of the log (JSON in Chrome's trace format)."""
        return Path(self._runs.end_profile())

    def peak_bytes(self) -> int:
        """The most bytes of memory that the process of the session has held so far; 0 if the system does not tell."""
        return self._runs.peak_bytes()


def opened(
    source: str | bytes, weights: Mapping[str, ir.TensorProtocol], settings: Settings, isolated: bool
) -> Loaded | Remote:
    """A session in the worker process, or in this one.

    Raises:
        ExpansionError: Calls of functions stand for too many nodes.
        TargetError: No runtime is installed.
    """
    demand_runtime()
    demand_bounded(source)
    if isolated:
        given = {name: _in_file(tensor) or tensor for name, tensor in weights.items()}
        if sum(tensor.nbytes for tensor in given.values() if not isinstance(tensor, InFile)) <= LARGEST:
            try:
                return Remote(
                    source, {n: t if isinstance(t, InFile) else _array(t) for n, t in given.items()}, settings
                )
            except UnavailableError:
                pass
    made: Loaded = session_class(settings.runner)(
        source, {name: _array(tensor) for name, tensor in weights.items()}, settings
    )
    return made


def _in_file(tensor: ir.TensorProtocol) -> InFile | None:
    """The location where another process can read a weight; `None` if there is none."""
    place = in_file(tensor)
    path = None if place is None else place.file.unchanged_path()
    if place is None or path is None:
        return None
    return InFile(path, place.offset, tensor.dtype.numpy().name, tuple(tensor.shape.numpy()))


def _array(tensor: ir.TensorProtocol) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(tensor.numpy()).reshape(tensor.shape.numpy())


def separated(model: ir.Model, *, weightless: bool = False) -> tuple[bytes, dict[str, ir.TensorProtocol]]:
    """The serialised model without its larger weights, and those weights; without the largest, if zeros stand for them."""
    proto, weights = separate(model, SHARED)
    shared: dict[str, ir.TensorProtocol] = {}
    # The runtime drops unused initializers before it looks up the weights passed to it.
    idle = {
        value.name
        for value in model.graph.initializers.values()
        if not (value.uses() or value.is_graph_output() or value.is_graph_input())
    }
    for header, tensor in weights:
        if header.name in idle:
            continue
        initializer = proto.graph.initializer.add()
        initializer.CopyFrom(header)
        if tensor is None:
            continue
        if weightless and tensor.nbytes >= STAND_IN:
            refer_to_zeros(initializer, tensor.nbytes)
            continue
        if tensor.dtype not in _SHAREABLE or (tensor.dtype in _OF_SIZES and tensor.nbytes < STAND_IN):
            initializer.raw_data = tensor.tobytes()
            continue
        initializer.data_location = onnx.TensorProto.EXTERNAL
        initializer.external_data.add(key="location", value="memory")
        shared[initializer.name] = tensor
    return bytes(proto.SerializeToString()), shared


_ZEROS = "zeros"


@functools.cache
def _zeros() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="ortfuse")


def zeros_folder() -> str:
    """The folder with the file of zeros that stand for large weights. It has no blocks, and the runtime maps it."""
    (Path(_zeros().name) / _ZEROS).touch()
    return _zeros().name


def refer_to_zeros(initializer: onnx.TensorProto, size: int) -> None:
    """Let a tensor have its data in the file of zeros."""
    path = Path(zeros_folder()) / _ZEROS
    if path.stat().st_size < size:
        os.truncate(path, size)
    initializer.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": _ZEROS, "offset": "0", "length": str(size)}.items():
        initializer.external_data.add(key=key, value=value)


def log() -> str:
    """The runtime's log of the last session that was loaded with `verbose`."""
    return WORKER.log()


def _source(model: AsItIs | str | os.PathLike[str] | bytes) -> str | bytes:
    source = model.source if isinstance(model, AsItIs) else model
    return source if isinstance(source, bytes) else str(Path(source).absolute())


def weight_bytes(model: Runnable) -> int:
    """The bytes of all initializers and constants, those of bodies and functions too."""
    if isinstance(model, AsItIs):
        return model.size
    return sum(slot.tensor.nbytes for slot in tensors(model))


def _not_executed(error: BaseException | str) -> str:
    return f"ONNX Runtime cannot execute the model: {shortened(error)}"


def shortened(error: BaseException | str) -> str:
    """Condense one of the runtime's long messages to one line, without error codes and source locations."""
    text = " ".join(str(error).split()) or type(error).__name__
    for boilerplate, rest in _BOILERPLATE:
        text = boilerplate.sub(rest, text)
    text = text if len(text) <= _LONGEST else text[:_LONGEST] + "..."
    return f"{text}; --custom-ops LIBRARY names a library that has it" if _UNREGISTERED in text else text
